"""Gymnasium's own checks and vector environments, over a gym in this process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import fake_sandbox, gym_over
from trainer_client.blocking import BlockingGym
from trainer_client.endpoint import Endpoint
from trainer_client.errors import EpisodeLost

pytest.importorskip("gymnasium", reason="the extra gymnasium is not installed")

from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from trainer_client.adapters.gymnasium import CodingEnv

REPAIR = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[tuple[BlockingGym, CodingEnv]]:
    with BlockingGym.connect(endpoint) as gym:
        env = CodingEnv(gym, gym.list_tasks("bugfix", "train"))
        yield gym, env
        env.close()


@pytest.fixture
async def endpoint(tmp_path: Path):
    async with gym_over(fake_sandbox, tmp_path) as gym:
        yield Endpoint(gym.running.address, gym.running.token)


async def test_it_keeps_the_rules_of_gymnasium(endpoint: Endpoint) -> None:
    """Equal seeds give equal episodes, and all the rest that its checker tries."""

    def use() -> None:
        with connected(endpoint) as (_, env):
            check_env(env, skip_render_check=True)

    await asyncio.to_thread(use)


async def test_a_repair_is_worth_1_at_the_end(endpoint: Endpoint) -> None:
    def use() -> None:
        with connected(endpoint) as (_, env):
            observation, info = env.reset(seed=0, options={"task_id": "bugfix/zero/share"})
            assert "Repair" in observation
            steps = [env.step(action) for action in REPAIR]
            assert "//" in steps[0][0]
            assert [step[1:4] for step in steps] == [(0.0, False, False)] * 2 + [(1.0, True, False)]
            assert steps[-1][4]["verdict"].status == "resolved"
            assert info["task_id"] == "bugfix/zero/share"

    await asyncio.to_thread(use)


async def test_running_out_of_turns_is_no_end_of_its_own_making(endpoint: Endpoint) -> None:
    def use() -> None:
        with connected(endpoint) as (_, env):
            _, info = env.reset(seed=0)
            steps = [env.step("<call> read </call>") for _ in range(info["max_turns"])]
            assert steps[-1][1:4] == (0.0, False, True)

    await asyncio.to_thread(use)


async def test_an_episode_that_the_gym_lost_has_no_reward(endpoint: Endpoint) -> None:
    """An error, which is not the same as 0; the environment can be reset and goes on."""

    def use() -> None:
        with connected(endpoint) as (gym, env):
            env.reset(seed=0)
            assert env._episode
            gym.end(env._episode.opened.episode_id, "cancelled")
            with pytest.raises(EpisodeLost):
                env.step("<call> read </call>")
            env.reset(seed=0)
            assert env.step("<call> read </call>")[1:4] == (0.0, False, False)

    await asyncio.to_thread(use)


async def test_many_are_stepped_as_one(endpoint: Endpoint) -> None:
    def use() -> None:
        with BlockingGym.connect(endpoint) as gym:
            tasks = gym.list_tasks("bugfix", "train")
            envs = SyncVectorEnv([lambda: CodingEnv(gym, tasks)] * 4)
            envs.reset(seed=[1, 2, 3, 4])
            rewards = [envs.step((action,) * 4)[1] for action in REPAIR]
            assert [list(each) for each in rewards[:2]] == [[0.0] * 4] * 2
            envs.close()

    await asyncio.to_thread(use)
