"""Playing a checkpoint of a run once more: test tasks are looked at once, or the record says otherwise."""

import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.rows import make_evaluation
from tests.runs import SMALL, place_of_runs, run_whole
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.evaluate import SecondLook, look, main
from trainer_client.metrics import append_row, read_history
from trainer_client.models.tiny import build_tiny
from trainer_client.result import CHOSEN, LAST, START, later_looks
from trainer_client.run import FINISHED, run
from trainer_client.run_folder import RunFolder, make_run, open_run
from trainer_client.transcripts import read_transcripts

VALIDATION = [make_evaluation("validation/step-0", 0, 1), make_evaluation("validation/step-2", 2, 8)]
TESTED = [make_evaluation(START, 0), make_evaluation(CHOSEN, 2)]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of a run of four steps that has validated two checkpoints and kept three."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(RunConfig(name="x", steps=4), {})
    for step in (0, 2, 4):
        (folder.checkpoints / f"step-{step:03d}").mkdir()
    for row in VALIDATION:
        append_row(folder.metrics, row)
    return folder


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("2", "played by step 2 already (test/chosen"),
        ("0", "played by step 0 already (test/start"),
        ("4", "reported for step 2; playing step 4 on them would be choosing"),
    ],
)
def test_a_second_look_at_the_test_tasks_is_refused(
    record: RunFolder, capsys: pytest.CaptureFixture[str], step: str, reason: str
) -> None:
    """And says why, before anything is played: no gym runs here."""
    for row in TESTED:
        append_row(record.metrics, row)

    assert main(["x", "--split", "test", "--step", step]) == 1

    assert reason in capsys.readouterr().err
    assert read_history(record.metrics).evaluations == [*VALIDATION, *TESTED]


def test_an_unfinished_run_plays_its_test_tasks_itself(
    record: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs/x", "--split", "test"]) == 1

    assert "--resume --name x" in capsys.readouterr().err


def test_where_nothing_is_chosen_validation_is_a_look_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that reports its last step does so on both."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(RunConfig(name="x", steps=2, report="last"), {})
    (folder.checkpoints / "step-002").mkdir()
    append_row(folder.metrics, make_evaluation(LAST, 2))

    assert main(["x", "--split", "validation"]) == 1

    assert "played by step 2 already" in capsys.readouterr().err


def test_a_step_without_a_checkpoint_is_named(record: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["x", "--step", "3"]) == 1

    assert "step-000, step-002, step-004" in capsys.readouterr().err


def test_a_folder_elsewhere_is_not_taken_for_the_run_of_its_name(
    record: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = make_run(RunConfig(name="x"), {}, tmp_path / "elsewhere")

    assert main([str(elsewhere.path), "--step", "3"]) == 1

    assert f"there is no {elsewhere.checkpoints}" in capsys.readouterr().err


@pytest.fixture
async def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunFolder]:
    """A small run that is finished, and a gym."""
    build_tiny(tmp_path / "start")
    async with place_of_runs(tmp_path, monkeypatch):
        yield await run_whole(replace(SMALL, model=str(tmp_path / "start")), "x")


async def test_a_forced_look_is_part_of_record_report_and_result(finished: RunFolder) -> None:
    """It plays the episodes that the run's own test did, so that the same policy has the same counts."""
    folder, config, facts = open_run({"name": "x"})
    own = read_history(folder.metrics).evaluation(START)
    with pytest.raises(SecondLook):
        await look(folder, config, facts, "test", 0, None, force=False)

    for _ in range(2):
        await look(folder, config, facts, "test", 0, None, force=True)

    history = read_history(folder.metrics)
    labels = ("test/look-2/step-0", "test/look-3/step-0")
    assert later_looks(history) == labels
    again = history.evaluation(labels[0])
    assert own
    assert again
    assert (again.tasks, again.sequences) == (own.tasks, own.sequences)
    assert json.loads((folder.path / "result.json").read_text())["test_looks"] == list(labels)
    assert "looked at again, by force: test/look-2/step-0" in (folder.path / "report.html").read_text()
    assert {each.label for each in read_transcripts(folder.transcripts)} >= {START, *labels}


async def test_other_tasks_can_be_played_any_time_and_choose_nothing(finished: RunFolder) -> None:
    """What the run had chosen stays chosen, and it can be gone on with."""
    folder, config, facts = open_run({"name": "x"})
    before = json.loads((folder.path / "result.json").read_text())

    await look(folder, config, facts, "validation", 0, 2, force=False)
    await look(folder, config, facts, "train", 2, 1, force=False)

    history = read_history(folder.metrics)
    assert [row.label for row in history.evaluations][-2:] == [
        "extra/validation/step-0",
        "extra/train/step-2",
    ]
    assert json.loads((folder.path / "result.json").read_text()) == before
    assert await run(RunConfig(name="x"), True, RunConsole(2, Console(file=io.StringIO()))) == FINISHED
    assert [row.label for row in read_history(folder.metrics).evaluations] == [
        row.label for row in history.evaluations
    ]
    assert "looked at again" not in (folder.path / "report.html").read_text()
