"""Tasks out of a package: proven, the same each time, with nothing of what is hidden in what is shown."""

import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from gym_service.errors import NotFound
from gym_service.grading.repository import draw_rounds
from gym_service.grading.rounds import MIN_GUESSES
from gym_service.proof import Proof, ProofBook, table
from gym_service.sandbox.base import RunPytest
from gym_service.state import StateFolder
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask, function_of
from gym_service.tasks.sdist import SdistError, index_url
from gym_service.tasks.store import DamagedSuite, known_suites, load_suite_folder, save_task
from gym_service.tasks.suites import built_in
from tests import ledger

TASK = RepositoryTask(
    task_id="ledger/boundary/within",
    suite="ledger",
    split=Split.TRAIN,
    family="boundary",
    request="Repair it.",
    base={path: text.encode() for path, text in ledger.FILES.items()},
    gold={"ledger/money.py": ledger.FILES["ledger/money.py"].encode()},
    test_files={path: text.encode() for path, text in ledger.FILES.items() if "/test_" in path},
    fail_to_pass=("tests/test_money.py::test_show[5-0.05]", "tests/test_money.py::test_within_ends"),
    pass_to_pass=tuple(f"tests/test_book.py::BookTests::test_{number}" for number in range(12)),
    twins={
        "tests/test_money.py::test_show": (0,),
        "tests/test_money.py::test_within_ends": (0, 1),
        **{f"tests/test_book.py::BookTests::test_{number}": (0,) for number in range(10)},
    },
    plain=("tests/test_money.py::test_within_ends",),
)


# What is made


@pytest.mark.docker
def test_each_task_has_its_own_function_hidden_tests_and_twins(ledger_tasks):
    assert len(ledger_tasks) == 5
    assert len({task.task_id for task in ledger_tasks}) == 5
    for task in ledger_tasks:
        assert task.suite == "ledger"
        assert task.is_twinned
        assert task.source.startswith("ledger==1.0 sha256:")
        assert not set(task.fail_to_pass) & set(task.pass_to_pass)
        assert task.pass_to_pass
        ((path, repaired),) = task.gold.items()
        assert repaired == ledger.FILES[path].encode() != task.base[path]


@pytest.mark.docker
def test_no_function_is_in_two_tasks_and_so_none_in_two_splits(ledger_tasks):
    functions = [re.search("`(.*?)`", task.request)[1] for task in ledger_tasks]

    assert len(set(functions)) == len(functions) == 5


@pytest.mark.docker
async def test_the_same_distribution_gives_the_same_tasks(grounds, ledger_tasks):
    again = await ledger.make_tasks(ledger.REQUIREMENT, ledger.archive(), 2, grounds, lambda line: None)

    assert [task.sha256 for task in again] == [task.sha256 for task in ledger_tasks[:2]]


@pytest.mark.docker
def test_the_base_tree_has_no_hidden_test_and_compiles(ledger_tasks):
    for task in ledger_tasks:
        shown = b"\n".join(task.base.values()).decode()
        for name in task.hidden_functions:
            assert f"def {name.rpartition('::')[2]}(" not in shown
        for path, content in task.base.items():
            if path.endswith(".py"):
                compile(content, path, "exec")
        # What is left of a test file is what it was, byte by byte: removed lines aside, nothing changes.
        for path in task.test_files:
            rest = iter(ledger.FILES[path].splitlines())
            assert all(
                line in rest for line in task.base[path].decode().splitlines() if line.strip() != "pass"
            )


@pytest.mark.docker
async def test_plain_pytest_agrees_which_tests_the_fault_breaks(grounds, ledger_tasks):
    tests = {path: text.encode() for path, text in ledger.FILES.items() if "/test_" in path}

    async def passed(tree):
        async with grounds.pool.lend() as sandbox:
            await asyncio.gather(*(sandbox.write_file(path, text) for path, text in tree.items()))
            output = (await sandbox.run(RunPytest(("-rA", "-q")), 30.0)).output.decode()
        return set(re.findall(r"^PASSED (.+)$", output, re.MULTILINE))

    for task in ledger_tasks:
        faulty = await passed(task.base | tests)
        repaired = await passed(task.base | tests | task.gold)

        assert repaired == {*task.fail_to_pass, *task.pass_to_pass}
        assert faulty == set(task.pass_to_pass)


