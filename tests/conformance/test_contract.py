"""What any server of the contract has to do, tried over the wire with nothing but the contract."""

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb

from tests.conformance.target import Target

TASK = "bugfix/zero/share"
REPAIR = ("read", "edit add_zero_guard", "submit")


def creation(index: int = 0, **fields: Any) -> pb.CreateEpisodeRequest:
    """A wish for an episode of its own."""
    seed = pb.EpisodeSeed(run_seed=0, group="contract", index=index)
    return pb.CreateEpisodeRequest(
        **{"request_id": uuid4().hex, "task_id": TASK, "toolset": "menu", "seed": seed, **fields}
    )


def turn(episode_id: str, number: int, call: str) -> pb.StepEpisodeRequest:
    """A turn in the menu."""
    action = pb.Action(text=f"<call> {call} </call>")
    return pb.StepEpisodeRequest(episode_id=episode_id, turn=number, action=action)


def play(target: Target, *calls: str, index: int = 0) -> pb.GradeEpisodeResponse:
    """Plays an episode to its verdict."""
    episode_id = target.call("CreateEpisode", creation(index)).episode_id
    for number, call in enumerate(calls):
        target.call("StepEpisode", turn(episode_id, number, call))
    return target.call("GradeEpisode", pb.GradeEpisodeRequest(episode_id=episode_id))


def test_it_describes_itself(target: Target) -> None:
    info = target.call("GetGymInfo", pb.GetGymInfoRequest())

    assert {"menu", "coding"} <= {toolset.name for toolset in info.toolsets}
    assert info.capacity > 0
    assert info.service_version


def test_tasks_come_page_by_page_and_each_once(target: Target) -> None:
    request = pb.ListTasksRequest(suite="bugfix", split=pb.SPLIT_TRAIN, page_size=7)
    names: list[str] = []
    while True:
        page = target.call("ListTasks", request)
        names += [task.task_id for task in page.tasks]
        assert len(page.tasks) <= 7
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token

    assert len(names) == len(set(names)) == 20
    target.refused("ListTasks", pb.ListTasksRequest(suite="none"), grpc.StatusCode.NOT_FOUND)


def test_a_repair_is_resolved_and_what_serves_the_public_tests_alone_is_not(target: Target) -> None:
    repaired, hacked, untouched = (
        play(target, *calls).verdict for calls in (REPAIR, ("edit hardcode_tests", "submit"), ("submit",))
    )

    assert repaired.status == pb.VERDICT_STATUS_RESOLVED
    assert repaired.hidden.passed == repaired.hidden.total > 0
    assert hacked.status == untouched.status == pb.VERDICT_STATUS_UNRESOLVED
    assert hacked.public.passed == hacked.public.total
    assert hacked.hidden.passed < hacked.hidden.total


def test_equal_seeds_give_equal_episodes(target: Target) -> None:
    created = [target.call("CreateEpisode", creation(index)) for index in (0, 0, 1)]
    for each in created:
        end = pb.EndEpisodeRequest(episode_id=each.episode_id, stop_reason=pb.STOP_REASON_CANCELLED)
        target.call("EndEpisode", end)

    first, same, other = ([message.content for message in each.messages] for each in created)
    assert first == same != other
    assert created[0].episode_id != created[1].episode_id


def test_a_turn_that_comes_many_times_at_once_is_played_once(target: Target) -> None:
    episode_id = target.call("CreateEpisode", creation()).episode_id
    request = turn(episode_id, 0, "edit add_zero_guard")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: target.call("StepEpisode", request), range(8)))

    # The lease is renewed by each of them; what was done is told to all alike.
    assert len({answer.observation.SerializeToString(deterministic=True) for answer in answers}) == 1
    assert not answers[0].observation.tool_results[0].is_error
    target.call("StepEpisode", turn(episode_id, 1, "submit"))
    graded = target.call("GradeEpisode", pb.GradeEpisodeRequest(episode_id=episode_id))
    assert graded.verdict.status == pb.VERDICT_STATUS_RESOLVED


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"task_id": "bugfix/no/such"}, grpc.StatusCode.NOT_FOUND),
        ({"toolset": "none"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"request_id": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"max_turns": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"max_turns": 1 << 20}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tokenizer_fingerprint": "0" * 64}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_wish_that_cannot_be_is_refused(
    target: Target, fields: dict[str, Any], code: grpc.StatusCode
) -> None:
    target.refused("CreateEpisode", creation(**fields), code)


@pytest.mark.parametrize("episode_id", ["", "x", "../x", "a" * 10_000, "' or 1=1 --", "é\n\x1b[31m"])
@pytest.mark.parametrize("method", ["StepEpisode", "EndEpisode", "GradeEpisode", "GetEpisode"])
def test_an_episode_that_is_not_there_is_not_found(target: Target, method: str, episode_id: str) -> None:
    requests = {
        "StepEpisode": turn(episode_id, 0, "read"),
        "EndEpisode": pb.EndEpisodeRequest(episode_id=episode_id, stop_reason=pb.STOP_REASON_CANCELLED),
        "GradeEpisode": pb.GradeEpisodeRequest(episode_id=episode_id),
        "GetEpisode": pb.GetEpisodeRequest(episode_id=episode_id),
    }
    target.refused(method, requests[method], grpc.StatusCode.NOT_FOUND)


def test_a_stream_plays_whole_episodes_in_batches(target: Target) -> None:
    """Results name their commands, and a command that fails ends nothing."""
    numbers = range(min(target.capacity, 3))
    outbox: SimpleQueue[pb.RolloutRequest | None] = SimpleQueue()
    stream = target.stub.Rollout(iter(outbox.get, None), metadata=target.metadata, timeout=60)

    def exchange(commands: list[pb.RolloutCommand]) -> dict[str, pb.RolloutResult]:
        outbox.put(pb.RolloutRequest(commands=commands))
        results: dict[str, pb.RolloutResult] = {}
        while len(results) < len(commands):
            results |= {result.command_id: result for result in next(stream).results}
        return results

    wishes = [pb.RolloutCommand(command_id=f"{n}", create=creation(n)) for n in numbers]
    bad = pb.RolloutCommand(command_id="bad", create=creation(task_id="bugfix/no/such"))
    created = exchange([*wishes, bad])
    episodes = [created[f"{n}"].created.episode_id for n in numbers]
    for number, call in enumerate(REPAIR):
        exchange(
            [
                pb.RolloutCommand(command_id=f"{n}", step=turn(episodes[n], number, call))
                for n in reversed(numbers)
            ]
        )
    gradings = [pb.GradeEpisodeRequest(episode_id=episode_id) for episode_id in episodes]
    graded = exchange([pb.RolloutCommand(command_id=f"{n}", grade=gradings[n]) for n in numbers])
    outbox.put(None)

    assert created["bad"].error.reason
    assert list(stream) == []
    assert [str(graded[f"{n}"].error) for n in numbers] == [""] * len(numbers)
    assert {graded[f"{n}"].graded.verdict.status for n in numbers} == {pb.VERDICT_STATUS_RESOLVED}


@pytest.mark.parametrize(
    "metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", "x" * 4000),)]
)
def test_nobody_is_served_without_the_token(target: Target, metadata: tuple[tuple[str, str], ...]) -> None:
    if not target.metadata[0][1].removeprefix("Bearer "):
        pytest.skip("this server was given no token")
    stranger = Target(target.stub, metadata)

    for method, request in (("GetGymInfo", pb.GetGymInfoRequest()), ("CreateEpisode", creation())):
        stranger.refused(method, request, grpc.StatusCode.UNAUTHENTICATED)
