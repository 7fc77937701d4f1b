"""A run that is repeated from its record, over a gym in this process."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import trainer_client
from tests.runs import SMALL, place_of_runs, run_whole
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.metrics import read_history
from trainer_client.models.tiny import build_tiny
from trainer_client.replay import DIFFERENT, SAME, main, open_record, replay, settings_of
from trainer_client.run import INTERRUPTED
from trainer_client.run_folder import RUNS, RunFolder


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunFolder]:
    """A small run of two steps, in a folder of its own."""
    build_tiny(tmp_path / "start")
    async with place_of_runs(tmp_path, monkeypatch):
        yield await run_whole(replace(SMALL, model=str(tmp_path / "start")), "x")


async def repeat(name: str = "x", threads: int | None = None, steps: int | None = None) -> tuple[int, str]:
    """Returns the exit code of the replay and what it said."""
    recorded = open_record(name)
    config = settings_of(recorded, threads, steps)
    file = StringIO()
    code = await replay(recorded, config, RunConsole(config.steps, Console(file=file, width=120)))
    return code, file.getvalue()


def change_setting(folder: RunFolder, **settings: Any) -> None:
    """Has the record of a run say that it was made with other settings."""
    path = folder.path / "config.json"
    content = json.loads(path.read_text())
    content["config"] |= settings
    path.write_text(json.dumps(content))


def stop(row: object) -> None:
    """What Ctrl-C does."""
    task = asyncio.current_task()
    assert task
    task.cancel()


def table_of(said: str) -> dict[str, str]:
    """Returns the first step that differs, by what was compared, as the closing table has it."""
    rows = [line.split() for line in said.splitlines()]
    names = ("groups", "tokens", "weights", "reward", "loss")
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0] in names}


async def test_a_run_is_repeated_to_the_last_bit(run: RunFolder) -> None:
    """Without its evaluations, which leave training as it is, and with nothing written into its folder."""
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    code, said = await repeat()

    assert code == SAME
    assert table_of(said) == {"groups": "none", "tokens": "none", "weights": "none"}
    repeated = read_history(RUNS / "x-replay" / "metrics.jsonl")
    assert [row.fingerprint for row in repeated.steps] == [
        row.fingerprint for row in read_history(run.metrics).steps
    ]
    assert repeated.evaluations == []
    assert (RUNS / "x-replay" / "replay.png").exists()
    assert not (RUNS / "x-replay" / "checkpoints").exists()
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


async def test_another_learning_rate_shows_in_the_weights_and_then_in_the_tokens(run: RunFolder) -> None:
    change_setting(run, learning_rate=0.5)

    code, said = await repeat()

    assert code == DIFFERENT
    assert table_of(said) == {"groups": "none", "tokens": "2", "weights": "1"}
    assert "! step 1: other weights than recorded" in said


async def test_another_seed_shows_in_the_groups_or_tokens_of_step_1(run: RunFolder) -> None:
    change_setting(run, seed=1)

    code, said = await repeat()

    assert code == DIFFERENT
    assert table_of(said) == {"groups": "1", "tokens": "1", "weights": "1"}


async def test_a_step_that_was_altered_is_the_one_that_is_reported(run: RunFolder) -> None:
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step" and line["step"] == 2:
            line["fingerprint"]["tokens"] = "0" * 64
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))

    code, said = await repeat()

    assert code == DIFFERENT
    assert table_of(said) == {"groups": "none", "tokens": "2", "weights": "none"}


async def test_a_record_with_a_row_missing_is_repeated_up_to_it(run: RunFolder) -> None:
    rows = run.metrics.read_text().splitlines(keepends=True)
    third = next(row for row in rows if '"step": 2, "reward"' in row).replace('"step": 2', '"step": 3', 1)
    run.metrics.write_text("".join(row for row in rows if '"step": 2, "reward"' not in row) + third)

    code, said = await repeat()

    assert code == SAME
    assert "no row of step 2, and rows after it: it is repeated up to step 1" in said
    with pytest.raises(ValueError, match="between 1 and 1"):
        settings_of(open_record("x"), None, 2)


async def test_a_replay_that_is_stopped_says_how_far_it_came(run: RunFolder) -> None:
    """One that is stopped before step 1 leaves nothing behind."""
    recorded, file = open_record("x"), StringIO()
    config = settings_of(recorded, None, None)
    console = RunConsole(config.steps, Console(file=file, width=120))
    console.step = stop  # type: ignore[method-assign]

    assert await replay(recorded, config, console) == INTERRUPTED
    assert "Outcome     1 steps: nothing differs" in file.getvalue()
    assert not (RUNS / "x-replay" / "checkpoints").exists()

    console = RunConsole(config.steps, Console(file=file, width=120))
    console.doing = lambda what, *of: what == "preflight" and stop(None)  # type: ignore[method-assign]
    config = settings_of(recorded, None, None)
    assert await replay(recorded, config, console) == INTERRUPTED
    assert not (RUNS / config.name).exists()


async def test_other_facts_are_named_first(run: RunFolder) -> None:
    """What is no setting and still enters the numbers."""
    path = run.path / "config.json"
    content = json.loads(path.read_text())
    content["record"] |= {"gym image": "sha256:0", "processes": "2"}
    path.write_text(json.dumps(content))

    _, said = await repeat(steps=1)

    assert "gym image was sha256:0 and is " in said
    assert "made by 2 processes" in said
    assert said.index("gym image was") < said.index("1/1  reward")


async def test_fewer_steps_and_a_second_replay_have_a_folder_of_their_own(run: RunFolder) -> None:
    assert (await repeat(steps=1))[0] == SAME
    assert (await repeat(steps=2))[0] == SAME

    assert len(read_history(RUNS / "x-replay" / "metrics.jsonl").steps) == 1
    assert len(read_history(RUNS / "x-replay-2" / "metrics.jsonl").steps) == 2


async def test_rows_without_fingerprints_are_compared_by_their_figures(run: RunFolder) -> None:
    """Those of a version that wrote none."""
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in lines:
        line.pop("fingerprint", None)
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))

    code, said = await repeat()

    assert code == SAME
    assert "rows without fingerprints" in said
    assert table_of(said) == {"reward": "none", "loss": "none"}


async def test_a_cold_start_is_part_of_the_replay(run: RunFolder, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": str(tmp_path / "start"),
        "demonstrations": 1,
        "cold_start_steps": 2,
        "max_new_tokens": 8,
        "max_turns": 3,
    }
    await run_whole(replace(SMALL, **settings), "cold")

    code, said = await repeat("cold")

    assert code == SAME
    assert "losses of the cold start   none" in said


def test_a_run_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["nowhere"]) == 1

    assert "no run runs/nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("content", ['{"model_type": "llama"}', '{"config": {"na', "[]"])
def test_a_folder_that_is_not_that_of_a_run_is_named(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model has a config.json too."""
    (tmp_path / "config.json").write_text(content)

    assert main([str(tmp_path)]) == 1

    assert f"{tmp_path}/config.json" in capsys.readouterr().err


def test_the_run_that_comes_with_the_project_is_the_default_run_and_can_be_repeated() -> None:
    """What the documents show is what a user's first run makes."""
    recorded = open_record(str(Path(trainer_client.__file__).parent / "main_run"))

    assert recorded.config == RunConfig(name="main")
    assert [row.step for row in recorded.history.steps] == list(range(1, 61))
    assert all(row.fingerprint for row in recorded.history.steps)
    assert settings_of(recorded, None, None).steps == 60


async def test_a_folder_elsewhere_can_be_repeated(run: RunFolder, tmp_path: Path) -> None:
    """For example one that came with the project; no more steps than it has."""
    moved = RunFolder(run.path.rename(tmp_path / "main_run"))

    recorded = open_record(str(moved.path))

    assert settings_of(recorded, 2, 1).threads == 2
    assert settings_of(recorded, None, None).name == "x-replay"
    with pytest.raises(ValueError, match="between 1 and 2"):
        settings_of(recorded, None, 3)
