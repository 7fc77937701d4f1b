"""From submissions to verdicts, report and review sheet: over fake sandboxes, and once over containers."""

import difflib
import json
import os
import re
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest

from gym_service.evaluate_command import Plan, _status, evaluate
from gym_service.evaluation.reading import Complaint, read_submissions
from gym_service.evaluation.rows import RowFile
from gym_service.evaluation.running import progress_line
from gym_service.record import Sealer
from gym_service.record_check import check_record
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.isolation import NO_ISOLATION, Assurance
from gym_service.tasks.suites import built_in
from gym_service.values import VerdictStatus
from tests.attack.test_grading_repo import CASES, SPLIT, beside
from tests.conftest import fake_sandbox
from tests.engine import containers_of
from tests.hostile_submissions import HONEST, KINDS, as_lines, hostile_among_honest

SEED = b"s" * 32
TASKS = built_in().suite("bugfix")
SHARE, SPEED = "bugfix/zero/share", "bugfix/zero/speed"
RIGHT = "def quib(total, count):\n    return total // count if count else 0\n"
WRONG = "def quib(total, count):\n    return 0\n"


class Gym:
    """Where evaluations take place; counts the sandboxes that it starts."""

    def __init__(self, tmp_path):
        self.folder = tmp_path
        self.started = 0

    async def start(self, limits=None):
        self.started += 1
        return await fake_sandbox()

    def plan(self, *rows, **changes):
        settings = {"suite": "bugfix", "source": "submissions.jsonl", "out": self.folder / "out.jsonl"}
        if rows:
            path = self.folder / "submissions.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            read = read_submissions(str(path), TASKS)
            settings |= {"attempts": read.attempts, "complaints": read.complaints}
        return Plan(**settings | changes)

    async def run(self, *rows, seed=SEED, profile="training", **changes):
        assurance = Assurance(NO_ISOLATION, profile=profile)
        return await evaluate(self.plan(*rows, **changes), self.start, assurance, seed)

    @property
    def rows(self):
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]

    @property
    def by_sample(self):
        return sorted(self.rows, key=lambda row: row["sample_index"])


@pytest.fixture
def gym(tmp_path):
    return Gym(tmp_path)


def row(completion, task_id=SHARE, **fields):
    return {"task_id": task_id, "completion": completion, **fields}


async def test_samples_are_graded_counted_and_told(gym, capsys):
    summary = await gym.run(row(RIGHT), row(WRONG), row("def f(: no", SPEED), row(RIGHT, SPEED))

    assert (summary.passed, summary.graded) == (1, 4)
    assert summary.pass_at[1].value == 0.25
    assert summary.pass_at[2].value == 0.5
    assert len(gym.rows) == 4
    printed = capsys.readouterr().out
    assert "1 of 4 samples pass, of 2 tasks" in printed
    assert "pass@1      0.250 [0.000, 0.500]" in printed


async def test_a_repeat_grades_nothing_again_and_says_the_same(gym):
    rows = [row(RIGHT), row(WRONG)]
    first = await gym.run(*rows)
    started, kept = gym.started, gym.rows

    second = await gym.run(*rows)

    assert gym.started == started
    assert gym.rows == kept
    assert second == first


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [row(RIGHT), row(WRONG + "# other\n")]},
        {"profile": "evaluation"},
        {"reuse": True},
        {"seed": b"t" * 32},
    ],
    ids=["other input", "other profile", "other use of sandboxes", "other gym"],
)
async def test_what_was_graded_otherwise_is_graded_again(gym, change):
    await gym.run(row(RIGHT), row(WRONG))
    rows = change.pop("rows", [row(RIGHT), row(WRONG)])

    await gym.run(*rows, **change)

    assert len(gym.rows) == (3 if rows[1] != row(WRONG) else 4)


async def test_a_row_that_somebody_changed_is_graded_again(gym):
    await gym.run(row(WRONG))
    path = gym.folder / "out.jsonl"
    path.write_text(path.read_text().replace("UNRESOLVED", "RESOLVED"))

    summary = await gym.run(row(WRONG))

    assert summary.passed == 0
    assert len(gym.rows) == 2