@pytest.mark.docker
async def test_a_package_with_fewer_faults_than_asked_for_gives_fewer_tasks(grounds):
    files = {
        **{path: text for path, text in ledger.FILES.items() if "book" not in path},
        "ledger/money.py": '"""Money."""\n\n\ndef double(cents):\n    return cents * 2\n',
        "tests/test_money.py": "from ledger.money import double\n\n\n"
        "def test_double():\n    assert double(2) == 4\n\n\ndef test_nothing():\n    assert double(0) == 0\n",
    }
    told = []

    tasks = await ledger.make_tasks("tiny==1.0", ledger.archive(files), 5, grounds, told.append)

    assert [task.gold.keys() for task in tasks] == [{"ledger/money.py"}]
    assert not tasks[0].is_twinned
    assert any(line.endswith("1 tests hidden") for line in told)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ({}, "comes without tests"),
        (
            {"tests/test_money.py": "def test_a():\n    assert 1 == 2\n"},
            "none of its tests passes in a sandbox",
        ),
        ({"tests/test_money.py": "def helper():\n    pass\n"}, "none of its tests passes in a sandbox"),
        (
            {"tests/test_money.py": "import numpy\n\ndef test_a():\n    assert 1\n"},
            "none of its tests passes",
        ),
    ],
)
async def test_a_distribution_without_passing_tests_is_refused_with_the_reason(grounds, tests, message):
    files = {path: text for path, text in ledger.FILES.items() if "/test_" not in path} | tests

    with pytest.raises(SdistError, match=message):
        await ledger.make_tasks(ledger.REQUIREMENT, ledger.archive(files), 1, grounds, lambda line: None)


@pytest.mark.docker
async def test_tests_beside_the_sources_are_refused_because_no_repair_could_cross(grounds):
    files = {path.replace("tests/test_", "ledger/test_"): text for path, text in ledger.FILES.items()}

    with pytest.raises(SdistError, match="its tests lie beside its sources"):
        await ledger.make_tasks(ledger.REQUIREMENT, ledger.archive(files), 1, grounds, lambda line: None)


@pytest.mark.docker
async def test_tests_that_go_on_twice_are_refused_at_once(grounds):
    files = {**ledger.FILES, "tests/test_a.py": "import os\n\n\ndef test_fork():\n    os.fork()\n"}

    with pytest.raises(SdistError, match="report what a runner does not"):
        await ledger.make_tasks(ledger.REQUIREMENT, ledger.archive(files), 1, grounds, lambda line: None)


@pytest.mark.docker
async def test_a_suite_that_ships_with_the_service_is_not_made(grounds):
    with pytest.raises(SdistError, match="bugfix is the name of a suite"):
        await ledger.make_tasks("bugfix==1.0", ledger.archive(), 1, grounds, lambda line: None)


@pytest.mark.docker
async def test_files_that_are_no_python_of_ours_are_left_out(grounds):
    files = {
        **ledger.FILES,
        "tests/test_template.py": "def test_{{ name }}(:\n",
        "tests/test_nul.py": "\0",
        "tests/test_deep.py": "x = " + "-" * 5000 + "1\n",
        "ledger/old.py": "# coding: latin-1\n# caf\xe9\ndef old(x):\n    return x < 3\n".encode("latin-1"),
    }
    told = []

    tasks = await ledger.make_tasks(ledger.REQUIREMENT, ledger.archive(files), 1, grounds, told.append)

    assert len(tasks) == 1
    left_out = {line.split()[0] for line in told if "left out" in line}
    assert left_out == {"tests/test_template.py", "tests/test_nul.py", "tests/test_deep.py"}


@pytest.mark.docker
async def test_no_two_tasks_share_an_id(grounds):
    function = "\n\ndef {}(cents, fee):\n    return cents * 2 + fee\n"
    names = ("within", "_within", "Within", "within_")
    files = {
        **ledger.FILES,
        "ledger/money.py": '"""Money."""\n' + "".join(map(function.format, names)),
        "ledger/book.py": "",
        "tests/test_book.py": "",
        "tests/test_money.py": "from ledger import money\n"
        + "".join(
            f"\n\ndef test_{number}():\n    assert money.{name}(5, 7) == 17\n    assert money.{name}(9, 1) == 19\n"
            for number, name in enumerate(names)
        ),
    }

    tasks = await ledger.make_tasks(ledger.REQUIREMENT, ledger.archive(files), 4, grounds, lambda line: None)

    assert tasks
    assert len({task.task_id for task in tasks}) == len(tasks)


