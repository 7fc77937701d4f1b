"""The report of a run while it is on."""

import threading
from pathlib import Path

from tests.rows import make_evaluation, make_history, make_row
from trainer_client.config import RunConfig
from trainer_client.live import LiveReport
from trainer_client.metrics import History
from trainer_client.report import write_report


def test_it_is_written_at_first_with_evaluations_and_when_it_is_old() -> None:
    written: list[int] = []
    history = History()
    live = LiveReport(lambda rows: written.append(len(rows.rows)), print, every_seconds=1000)
    for row in (make_row(1), make_row(2), make_evaluation("validation/step-2", 2), make_row(3)):
        history.add(row)
        live.update(row, history)
        if live._drawing:
            live._drawing.result()
    live.close()

    assert written == [1, 3]

    often = LiveReport(lambda rows: written.append(0), print, every_seconds=0)
    often.update(make_row(4), history)
    often.close()
    assert written == [1, 3, 0]


def test_a_run_does_not_wait_for_it_and_what_is_drawn_does_not_change() -> None:
    """A row that comes while it is being written is not drawn into it, and starts no second one."""
    go_on, seen = threading.Event(), []

    def write(rows: History) -> None:
        go_on.wait(10)
        seen.append(len(rows.steps))

    history = make_history(1)
    live = LiveReport(write, print, every_seconds=0)
    live.update(make_row(1), history)
    history.add(make_row(2))
    live.update(make_row(2), history)
    go_on.set()
    live.close()

    assert seen == [1]


def test_what_goes_wrong_is_said_and_stops_nothing() -> None:
    def write(rows: History) -> None:
        raise OSError("disk full")

    notices: list[str] = []
    live = LiveReport(write, notices.append)
    live.update(make_row(1), make_history(1))
    live.close()

    assert notices == ["the report could not be written: disk full"]


def test_the_page_of_a_run_that_is_on_loads_itself_anew(tmp_path: Path) -> None:
    """And one that is over, or was stopped, does not."""
    history, config = make_history(1), RunConfig(name="x")

    on = write_report(tmp_path, config, {}, history, None, is_on=True).read_text()
    off = write_report(tmp_path, config, {}, history, None).read_text()

    assert '<meta http-equiv="refresh" content="30">' in on
    assert "This run is on" in on
    assert "http-equiv" not in off
    assert "not finished" in off