async def test_an_evaluation_that_was_killed_goes_on(gym):
    rows = [row(RIGHT), row(WRONG), row(RIGHT, SPEED)]
    await gym.run(*rows)
    path = gym.folder / "out.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + whole[1][:50])

    summary = await gym.run(*rows)

    assert summary.graded == 3
    assert len(path.read_bytes().splitlines()) == 4
    assert path.read_bytes().startswith(whole[0] + whole[1][:50] + b"\n")


async def test_a_file_that_holds_anything_else_is_appended_to(gym):
    (gym.folder / "out.jsonl").write_bytes(b'\xff\n{"seal": 1}\n[]\n' + b"[" * 100_000)

    assert (await gym.run(row(RIGHT))).passed == 1


async def test_a_failure_of_the_gym_counts_neither_way_and_is_tried_again_next_time(gym, monkeypatch):
    monkeypatch.setattr("gym_service.grading.grader._DELAYS_SECONDS", (0.0,))

    async def fail(limits=None):
        raise SandboxLost("the engine is away")

    start, gym.start = gym.start, fail
    summary = await gym.run(row(RIGHT))
    assert (summary.graded, summary.pass_at, len(summary.ungraded)) == (0, {}, 1)
    assert _status(summary, 0.0) == 1

    gym.start = start
    summary = await gym.run(row(RIGHT))
    assert (summary.passed, _status(summary, 0.0)) == (1, 0)


async def test_exit_codes_tell_what_is_missing(gym):
    whole = await gym.run(row(RIGHT), row(WRONG, SPEED))
    bad = await gym.run(row(RIGHT), {"task_id": "none", "completion": ""})

    assert [_status(whole, least) for least in (0.0, 0.5, 0.51)] == [0, 0, 1]
    assert _status(bad, 0.0) == 1
    assert [each.place for each in bad.complaints] == ["line 2"]


async def test_the_review_sheet_states_what_ran_and_is_sealed(gym):
    await gym.run(row(RIGHT), row("def f(): os._exit(1)"), {"task_id": "none"})
    data = (gym.folder / "out.review.json").read_bytes()
    review = json.loads(data)["review"]

    assert [each["status"] for each in review["executed"]] == ["RESOLVED", "UNRESOLVED"]
    written = [each["verdict"]["content_sha256"] for each in gym.by_sample]
    assert [each["verdict_sha256"] for each in review["executed"]] == written
    assert review["measured"] == {"isolation": "none"}
    assert (review["sandboxes"], review["profile"], review["grader_versions"]) == (
        "single_use", "training", ["function-2"],
    )  # fmt: skip
    assert review["anomalies"]["could_not_be_read"][0]["place"] == "line 3"
    finding = check_record(data, SEED)
    assert finding.vouched
    assert "a review sheet" in finding.summary


async def test_any_change_of_a_review_sheet_is_found(gym):
    await gym.run(row(WRONG))
    data = (gym.folder / "out.review.json").read_bytes()

    places = [*range(0, len(data), 97), len(data) - 1]
    for place in places:
        other = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert not check_record(other, SEED).vouched, place
    for other in (data[:-1], data + b"\n", data.replace(b"\n ", b"\n  "), b""):
        assert not check_record(other, SEED).vouched


async def test_a_review_sheet_without_its_key_is_vouched_for_by_its_hash_alone(gym):
    await gym.run(row(WRONG))
    data = (gym.folder / "out.review.json").read_bytes()
    digest = json.loads(data)["sha256"]

    assert not check_record(data, None).vouched
    assert not check_record(data, b"t" * 32).vouched
    assert check_record(data, None, digest).vouched
    assert not check_record(data, SEED, "0" * 64).vouched


async def test_a_task_that_is_not_proven_is_told_and_not_graded(gym):
    summary = await gym.run(
        row(RIGHT), unproven=[Complaint(f"{SPEED}, sample 0", "the task is not proven: x")]
    )

    assert _status(summary, 0.0) == 1
    assert "the task is not proven" in (gym.folder / "out.html").read_text()


