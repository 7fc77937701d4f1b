"""What is handed in from outside becomes what an episode would have left behind, or is refused with the reason."""

import subprocess

import pytest

from gym_service.grading.submissions import (
    MAX_CONTENT_BYTES,
    Completion,
    Diff,
    Files,
    known_submissions,
    take_submission,
)
from gym_service.grading.unified_diff import DiffRefused, apply_diff
from gym_service.tasks.model import FUNCTION_NAMES
from gym_service.tasks.suites import built_in, open_task
from gym_service.values import Submission
from tests.test_changes import TASK as REPOSITORY
from tests.test_completion import task as task_of

FUNCTION = built_in().task("bugfix/zero/share")


def taken(task, content):
    return take_submission(task, content, "seed")[1]


def diff_of(tmp_path, before, after):
    """What `diff -u` says of two texts."""
    for name, text in (("before", before), ("after", after)):
        (tmp_path / name).write_bytes(text)
    command = ["diff", "-u", "--label", "a/x.py", "--label", "b/x.py", "before", "after"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout.decode()


# --- diffs ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"1\n2\n3\n", b"1\ntwo\n3\n"),
        (b"1\n2\n3\n", b"0\n1\n2\n3\n"),
        (b"1\n2\n", b"1\n2\n3"),
        (b"1\n2", b"1\n2\n"),
        (b"1\n2", b"1\n3"),
        (b"".join(b"%d\n" % n for n in range(90)), b"".join(b"%d\n" % n for n in range(90) if n % 30 != 7)),
        (b"\n\n\na\n", b"\n\na\n\n"),
        (b"a\x0cb\nc\n", b"a\x0cb\nd\n"),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
    ],
)
def test_a_diff_of_two_files_turns_the_one_into_the_other(tmp_path, before, after):
    assert apply_diff({"x.py": before}, diff_of(tmp_path, before, after)) == ({"x.py": after}, ())


def test_a_hunk_goes_to_the_nearest_place_that_it_matches():
    tree = {"x.py": b"a\nb\n" * 3}
    hunk = "--- a/x.py\n+++ b/x.py\n@@ -{},2 +{},2 @@\n a\n-b\n+c\n"

    assert apply_diff(tree, hunk.format(4, 4))[0]["x.py"] == b"a\nb\na\nc\na\nb\n"
    assert apply_diff(tree, hunk.format(99, 99))[0]["x.py"] == b"a\nb\na\nb\na\nc\n"


