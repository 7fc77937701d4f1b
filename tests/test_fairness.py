"""Callers that compete: places, turns, rates, and what a caller that floods can do to another."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.callers import CALLER, Caller, TokenBook
from gym_service.ended import EndedEpisodes
from gym_service.fairness import FairQueue, FairSemaphore, Places, Turnstile
from gym_service.rollout import CommandStream
from gym_service.state import TOKENS_FILE
from tests.conftest import fake_sandbox, gym_over
from tests.test_callers import calling, refused

ANN, BEN = Caller("ann", "train"), Caller("ben", "train")
HEAVY = replace(BEN, weight=3.0)


@pytest.fixture
async def gym(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, capacity=8) as gym:
        yield gym


@pytest.fixture
def book(tmp_path) -> TokenBook:
    return TokenBook(tmp_path / TOKENS_FILE)


# --- who is served next ---


def order(queue: FairQueue[str], count: int) -> str:
    return "".join(queue.pop() for _ in range(count))


def test_who_asks_for_little_waits_for_nobodys_backlog() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push(ANN, "a")
    assert order(queue, 10) == "a" * 10

    queue.push(BEN, "b")

    assert order(queue, 2) in ("ab", "ba")


def test_what_waits_is_served_by_weight() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push(ANN, "a")
        queue.push(HEAVY, "b")

    served = order(queue, 40)

    assert served.count("b") == 30


def test_nobody_saves_up_turns_by_being_away() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(50):
        queue.pass_by(ANN)
    for _ in range(20):
        queue.push(ANN, "a")
        queue.push(BEN, "b")

    assert order(queue, 20).count("b") in (10, 11)


def test_a_large_message_is_paid_for_in_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.charge(ANN, 10)
    for _ in range(20):
        queue.push(ANN, "a")
        queue.push(BEN, "b")

    assert order(queue, 10) == "b" * 10


async def test_a_free_place_goes_to_who_had_fewer_of_them() -> None:
    semaphore = FairSemaphore(1)
    served = []

    async def work(caller: Caller) -> None:
        CALLER.set(caller)
        async with semaphore:
            served.append(caller.name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as running:
        for caller in [ANN] * 20 + [BEN] * 3:
            running.create_task(work(caller))

    assert served.index("ben") <= 2
    assert served[:8].count("ben") == 3


async def test_a_waiter_that_gives_up_takes_no_place_with_it() -> None:
    semaphore = FairSemaphore(1)
    await semaphore.__aenter__()
    waiters = [asyncio.create_task(semaphore.__aenter__()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await semaphore.__aexit__()
    # Handed to the second, which gives up before it can know.
    waiters[1].cancel()

    await asyncio.wait_for(waiters[2], 5)


async def test_a_place_is_kept_for_who_was_refused_and_has_fewer() -> None:
    places = Places(4)
    assert all(places.take(ANN) for _ in range(4))
    assert not places.take(BEN)

    places.give_back("ann")

    assert not places.take(ANN)
    assert places.take(BEN)


async def test_with_three_times_the_weight_there_are_three_times_the_places() -> None:
    places = Places(8)
    assert all(places.take(ANN) for _ in range(8))
    for _ in range(100):
        if places.take(ANN) is places.take(HEAVY) is False:
            places.give_back("ann" if places.held_by(ANN) * 3 > places.held_by(HEAVY) else "ben")

    assert (places.held_by(ANN), places.held_by(HEAVY)) in ((2, 6), (1, 6), (2, 5))


async def test_who_is_alone_has_all_places_also_after_another_has_given_up(monkeypatch) -> None:
    monkeypatch.setattr("gym_service.fairness._WANTED_SECONDS", 0.05)
    places = Places(2)
    assert places.take(ANN)
    assert places.take(ANN)
    assert not places.take(BEN)
    places.give_back("ann")
    assert not places.take(ANN)

    await asyncio.sleep(0.06)

    assert places.take(ANN)


async def test_who_has_none_gets_a_place_however_little_it_weighs() -> None:
    light, heavy = replace(ANN, weight=0.001), replace(BEN, weight=1000.0)
    places = Places(4)
    assert all(places.take(heavy) for _ in range(4))
    assert not places.take(light)

    places.give_back("ben")

    assert not places.take(heavy)
    assert places.take(light)


async def test_a_stream_whose_commands_wait_for_their_turn_is_not_idle() -> None:
    turnstile = Turnstile()
    # Others have taken what there is of this pass and of those to come.
    turnstile._left, turnstile._passing = 0, True
    command = pb.RolloutCommand(command_id="c")

    async def perform(command: pb.RolloutCommand) -> pb.RolloutResult:
        return pb.RolloutResult(command_id=command.command_id)

    async def requests():
        await turnstile.enter()
        yield pb.RolloutRequest(commands=[command])

    stream = CommandStream(
        lambda request: request.commands,
        lambda command: asyncio.create_task(perform(command)),
        lambda results: pb.RolloutResponse(results=results),
        turnstile,
        longest_silence_seconds=0.05,
        goes_on=True,
    )
    asyncio.get_running_loop().call_later(0.2, turnstile._pass)

    responses = [response async for response in stream.answer(requests())]

    assert [result.command_id for each in responses for result in each.results] == ["c"]


# --- over the wire ---


async def flood(gym, commands: int) -> tuple[list[str], asyncio.Task[None]]:
    """Sends many commands on a stream at once. Gives the names of those that are answered, as they are."""
    answered: list[str] = []
    stream = gym.stub.Rollout(metadata=gym.metadata)
    renew = pb.RenewLeasesRequest(episode_ids=["none"])

    async def write() -> None:
        for start in range(0, commands, 100):
            batch = [
                pb.RolloutCommand(command_id=str(number), renew=renew) for number in range(start, start + 100)
            ]
            await stream.write(pb.RolloutRequest(commands=batch))
        await stream.done_writing()

    async def read() -> None:
        async for response in stream:
            answered.extend(result.command_id for result in response.results)

    async def both() -> None:
        await asyncio.gather(write(), read())

    return answered, asyncio.create_task(both())


async def test_a_flood_of_one_caller_holds_no_other_up(gym, book) -> None:
    ann, ben = calling(gym, book.issue("ann", "train", 1)), calling(gym, book.issue("ben", "train", 1))
    episode = await ben.create("r1")
    floods = [await flood(ann, 5_000) for _ in range(8)]
    async with asyncio.timeout(30):
        while not any(answered for answered, _ in floods):  # noqa: ASYNC110
            await asyncio.sleep(0)

    stepped = await ben.step(episode.episode_id, 0, "<call> read </call>")

    assert stepped.observation.tool_results
    # Had it waited its turn behind what was sent before it, nearly all of that would be answered.
    assert sum(len(answered) for answered, _ in floods) < 20_000
    await asyncio.gather(*(sending for _, sending in floods))
    assert sum(len(answered) for answered, _ in floods) == 40_000


async def test_a_caller_with_a_rate_is_slowed_down_and_never_refused(gym, book) -> None:
    slow = calling(gym, book.issue("slow", "train", 1, rate=50))
    began = asyncio.get_running_loop().time()

    await asyncio.gather(*(slow.info() for _ in range(75)))

    # One second's worth is saved up; the rest comes at the rate.
    assert asyncio.get_running_loop().time() - began >= 0.45


async def test_what_is_given_up_while_it_waits_for_its_rate_is_not_counted() -> None:
    CALLER.set(replace(ANN, rate=0.1))
    turnstile = Turnstile()
    await turnstile.keep_rate()
    due = dict(turnstile._due)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turnstile.keep_rate(), 0.01)

    assert turnstile._due == pytest.approx(due)


async def test_places_that_come_free_go_to_the_caller_with_fewer(gym, book) -> None:
    ann, ben = calling(gym, book.issue("ann", "train", 1)), calling(gym, book.issue("ben", "train", 1))
    opened = [await ann.create(f"a{number}") for number in range(8)]
    assert (await refused(ben.create("b0")))[1] == "CAPACITY_REACHED"
    await ann.end(opened[0].episode_id)

    code, reason, message = await refused(ann.create("a8"))

    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "CAPACITY_REACHED")
    assert "fewer" in message
    await ben.create("b0")


async def test_a_caller_pushes_no_others_episodes_out(tmp_path, book) -> None:
    async with gym_over(fake_sandbox, tmp_path, kept_episodes=4) as gym:
        ann, ben = calling(gym, book.issue("ann", "train", 1)), calling(gym, book.issue("ben", "train", 1))
        mine = await ben.create("b")
        await ben.end(mine.episode_id)
        for number in range(20):
            await ann.end((await ann.create(f"a{number}")).episode_id)

        assert (await ben.grade(mine.episode_id)).verdict.status == pb.VERDICT_STATUS_UNRESOLVED


def test_what_is_kept_is_bounded_by_number() -> None:
    class Ended:
        owner, record_bytes, length = "ann", 10, 1

    ended = EndedEpisodes(3)
    dropped = [ended.add(Ended()) for _ in range(5)]

    assert [len(each) for each in dropped] == [0, 0, 0, 1, 1]
    assert len(ended) == 3


async def test_a_stream_on_which_nothing_can_live_any_more_is_ended(tmp_path) -> None:
    async with gym_over(fake_sandbox, tmp_path, max_lease_seconds=1) as gym:
        stream = gym.stub.Rollout(metadata=gym.metadata)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()

        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "open another" in raised.value.details()


async def test_a_caller_has_only_so_many_streams(gym, book) -> None:
    ann = calling(gym, book.issue("ann", "train", 1))
    empty = pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="x")])
    streams = [ann.stub.Rollout(metadata=ann.metadata) for _ in range(64)]
    for stream in streams:
        await stream.write(empty)
        await stream.read()

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ann.stub.Rollout(metadata=ann.metadata).read()

    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    streams[0].cancel()
    await asyncio.sleep(0.1)
    again = ann.stub.Rollout(metadata=ann.metadata)
    await again.write(empty)
    assert (await again.read()).results


async def test_strangers_at_the_health_check_hold_nobody_up_who_brings_a_token(gym) -> None:
    async with grpc.aio.insecure_channel(gym.running.address) as channel:
        check = channel.stream_unary("/grpc.health.v1.Health/Check")
        # Their messages never come.
        calls = [check() for _ in range(40)]
        await asyncio.sleep(0.2)

        assert (await asyncio.wait_for(gym.info(), 5)).capacity == 8
        for call in calls:
            call.cancel()


async def test_who_waits_for_its_rate_can_renew_its_leases(gym, book) -> None:
    slow = calling(gym, book.issue("slow", "train", 1, rate=1))
    episode = await slow.create()
    waiting = [asyncio.create_task(slow.info()) for _ in range(60)]
    await asyncio.sleep(0.1)

    request = pb.RenewLeasesRequest(episode_ids=[episode.episode_id])
    renewed = await slow.stub.RenewLeases(request, metadata=slow.metadata, timeout=10)

    assert renewed.episode_ids == [episode.episode_id]
    # The others would take a minute.
    assert not all(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
