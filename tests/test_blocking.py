"""The client without async, over a gym in this process."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import fake_sandbox, gym_over
from trainer_client.blocking import BlockingGym
from trainer_client.endpoint import Endpoint
from trainer_client.errors import GymRefused, GymUnavailable


def play(gym: BlockingGym, index: int) -> str:
    """Plays an episode that repairs its function, and returns the status of its verdict."""
    episode = gym.create("bugfix/zero/share", "menu", run_seed=0, group="g", index=index)
    for turn, call in enumerate(("read", "edit add_zero_guard", "submit")):
        gym.step_text(episode.episode_id, turn, f"<call> {call} </call>")
    return gym.grade(episode.episode_id).verdict.status


async def test_an_episode_is_played_call_by_call_and_many_from_many_threads(tmp_path: Path) -> None:
    async with gym_over(fake_sandbox, tmp_path) as gym:
        endpoint = Endpoint(gym.running.address, gym.running.token)

        def use() -> list[str]:
            with BlockingGym.connect(endpoint) as blocking, ThreadPoolExecutor(8) as pool:
                assert blocking.get_info().capacity > 0
                return [play(blocking, 0), *pool.map(lambda index: play(blocking, index), range(16))]

        assert await asyncio.to_thread(use) == ["resolved"] * 17


async def test_errors_are_those_of_the_client(tmp_path: Path) -> None:
    async with gym_over(fake_sandbox, tmp_path) as gym:
        endpoint = Endpoint(gym.running.address, gym.running.token)

        def use() -> None:
            with BlockingGym.connect(endpoint) as blocking, pytest.raises(GymRefused, match="NOT_FOUND"):
                blocking.create("bugfix/none", "menu", run_seed=0, group="g", index=0)
            with pytest.raises(GymRefused), BlockingGym.connect(Endpoint(endpoint.address, "wrong")):
                pass

        await asyncio.to_thread(use)
    with pytest.raises(GymUnavailable), BlockingGym.connect(endpoint):
        pass


async def test_what_is_still_open_at_the_end_is_given_back(tmp_path: Path) -> None:
    """Whatever ends the block."""
    async with gym_over(fake_sandbox, tmp_path) as gym:
        endpoint = Endpoint(gym.running.address, gym.running.token)

        def use() -> None:
            with BlockingGym.connect(endpoint) as blocking:
                blocking.create("bugfix/zero/share", "menu", run_seed=0, group="g", index=0)
                raise KeyError("the trainer's own fault")

        with pytest.raises(KeyError):
            await asyncio.to_thread(use)
        assert (await gym.info()).live_episodes == 0


async def test_an_episode_can_have_tighter_limits_and_no_looser_ones(tmp_path: Path) -> None:
    async with gym_over(fake_sandbox, tmp_path) as gym:
        endpoint = Endpoint(gym.running.address, gym.running.token)

        def use() -> None:
            with BlockingGym.connect(endpoint) as blocking:

                def create(**limits: float) -> str:
                    created = blocking.create(
                        "bugfix/zero/share", "coding", run_seed=0, group="g", index=0, limits=limits
                    )
                    return created.episode_id

                create(output_bytes=5000, command_timeout_seconds=1.5)
                create(memory_bytes=64 << 20, cpus=0.5)
                with pytest.raises(GymRefused, match="memory_bytes"):
                    create(memory_bytes=1 << 50)
                with pytest.raises(ValueError, match="no limit memory: choose from memory_bytes"):
                    create(memory=1)

        await asyncio.to_thread(use)


async def test_who_calls_where_nobody_can_answer_is_told_so(tmp_path: Path) -> None:
    """After the end, and in the client's own event loop."""
    async with gym_over(fake_sandbox, tmp_path) as gym:
        endpoint = Endpoint(gym.running.address, gym.running.token)

        def use() -> None:
            with BlockingGym.connect(endpoint) as blocking:

                async def call(client: object) -> None:
                    blocking.get_info()

                with pytest.raises(RuntimeError, match="own event loop"):
                    blocking.run(call)
                episode = blocking.create("bugfix/zero/share", "menu", run_seed=0, group="g", index=0)
            with pytest.raises(GymUnavailable, match="closed"):
                blocking.step_text(episode.episode_id, 0, "<call> read </call>")
            with pytest.raises(GymUnavailable, match="closed"):
                blocking.get_info()

        await asyncio.wait_for(asyncio.to_thread(use), 30)


def test_a_connection_of_the_parent_is_refused_in_a_child() -> None:
    """So is a new one: gRPC hangs or crashes in the child of a process that has connected."""
    script = """
import asyncio, os
from trainer_client.blocking import BlockingGym, _background_loop, process_gym
gym = BlockingGym(None, _background_loop())
if not (child := os.fork()):
    for attempt in (lambda: gym.run(lambda client: asyncio.sleep(0)), process_gym):
        try:
            attempt()
        except RuntimeError as error:
            if "by spawn" in str(error):
                continue
        os._exit(1)
    os._exit(7)
gym.run(lambda client: asyncio.sleep(0))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    forked = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, timeout=60)
    assert forked.stdout == "7\n", forked.stderr


async def test_work_is_awaited_in_an_event_loop_of_the_callers_own(tmp_path: Path) -> None:
    async with gym_over(fake_sandbox, tmp_path) as gym:
        connection = BlockingGym.connect(Endpoint(gym.running.address, gym.running.token))
        blocking = await asyncio.to_thread(connection.__enter__)
        try:
            infos = await asyncio.gather(*(blocking.do(blocking.client.get_info()) for _ in range(3)))
        finally:
            await asyncio.to_thread(connection.__exit__, None, None, None)

    assert [info.capacity for info in infos] == [4] * 3


async def test_a_process_has_one_connection_that_gives_back_what_is_open_when_it_ends(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.touch(0o600)
    code = """
from trainer_client.blocking import process_gym
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as threads:
    gym, *others = [each.result() for each in [threads.submit(process_gym) for _ in range(8)]]
assert {gym} == set(others)
gym.create("bugfix/zero/share", "menu", run_seed=0, group="g", index=0)
print(gym.get_info().live_episodes)
"""
    async with gym_over(fake_sandbox, tmp_path) as gym:
        secret.write_text(gym.running.token)
        variables = {**os.environ, "GYM_ADDRESS": gym.running.address, "GYM_TOKEN_FILE": str(secret)}
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables
        )
        said, complained = await program.communicate()

        assert (said.decode(), complained.decode()) == ("1\n", "")
        assert (await gym.info()).live_episodes == 0
