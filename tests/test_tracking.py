"""Logs for other tools, written and read by the tools themselves."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rows import COLD_START, make_evaluation, make_row
from trainer_client import tracking
from trainer_client.config import RunConfig
from trainer_client.tracking import SteadyLog, Tracker, open_tracker, require, scalars
from trainer_client.update import NOTHING_LEARNED

TENSORBOARD, TRACKIO = (f"the extra {name} is not installed" for name in ("tensorboard", "trackio"))


def test_every_number_of_a_step_has_a_name() -> None:
    found = scalars(make_row(3))

    assert found["reward"] == 0.5
    assert found["update/entropy"] == 0.5
    assert found["behaviour/reads"] == 1.0
    assert found["behaviour/failures/not_read"] == 0.25
    assert found["seconds/sampling"] == 1.0
    assert "step" not in found
    assert not any(name.startswith(("fingerprint", "tasks")) for name in found)


def test_of_a_step_that_learned_nothing_no_update_is_written() -> None:
    found = scalars(replace(make_row(3), episodes=0, update=NOTHING_LEARNED))

    assert found["reward"] == 0.5
    assert not any(name.startswith("update") for name in found)


def test_a_log_that_fails_is_told_once_and_stops_nothing() -> None:
    """Neither in a step nor when it is closed."""

    def full(*of: object) -> None:
        raise OSError("disk full")

    said: list[str] = []
    log = SteadyLog(Tracker(full, full, ""), said.append)
    log.log(make_row(1))
    log.log(make_row(2))
    log.close()

    assert len(said) == 1
    assert "disk full" in said[0]


def test_an_evaluation_is_its_pass_rate_with_the_interval() -> None:
    """Those of one split are one curve."""
    found = scalars(make_evaluation("validation/step-10", 10, 4))

    assert found == {
        "validation/pass_at_1": 0.25,
        "validation/low": 0.25,
        "validation/high": 0.25,
        "validation/public_only": 0.0,
    }
    assert "test/start/pass_at_1" in scalars(make_evaluation("test/start", 0))


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[trackio\]'"):
        require("trackio")
    require("")


def test_nothing_is_opened_where_nothing_is_asked_for(tmp_path: Path) -> None:
    assert open_tracker(tmp_path, RunConfig(name="x"), [make_row(1)]) is None
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_has_each_step_once_when_a_run_was_gone_on_with(tmp_path: Path) -> None:
    """Steps 2 and 3 were written by what was stopped, and 2 is made anew."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=TENSORBOARD)
    config = RunConfig(name="x", track="tensorboard")
    first, evaluated = make_row(1), make_evaluation("validation/step-1", 1)
    for rows, later in (
        ([COLD_START], [first, evaluated, make_row(2), make_row(3)]),
        ([first, evaluated], []),
    ):
        tracker = open_tracker(tmp_path, config, rows)
        assert tracker
        for row in later or [make_row(2)]:
            tracker.log(row)
        tracker.close()

    log = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()

    assert [(event.step, event.value) for event in log.Scalars("update/entropy")] == [(1, 0.5), (2, 0.5)]
    assert [(event.step, event.value) for event in log.Scalars("validation/pass_at_1")] == [(1, 0.25)]


TRACKED = """
import socket, sys
from pathlib import Path
from tests.rows import make_evaluation, make_row
from trainer_client.config import RunConfig
from trainer_client.tracking import open_tracker

tried = []
for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, lambda self, address: tried.append(address) or 111)
socket.getaddrinfo = lambda *of, **more: tried.append(of) or []
folder, config = Path(sys.argv[1]), RunConfig(name="x", track="trackio")
first, evaluated = make_row(1), make_evaluation("validation/step-1", 1)
for rows, later in (([], [first, evaluated, make_row(2), make_row(3)]), ([first, evaluated], [make_row(2)])):
    tracker = open_tracker(folder, config, rows)
    for row in later:
        tracker.log(row)
    tracker.close()

from trackio.sqlite_storage import SQLiteStorage

for row in SQLiteStorage.get_logs("coding-gym", "x"):
    print(row["step"], row.get("update/entropy"), row.get("validation/pass_at_1"))
print(tried)
"""


def test_trackio_stays_on_the_machine_and_has_each_step_once(tmp_path: Path) -> None:
    """In a process of its own, since trackio reads its folder when it is imported; with a token for the hub there."""
    pytest.importorskip("trackio", reason=TRACKIO)
    environment = {"HF_TOKEN": "hf_none", "TRACKIO_SPACE_ID": "a/b", "PYTHONPATH": ":".join(sys.path)}

    said = subprocess.run(
        [sys.executable, "-c", TRACKED, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.splitlines() == ["1 0.5 None", "1 None 0.25", "2 0.5 None", "[]"]
    assert (tmp_path / "trackio" / "coding-gym.db").exists()
