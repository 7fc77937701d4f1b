"""SkyRL-gym's own `make`, over a gym in this process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.place import machine_with_a_gym
from trainer_client.errors import EpisodeLost

skyrl_gym = pytest.importorskip("skyrl_gym", reason="SkyRL-gym is not installed: make test-adapters")

ZERO = "bugfix/zero/share"
REPAIR = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")


def make(task_id: str = ZERO, **extras: Any) -> Any:
    """As SkyRL does with a row of its data set."""
    if "coding_gym" not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id="coding_gym", entry_point="trainer_client.adapters.skyrl:GymTextEnv")
    return skyrl_gym.make("coding_gym", env_config={"toolset": "menu"}, extras={"task_id": task_id, **extras})


@pytest.fixture
async def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with machine_with_a_gym(tmp_path, monkeypatch):

        async def in_a_thread(use: Callable[[], None]) -> None:
            await asyncio.to_thread(use)

        yield in_a_thread


async def test_a_repair_is_worth_1_at_the_end(play: Any) -> None:
    def use() -> None:
        with make() as env:
            messages, _ = env.init([{"role": "user", "content": "replaced"}])
            assert [message["role"] for message in messages] == ["system", "user"]
            steps = [env.step(action) for action in REPAIR]
            assert "//" in steps[0]["observations"][0]["content"]
            assert [(step["reward"], step["done"]) for step in steps] == [(0.0, False)] * 2 + [(1.0, True)]
            assert steps[-1]["metadata"] == {"stop_reason": "submitted", "truncated": False}
            assert env.get_metrics() == {"turns": 3}

    await play(use)


async def test_it_ends_with_the_turns_that_the_row_gives(play: Any) -> None:
    def use() -> None:
        with make(max_turns=2) as env:
            env.init([])
            steps = [env.step(REPAIR[0]) for _ in range(2)]
            assert [(step["reward"], step["done"]) for step in steps] == [(0.0, False), (0.0, True)]
            assert steps[-1]["metadata"]["truncated"]

    await play(use)


async def test_an_episode_that_the_gym_lost_has_no_reward(play: Any) -> None:
    """An error, which is not the same as 0."""

    def use() -> None:
        with make() as env:
            env.init([])
            env._gym.end(env._episode.opened.episode_id, "cancelled")
            with pytest.raises(EpisodeLost):
                env.step(REPAIR[0])

    await play(use)
