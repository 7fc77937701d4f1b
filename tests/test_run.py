"""The main job over a gym in this process; tests/end_to_end shows it on containers."""

import asyncio
import io
import json
import shutil
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.runs import SMALL, folder_with_gym, place_of_runs, run_whole, run_with_a_break
from trainer_client import run as run_module
from trainer_client import tracking
from trainer_client.checkpoint import state_hash
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.errors import GymRefused
from trainer_client.metrics import read_history
from trainer_client.models.load import load_model
from trainer_client.models.tiny import build_tiny
from trainer_client.run import FINISHED, INTERRUPTED, finish, is_due, run
from trainer_client.run_folder import RUNS, make_run
from trainer_client.session import Session

CONFIG = replace(SMALL, steps=3, max_new_tokens=2, max_turns=1, epochs=2, reward="fraction")


COLD: dict[str, Any] = {
    "name": "x",
    "demonstrations": 1,
    "cold_start_steps": 4,
    "cold_start_batch": 4,
    "cold_start_learning_rate": 3e-3,
    "max_new_tokens": 8,
    "max_turns": 3,
}
"""A small cold start."""


@pytest.fixture
async def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunConfig]:
    """Settings of a small run in a folder of its own, with a gym that its client finds."""
    build_tiny(tmp_path / "start")
    async with folder_with_gym(tmp_path, monkeypatch):
        yield replace(CONFIG, model=str(tmp_path / "start"))


def _console(file: io.StringIO) -> RunConsole:
    return RunConsole(3, Console(file=file, highlight=False, soft_wrap=True))


async def test_a_small_run_leaves_everything_behind(config: RunConfig) -> None:
    """Validation at the start, when it is due and at the end; the test tasks twice; a report."""
    file = io.StringIO()

    assert await run(replace(config, name="x"), False, _console(file)) == FINISHED

    history = read_history(RUNS / "x" / "metrics.jsonl")
    labels = [row.label for row in history.evaluations]
    assert [row.step for row in history.steps] == [1, 2, 3]
    assert labels[:4] == [*(f"validation/step-{step}" for step in (0, 2, 3)), "test/start"]
    episodes = [json.loads(line) for line in (RUNS / "x" / "episodes.jsonl").read_text().splitlines()]
    played = sum(row.episodes for row in history.steps)
    evaluated = sum(task.episodes for row in history.evaluations for task in row.tasks)
    assert len({row["episode_id"] for row in episodes}) == len(episodes) == played + evaluated
    assert all(len(row["record_sha256"]) == 64 for row in episodes)
    for row in history.steps:
        # Random weights sample nearly evenly, so that few tokens tell the entropy.
        assert row.sampled_entropy == pytest.approx(row.update.entropy, abs=1)
    assert "Stopping rules" in (RUNS / "x" / "report.html").read_text()
    assert "difference, paired" in file.getvalue()
    assert "Stopping    (a) " in file.getvalue()