def test_a_task_without_enough_twins_says_none_in_the_table():
    few = replace(TASK, twins=dict(list(TASK.twins.items())[:3]))
    none_hidden = replace(TASK, twins={key: (0,) for key in TASK.twins if "within" not in key})

    for task, shown in ((TASK, "12"), (few, "none"), (none_hidden, "none")):
        assert table([Proof(task, ())]).splitlines()[1].split()[-2:] == [shown, "proven"]


# What is stored


@pytest.fixture
def stored(tmp_path):
    """The folder of suites with one task in it."""
    save_task(tmp_path / "ledger", TASK)
    return tmp_path


def test_a_stored_task_is_read_as_it_was(stored):
    other = replace(TASK, task_id="ledger/constant/parse", split=Split.TEST, roots=("src", ""))
    save_task(stored / "ledger", other)
    save_task(stored / "ledger", TASK)

    tasks = load_suite_folder(stored / "ledger")

    assert tasks == (TASK, other)
    assert [task.sha256 for task in tasks] == [TASK.sha256, other.sha256]


@pytest.mark.docker
def test_made_tasks_are_read_as_they_were(tmp_path, ledger_tasks):
    for task in ledger_tasks:
        save_task(tmp_path / "ledger", task)

    read = known_suites(tmp_path).suite("ledger")

    assert sorted(task.sha256 for task in read) == sorted(task.sha256 for task in ledger_tasks)


def test_stored_suites_are_known_beside_the_built_in_one(stored):
    known = known_suites(stored)

    assert known.suites.keys() - {"humaneval"} == built_in().suites.keys() | {"ledger"}
    assert known.task(TASK.task_id) == TASK
    with pytest.raises(NotFound):
        known_suites(stored / "nowhere").suite("ledger")


def test_a_damaged_content_is_named(stored):
    blob = sorted((stored / "ledger" / "blobs").iterdir())[0]
    blob.write_bytes(blob.read_bytes() + b" ")

    with pytest.raises(DamagedSuite, match=f"{blob.name} is damaged; remove .* and make it again"):
        known_suites(stored)


def test_a_missing_content_is_named_by_its_task(stored):
    sorted((stored / "ledger" / "blobs").iterdir())[0].unlink()

    with pytest.raises(DamagedSuite, match=r"boundary\.within\.json is no task: KeyError"):
        known_suites(stored)


