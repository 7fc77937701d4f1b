"""Ablations as a user runs them: processes that learn from a gym in this one."""

import asyncio
import io
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.conftest import fake_sandbox, gym_over
from tests.rows import make_evaluation, make_row
from trainer_client.ablate import choose_jobs, find_ablation, lock, parse_arguments
from trainer_client.ablation import Ablation, plan, read_ablation, read_results, write_ablation
from trainer_client.config import RunConfig
from trainer_client.metrics import append_row
from trainer_client.models.tiny import build_tiny
from trainer_client.result import LAST, RAW, START
from trainer_client.run_folder import RUNS, make_run
from trainer_client.side_by_side import LOOK_SECONDS, Runs

SMALL = (
    "--steps=3",
    "--test-episodes=1",
    "--tasks-per-step=2",
    "--group-size=2",
    "--cohort-size=4",
    "--max-new-tokens=4",
    "--no-mask-truncated",
    "--max-turns=2",
    "--epochs=1",
    "--model=start",
    "--reward=fraction",
)


class Place:
    """A folder to run ablations in, with a gym that they find."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self, *flags: str) -> asyncio.subprocess.Process:
        """Starts an ablation in the background."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "trainer_client.ablate", *flags),
            cwd=self.folder,
            env=os.environ | {"GYM_STATE_DIR": "state"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, *flags: str) -> tuple[int | None, str]:
        """Plays an ablation to its end; returns status and what it printed."""
        process = await self.start(*flags)
        output, _ = await process.communicate()
        return process.returncode, output.decode()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    build_tiny(tmp_path / "start")
    async with gym_over(fake_sandbox, tmp_path, capacity=8) as gym:
        endpoint = tmp_path / "state" / "endpoint.json"
        endpoint.parent.mkdir()
        endpoint.touch(mode=0o600)
        endpoint.write_text(json.dumps({"address": gym.running.address, "token": gym.running.token}))
        yield Place(tmp_path)


