"""The record of a run and what is shown of it."""

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.rows import COLD_START, make_evaluation, make_history, make_row
from trainer_client import report as report_module
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole, clock
from trainer_client.dashboard import draw_dashboard
from trainer_client.metrics import History, Seconds, append_row, choose, read_history, rewind
from trainer_client.report import write_report
from trainer_client.result import CHOSEN, LAST, RAW, START, result_of
from trainer_client.run_folder import RunFolder
from trainer_client.statistics import Interval
from trainer_client.transcripts import Answer, SaidTurn, Transcript, keep_transcripts
from trainer_client.update import NOTHING_LEARNED

PNG = b"\x89PNG\r\n\x1a\n"


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """One JSON object per line, nothing lost and nothing rounded."""
    path, history = tmp_path / "metrics.jsonl", make_history(steps=2)
    for row in history.rows:
        append_row(path, row)

    assert read_history(path) == history
    assert {json.loads(line)["kind"] for line in path.read_text().splitlines()} == {"step", "evaluation"}


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    """A machine that stops in the middle of a line costs that line only."""
    path = tmp_path / "metrics.jsonl"
    append_row(path, make_row(1))
    append_row(path, make_row(2))
    path.write_bytes(path.read_bytes()[:-20])

    assert read_history(path).steps == [make_row(1)]
    assert rewind(path, 1).steps == [make_row(1)]
    append_row(path, make_row(2))
    assert read_history(path).steps == [make_row(1), make_row(2)]


