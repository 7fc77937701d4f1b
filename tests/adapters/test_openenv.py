"""OpenEnv's own server and its own client, over the loopback device, over a gym in this process."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.adapters.place import machine_with_a_gym
from trainer_client.blocking import BlockingGym

pytest.importorskip("openenv", reason="OpenEnv is not installed: make test-adapters")

import uvicorn
from openenv.core import GenericEnvClient

from trainer_client.adapters.openenv import app

ZERO = "bugfix/zero/share"
REPAIR = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")


def in_time(happened: Callable[[], bool]) -> bool:
    """Whether it happens within half a minute."""
    until = time.monotonic() + 30
    while not happened() and time.monotonic() < until:
        time.sleep(0.02)
    return happened()


@pytest.fixture
async def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with machine_with_a_gym(tmp_path, monkeypatch) as gym:
        yield gym


@pytest.fixture
async def url(gym: BlockingGym) -> AsyncIterator[str]:
    """Where the server listens; in a thread, as the gym has this one."""
    application = await asyncio.to_thread(app)
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert await asyncio.to_thread(in_time, lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await asyncio.to_thread(thread.join)


async def test_a_repair_is_worth_1_at_the_end(url: str) -> None:
    async with GenericEnvClient(base_url=url) as env:
        opened = await env.reset(task_id=ZERO)
        assert "Repair" in opened.observation["text"]
        assert [each["role"] for each in opened.observation["messages"]] == ["system", "user"]
        steps = [await env.step({"text": text}) for text in REPAIR]
        state = await env.state()

    assert "//" in steps[0].observation["text"]
    assert [(step.reward, step.done) for step in steps] == [(None, False)] * 2 + [(1.0, True)]
    assert state["step_count"] == 3


async def test_equal_seeds_give_equal_episodes_and_others_differ(url: str) -> None:
    async with GenericEnvClient(base_url=url) as env:
        said = [
            (await env.reset(task_id=ZERO, **options)).observation["text"]
            for options in ({"seed": 1}, {"seed": 1}, {}, {}, {}, {}, {})
        ]

    assert said[0] == said[1]
    assert len(set(said)) > 2


async def test_sessions_play_beside_each_other(url: str) -> None:
    async def play() -> float | None:
        async with GenericEnvClient(base_url=url) as env:
            await env.reset(task_id=ZERO)
            for text in REPAIR:
                result = await env.step({"text": text})
            return result.reward

    assert await asyncio.gather(*(play() for _ in range(4))) == [1.0] * 4


async def test_an_episode_that_the_gym_lost_is_done_without_a_reward(url: str, gym: BlockingGym) -> None:
    """Which is not the same as 0; the session can be reset and goes on."""
    async with GenericEnvClient(base_url=url) as env:
        await env.reset(task_id=ZERO)
        state = await env.state()
        await asyncio.to_thread(gym.end, state["episode_id"], "cancelled")
        lost = await env.step({"text": REPAIR[0]})
        assert (lost.done, lost.reward) == (True, None)
        assert "EPISODE_ENDED" in str(lost.observation) + str(lost.metadata)
        await env.reset(task_id=ZERO)
        assert not (await env.step({"text": REPAIR[0]})).done


async def test_a_session_that_leaves_gives_its_episode_back(url: str, gym: BlockingGym) -> None:
    async with GenericEnvClient(base_url=url) as env:
        await env.reset(task_id=ZERO)
        assert (await asyncio.to_thread(gym.get_info)).live_episodes == 1

    assert await asyncio.to_thread(in_time, lambda: not gym.get_info().live_episodes)