@pytest.mark.timeout(400)
async def test_an_ablation_that_was_stopped_goes_on(place: Place) -> None:
    """Ctrl-C reaches every run once, and each saves; the same command again plays what is missing and no more."""
    flags = (
        "--name=x",
        "--arms=default,learning_rate=0.01,learning_rate=0.1",
        "--seeds=5",
        "--jobs=2",
        *SMALL,
    )
    process = await place.start(*flags)
    folder = place.folder / RUNS / "x"
    while not (begun := list(folder.glob("runs/*/metrics.jsonl"))):
        await asyncio.sleep(0.05)
        assert process.returncode is None, (await process.communicate())[0].decode()
    process.send_signal(signal.SIGINT)
    output = (await process.communicate())[0].decode()

    assert process.returncode == 130, output
    assert "ablate --resume --name x" in output
    assert "failed" not in output
    assert not list(folder.glob("runs/learning_rate=0.1-*"))

    code, output = await place.run(*flags)

    assert code == 0, output
    assert "going on from step" in (folder / "logs" / f"{begun[0].parent.name}.log").read_text()
    assert {"result.json", "table.md", "forest.png"} <= {path.name for path in folder.iterdir()}
    assert "| learning_rate=0.01 |" in (folder / "table.md").read_text()
    configs = [json.loads(path.read_text())["config"] for path in folder.glob("runs/*/config.json")]
    assert sorted(config["learning_rate"] for config in configs) == [2e-3, 0.01, 0.1]
    assert [config["seed"] for config in configs] == [5, 5, 5]
    assert [len(arm.rates) for arm in read_results(folder)] == [10, 10, 10]

    stamps = [path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")]
    code, output = await place.run("--resume", "--name=x")
    assert code == 0, output
    assert [path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")] == stamps


@pytest.mark.timeout(400)
async def test_a_run_that_fails_leaves_the_others_alone_and_is_shown(place: Place) -> None:
    """An episode of 20 tokens holds no prompt: no setting can be seen not to work before it is tried."""
    arms = "--arms=max_context_tokens=20,default"
    code, output = await place.run("--name=x", arms, "--seeds=0", "--jobs=1", *SMALL)

    assert code == 1
    assert "! max_context_tokens=20-seed0: failed with status 1" in output
    assert "default-seed0: finished" in output
    assert "max_context_tokens" in output.partition("the end of")[2]
    assert "Unfinished  1 of 2 runs" in output
    assert not (place.folder / RUNS / "x" / "result.json").exists()


@pytest.mark.timeout(400)
async def test_nothing_begins_where_a_policy_cannot_be_had(place: Place) -> None:
    code, output = await place.run("--name=x", "--arms=default,model=./nowhere", "--jobs=1", *SMALL)

    assert code == 1
    assert "nowhere" in output
    assert not (place.folder / RUNS).exists()


ABLATION = replace(plan("x", ["default", "turn_cost=0.1"], [0, 1], {"threads": 1}), gym_share=2)


def _given(**flags: Any) -> Namespace:
    return Namespace(**{"name": "x", "arms": None, "seeds": None, "jobs": None, "resume": False} | flags)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ablation:
    """An ablation that has begun."""
    monkeypatch.chdir(tmp_path)
    write_ablation(RUNS / "x", ABLATION)
    return ABLATION


def test_going_on_takes_what_is_not_said_from_the_ablation(stored: Ablation) -> None:
    assert find_ablation(_given(resume=True), {}) == stored
    assert find_ablation(_given(resume=True, seeds="0,1"), {"steps": 30}) == stored
    assert find_ablation(_given(arms="default,turn_cost=0.1", seeds="0,1"), {"threads": 1}) == stored


@pytest.mark.parametrize(
    ("flags", "settings", "said"),
    [
        ({"resume": True, "seeds": "0,1,2"}, {}, "seeds 0,1, not 0,1,2"),
        ({"resume": True, "arms": "turn_cost=0.1,default"}, {}, "arms default,turn_cost=0.1, not"),
        ({"resume": True}, {"steps": 31}, "steps 30, not 31"),
        ({"seeds": "0,1", "arms": "default,turn_cost=0.1"}, {"threads": 2}, "threads 1, not 2"),
        ({"seeds": "0,x", "arms": "default"}, {}, "--seeds 0,x"),
    ],
)
def test_going_on_with_other_settings_is_refused(
    stored: Ablation, flags: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        find_ablation(_given(**flags), settings)


def test_the_folder_of_a_run_is_not_made_an_ablation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (RUNS / "x").mkdir(parents=True)

    with pytest.raises(FileExistsError, match="choose another --name"):
        find_ablation(_given(), {})


def test_a_folder_is_worked_on_once_at_a_time(stored: Ablation) -> None:
    with (
        lock(RUNS / "x"),
        pytest.raises(BlockingIOError, match="going on"),
        lock(RUNS / "x"),
    ):
        pass
    with lock(RUNS / "x"):
        assert read_ablation(RUNS / "x") == stored


def test_as_many_runs_go_side_by_side_as_cores_and_gym_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its threads of the cores; once begun, their share of the gym stays."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    new = replace(ABLATION, gym_share=0)
    two_threads = replace(new, settings=new.settings | {"threads": 4})

    assert choose_jobs(new, None, room=6) == 4
    assert choose_jobs(new, None, room=3) == 3
    assert choose_jobs(two_threads, None, room=6) == 2
    assert choose_jobs(new, 6, room=6) == 6
    assert choose_jobs(ABLATION, None, room=6) == 2
    for ablation, asked in ((new, 7), (ABLATION, 3)):
        with pytest.raises(ValueError, match=f"--jobs is {asked}"):
            choose_jobs(ablation, asked, room=6)


async def test_the_time_left_of_runs_with_a_cold_start_does_not_run_below_0(tmp_path: Path) -> None:
    """They evaluate once more than others."""
    config = RunConfig(name="a", steps=1, demonstrations=1, report="last")
    metrics = make_run(config, {}, tmp_path / RUNS).metrics
    rows = [make_row(1), *(make_evaluation(label, 0) for label in (RAW, START, LAST))]
    for row in rows[:-1]:
        append_row(metrics, row)
    file = io.StringIO()
    runs = Runs(tmp_path, [config], 0, Console(file=file, force_terminal=True, width=120))
    watching = asyncio.create_task(runs._watch())
    await asyncio.sleep(LOOK_SECONDS / 2)
    append_row(metrics, rows[-1])
    await asyncio.sleep(3 * LOOK_SECONDS)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    assert "0:00 left" in file.getvalue()
    assert "-1:" not in file.getvalue()


def test_flags_of_a_run_hold_for_all_arms() -> None:
    """Those of a preset as well, but for validations, which these runs do without."""
    given, settings = parse_arguments(["--seeds=0", "--turn-cost=0.1", "--steps=4", "--no-mask-truncated"])
    assert given.seeds == "0"
    assert settings == {"turn_cost": 0.1, "steps": 4, "mask_truncated": False}

    _, settings = parse_arguments(["--preset=smollm2-menu", "--steps=4"])
    assert (settings["model"], settings["steps"], settings["test_episodes"]) == ("smollm2", 4, 16)
    plan("x", ["default", "public_reward"], [0], settings)