def test_a_bad_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """It was not torn, it was changed."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    append_row(path, make_row(1))

    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1"):
        read_history(path)


def test_rewinding_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    """Rows of steps that will be played again would be there twice."""
    path = tmp_path / "metrics.jsonl"
    append_row(path, make_evaluation("validation/step-0", 0))
    for step in (1, 2, 3):
        append_row(path, make_row(step))

    history = rewind(path, 2)

    assert [row.step for row in history.steps] == [1, 2]
    assert [row.label for row in history.evaluations] == ["validation/step-0"]
    assert read_history(path) == history


def test_the_checkpoint_is_chosen_on_validation_ties_to_the_earlier() -> None:
    """Steps 10 and 20 are equal and best."""
    rows = [
        make_evaluation(f"validation/step-{step}", step, passed)
        for step, passed in ((0, 1), (20, 8), (10, 8))
    ]

    assert choose(rows).step == 10
    with pytest.raises(ValueError, match="no validation"):
        choose([])


def test_a_result_needs_both_test_evaluations() -> None:
    """And pairs them by task: 8 of 16 against 2 of 16 on each of two tasks."""
    history = make_history(steps=1)
    with pytest.raises(ValueError, match="not been played"):
        result_of(history, "ab")

    history.add(make_evaluation(START, 0, 2))
    history.add(make_evaluation(CHOSEN, 1, 8))

    assert result_of(history, "ab").difference == Interval(0.375, 0.375, 0.375)


def test_a_cold_start_is_compared_with_what_was_before_and_after() -> None:
    """2, 8 and 12 of 16 on each of two tasks: three policies, three differences."""
    history = make_history(steps=1)
    history.add(COLD_START)
    history.add(make_evaluation(START, 0, 8))
    history.add(make_evaluation(CHOSEN, 1, 12))
    with pytest.raises(ValueError, match="not been played"):
        result_of(history, "ab")

    history.add(make_evaluation(RAW, 0, 2))
    result = result_of(history, "ab")

    assert [name for name, _ in result.policies] == ["raw", "start", "step 1"]
    assert {name: difference.estimate for name, difference in result.differences} == {
        "start - raw": 0.375,
        "step 1 - raw": 0.625,
        "step 1 - start": 0.25,
    }


def test_a_cold_start_shows_in_report_and_summary(tmp_path: Path) -> None:
    history = make_history(steps=1)
    history.add(COLD_START)
    for label, step, passed in ((RAW, 0, 2), (START, 0, 8), (CHOSEN, 1, 12)):
        history.add(make_evaluation(label, step, passed))
    result = result_of(history, "ab")
    file = io.StringIO()

    report = write_report(tmp_path, RunConfig(name="x"), {}, history, result)
    RunConsole(1, Console(file=file, width=120)).summary(result, history.seconds, report)

    for shown in ("18 of 20 demonstrations", "2 unresolved", "100 tokens each, 20 of them", "not_read 0.25"):
        assert shown in report.read_text()
    for shown in ("raw", "step 1 - raw", "+0.62", "not_read 0.25"):
        assert shown in file.getvalue()


def test_going_back_to_before_the_cold_start_forgets_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_row(path, COLD_START)
    append_row(path, make_row(1))

    assert rewind(path, 0).rows == [COLD_START]
    assert rewind(path, -1).rows == []


def test_pass_at_k_needs_as_many_episodes() -> None:
    """16 episodes say nothing unbiased about pass@32."""
    evaluation = make_evaluation("test/start", 0, 16)

    assert evaluation.pass_at(8) == 1.0
    assert evaluation.pass_at(32) is None


def test_the_report_is_one_file_with_everything_in_it(tmp_path: Path) -> None:
    """No link leads out of it, and text from outside is text, not markup."""
    history = make_history(steps=3)
    history.add(make_evaluation(START, 0, 2, task="bugfix/<script>"))
    history.add(make_evaluation(CHOSEN, 3, 8, task="bugfix/<script>"))
    config = RunConfig(name="x <b>&$y$")

    report = write_report(
        tmp_path, config, {"gym": "<i>"}, history, result_of(history, "ab" * 32)
    ).read_text()

    assert (tmp_path / "dashboard.png").read_bytes().startswith(PNG)
    assert "data:image/png;base64,iVBOR" in report
    assert not re.search(r'(src|href)="(?!data:)', report)
    for raw in ("<script>", "x <b>", "<i>"):
        assert raw not in report
    for shown in ("x &lt;b&gt;&amp;$y$", "&lt;i&gt;", "+0.38", "learning_rate", "width=device-width"):
        assert shown in report


HOSTILE = "</pre><script>alert(1)</script>\u202e\x1b[2J\x00 <img src=//x onerror=y>"


def test_what_a_policy_wrote_is_shown_as_text(tmp_path: Path) -> None:
    """Tags are escaped, and what does not show, or turns text around, is shown by its number."""
    transcript = Transcript(
        label="test/start",
        kind="wrong edit",
        episodes=3,
        task_id="s/f/<a>",
        group="g",
        index=0,
        status="unresolved",
        reason=HOSTILE,
        hidden="0 of 4",
        public="0 of 2",
        stop_reason="submitted",
        prompt=HOSTILE,
        turns=(SaidTurn(HOSTILE, (Answer("read", HOSTILE, "bad"),)),),
    )
    keep_transcripts(RunFolder(tmp_path).transcripts, "test/start", [transcript])

    report = write_report(tmp_path, RunConfig(name="x"), {}, make_history(1), None).read_text()

    for raw in ("<script", "<img src=//", "s/f/<a>", "\u202e", "\x1b", "\x00"):
        assert raw not in report
    assert (
        report.count("&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\u{202E}\\u{001B}[2J\\u{0000}") == 4
    )
    assert "<details><summary><b>wrong edit</b>, 3 of test/start" in report
    assert not re.search(r'(src|href)="(?!data:)', report)


def test_sequences_and_first_edits_are_told_of_the_test_tasks(tmp_path: Path) -> None:
    """As shares of 32 episodes, and of the episodes of a family; labels are text."""
    history = make_history(steps=1)
    told = {"sequences": {"read > edit <a>": 8}, "first_edits": {"zero": {"edit <a>": 3, "no edit": 1}}}
    history.add(replace(make_evaluation(START, 0, 2), **told))
    history.add(make_evaluation(CHOSEN, 1, 8))

    report = write_report(tmp_path, RunConfig(name="x"), {}, history, result_of(history, "ab")).read_text()

    assert "<td><code>read &gt; edit &lt;a&gt;</code></td><td>25%</td>" in report
    assert re.search(r"<td>zero</td><td><span[^>]*>75%</span></td><td><span[^>]*>25%</span></td>", report)
    # 2 of 16 on each of two tasks: deviations within a task cancel, 32 * 7/64 / (32 * 31) - 3.5 / 32**2 is left.
    assert "<td>0.01</td>" in report


@pytest.mark.parametrize("run", ["smollm2_runs/menu", "smollm2_runs/coding"])
def test_the_record_of_an_earlier_version_is_read(run: str, tmp_path: Path) -> None:
    """What it did not count is not known: a dash in the report, not 0."""
    folder = Path(report_module.__file__).parent / run
    history = read_history(folder / "metrics.jsonl")

    report = write_report(tmp_path, RunConfig(name="x"), {}, history, result_of(history, "ab")).read_text()

    assert history.evaluations
    for row in history.evaluations:
        assert (row.behaviour.first_edit, row.sequences, row.first_edits) == (None, {}, {})
    assert "Sequences of calls" not in report
    assert "<td>-</td><td>-</td>" in report


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_was_interrupted_early_has_a_report(tmp_path: Path, steps: int) -> None:
    """Even one without a single step."""
    history = make_history(steps) if steps else History()

    report = write_report(tmp_path, RunConfig(name="x"), {}, history, None).read_text()

    assert "not finished" in report


def test_what_is_remarkable_of_a_step_is_said() -> None:
    """Passing the public tests alone, and a gap over its limit, whatever made them."""
    file = io.StringIO()
    console = RunConsole(60, Console(file=file, highlight=False, soft_wrap=True))
    row = make_row(1)
    console.step(row)
    console.step(
        replace(
            row,
            behaviour=replace(row.behaviour, public_only=0.12),
            update=replace(row.update, sampler_gap=2e-3),
        )
    )

    ordinary, remarkable = file.getvalue().splitlines()
    assert "public only" not in ordinary
    assert "gap" not in ordinary
    assert remarkable.endswith("public only 12%  gap 2e-03")


def test_long_work_has_a_bar_with_the_time_that_is_left() -> None:
    """Once something of it is done."""
    file = io.StringIO()
    console = RunConsole(60, Console(file=file, force_terminal=True, width=100))
    with console.live():
        console.doing("playing", 0, 8)
        time.sleep(0.2)
        assert "left" not in file.getvalue()
        console.doing("playing", 4, 8)
        time.sleep(0.2)

    assert "━" in file.getvalue()
    assert "0:00 left" in file.getvalue()


def test_equal_work_that_begins_anew_has_a_time_of_its_own() -> None:
    """Two evaluations of the same size, one after the other: the first one's time says nothing of the second's."""
    file = io.StringIO()
    console = RunConsole(60, Console(file=file, force_terminal=True, width=100))
    with console.live():
        console.doing("test/start", 0, 1000)
        time.sleep(0.3)
        console.doing("test/start", 1000, 1000)
        console.doing("test/chosen", 0, 1000)
        console.doing("test/chosen", 1, 1000)
        time.sleep(0.2)

    assert "0:00 left" in file.getvalue()
    assert not re.search(r"[1-9]:\d\d left", file.getvalue())


def test_an_entropy_that_was_not_seen_is_not_drawn_as_none(tmp_path: Path) -> None:
    """Of a step that had nothing to learn from; the same picture, whatever stands there."""
    shown = []
    for entropy in (0.0, 0.9):
        history = make_history(3)
        unseen = replace(NOTHING_LEARNED, entropy=entropy)
        history.steps[1] = replace(history.steps[1], episodes=0, update=unseen)
        draw_dashboard(history, tmp_path / "x.png", "x")
        shown.append((tmp_path / "x.png").read_bytes())

    assert shown[0] == shown[1]


def test_a_run_without_validations_shows_its_last_evaluation(tmp_path: Path) -> None:
    """The picture differs from that of the run without it, and by all else that a run may have."""
    history = make_history(3)
    history.evaluations = []
    pictures = [tmp_path / f"{number}.png" for number in range(5)]
    draw_dashboard(history, pictures[0], "x")
    history.evaluations = [make_evaluation(RAW, 0)]
    draw_dashboard(history, pictures[1], "x")
    history.evaluations = [make_evaluation(LAST, 3)]
    draw_dashboard(history, pictures[2], "x")
    draw_dashboard(history, pictures[3], "x", entropy_target=0.3)
    history.steps = [replace(row, played=128, sampled_entropy=0.6) for row in history.steps]
    draw_dashboard(history, pictures[4], "x", entropy_target=0.3)

    shown = [path.read_bytes() for path in pictures]
    assert shown[0] == shown[1]
    assert len(set(shown[1:])) == 4


def test_without_a_terminal_there_is_one_plain_line_per_step() -> None:
    """No escape codes and no moving line in a log file."""
    file = io.StringIO()
    console = RunConsole(60, Console(file=file, highlight=False, soft_wrap=True, width=40))
    with console.live():
        console.doing("playing")
        console.step(make_row(1))
        console.step(replace(make_row(2), lost=3))
        console.evaluation(make_evaluation("validation/step-2", 2))

    lines = file.getvalue().splitlines()

    assert len(lines) == 3
    assert "\x1b" not in file.getvalue()
    assert lines[0].startswith(" 1/60  reward 0.50")
    assert lines[1].endswith("3 episodes lost")


def test_times_are_short() -> None:
    """Minutes and seconds, hours where there are any."""
    assert [clock(seconds) for seconds in (7.4, 187, 3787)] == ["0:07", "3:07", "1:03:07"]


def test_time_adds_up_by_part() -> None:
    """The split of a run is the sum over its rows."""
    history = make_history(steps=2)

    assert history.seconds == Seconds(sampling=2.0, waiting=1.0, learning=0.5, evaluation=6.0)
