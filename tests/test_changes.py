"""What an episode changed: sources cross, tests and configuration stay behind, tricks are refused with a reason."""

import pytest

from gym_service.grading.changes import MAX_CHANGED_FILES, MAX_FILE_BYTES, take_changes
from gym_service.sandbox.base import FileEntry, FileRefused
from gym_service.sandbox.fake import FakeSandbox
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask
from gym_service.values import Submission
from tests.ledger import FILES

TASK = RepositoryTask(
    task_id="ledger/boundary/within",
    suite="ledger",
    split=Split.TRAIN,
    family="boundary",
    request="Repair it.",
    base={path: text.encode() for path, text in FILES.items()},
    gold={},
    test_files={path: FILES[path].encode() for path in FILES if "test_" in path},
    fail_to_pass=(),
    pass_to_pass=(),
    twins={},
    plain=(),
)


class Workspace(FakeSandbox):
    """A sandbox that holds the base tree, and things that only a real one can have."""

    def __init__(self):
        super().__init__()
        self.files = dict(TASK.base)
        self.odd = []

    async def list_files(self):
        entries = [
            entry for entry in await super().list_files() if entry.path not in {odd.path for odd in self.odd}
        ]
        return tuple(sorted([*entries, *self.odd], key=lambda entry: entry.path))


@pytest.fixture
def workspace():
    return Workspace()


async def test_an_untouched_repository_is_an_empty_submission(workspace):
    assert await take_changes(workspace, TASK) == Submission()


async def test_changed_new_and_deleted_sources_cross(workspace):
    workspace.files["ledger/money.py"] = b"x = 1\n"
    workspace.files["ledger/rates/daily.py"] = b"y = 2\n"
    workspace.files["ledger/table.txt"] = "1 \u20ac\n".encode()
    workspace.files["ledger/journal.py"] = workspace.files.pop("ledger/book.py")

    taken = await take_changes(workspace, TASK)

    assert taken.refusal == ""
    assert set(taken.files) == {
        "ledger/money.py", "ledger/rates/daily.py", "ledger/table.txt", "ledger/journal.py",
    }  # fmt: skip
    assert taken.deleted == ("ledger/book.py",)
    assert taken.ignored == ()


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_money.py", "tests/conftest.py", "tests/data.json", "conftest.py", "ledger/conftest.py",
        "pytest.ini", "pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "reproduce.py", "notes/plan.md",
        "README.md", "fakepandas/__init__.py", "json.py", "trace.py", "ledger/__pycache__/money.cpython-311.pyc",
    ],
)  # fmt: skip
async def test_tests_configuration_and_scratch_files_stay_behind(workspace, path):
    workspace.files[path] = b"import os\n"

    assert await take_changes(workspace, TASK) == Submission(ignored=(path,))


@pytest.mark.parametrize("name", ["money.py~", "#money.py#", "money (copy).py", "rates,v", "@plan.txt"])
async def test_what_editors_leave_beside_a_source_costs_nobody_a_repair(workspace, name):
    workspace.files[f"ledger/{name}"] = b"x = 1\n"

    assert await take_changes(workspace, TASK) == Submission({f"ledger/{name}": b"x = 1\n"})


async def test_a_test_that_changes_without_getting_longer_is_noticed(workspace):
    before = workspace.files["tests/test_money.py"]
    workspace.files["tests/test_money.py"] = before.replace(b"1200", b"1201")

    assert await take_changes(workspace, TASK) == Submission(ignored=("tests/test_money.py",))


async def test_deleted_tests_are_restored(workspace):
    del workspace.files["tests/test_book.py"]

    assert await take_changes(workspace, TASK) == Submission(ignored=("tests/test_book.py",))


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("ledger/money.py", b"a\0b", "binary"),
        ("ledger/money.py", b"\xff\xfe", "no text in UTF-8"),
        ("ledger/big.py", b"#" * (MAX_FILE_BYTES + 1), "too large"),
        ("ledger/money.pyc", b"x", "compiled"),
        ("ledger/__pycache__.pyc", b"x", "compiled"),
        ("ledger/fast.so", b"x", "compiled"),
        ("evil.pth", b"import os\n", "compiled or installs"),
        ("evil.egg-link", b"x", "compiled or installs"),
        ("evil-1.0.dist-info/entry_points.txt", b"[pytest11]\nevil = evil\n", "metadata"),
        ("ledger.egg-info/PKG-INFO", b"x", "metadata"),
        (".git/HEAD", b"ref\n", "version control"),
        ("ledger/.git", b"gitdir: x\n", "version control"),
        ("pytest.py", b"x = 1\n", "name of an installed module"),
        ("_pytest/__init__.py", b"x = 1\n", "name of an installed module"),
        ("pluggy.py", b"x = 1\n", "name of an installed module"),
        ("sitecustomize.py", b"x = 1\n", "name of an installed module"),
        ("ledger/mon\u0435y.py", b"x = 1\n", "name that no source file has"),
        ("ledger/a\nb.py", b"x = 1\n", "name that no source file has"),
    ],
)  # fmt: skip
async def test_what_tricks_are_made_of_is_refused(workspace, path, content, reason):
    workspace.files[path] = content

    taken = await take_changes(workspace, TASK)

    assert reason in taken.refusal
    assert taken.files == {}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (FileEntry("ledger/link.py", "symlink", 0o777, 0), "symbolic link"),
        (FileEntry("ledger/money.py", "symlink", 0o777, 0), "symbolic link"),
        (FileEntry("notes", "symlink", 0o777, 0), "symbolic link"),
        (FileEntry("ledger/pipe.py", "other", 0o644, 0), "no regular file"),
        (FileEntry("ledger/money.py", "file", 0o755, 10), "has the mode 755"),
        (FileEntry("ledger/money.py", "file", 0o4644, 10), "has the mode 4644"),
    ],
)
async def test_links_special_files_and_modes_are_refused(workspace, entry, reason):
    workspace.odd.append(entry)

    assert reason in (await take_changes(workspace, TASK)).refusal


async def test_a_source_that_cannot_be_read_is_named(workspace, monkeypatch):
    async def refuse(path):
        raise FileRefused("permission_denied")

    monkeypatch.setattr(workspace, "read_file", refuse)

    assert (await take_changes(workspace, TASK)).refusal.endswith(".py: permission denied")


async def test_too_many_changes_are_refused(workspace):
    for number in range(MAX_CHANGED_FILES + 1):
        workspace.files[f"ledger/part{number}.py"] = b"x = 1\n"

    assert "too large" in (await take_changes(workspace, TASK)).refusal


async def test_too_many_files_are_refused_before_any_is_read(workspace):
    workspace.files |= {f"notes/{number}": b"x" for number in range(5000)}

    assert "too large" in (await take_changes(workspace, TASK)).refusal


def test_submissions_that_differ_have_different_hashes():
    submissions = [
        Submission(), Submission({"a": b"b"}), Submission({"a": b"", "b": b""}), Submission({"a": b""}, ("b",)),
        Submission({}, ("a", "b")), Submission({}, ("a", "")), Submission({"a": b"b", "": b""}),
    ]  # fmt: skip

    assert len({submission.sha256 for submission in submissions}) == len(submissions)