def test_files_are_made_and_deleted():
    text = (
        "diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+1\n+2\n"
        "diff --git a/old.py b/old.py\ndeleted file mode 100644\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )

    assert apply_diff({"old.py": b"x\n"}, text) == ({"new.py": b"1\n2\n"}, ("old.py",))


def test_bytes_that_are_no_utf8_survive_beside_a_hunk():
    text = "--- a/x.py\n+++ b/x.py\n@@ -2 +2 @@\n-b\n+c\n"

    assert apply_diff({"x.py": b"\xff\nb\n"}, text) == ({"x.py": b"\xff\nc\n"}, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no change"),
        ("I would change line 3.", "holds no change"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-other\n+b\n", "line 3: the hunk does not match"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a\n+b\n", "shorter than it says"),
        ("--- a/x.py\n+++ b/x.py\n", "a hunk is expected"),
        ("@@ -1 +1 @@\n-a\n+b\n", "without the names of its file"),
        ("--- a/y.py\n+++ b/y.py\n@@ -1 +1 @@\n-a\n+b\n", "there is no file"),
        ("--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+b\n", "exists already"),
        ("--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "lines of it are left"),
        ("rename from x.py\nrename to y.py\n", "is not taken"),
        ("new file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "is not taken"),
        ("GIT binary patch\n", "is not taken"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+\ud800\n", "no text in UTF-8"),
    ],
)
def test_what_does_not_apply_is_named(text, reason):
    with pytest.raises(DiffRefused, match=reason):
        apply_diff({"x.py": b"a\nb\n"}, text)


def test_a_diff_that_takes_long_to_place_is_given_up():
    tree = {"x.py": b"a\n" * 100_000}
    hunk = "@@ -1,60 +1,60 @@\n" + " a\n" * 59 + "-b\n+c\n"

    with pytest.raises(DiffRefused, match="too long"):
        apply_diff(tree, "--- a/x.py\n+++ b/x.py\n" + hunk)


# --- functions ---


def test_a_function_is_opened_under_the_name_that_the_submission_has():
    code = "def quib(total, count):\n    return 0\n"
    diff = (
        "--- a/quib.py\n+++ b/quib.py\n@@ -1,2 +1,2 @@\n def quib(total, count):\n-    return total // count\n"
        "+    return 0\n"
    )

    for content in (Files({"quib.py": code.encode(), "notes.md": b""}), Completion(code), Diff(diff)):
        instance, submission = take_submission(FUNCTION, content, "seed")
        assert instance.function_name == "quib"
        assert submission.files == {"quib.py": code.encode()}
        assert not submission.refusal


def test_without_a_name_of_the_gym_the_drawn_one_holds():
    instance, submission = take_submission(FUNCTION, Completion("x = 1"), "seed")

    assert instance.function_name in FUNCTION_NAMES
    assert submission.files == {instance.path: b"x = 1"}
    assert taken(FUNCTION, Files({"../quib.py": b""})).files == {}


def test_more_than_is_graded_is_refused_unread():
    assert "too large" in taken(FUNCTION, Completion("#" * (MAX_CONTENT_BYTES + 1))).refusal


def test_a_diff_that_does_not_fit_is_a_refused_submission():
    assert taken(FUNCTION, Diff("nothing")).refusal.startswith("the diff: it holds no change")


# --- repositories ---


def test_of_a_repository_sources_cross_and_tests_stay_behind():
    files = Files({"ledger/money.py": b"x = 1\n", "tests/test_money.py": b"", "conftest.py": b""})

    found = taken(REPOSITORY, files)

    assert found.files == {"ledger/money.py": b"x = 1\n"}
    assert found.ignored == ("conftest.py", "tests/test_money.py")


def test_a_diff_deletes_a_source():
    source = REPOSITORY.base["ledger/book.py"].decode().removesuffix("\n").split("\n")
    text = f"--- a/ledger/book.py\n+++ /dev/null\n@@ -1,{len(source)} +0,0 @@\n" + "".join(
        f"-{line}\n" for line in source
    )

    assert taken(REPOSITORY, Diff(text)) == Submission(deleted=("ledger/book.py",))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../etc/passwd", "no path inside"),
        ("/etc/passwd", "no path inside"),
        ("ledger//money.py", "no path inside"),
        ("", "no path inside"),
        ("ledger/a\0b.py", "no path inside"),
        ("ledger/" + "a/" * 200 + "b.py", "too long for a path"),
        ("ledger/money.py/x.py", "a file and a folder"),
        ("ledger/\u202ey.py", "a name that no source file has"),
        ("ledger/x.pth", "compiled or installs"),
        ("pytest.py", "name of an installed module"),
        (".git/config", "version control"),
    ],
)
def test_a_path_that_no_repair_has_is_refused(path, reason):
    assert reason in taken(REPOSITORY, Files({path: b""})).refusal


def test_a_repository_takes_no_completion():
    assert "files or a diff" in taken(REPOSITORY, Completion("x")).refusal


def test_doing_nothing_is_an_empty_submission():
    assert taken(REPOSITORY, Files({})) == Submission() == known_submissions(open_task(REPOSITORY, ""))[1]


# --- files to complete ---


def test_a_completion_continues_the_prompt_and_a_file_stands_for_all_of_it():
    task = task_of("assert candidate(1) == 1")
    whole = (task.prompt + "    return x\n").encode()

    assert taken(task, Completion("    return x\n")).files == {"solution.py": whole}
    assert taken(task, Files({"solution.py": whole, "notes.txt": b""})).files == {"solution.py": whole}
    gold, stub = known_submissions(open_task(task, "seed"))
    assert gold == task.complete(task.gold)
    assert stub == task.complete("    pass\n")