@pytest.mark.parametrize("change", [{"split": "nowhere"}, {"twins": 5}, {"base": ["a"]}, {"more": 1}, {}])
def test_a_damaged_task_is_named(stored, change):
    path = stored / "ledger" / "tasks" / "boundary.within.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change) if change else "{")

    with pytest.raises(
        DamagedSuite, match=r"boundary\.within\.json is no task: .*remove it and make it again"
    ):
        known_suites(stored)


@pytest.mark.parametrize("task_id", ["ledger/boundary/other", "bugfix/zero/share", "toolz/boundary/within"])
def test_a_task_is_stored_under_its_own_name_alone(stored, task_id):
    path = stored / "ledger" / "tasks" / "boundary.within.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"task_id": task_id}))

    with pytest.raises(DamagedSuite, match=rf"boundary\.within\.json is no task: .*{task_id}"):
        known_suites(stored)


def test_a_task_that_nests_without_end_is_named(stored):
    (stored / "ledger" / "tasks" / "boundary.within.json").write_text("[" * 100_000)

    with pytest.raises(DamagedSuite, match=r"boundary\.within\.json is no task"):
        known_suites(stored)


@pytest.mark.parametrize("name", ["bugfix", "Ledger", "a b", "x\udcff"])
def test_no_folder_takes_the_place_of_a_built_in_suite_or_has_a_name_that_is_none(stored, name):
    (stored / name).mkdir()

    with pytest.raises(DamagedSuite, match="cannot have the name"):
        known_suites(stored)


@pytest.mark.parametrize("leftover", ["blobs/x.new", "tasks/x.new"])
def test_what_a_write_that_was_cut_left_is_in_nobodys_way(stored, leftover):
    (stored / "ledger" / leftover).write_bytes(b"half")

    assert load_suite_folder(stored / "ledger") == (TASK,)


def test_a_folder_without_tasks_is_a_suite_without_tasks(stored):
    (stored / "empty").mkdir()

    assert known_suites(stored).suite("empty") == ()
    assert known_suites(stored).suite("ledger") == (TASK,)


def test_two_commands_do_not_take_each_others_containers(tmp_path):
    state = StateFolder(tmp_path)
    assert state.lock("tasks.lock")
    command = [sys.executable, "-m", "gym_service", "--state-folder", str(tmp_path), "tasks", "check"]

    second = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert (second.returncode, second.stdout) == (1, "")
    assert "another `tasks` command is at work" in second.stderr


# What is drawn


def test_the_first_two_rounds_have_every_test_and_turn_complementary_halves():
    turned_at_all = Counter()
    for seed in range(200):
        first, second, *_ = draw_rounds(TASK, random.Random(seed))
        assert (
            set(first.roles)
            == set(second.roles)
            == {*map(function_of, (*TASK.fail_to_pass, *TASK.pass_to_pass))}
        )
        for function in first.roles:
            turns = [each.roles[function] is not None for each in (first, second)]
            assert sum(turns) == (function in TASK.twins)
            turned_at_all[function] += turns[0]
        assert (first.plain, second.plain) == (frozenset(), frozenset(TASK.plain))
    # Which half comes first is a coin for each.
    assert all(60 < turned_at_all[function] < 140 for function in TASK.twins)


def test_every_hidden_test_is_seen_as_it_is_and_those_with_twins_turned_too():
    for seed in range(50):
        drawn = draw_rounds(TASK, random.Random(seed))
        for function in TASK.hidden_functions:
            roles = [each.roles[function] for each in drawn if function in each.roles]
            assert None in roles
            assert set(roles) - {None} <= set(TASK.twins[function])
            assert set(roles) - {None}


@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 9])
def test_there_are_as_many_rounds_as_it_takes_to_guess_often_enough(hidden):
    tests = tuple(f"tests/test_money.py::test_{number}" for number in range(hidden))
    task = replace(TASK, fail_to_pass=tests, twins=TASK.twins | dict.fromkeys(tests, (0,)))

    drawn = draw_rounds(task, random.Random(0))

    # The second round is the opposite of the first, and so no guess.
    assert (len(drawn) - 1) * hidden >= MIN_GUESSES
    assert (len(drawn) - 2) * hidden < MIN_GUESSES or len(drawn) == 2
    assert all(set(each.roles) == set(tests) for each in drawn[2:])


def test_hidden_tests_without_twins_are_asked_for_no_further_rounds():
    assert len(draw_rounds(replace(TASK, twins={}), random.Random(0))) == 2


def test_the_same_seed_draws_the_same():
    assert draw_rounds(TASK, random.Random(7)) == draw_rounds(TASK, random.Random(7))


# A real package, through the command line


@pytest.fixture
def _index():
    where = urlsplit(index_url())
    try:
        socket.create_connection((where.hostname, where.port or 443), timeout=5).close()
    except OSError as error:
        pytest.skip(f"the package index {where.hostname} cannot be reached within 5 s: {error}")


@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_index")
def test_the_command_makes_proven_tasks_of_a_pinned_package(tmp_path, engine):
    state = StateFolder(tmp_path / "state")
    command = [sys.executable, "-m", "gym_service", "--state-folder", str(state.folder), "tasks"]
    options = ("--sdist", "toolz==1.1.0", "--count", "2")
    made = subprocess.run(
        [*command, "synthesize", *options], capture_output=True, text=True, timeout=280, env=os.environ
    )

    assert made.returncode == 0, made.stdout + made.stderr
    assert f"toolz==1.1.0: 2 proven tasks in {state.suites}" in made.stdout.splitlines()
    tasks = known_suites(state.suites).suite("toolz")
    assert len(tasks) == 2
    book = ProofBook(state.proofs, engine.facts.image_digest)
    assert all(book.holds(task) for task in tasks)
    assert [len(list((state.folder / "downloads").iterdir()))] == [1]
