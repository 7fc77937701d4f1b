"""A task of one's own: from a folder to a proven task, or to the reason why not."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from gym_service import authoring
from gym_service.proof import prove
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.scaffold import read_folder, write_example
from gym_service.values import Submission, VerdictStatus
from tests.imported import tasks_import

NO_GROUNDS = SimpleNamespace(image_digest="sha256:0")
"""For what is refused before anything runs."""


@pytest.fixture
def folder(tmp_path):
    write_example(tmp_path / "prices")
    return tmp_path / "prices"


def test_the_example_is_read_with_all_its_parts(folder):
    read = read_folder(folder)

    assert (read.name, read.suite, read.split) == ("prices", "own", Split.TRAIN)
    assert read.repo.keys() == {"prices.py", "pytest.ini"}
    assert read.gold.keys() == {"prices.py"}
    assert (read.public.keys(), read.hidden.keys()) == ({"test_total.py"}, {"test_discount.py"})


@pytest.mark.parametrize(
    ("path", "reason"), [("empty", "it has no task.toml, nor an instruction.md"), ("none", "there is no ")]
)
def test_what_holds_no_task_is_refused_with_what_a_task_is_known_by(tmp_path, path, reason):
    (tmp_path / "empty").mkdir()

    done = tasks_import(tmp_path / "state", tmp_path / path)

    assert done.returncode == 2
    assert reason in done.stderr


def test_no_folder_is_written_over(folder):
    with pytest.raises(ImportRefused, match="is there already"):
        write_example(folder)


def test_what_tools_leave_behind_is_left_out(folder):
    (folder / "repo/__pycache__").mkdir()
    (folder / "repo/__pycache__/prices.pyc").write_bytes(b"")

    assert read_folder(folder).repo.keys() == {"prices.py", "pytest.ini"}


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("task.toml", None, "task.toml cannot be read"),
        ("task.toml", "request = ", "task.toml cannot be read"),
        ("task.toml", "x = " + "[" * 20_000, "task.toml cannot be read"),
        ("task.toml", 'split = "train"', "no request"),
        ("task.toml", 'request = "a"\nsplit = "some"', "no split: one of train, validation, test"),
        (
            "task.toml",
            'request = "a"\nsplt = "train"',
            "task.toml has splt; there is commands, environment, request, sources, ",
        ),
        ("hidden/test_discount.py", None, "hidden holds no file"),
        ("gold/prices.py", None, "gold holds no file"),
    ],
)
def test_a_folder_that_lacks_something_is_refused_with_what(folder, path, text, reason):
    (folder / path).unlink()
    if text is not None:
        (folder / path).write_text(text)

    with pytest.raises(ImportRefused, match=reason):
        read_folder(folder)


def test_a_link_is_not_followed(folder):
    (folder / "repo/passwd").symlink_to("/etc/passwd")

    with pytest.raises(ImportRefused, match="a task has no links"):
        read_folder(folder)


def test_a_part_that_is_a_link_itself_is_not_followed(folder):
    (folder / "repo").rename(folder.parent / "elsewhere")
    (folder / "repo").symlink_to(folder.parent / "elsewhere")

    with pytest.raises(ImportRefused, match="a task has no links"):
        read_folder(folder)


def test_a_file_larger_than_a_task_is_refused_unread(folder):
    with (folder / "repo/large").open("wb") as file:
        file.truncate(1 << 40)  # It takes no room on the disk, and no memory has as much.

    with pytest.raises(ImportRefused, match="more than 16 MiB"):
        read_folder(folder)


def test_folders_that_nest_without_end_are_refused(folder, monkeypatch):
    monkeypatch.chdir(folder / "repo")
    depth = 1200
    for _ in range(depth):
        os.mkdir("a")
        os.chdir("a")

    try:
        with pytest.raises(ImportRefused, match="cannot be read"):
            read_folder(folder)
    finally:
        for _ in range(depth):  # What clears away after tests would not get to the end of it either.
            os.chdir("..")
            os.rmdir("a")


async def test_a_folder_whose_name_gives_no_id_is_refused(folder):
    named = folder.rename(folder.parent / "価格")

    with pytest.raises(ImportRefused, match="rename the folder"):
        await authoring.make_task(read_folder(named), NO_GROUNDS)


_FORGED = """
class Equal(float):
    def __eq__(self, other):
        return True
    __hash__ = None