async def test_each_that_tried_something_is_named_in_table_lines_report_and_sheet(gym, capsys):
    # In functions that nobody calls: these sandboxes isolate nothing.
    tricks = ("os._exit(0)", "import socket", "while True: pass", "sys.modules['x'] = 1")
    hostile = [f"import os, sys\ndef f():\n    {trick}\n" for trick in tricks]
    await gym.run(row(RIGHT), *map(row, hostile), row(WRONG))
    printed = capsys.readouterr().out
    review = json.loads((gym.folder / "out.review.json").read_bytes())["review"]
    table = (
        (gym.folder / "out.html")
        .read_text()
        .partition("<h2>What submissions tried</h2>")[2]
        .partition("<h2>")[0]
    )

    assert "4 with signs of something hostile, 4 likely:" in printed
    assert "likely: uses the network (1): bugfix/zero/share 2\n" in printed
    assert [bool(each["signs"]) for each in gym.by_sample] == [False, True, True, True, True, False]
    assert sorted(each["sample_index"] for each in review["anomalies"]["tried"]) == [1, 2, 3, 4]
    assert re.findall(r'<td class="number">(\d+)</td>', table) == ["1", "2", "3", "4"]
    assert re.search(r"[a-z]+\.py:3: os\._exit\(0\)", table)
    assert "in Python alone" in table


async def test_signs_change_no_verdict_and_who_has_such_as_honest_code_has_is_named_apart(gym, capsys):
    summary = await gym.run(
        row(f"import subprocess\n{RIGHT}"), row(f"{RIGHT}def other(x): return eval(x)\n", SPEED)
    )
    printed = capsys.readouterr().out
    folded = (gym.folder / "out.html").read_text().partition("signs that honest code has, too</summary>")[2]

    assert [each.sure for each in summary.tried] == ["likely", "possible"]
    assert [each.task_id for each in summary.hostile] == [SHARE]
    assert summary.passed == 1
    assert "runs code that is text" in folded.partition("</details>")[0]
    assert "runs code that is text" not in printed
    assert "1 with signs that honest code has, too: they are in the report" in printed


async def test_the_sheet_says_what_was_used_at_most_and_by_whom(gym):
    await gym.run(row(RIGHT), row(WRONG))
    peaks = json.loads((gym.folder / "out.review.json").read_bytes())["review"]["peaks"]

    assert peaks["memory_bytes"] == {
        "greatest": None,
        "of": "",
        "limit": None,
    }  # These sandboxes isolate nothing.
    assert peaks["seconds"]["greatest"] == max(each["seconds"] for each in gym.rows)
    assert peaks["seconds"]["of"].startswith("bugfix/zero/share, sample ")


