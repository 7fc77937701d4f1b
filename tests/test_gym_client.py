import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.callers import TokenBook
from gym_service.errors import TooLarge
from gym_service.state import TOKENS_FILE
from tests.conftest import fake_sandbox, gym_over
from tests.fake_gym import FakeGym, serve
from trainer_client.endpoint import Endpoint, find_endpoint
from trainer_client.errors import EpisodeLost, GymRefused, GymUnavailable, NoGym
from trainer_client.gym import GymClient
from trainer_client.link import MAX_MESSAGE_BYTES, Link
from trainer_client.wire import Created


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GYM_STATE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
async def gym(state: Path) -> AsyncIterator[FakeGym]:
    fake = FakeGym()
    server = await serve(fake, state)
    yield fake
    await server.stop(0)


async def create(client: GymClient, index: int = 0) -> Created:
    return await client.create("fake/0", "menu", run_seed=1, group="g", index=index)


async def test_the_gym_of_this_machine_is_found_without_being_told(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        assert (await client.get_info()).capacity == 64


def test_without_a_gym_the_error_says_how_to_start_one(state: Path) -> None:
    with pytest.raises(NoGym, match="make gym-up"):
        find_endpoint()


async def test_an_endpoint_file_that_others_can_read_is_refused(gym: FakeGym, state: Path) -> None:
    (state / "endpoint.json").chmod(0o640)

    with pytest.raises(NoGym, match="read by others"):
        find_endpoint()


async def test_nothing_behind_the_endpoint_is_unavailable_at_once() -> None:
    with pytest.raises(GymUnavailable, match="make gym-up"):
        async with GymClient.connect(Endpoint("127.0.0.1:1", "")):
            pass


async def test_a_wrong_credential_is_refused(gym: FakeGym) -> None:
    endpoint = Endpoint(find_endpoint().address, "guess")

    with pytest.raises(GymRefused, match="UNAUTHENTICATED"):
        async with GymClient.connect(endpoint):
            pass


async def test_tasks_come_from_all_pages(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        tasks = await client.list_tasks("fake", "validation")

    assert [task.task_id for task in tasks] == [f"fake/{number}" for number in range(6)]
    assert {task.split for task in tasks} == {"validation"}


async def test_a_refusal_carries_the_gyms_own_reason(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        with pytest.raises(GymRefused) as refused:
            await client.list_tasks("other")

    assert (refused.value.code, refused.value.reason) == ("NOT_FOUND", "SUITE_UNKNOWN")


async def test_commands_of_one_tick_leave_in_one_message(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        episodes = await asyncio.gather(*(create(client, index) for index in range(20)))
        await asyncio.gather(*(client.step(each.episode_id, 0, [7, 1], [-1.0, -0.5]) for each in episodes))

    assert gym.batches[:2] == [20, 20]


async def test_an_episode_is_played_from_prompt_to_verdict(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        tokenizer = await client.register_tokenizer(b"tiny", "template", "<|end|>")
        created = await client.create(
            "fake/0", "menu", run_seed=1, group="g", index=0, fingerprint=tokenizer.fingerprint
        )
        assert created.prompt
        first = await client.step(created.episode_id, 0, [7, 1], [-1.0, -0.5])
        last = await client.step(created.episode_id, 1, [2, 1], [-1.0, -0.5])
        graded = await client.grade(created.episode_id)

    assert first.delta
    assert first.delta.position == len(created.prompt.token_ids) + 2
    assert last.delta is None
    assert graded.outcome.stop_reason == "submitted"
    assert graded.verdict.status == "resolved"


async def test_without_capacity_a_create_waits_until_there_is_some(gym: FakeGym) -> None:
    gym.capacity = 1
    async with GymClient.connect() as client:
        first = await create(client)
        second = asyncio.create_task(create(client, 1))
        await asyncio.sleep(0.1)
        assert not second.done()
        await client.end(first.episode_id, "cancelled")
        assert (await second).episode_id != first.episode_id


async def test_a_broken_stream_is_opened_again_and_nothing_runs_twice(gym: FakeGym) -> None:
    notices: list[str] = []
    async with GymClient.connect(on_notice=notices.append) as client:
        episodes = await asyncio.gather(*(create(client, index) for index in range(8)))
        gym.break_stream_after = 3
        steps = await asyncio.gather(*(client.step(each.episode_id, 0, [7, 1]) for each in episodes))

    assert [step.tool_results[0].text for step in steps] == ["turn 0"] * 8
    assert set(gym.executed.values()) == {1}
    assert notices == []


async def test_a_restarted_gym_is_found_again_but_its_episodes_are_lost(gym: FakeGym, state: Path) -> None:
    notices: list[str] = []
    first, second = FakeGym("one"), FakeGym("two")
    server = await serve(first, state)
    async with GymClient.connect(on_notice=notices.append) as client:
        tokenizer = await client.register_tokenizer(b"tiny", "template", "<|end|>")
        episode = await create(client)
        await server.stop(0)
        step = asyncio.create_task(client.step(episode.episode_id, 0, [7, 1]))
        await asyncio.sleep(0.3)
        server = await serve(second, state)

        with pytest.raises(EpisodeLost, match="EPISODE_UNKNOWN"):
            await step
        assert second.tokenizers == {tokenizer.fingerprint}
        await create(client)
    await server.stop(0)

    assert len(notices) == 2
    assert "does not answer" in notices[0]
    assert "is back" in notices[1]


async def test_a_gym_that_stays_away_is_given_up(state: Path) -> None:
    server = await serve(FakeGym(), state)
    async with GymClient.connect(reconnect_timeout_seconds=0.4) as client:
        episode = await create(client)
        await server.stop(0)
        with pytest.raises(GymUnavailable, match="did not come back"):
            await client.step(episode.episode_id, 0, [7, 1])
        with pytest.raises(GymUnavailable):
            await client.get_info()


async def test_leases_of_live_episodes_are_renewed(gym: FakeGym) -> None:
    async with GymClient.connect(lease_seconds=0.15) as client:
        live, ended = await create(client), await create(client, 1)
        await client.end(ended.episode_id, "cancelled")
        await asyncio.sleep(0.2)

    assert set(gym.renewed) == {live.episode_id}


async def test_closing_ends_the_episodes_that_are_still_live(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        await asyncio.gather(*(create(client, index) for index in range(5)))
        assert len(gym.live()) == 5

    assert gym.live() == []


async def test_cancelling_the_caller_leaves_the_client_usable(gym: FakeGym) -> None:
    gym.slow_seconds = 0.1
    async with GymClient.connect() as client:
        impatient = asyncio.create_task(create(client))
        await asyncio.sleep(0.02)
        impatient.cancel()
        assert (await create(client, 1)).episode_id


async def test_an_episode_that_nobody_waits_for_any_more_is_given_back_at_once(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        for _ in range(5):
            opening = asyncio.create_task(create(client))
            await asyncio.sleep(0)
            opening.cancel()
        async with asyncio.timeout(5):
            while len(gym.episodes) < 5 or gym.live():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_group_is_cancelled_and_no_other(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        doomed = [await create(client, index) for index in range(3)]
        other = await client.create("fake/0", "menu", run_seed=1, group="other", index=0)

        assert await client.cancel_group("g") == 3

        assert gym.live() == [other.episode_id]
        assert all(gym.episodes[each.episode_id].outcome for each in doomed)
        assert await client.cancel_group("g") == 0


async def test_a_tokenizer_is_sent_again_only_to_a_gym_that_has_forgotten_it(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        await client.register_tokenizer(b"tokenizer", "", "")
        gym.break_stream_after = 0
        await create(client)

        assert gym.registrations == 1

        gym.tokenizers.clear()
        gym.break_stream_after = 0
        await create(client, 1)

        assert gym.registrations == 2


async def test_a_credential_that_is_taken_back_is_told_long_before_the_gym_is_given_up(gym: FakeGym) -> None:
    async with GymClient.connect() as client:
        await create(client)
        gym.token = "another"
        gym.break_stream_after = 0

        with pytest.raises(GymRefused, match="UNAUTHENTICATED"):
            await asyncio.wait_for(create(client, 1), 30)


async def test_an_observer_reads_on_one_connection_and_is_told_that_it_may_not_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    plain = Link._open

    async def counted(link: Link) -> None:
        opened.append(link)
        await plain(link)

    monkeypatch.setattr(Link, "_open", counted)
    async with gym_over(fake_sandbox, tmp_path) as gym:
        token = TokenBook(tmp_path / TOKENS_FILE).issue("eve", "observe", 1)
        async with GymClient.connect(Endpoint(gym.running.address, token)) as client:
            for _ in range(2):
                with pytest.raises(GymRefused, match="may not call Rollout"):
                    await asyncio.wait_for(create(client), 5)
            assert (await client.get_info()).capacity == 4
    assert len(opened) == 1


async def test_a_call_outlives_the_stream_that_is_ended_beside_it(tmp_path: Path) -> None:
    async with (
        gym_over(fake_sandbox, tmp_path) as gym,
        GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client,
    ):
        # A call that takes long, on a connection that is given up for another meanwhile.
        async with gym.running.episodes._checking, gym.running.episodes._checking:
            checking = asyncio.create_task(client.check_task("bugfix/zero/share"))
            await asyncio.sleep(0.2)
            await client._link._open()
        assert (await asyncio.wait_for(checking, 20)).gold.status == "resolved"


async def test_what_fits_no_message_is_refused_and_what_does_together_is_divided(tmp_path: Path) -> None:
    async with (
        gym_over(fake_sandbox, tmp_path, capacity=40) as gym,
        GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client,
    ):
        episodes = [
            await client.create("bugfix/zero/share", "coding", run_seed=0, group="g", index=index)
            for index in range(40)
        ]
        with pytest.raises(GymRefused, match="send less"):
            await client.step_text(episodes[0].episode_id, 0, "x" * MAX_MESSAGE_BYTES)

        stepped = (client.step_text(each.episode_id, 0, "x" * 900_000) for each in episodes)

        assert len(await asyncio.wait_for(asyncio.gather(*stepped), 30)) == 40


async def test_no_answer_in_time_is_no_refusal_and_a_lasting_refusal_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        gym_over(fake_sandbox, tmp_path) as gym,
        GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client,
    ):
        async with gym.running.episodes._checking, gym.running.episodes._checking:
            request = pb.CheckTaskRequest(task_id="bugfix/zero/share")
            with pytest.raises(GymUnavailable, match=r"within 0\.2 s"):
                await client._link.call("CheckTask", request, 0.2)

        def too_large(*_: object) -> None:
            raise TooLarge("the record has more", "RECORD_TOO_LARGE")

        monkeypatch.setattr(gym.running.episodes, "read", too_large)
        with pytest.raises(GymRefused, match="RECORD_TOO_LARGE"):
            await asyncio.wait_for(client.get_episode("any"), 5)
