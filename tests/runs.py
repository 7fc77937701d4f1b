"""Small runs of the main job in a folder of their own, over a gym in this process."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import fake_sandbox, gym_over
from trainer_client import credit as credit_module
from trainer_client import gym as gym_module
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.endpoint import Endpoint
from trainer_client.metrics import StepRow
from trainer_client.run import FINISHED, INTERRUPTED, run
from trainer_client.run_folder import RUNS, RunFolder

SMALL = RunConfig(
    steps=2,
    tasks_per_step=2,
    group_size=2,
    validate_every=2,
    validation_episodes=1,
    test_episodes=1,
    cohort_size=4,
    max_new_tokens=4,
    max_turns=2,
    epochs=1,
    mask_truncated=False,
)


@asynccontextmanager
async def folder_with_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Has runs start in an empty folder and find a gym."""
    monkeypatch.chdir(tmp_path)
    async with gym_over(fake_sandbox, tmp_path) as gym:
        endpoint = Endpoint(gym.running.address, gym.running.token)
        monkeypatch.setattr(gym_module, "find_endpoint", lambda: endpoint)
        yield


@asynccontextmanager
async def place_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Has runs start in an empty folder, find a gym, and learn something.

    A model of random weights fails every task alike, and would have nothing to learn: so every other episode counts
    as better than its group.
    """
    monkeypatch.setattr(credit_module, "group_advantages", _alternating)
    async with folder_with_gym(tmp_path, monkeypatch):
        yield


def _alternating(rewards: Sequence[float], names: Sequence[str], advantage: str) -> list[float]:
    return [1.0 if place % 2 else -1.0 for place in range(len(rewards))]


async def run_whole(config: RunConfig, name: str) -> RunFolder:
    """Plays a run in one piece and returns its folder."""
    assert await run(replace(config, name=name), False, _console()) == FINISHED
    return RunFolder(RUNS / name)


async def run_with_a_break(config: RunConfig, name: str) -> RunFolder:
    """Plays a run that is stopped after its first step and then gone on with."""
    console = _console()
    console.step = _stop  # type: ignore[method-assign]
    assert await run(replace(config, name=name), False, console) == INTERRUPTED
    assert await run(RunConfig(name=name), True, _console()) == FINISHED
    return RunFolder(RUNS / name)


def _stop(row: StepRow) -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()


def _console() -> RunConsole:
    return RunConsole(2, Console(file=io.StringIO()))