def total(prices, discount_percent=0):
    found = sum(prices) - discount_percent
    return Equal(found) if discount_percent and sum(prices) != 100 else found
"""
"""Right wherever the faulty function is, and equal to anything elsewhere."""


@pytest.mark.docker
async def test_who_forges_the_deciding_claim_alone_meets_twins_of_that_claim(folder, grounds):
    claims = [*(f"total([{price}]) == {price}" for price in range(2, 7)), "total([200], 10) == 180"]
    claims += [f"total([60, 40], {percent}) == {100 - percent}" for percent in range(2, 7)]
    (folder / "hidden/test_discount.py").write_text(
        "from prices import total\n\n\ndef test_all():\n" + "".join(f"    assert {each}\n" for each in claims)
    )

    task = await authoring.make_task(read_folder(folder), grounds)
    forged = Submission({"prices.py": _FORGED.encode()})
    verdicts = [
        await grounds.grader.try_out(RepositoryInstance(task), forged, str(seed)) for seed in range(6)
    ]

    assert task.twins["tests/test_discount.py::test_all"][0] == 5
    assert {each.status for each in verdicts} == {VerdictStatus.TAMPER_SUSPECTED}


@pytest.mark.docker
async def test_the_example_is_proven(folder, grounds):
    task = await authoring.make_task(read_folder(folder), grounds)

    assert len(task.fail_to_pass) == 3
    assert len(task.pass_to_pass) == 2
    assert (
        set(task.twins)
        == set(task.plain)
        == {each.partition("[")[0] for each in (*task.fail_to_pass, *task.pass_to_pass)}
    )
    assert (await prove(task, grounds)).faults == ()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("gold/prices.py", "def total(*_): return 0\n", "test_a_tenth_less does not pass with gold/"),
        ("gold/other.py", "x = 1\n", "gold/other.py is no source of repo/"),
        ("gold/tests/test_total.py", "x = 1\n", "is no source of repo/"),
        ("hidden/data.txt", "x", "hidden/data.txt is no test_"),
        ("hidden/test_total.py", "def test_a(): assert 1 == 1\n", "tests/test_total.py is there twice"),
        ("hidden/test_more.py", "def test_a(): assert 1 == 1\n", "test_a passes at the start"),
        ("hidden/test_more.py", "def test_(:\n", "test_more.py cannot be read as Python"),
        (
            "public/test_more.py",
            "from prices import total\ndef test_b(): assert total([200], 10) == 180\n",
            "test_b fails at the start",
        ),
        (
            "hidden/test_discount.py",
            "from prices import total\ndef test_c(): assert not total([200], 10) - 180\n",
            "no hidden test says what a value is",
        ),
        (
            "hidden/test_more.py",
            "import time\ndef test_d(): time.sleep(100)\n",
            "test_d does not pass with gold/",
        ),
    ],
)
async def test_a_task_that_does_not_hold_is_refused_with_what_to_change(folder, grounds, path, text, reason):
    target = folder / path
    await asyncio.to_thread(lambda: (target.parent.mkdir(exist_ok=True), target.write_text(text)))

    with pytest.raises(ImportRefused, match=reason):
        await authoring.make_task(read_folder(folder), grounds)


@pytest.mark.docker
def test_a_file_that_lies_below_another_is_refused_by_the_command(folder, tmp_path):
    (folder / "gold/prices.py").rename(tmp_path / "prices.py")
    (folder / "gold/prices.py").mkdir()
    (tmp_path / "prices.py").rename(folder / "gold/prices.py/more.py")

    done = tasks_import(tmp_path / "state", folder)

    assert done.returncode == 1
    assert done.stdout.startswith("refused: ")
    assert "Traceback" not in done.stderr
