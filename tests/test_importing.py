"""Tasks out of files of JSON lines: what becomes of a line, and how it is said which lines are none."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gym_service.proof import ProofBook
from gym_service.state import StateFolder
from gym_service.tasks import importing
from gym_service.tasks.completion import PATH, CompletionInstance, CompletionTask
from gym_service.tasks.importing import ImportRefused, read_file, suite_name
from gym_service.tasks.model import Case, Split
from gym_service.tasks.store import (
    DamagedSuite,
    check_new_suite,
    check_not_taken,
    known_suites,
    save_task,
)
from tests.test_synthesis import TASK as REPOSITORY_TASK

DOUBLE = {
    "task_id": "Python/0",
    "prompt": 'def double(x):\n    """Doubles."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "buggy_solution": "    return x + 2\n",
    "test": "def check(double):\n    assert double(2) == 4\n    assert double(3) == 6\n\ncheck(double)",
}
SHARED = {
    "task_id": 2,
    "text": "Write a function to find what\r\ntwo lists share.",
    "code": "import math\r\ndef shared(a, b=()):\r\n    return tuple(set(a) & set(b))",
    "test_list": ["assert shared([1], [1]) == (1,)", "assert shared([1], [2]) == ()"],
    "test_setup_code": "",
}


@pytest.fixture
def read(tmp_path):
    def read(form, *rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return read_file(path, form, "rows", Split.TRAIN)

    return read


def test_a_line_like_humaneval_becomes_a_task_without_the_call_at_its_end(read):
    [task] = read("humaneval", DOUBLE).tasks

    assert (task.task_id, task.split, task.entry_point) == ("rows/Python-0", Split.TRAIN, "double")
    assert task.cases == (Case((2,), 4), Case((3,), 6))
    assert task.reference.endswith('Doubles."""\n    return 2 * x\n')


def test_a_line_with_a_bug_starts_with_the_bug_and_asks_for_its_repair(read):
    instance = CompletionInstance(read("humanevalfix", DOUBLE).tasks[0])

    assert instance.tree == {PATH: (DOUBLE["prompt"] + DOUBLE["buggy_solution"]).encode()}
    assert "Repair it" in instance.request
    assert "double" in instance.request


def test_a_line_like_mbpp_shows_its_text_and_one_test_and_starts_with_the_signature(read):
    [task] = read("mbpp", SHARED).tasks

    start = CompletionInstance(task).tree[PATH].decode()
    assert start == (
        "# Write a function to find what\n# two lists share.\n# For example: assert shared([1], [1]) == (1,)\n\n\n"
        "def shared(a, b=()):\n    pass\n"
    )
    assert task.cases == (Case(([1], [1]), (1,)), Case(([1], [2]), ()))


@pytest.mark.parametrize(
    "change", [{"test_setup_code": "import math"}, {"test_imports": ["import math"], "test_setup_code": None}]
)
def test_what_mbpp_sets_up_for_its_tests_is_there(read, change):
    tests = ["assert math.isclose(len(shared([1], [1])), 1)"]

    [task] = read("mbpp", SHARED | change | {"test_list": tests}).tasks

    assert task.cases is None
    compile(task.check, "check", "exec")
    assert task.check.startswith("import math\n")


@pytest.mark.parametrize(
    ("form", "row", "reason"),
    [
        ("humaneval", "{", "Expecting"),
        ("humaneval", [], "it is no object"),
        ("humaneval", DOUBLE | {"task_id": "///"}, "it has no task_id"),
        ("humaneval", DOUBLE | {"task_id": "x" * 300}, "more than 100 characters"),
        ("humaneval", DOUBLE | {"prompt": 5}, "it has no prompt (a text)"),
        ("humaneval", DOUBLE | {"test": ""}, "it has no test"),
        ("humaneval", DOUBLE | {"test": "def ("}, "invalid syntax"),
        ("humanevalfix", DOUBLE | {"buggy_solution": None}, "it has no buggy_solution"),
        ("mbpp", SHARED | {"test_list": []}, "it has no test_list"),
        ("mbpp", SHARED | {"test_list": "assert shared([1])"}, "it has no test_list"),
        ("mbpp", SHARED | {"test_list": ["assert other(1) == 2"]}, "no test calls a function"),
        ("mbpp", SHARED | {"code": "def shared("}, "never closed"),
        ("mbpp", SHARED | {"text": None}, "it has no prompt"),
        ("mbpp", "[" * 100_000, "recursion"),
    ],
)
def test_a_line_that_is_no_task_is_refused_by_its_number_and_the_others_stay(read, form, row, reason):
    good = DOUBLE if form.startswith("humaneval") else SHARED

    found = read(form, "", row, good)

    assert len(found.tasks) == 1
    [refused] = found.refused
    assert refused.startswith("line 2: ")
    assert reason in refused


def test_a_name_that_was_there_before_is_refused(read):
    found = read("humaneval", DOUBLE, DOUBLE | {"task_id": "Python//0"})

    assert found.refused == ("line 2: rows/Python-0 was there before",)


def test_a_compressed_file_is_read(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(DOUBLE).encode()))

    assert len(read_file(path, "humaneval", "rows", Split.TEST).tasks) == 1


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"no line\n"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_file_without_any_task_is_refused_as_a_whole(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(ImportRefused, match=name):
        read_file(tmp_path / name, "humaneval", "rows", Split.TEST)


def test_a_file_that_unpacks_to_more_than_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_MAX_BYTES", 1 << 20)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b" " * (2 << 20)))

    with pytest.raises(ImportRefused, match="more than 1 MiB"):
        read_file(tmp_path / "rows.jsonl.gz", "humaneval", "rows", Split.TEST)


def test_a_suite_is_called_after_its_file():
    assert suite_name("Sanitized_MBPP (1).jsonl.gz") == "sanitized-mbpp-1"


def test_a_stored_completion_is_read_as_it_was(tmp_path, read):
    [task] = read("humanevalfix", DOUBLE).tasks
    save_task(tmp_path / "rows", task)

    [stored] = known_suites(tmp_path).suite("rows")

    assert stored == task
    assert stored.sha256 == task.sha256


@pytest.mark.parametrize(
    "change", [{"split": "nowhere"}, {"more": 1}, {"task_id": "rows/other"}, {"suite": "a"}]
)
def test_a_damaged_completion_is_named(tmp_path, read, change):
    path = save_task(tmp_path / "rows", read("humaneval", DOUBLE).tasks[0])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(DamagedSuite, match=r"Python-0\.json is no task"):
        known_suites(tmp_path)


@pytest.mark.parametrize("name", ["humaneval", "bugfix", "A", "", "a_b", "../x", "ledger"])
def test_a_suite_takes_no_name_that_is_taken_or_is_none(tmp_path, name):
    save_task(tmp_path / "ledger", REPOSITORY_TASK)

    with pytest.raises(ImportRefused, match="choose another --name"):
        check_new_suite(tmp_path, name, CompletionTask)
    check_new_suite(tmp_path, "other", CompletionTask)


@pytest.mark.docker
def test_the_command_proves_what_it_imports_and_says_what_it_refuses(tmp_path, engine):
    rows = [
        SHARED,
        SHARED | {"task_id": 3, "test_list": ["assert set(shared([1, 2], [2, 1])) == {1, 2}"]},
        SHARED | {"task_id": 4, "test_list": ["assert shared([1], [1]) == 5"]},
        SHARED | {"task_id": 5, "test_list": ["assert shared([object], [object]) == (object,)"]},
        {"task_id": 6},
    ]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    command = [sys.executable, "-m", "gym_service", "--state-folder", str(tmp_path / "state"), "tasks"]

    done = subprocess.run(
        [*command, "import", str(path), "--as", "mbpp"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ,
    )

    assert done.returncode == 1, done.stderr
    assert "some/4  test            1         the gold completion does not pass" in done.stdout
    assert "some/5  test            1         the check fails with the reference solution" in done.stdout
    assert "2 of 4 tasks are proven\nrefused: line 5: it has no code (a text)\n" in done.stdout
    state = StateFolder(tmp_path / "state")
    book = ProofBook(state.proofs, engine.facts.image_digest)
    tasks = known_suites(state.suites).suite("some")
    assert [task.task_id for task in tasks if book.holds(task)] == ["some/2", "some/3"]
    assert not book.holds(replace(tasks[0], gold="pass"))


def test_two_folders_whose_names_come_to_one_id_are_told_apart(tmp_path):
    first = replace(REPOSITORY_TASK, source="the folder a b")
    save_task(tmp_path / "ledger", first)

    check_not_taken(tmp_path / "ledger", replace(first, request="Repair it."))
    check_not_taken(tmp_path / "ledger", replace(first, task_id="ledger/other", source="the folder other"))
    with pytest.raises(ImportRefused, match="the folder a-b and the folder a b would both be"):
        check_not_taken(tmp_path / "ledger", replace(first, source="the folder a-b"))
