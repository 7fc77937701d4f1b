"""Submissions are read from lines, folders and suites, and what is wrong with one costs no other."""

import json
import os
from pathlib import Path

import pytest

from gym_service.evaluation import reading
from gym_service.evaluation.reading import ReadingError, read_submissions
from gym_service.grading.submissions import Completion, Diff, Files
from gym_service.tasks.suites import built_in

TASKS = built_in().suite("bugfix")
SHARE, SPEED = "bugfix/zero/share", "bugfix/zero/speed"


def lines(tmp_path, *rows):
    path = tmp_path / "submissions.jsonl"
    texts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(texts))
    return read_submissions(str(path), TASKS)


def folder(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_submissions(str(tmp_path / "in"), TASKS)


def test_the_three_forms_are_read(tmp_path):
    read = lines(
        tmp_path,
        {"task_id": SHARE, "sample": 3, "files": {"quib.py": "\u00e9"}},
        {"task_id": SPEED, "sample_index": 0, "diff": "d"},
        {"task_id": SPEED, "sample": 1, "completion": "c"},
    )

    assert [(each.key, each.content) for each in read.attempts] == [
        ((SHARE, 3), Files({"quib.py": "\u00e9".encode()})),
        ((SPEED, 0), Diff("d")),
        ((SPEED, 1), Completion("c")),
    ]
    assert read.complaints == ()


def test_samples_without_a_number_are_counted_for_each_task(tmp_path):
    read = lines(tmp_path, *({"task_id": task, "completion": ""} for task in (SHARE, SPEED, SHARE)))

    assert [each.key for each in read.attempts] == [(SHARE, 0), (SPEED, 0), (SHARE, 1)]


def test_a_task_may_be_called_without_its_suite_and_in_other_cases(tmp_path):
    read = lines(
        tmp_path, *({"task_id": name, "completion": ""} for name in ("zero/share", "BugFix/zero/Share"))
    )

    assert [each.key for each in read.attempts] == [(SHARE, 0), (SHARE, 1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no object"),
        ({"completion": ""}, "task_id is missing"),
        ({"task_id": "bugfix/none", "completion": ""}, "no task 'bugfix/none'"),
        ({"task_id": SHARE}, "one of files, diff, completion"),
        ({"task_id": SHARE, "completion": "", "diff": ""}, "and 2 are"),
        ({"task_id": SHARE, "files": {"x": 1}}, "files must be an object"),
        ({"task_id": SHARE, "completion": None}, "completion must be a text"),
        ({"task_id": SHARE, "completion": "", "sample": -1}, "whole number"),
        ({"task_id": SHARE, "completion": "", "sample": True}, "whole number"),
        ({"task_id": SHARE, "completion": "", "sample": 0}, "sample 0 of bugfix/zero/share is in line 1"),
        ({"task_id": "\u202ex", "completion": ""}, r"\u202e"),
    ],
)
def test_a_bad_line_is_named_by_number_and_costs_no_other(tmp_path, line, message):
    good = {"task_id": SHARE, "completion": ""}

    read = lines(tmp_path, good, b"", line, {**good, "sample": 1})

    (complaint,) = read.complaints
    assert complaint.place == "line 3"
    assert message in complaint.message
    assert [each.key for each in read.attempts] == [(SHARE, 0), (SHARE, 1)]


def test_a_line_beyond_measure_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MAX_LINE_BYTES", 100)

    read = lines(tmp_path, b"x" * 1000, {"task_id": SHARE, "completion": ""})

    assert [each.place for each in read.complaints] == ["line 1"]
    assert [each.place for each in read.attempts] == ["line 2"]


def test_what_json_alone_can_spell_is_read(tmp_path):
    read = lines(tmp_path, {"task_id": SHARE, "files": {"\ud800": "\ud800"}})

    assert len(read.attempts[0].sha256) == 64


def test_a_hash_tells_the_forms_apart(tmp_path):
    rows = ({"completion": "x"}, {"diff": "x"}, {"files": {"x": ""}}, {"files": {"": "x"}})

    read = lines(tmp_path, *({"task_id": SHARE, **row} for row in rows))

    assert len({each.sha256 for each in read.attempts}) == len(rows)


def test_a_folder_holds_files_samples_and_trees(tmp_path):
    read = folder(
        tmp_path,
        {
            "zero/share.py": "a",
            "bugfix/zero/speed/1.py": "b",
            "bugfix/zero/speed/2.diff": "c",
            "bugfix.minmax.larger/0/quib.py": "d",
            "bugfix.minmax.larger/0/sub/x.txt": "e",
            "minmax__spread/quib.py": "f",
            ".hidden": "",
        },
    )

    assert {each.key: each.content for each in read.attempts} == {
        (SHARE, 0): Completion("a"),
        (SPEED, 1): Completion("b"),
        (SPEED, 2): Diff("c"),
        ("bugfix/minmax/larger", 0): Files({"quib.py": b"d", "sub/x.txt": b"e"}),
        ("bugfix/minmax/spread", 0): Files({"quib.py": b"f"}),
    }
    assert read.complaints == ()


def test_what_belongs_to_no_task_is_named(tmp_path):
    read = folder(tmp_path, {"zero/share.py": "a", "zero/unknown.py": "b", "README.md": ""})

    assert [each.place for each in read.complaints] == ["README.md", "zero/unknown.py"]
    assert len(read.attempts) == 1


def test_what_lies_beside_numbered_samples_is_named(tmp_path):
    read = folder(tmp_path, {"zero/share/0.py": "a", "zero/share/one.py": "b", "zero/share/.x": ""})

    assert [each.place for each in read.complaints] == ["zero/share/one.py"]
    assert len(read.attempts) == 1


def test_a_folder_that_cannot_be_read_is_named_and_costs_no_other(tmp_path, monkeypatch):
    def iterdir(path, iterdir=Path.iterdir):
        if path.name in ("minmax", "speed"):
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    # A mode would not do: nothing is closed to root.
    monkeypatch.setattr(Path, "iterdir", iterdir)
    read = folder(tmp_path, {"zero/share.py": "a", "minmax/larger.py": "b", "zero/speed/0.py": "c"})

    assert [each.place for each in read.complaints] == ["minmax", "zero/speed"]
    assert len(read.attempts) == 1


def test_no_link_is_followed_out_of_a_folder(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder(tmp_path, {"bugfix.zero.speed/quib.py": "a"})
    for name in ("bugfix.zero.share.py", "bugfix.zero.speed/other.py", "bugfix.minmax.larger"):
        os.symlink(tmp_path / "secret", tmp_path / "in" / name)
    os.mkfifo(tmp_path / "in" / "bugfix.minmax.spread.py")

    read = read_submissions(str(tmp_path / "in"), TASKS)

    assert read.attempts == ()
    assert len(read.complaints) == 4


def test_a_suite_brings_its_solutions_and_its_stubs():
    for name in ("canonical", "stubs"):
        read = read_submissions(name, TASKS)
        assert [each.key for each in read.attempts] == [(task.task_id, 0) for task in TASKS]


def test_what_is_not_there_is_named_with_what_there_could_be(tmp_path):
    with pytest.raises(ReadingError, match="canonical, stubs"):
        read_submissions(str(tmp_path / "none"), TASKS)