async def test_an_interrupted_run_goes_on_and_leaves_no_trace_of_it(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after step 1: its checkpoint is gone on from, is never evaluated, and is dropped later."""
    console = _console(file := io.StringIO())
    monkeypatch.setattr(console, "step", lambda row: _cancel_after(row.step))

    assert await run(replace(config, name="x"), False, console) == INTERRUPTED
    assert "--resume --name x" in file.getvalue()
    assert (RUNS / "x" / "checkpoints" / "step-001" / "trainer.pt").exists()

    assert await run(RunConfig(name="x"), True, _console(io.StringIO())) == FINISHED

    history = read_history(RUNS / "x" / "metrics.jsonl")
    assert [row.step for row in history.steps] == [1, 2, 3]
    assert [row.step for row in history.validations] == [0, 2, 3]
    folders = sorted((RUNS / "x" / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-000", "step-002", "step-003"]
    assert all((folder / "tokenizer.json").exists() for folder in folders)


def _cancel_after(step: int) -> None:
    """Does what the first Ctrl-C does, once step 1 is finished."""
    task: Any = asyncio.current_task()
    if step == 1:
        task.cancel()


async def test_a_cold_start_comes_before_the_first_step_and_three_policies_are_tested(
    config: RunConfig,
) -> None:
    """Before it, after it, and the chosen one; checkpoint 0 is what came of it."""
    file = io.StringIO()

    assert await run(replace(config, **COLD), False, _console(file)) == FINISHED

    history = read_history(RUNS / "x" / "metrics.jsonl")
    assert history.cold_start is not None
    assert history.cold_start.kept == 20
    assert len(history.cold_start.losses) == 4
    assert history.cold_start.losses[-1] < history.cold_start.losses[0]
    assert {"test/raw", "test/start"} <= {row.label for row in history.evaluations}
    raw, start = (
        load_model(path).model for path in (Path(config.model), RUNS / "x" / "checkpoints/step-000")
    )
    assert state_hash(raw) != state_hash(start)
    result = json.loads((RUNS / "x" / "result.json").read_text())
    assert set(result["test_differences"]) >= {"start - raw"}
    assert "Cold start: 20 demonstrations resolved" in file.getvalue()
    assert "Cold start" in (RUNS / "x" / "report.html").read_text()


@pytest.mark.parametrize("rank", [0, 2])
async def test_a_cold_start_that_was_interrupted_starts_over(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Nothing half-learned is saved, and the run is the one that it would have been in one piece."""
    if rank:
        pytest.importorskip("peft", reason="the extra lora is not installed")
    config = replace(config, lora_rank=rank)
    assert await run(replace(config, **COLD), False, _console(io.StringIO())) == FINISHED

    console = _console(file := io.StringIO())
    monkeypatch.setattr(console, "cold_step", lambda row, steps: _cancel_after(row.step))
    assert await run(replace(config, **COLD | {"name": "y"}), False, console) == INTERRUPTED
    assert list((RUNS / "y" / "checkpoints").iterdir()) == []
    assert "--resume --name y" in file.getvalue()

    assert await run(RunConfig(name="y"), True, _console(io.StringIO())) == FINISHED

    histories = [read_history(RUNS / name / "metrics.jsonl") for name in ("x", "y")]
    assert histories[0].cold_start
    assert histories[1].cold_start
    assert histories[0].cold_start.losses == histories[1].cold_start.losses
    hashes = [json.loads((RUNS / name / "result.json").read_text())["weights_sha256"] for name in ("x", "y")]
    assert hashes[0] == hashes[1]


async def test_a_cold_start_that_is_over_is_not_repeated(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = _console(io.StringIO())
    monkeypatch.setattr(console, "step", lambda row: _cancel_after(row.step))
    assert await run(replace(config, **COLD), False, console) == INTERRUPTED
    before = read_history(RUNS / "x" / "metrics.jsonl").cold_start

    assert await run(RunConfig(name="x"), True, _console(file := io.StringIO())) == FINISHED

    assert "Cold start" not in file.getvalue()
    assert read_history(RUNS / "x" / "metrics.jsonl").cold_start == before


@pytest.mark.parametrize(
    "settings",
    [
        COLD | {"max_new_tokens": 2},
        {"cohort_size": 5},
        {"max_context_tokens": 20},
        {"suite": "none"},
        {"sampler": "vllm"},
    ],
)
async def test_settings_that_cannot_work_do_not_use_up_the_name(
    config: RunConfig, settings: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, GymRefused)):
        await run(replace(config, **settings | {"name": "x"}), False, _console(io.StringIO()))

    assert not (RUNS / "x").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_log_that_cannot_be_written_is_found_before_anything_is_made(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)

    with pytest.raises(ModuleNotFoundError, match="trackio"):
        await run(replace(config, track="trackio", name="x"), False, _console(io.StringIO()))

    assert not (RUNS / "x").exists()


async def test_the_report_can_be_looked_at_while_the_run_is_on(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when the last step is done, and the one that is left in the end no longer loads itself anew."""
    console = _console(io.StringIO())
    pages = []
    monkeypatch.setattr(run_module, "finish", lambda session: _keep_page(session, pages))

    assert await run(replace(config, name="x"), False, console) == FINISHED

    assert "This run is on" in pages[0]
    assert "http-equiv" not in (RUNS / "x" / "report.html").read_text()


def _keep_page(session: Session, pages: list[str]) -> None:
    pages.append((session.folder.path / "report.html").read_text())
    finish(session)


async def test_a_run_that_ended_before_its_first_checkpoint_starts_over(config: RunConfig) -> None:
    config = replace(config, name="x", steps=1)
    make_run(config, {})

    assert await run(RunConfig(name="x"), True, _console(file := io.StringIO())) == FINISHED

    assert "starting over" in file.getvalue()
    assert (RUNS / "x" / "checkpoints" / "step-000" / "tokenizer.json").exists()


def test_the_last_step_is_always_validated() -> None:
    assert [step for step in range(6) if is_due(replace(CONFIG, steps=5), step)] == [0, 2, 4, 5]


AHEAD = replace(SMALL, steps=5, validate_every=3, sample_ahead=True, importance="truncated", tasks_per_step=4)
"""Step 3 is a checkpoint: steps 2, 3 and 5 are sampled ahead, 1 and 4 are not."""


async def test_sampling_ahead_uses_the_weights_before_the_last_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far the policy has moved since it sampled shows, and only then."""
    async with place_of_runs(tmp_path, monkeypatch):
        folder = await run_whole(replace(AHEAD, model=_tiny(tmp_path)), "x")

    stale = {row.step: row.update.stale_kl for row in read_history(folder.metrics).steps}
    assert [step for step, kl in stale.items() if kl > 1e-9] == [2, 3, 5]


async def test_a_run_that_samples_ahead_is_repeated_bit_for_bit_even_after_a_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place_of_runs(tmp_path, monkeypatch):
        config = replace(AHEAD, model=_tiny(tmp_path))
        folders = [
            await run_whole(config, "x"),
            await run_whole(config, "y"),
            await run_with_a_break(config, "z"),
        ]

    prints = [[row.fingerprint for row in read_history(folder.metrics).steps] for folder in folders]
    assert prints[0] == prints[1] == prints[2]
    assert len({each.weights for each in prints[0] if each}) == 5


async def test_silent_groups_are_replaced_and_left_out(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of random weights fails everything: three rounds of two groups, and nothing to learn from."""
    config = replace(config, name="x", steps=1, refill_rounds=2, reward="hidden", model=config.model)

    assert await run(config, False, _console(io.StringIO())) == FINISHED

    (row,) = read_history(RUNS / "x" / "metrics.jsonl").steps
    assert (row.played, row.episodes, len(row.tasks)) == (12, 0, 6)
    assert row.update.tokens == 0
    assert row.fingerprint
    assert row.fingerprint.weights == state_hash(load_model(RUNS / "x" / "checkpoints/step-000").model)


async def test_episodes_that_a_limit_cut_off_can_be_left_out(config: RunConfig) -> None:
    """One turn is too few for any of them."""
    config = replace(config, name="x", steps=1, mask_truncated=True)

    assert await run(config, False, _console(file := io.StringIO())) == FINISHED

    (row,) = read_history(RUNS / "x" / "metrics.jsonl").steps
    assert (row.played, row.episodes) == (4, 0)
    assert "no episode to learn from" in file.getvalue()


async def test_a_group_that_was_cut_off_is_replaced_as_a_silent_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its rewards are: here every other episode counts as better."""
    async with place_of_runs(tmp_path, monkeypatch):
        config = replace(CONFIG, model=_tiny(tmp_path), steps=1, mask_truncated=True, refill_rounds=2)
        folder = await run_whole(config, "x")

    (row,) = read_history(folder.metrics).steps
    assert (row.played, row.episodes, row.zero_advantage_share) == (12, 0, 0.0)


async def test_the_last_step_can_be_reported_without_a_choice(config: RunConfig) -> None:
    """Validation and test tasks alike, once for the start and once for the last step."""
    config = replace(config, name="x", report="last", validation_episodes=16)

    assert await run(config, False, _console(file := io.StringIO())) == FINISHED

    history = read_history(RUNS / "x" / "metrics.jsonl")
    assert [(row.label, row.step, len(row.tasks)) for row in history.evaluations] == [
        ("test/start", 0, 10),
        ("test/last", 3, 10),
    ]
    assert json.loads((RUNS / "x" / "result.json").read_text())["step"] == 3
    assert "Reported: the last step" in file.getvalue()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_log_that_cannot_be_written_any_more_stops_nothing(config: RunConfig) -> None:
    """Somebody removes it while the run is on."""
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    file = io.StringIO()
    console = _console(file)
    console.step = lambda row: shutil.rmtree(RUNS / "x" / "tensorboard", True)  # type: ignore[method-assign]

    assert await run(replace(config, name="x", track="tensorboard"), False, console) == FINISHED

    assert file.getvalue().count("The run goes on without it") == 1
    assert len(read_history(RUNS / "x" / "metrics.jsonl").steps) == 3


async def test_a_stop_is_told_before_the_report_that_is_being_drawn_is_waited_for(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears nothing presses Ctrl-C again, and that gives the last step up."""
    file = io.StringIO()
    said_when_drawn: list[str] = []
    stopped = threading.Event()

    def slow(*of: object, is_on: bool = False) -> Path:
        stopped.wait(10)
        time.sleep(0.3)
        said_when_drawn.append(file.getvalue())
        return Path()

    def stop(row: object) -> None:
        stopped.set()
        task = asyncio.current_task()
        assert task
        task.cancel()

    monkeypatch.setattr(run_module, "write_report", slow)
    console = _console(file)
    console.step = stop  # type: ignore[method-assign]

    assert await run(replace(config, name="x"), False, console) == INTERRUPTED

    assert "Stopping: the last finished step" in said_when_drawn[0]


async def test_the_page_of_a_run_that_fails_does_not_say_that_it_is_on(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its rows stay."""

    def broken(*of: object) -> None:
        raise ValueError("the norm of the gradient is nan")

    monkeypatch.setattr(run_module, "save", broken)
    with pytest.raises(ValueError, match="nan"):
        await run(replace(config, name="x"), False, _console(io.StringIO()))

    assert "not finished" in (RUNS / "x" / "report.html").read_text()
    assert "http-equiv" not in (RUNS / "x" / "report.html").read_text()


async def test_a_curriculum_that_plays_every_task_anyway_is_refused(config: RunConfig) -> None:
    with pytest.raises(ValueError, match="set tasks_per_step below that"):
        await run(
            replace(config, name="x", curriculum="pass_rate", tasks_per_step=20),
            False,
            _console(io.StringIO()),
        )


def _tiny(folder: Path) -> str:
    build_tiny(folder / "start")
    return str(folder / "start")