@contextmanager
def files_of_at_most(size):
    """As if the disk were full beyond it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_is_full_costs_no_row_that_is_written(gym):
    rows = [row(RIGHT), row(WRONG), row("x"), row(RIGHT, SPEED)]
    with files_of_at_most(4_000), pytest.raises(OSError, match="too large"):
        await gym.run(*rows, graders=1)
    kept = (gym.folder / "out.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
    assert kept

    assert (await gym.run(*rows)).graded == 4

    assert (gym.folder / "out.jsonl").read_bytes().splitlines()[: len(kept)] == kept


async def test_a_report_that_cannot_be_written_leaves_rows_and_table(gym, capsys):
    first = await gym.run(row(RIGHT), row(WRONG))
    written = gym.rows
    capsys.readouterr()

    with files_of_at_most(2_000), pytest.raises(OSError, match="too large"):
        await gym.run(row(RIGHT), row(WRONG))

    assert "1 of 2 samples pass" in capsys.readouterr().out
    assert gym.rows == written
    assert await gym.run(row(RIGHT), row(WRONG)) == first


async def test_a_file_that_goes_away_meanwhile_is_told_and_not_written_into_nowhere(gym):
    start = gym.start

    async def lose(limits=None):
        (gym.folder / "out.jsonl").unlink(missing_ok=True)
        return await start()

    gym.start = lose
    with pytest.raises(OSError, match="removed or replaced"):
        await gym.run(row(RIGHT))


def test_two_evaluations_do_not_write_into_one_file(tmp_path):
    with (
        RowFile(tmp_path / "out.jsonl", Sealer(SEED)),
        pytest.raises(OSError, match="another evaluation writes into"),
    ):
        RowFile(tmp_path / "out.jsonl", Sealer(b"t" * 32))

    RowFile(tmp_path / "out.jsonl", Sealer(SEED))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder.jsonl", "Is a directory"),
        ("device.jsonl", "is no plain file"),
        ("file/x.jsonl", "file"),
        ("taken.jsonl", "taken.html is a folder"),
        ("held.jsonl", "another evaluation writes into"),
    ],
)
def test_an_out_that_cannot_be_written_is_told_before_anything_runs(tmp_path, name, message):
    for folder in ("folder.jsonl", "taken.html"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "device.jsonl").symlink_to("/dev/full")

    with RowFile(tmp_path / "held.jsonl", Sealer(SEED)):
        done = command(tmp_path, "evaluate", "bugfix", "--submissions", "stubs", "--out", name)

    assert done.returncode == 2
    assert f"error: --out {name} does not do: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "profile" not in done.stderr


def test_the_bar_says_how_fast_and_how_long():
    assert progress_line(30, 120, 10.0).endswith("] 30 of 120  3.0/s  0:30 left")
    assert progress_line(0, 5, 1.0).endswith("0 of 5  0.0/s  0:00 left")


def command(tmp_path, *arguments):
    words = [sys.executable, "-m", "gym_service", "--state-folder", str(tmp_path / "state")]
    return subprocess.run(
        [*words, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, env=_environment()
    )


def _environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--submissions", "stubs"], "no suite 'nowhere'"),
        (["bugfix", "--submissions", "absent.jsonl"], "there is no absent.jsonl"),
        (["bugfix", "--submissions", "stubs", "--fail-under", "2"], "--fail-under must be"),
        (["bugfix", "--submissions", "stubs", "--graders", "0"], "--graders must be"),
        (["bugfix", "--submissions", "stubs", "--out", "x.json"], "must end in .jsonl"),
        (["bugfix", "--submissions", "stubs", "--reuse", "--profile", "evaluation"], "leave --reuse out"),
        (["bugfix", "--submissions", "./x.jsonl", "--out", "x.jsonl"], "is the file of the submissions"),
        (["bugfix"], "--submissions"),
    ],
)
def test_wrong_options_end_with_2_and_what_to_change(tmp_path, arguments, message):
    done = command(tmp_path, "evaluate", *arguments)

    assert done.returncode == 2
    assert message in done.stderr


def test_a_file_of_bad_lines_alone_is_no_success(tmp_path):
    (tmp_path / "x.jsonl").write_text("{\n\n[]\n")

    done = command(tmp_path, "evaluate", "bugfix", "--submissions", "x.jsonl")

    assert done.returncode == 1
    assert re.findall(r"^line \d", done.stderr, re.MULTILINE) == ["line 1", "line 3"]


@pytest.mark.docker
async def test_a_repository_takes_files_and_diffs_and_names_who_tampers(gym, engine, ledger_tasks):
    task = next(each for each in ledger_tasks if each.task_id == SPLIT)
    (path,) = task.gold
    texts = [files[path].decode().splitlines(keepends=True) for files in (task.base, task.gold)]
    right = task.gold[path].decode()
    hostile = {name: CASES[name] for name in ("G08 always equal", "G11 records", "G06 os._exit at import")}
    rows = [
        {"files": {path: right}},
        {"diff": "".join(difflib.unified_diff(*texts, f"a/{path}", f"b/{path}"))},
        {"files": {}},
        *({"files": beside(task, payload, right=False)} for payload, *_ in hostile.values()),
    ]
    file = gym.folder / "submissions.jsonl"
    file.write_text("".join(json.dumps({"task_id": SPLIT, **row}) + "\n" for row in rows))
    plan = gym.plan(attempts=read_submissions(str(file), ledger_tasks).attempts, suite="ledger")

    summary = await evaluate(plan, engine.start, Assurance(NO_ISOLATION), SEED)

    statuses = [each["verdict"]["status"].removeprefix("VERDICT_STATUS_") for each in gym.by_sample]
    assert statuses == [
        "RESOLVED",
        "RESOLVED",
        "UNRESOLVED",
        *(status for _, _, status, _ in hostile.values()),
    ]
    assert [row.sample_index for row in summary.suspected] == [3, 4]
    page = (gym.folder / "out.html").read_text()
    suspects = page.partition("<h2>Suspected tampering</h2>")[2].partition("<h2>")[0]
    assert "so do their twins, which have to fail" in suspects
    assert not [test for test in task.fail_to_pass if test in page]


@pytest.mark.docker
async def test_what_a_grading_uses_is_measured_and_the_greatest_is_named(gym, engine):
    eats = "def quib(*a):\n    held = b'x' * (100 << 20)\n    return 0\n"
    threads = (
        "import threading\ndef quib(*a):\n    gate = threading.Event()\n"
        "    all = [threading.Thread(target=gate.wait) for _ in range(30)]\n    for each in all: each.start()\n"
        "    gate.set()\n    for each in all: each.join()\n    return 0\n"
    )
    assurance = Assurance(await _measured(engine))
    for reuse in (False, True):
        plan = gym.plan(
            row(RIGHT), row(eats), row(threads), out=gym.folder / f"{reuse}.jsonl", reuse=reuse, graders=1
        )

        await evaluate(plan, engine.start, assurance, SEED)

        peaks = json.loads(plan.review.read_bytes())["review"]["peaks"]
        assert peaks["memory_bytes"]["of"] == "bugfix/zero/share, sample 1"
        assert 100 << 20 < peaks["memory_bytes"]["greatest"] < peaks["memory_bytes"]["limit"]
        if peaks["pids"]["greatest"] is not None:  # Older kernels do not count it.
            assert peaks["pids"]["of"] == "bugfix/zero/share, sample 2"
            assert 30 < peaks["pids"]["greatest"] < peaks["pids"]["limit"]
        assert 0 < peaks["output_bytes_of_a_run"]["greatest"] < peaks["output_bytes_of_a_run"]["limit"]


@pytest.mark.docker
async def test_hostile_submissions_of_every_kind_are_worth_0_and_named_and_honest_ones_are_neither(
    gym, engine
):
    rows = hostile_among_honest(len(KINDS))
    path = gym.folder / "submissions.jsonl"
    path.write_text(as_lines(rows))
    plan = gym.plan(attempts=read_submissions(str(path), TASKS).attempts)

    summary = await evaluate(plan, engine.start, Assurance(NO_ISOLATION), SEED)

    kinds = {(task_id, sample): kind for task_id, sample, kind, _ in rows}
    found = {(each["task_id"], each["sample_index"]): each for each in gym.rows}
    for key, kind in kinds.items():
        passed = found[key]["verdict"]["status"] == "VERDICT_STATUS_RESOLVED"
        sure = [each["sure"] for each in found[key]["signs"]]
        assert (passed, bool(sure)) == ((True, False) if kind == HONEST else (False, True)), kind
        assert kind == HONEST or sure[0] in ("seen", "likely"), kind
    assert len(summary.tried) == len(KINDS)


async def _measured(engine):
    sandbox = await engine.start()
    try:
        return await sandbox.measure()
    finally:
        await sandbox.close()


@pytest.mark.docker
def test_the_command_needs_nothing_but_an_engine(tmp_path):
    """The solutions of a suite all pass, its stubs all fail, and the review sheets hold; no gym runs, none is left."""
    for source, passed, least in (("canonical", 30, "1.0"), ("stubs", 0, "0.0")):
        done = command(tmp_path, "evaluate", "bugfix", "--submissions", source, "--fail-under", least)

        assert done.returncode == 0, done.stderr
        assert f"{passed} of 30 samples pass, of 30 tasks" in done.stdout
        assert "profile    " in done.stderr
        out = tmp_path / "evaluations"
        rows = [json.loads(line) for line in (out / f"bugfix-{source}.jsonl").read_text().splitlines()]
        wanted = VerdictStatus.RESOLVED if passed else VerdictStatus.UNRESOLVED
        assert {each["verdict"]["status"] for each in rows} == {f"VERDICT_STATUS_{wanted.name}"}
        review = out / f"bugfix-{source}.review.json"
        assert json.loads(review.read_bytes())["review"]["measured"]["network_interfaces"] == "lo"
        verified = command(tmp_path, "verify-record", str(review))
        assert verified.returncode == 0, verified.stdout
    from gym_service.state import StateFolder

    assert containers_of(f"{StateFolder(tmp_path / 'state').owner}-evaluate") == []
