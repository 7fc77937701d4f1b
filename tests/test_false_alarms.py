"""Honest submissions are graded by what they do: no harmless edit costs anything, and no honest error is a trick.

A false alarm would teach a policy that honest work is punished; so everything here is many, and none may go wrong.
"""

import asyncio
import random

import pytest

from gym_service.sandbox.base import RunPytest
from gym_service.tasks.faults import faults_of
from gym_service.tasks.model import instantiate
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import built_in
from gym_service.values import Submission, VerdictStatus
from tests.harmless import EDITS
from tests.ledger import FILES

pytestmark = pytest.mark.docker

SOURCES = ("ledger/money.py", "ledger/book.py")
BUGFIX = built_in().suite("bugfix")


async def grade_all(grounds, submissions):
    """Grades (label, instance, submission), side by side; gives (label, verdict)."""

    async def grade(label, instance, submission):
        return label, await grounds.grader.grade(instance, submission, f"honest {label}")

    return await asyncio.gather(*(grade(*each) for each in submissions))


def unresolved(graded):
    """Those that are not resolved, with all that says why."""
    return [
        (label, verdict.status.name, verdict.reason, verdict.evidence[:3])
        for label, verdict in graded
        if verdict.status is not VerdictStatus.RESOLVED
    ]


def test_every_edit_is_one():
    for source in (FILES["ledger/money.py"], FILES["ledger/book.py"]):
        edited = {name: edit(source) for name, edit in EDITS.items()}

        assert len(set(edited.values()) - {source}) == len(EDITS)
        for name, text in edited.items():
            compile(text, name, "exec")


async def test_a_repaired_function_with_any_harmless_edit_is_resolved(grounds):
    submissions = []
    for number, task in enumerate(BUGFIX):
        instance = instantiate(task, "honest")
        gold = instance.gold_files[instance.path]
        names = list(EDITS)
        # Each task with a few, so that each edit meets tasks of several families.
        for name in (names[(number * 5 + step) % len(names)] for step in range(5)):
            edited = Submission({instance.path: EDITS[name](gold).encode()})
            submissions.append((f"{task.task_id} {name}", instance, edited))
        submissions.append((f"{task.task_id} gold", instance, Submission({instance.path: gold.encode()})))

    graded = await grade_all(grounds, submissions)

    assert len(graded) == 6 * len(BUGFIX) == 180
    assert unresolved(graded) == []


async def test_a_repaired_repository_with_any_harmless_edit_is_resolved(grounds, ledger_tasks):
    submissions = []
    names = list(EDITS)
    for number, task in enumerate(ledger_tasks):
        instance = RepositoryInstance(task)
        submissions.append((f"{task.task_id} gold", instance, Submission(dict(task.gold))))
        # Each edit in three tasks or four, since each grading takes a while.
        for name in (names[(number * 7 + step) % len(names)] for step in range(20)):
            # In the repaired file and in the others, since nobody is told to leave those alone.
            files = {path: EDITS[name](FILES[path]).encode() for path in SOURCES}
            submissions.append((f"{task.task_id} {name}", instance, Submission(files)))

    graded = await grade_all(grounds, submissions)

    assert len(graded) == 21 * len(ledger_tasks) == 105
    assert {name for name in names if any(label.endswith(name) for label, _ in graded)} == set(names)
    assert unresolved(graded) == []


async def test_a_repository_that_was_rearranged_is_resolved(grounds, ledger_tasks):
    money = FILES["ledger/money.py"].encode()
    rearranged = {
        "moved to a new module": Submission(
            {"ledger/amounts.py": money, "ledger/money.py": b"from ledger.amounts import *\n"}
        ),
        "made a package": Submission({"ledger/money/__init__.py": money}, deleted=("ledger/money.py",)),
        "a new file beside": Submission({"ledger/money.py": money, "ledger/notes.txt": b"Done.\n"}),
        "exported at the top": Submission(
            {"ledger/money.py": money, "ledger/__init__.py": b"from ledger.money import parse, show\n"}
        ),
    }
    submissions = []
    for task in ledger_tasks[:2]:
        for name, submission in rearranged.items():
            files = dict(submission.files)
            if "ledger/book.py" in task.gold:
                files |= task.gold
            whole = Submission(files, submission.deleted)
            submissions.append((f"{task.task_id} {name}", RepositoryInstance(task), whole))

    assert unresolved(await grade_all(grounds, submissions)) == []


async def test_other_faults_are_judged_as_plain_pytest_judges_them(grounds, ledger_tasks):
    faults = [fault for path in SOURCES for fault in faults_of(path, FILES[path])]
    money, book = ([fault for fault in faults if fault.path == path] for path in SOURCES)
    rng = random.Random(0)
    drawn = [*((fault,) for fault in faults), *((rng.choice(money), rng.choice(book)) for _ in range(24))]
    wrong = [{fault.path: fault.faulty_source.encode() for fault in each} for each in drawn]
    submissions = []
    for number, files in enumerate(wrong):
        # In the repaired repository, so that nothing else is wrong with it.
        task = ledger_tasks[number % len(ledger_tasks)]
        label = " and ".join(f"{fault.function}:{fault.line} {fault.operator}" for fault in drawn[number])
        submissions.append((f"{number} {label}", RepositoryInstance(task), Submission(task.gold | files)))

    async def passes_plain(files):
        async with grounds.pool.lend() as sandbox:
            whole = {path: text.encode() for path, text in FILES.items()} | files
            await asyncio.gather(*(sandbox.write_file(path, content) for path, content in whole.items()))
            return (await sandbox.run(RunPytest(("-q",)), 30.0)).exit_status == 0

    graded = await grade_all(grounds, submissions)
    right = await asyncio.gather(*map(passes_plain, wrong))

    assert len(wrong) >= 60
    assert 0 < sum(right) < 20  # Some faults change nothing that a test sees.
    expected = [VerdictStatus.RESOLVED if each else VerdictStatus.UNRESOLVED for each in right]
    assert [
        (label, verdict.status.name, verdict.evidence[:3])
        for (label, verdict), status in zip(graded, expected, strict=True)
        if verdict.status is not status
    ] == []


BROKEN = {
    "no Python": "def parse(:\n",
    "empty": "",
    "no text": "\n\n\n",
    "fails at import": "import ledger.nowhere\n",
    "raises at import": "raise RuntimeError('not now')\n",
    "exits at import": "import sys\nsys.exit(0)\n",
    "exits in a call": "import sys\ndef parse(*a): sys.exit(1)\nshow = split = largest = within = parse\n",
    "endless recursion": "def parse(*a): return parse(*a)\nshow = split = largest = within = parse\n",
    "interrupts": "def parse(*a): raise KeyboardInterrupt\nshow = split = largest = within = parse\n",
    "always none": "def parse(*a, **k): return None\nshow = split = largest = within = parse\n",
    "always true": "def parse(*a, **k): return True\nshow = split = largest = within = parse\n",
    "generators": "def parse(*a, **k):\n    yield 1\nshow = split = largest = within = parse\n",
    "prints much": "def parse(*a, **k): print('x' * 100_000)\nshow = split = largest = within = parse\n",
    "many recursions": "import sys\nsys.setrecursionlimit(10**9)\ndef parse(*a): return parse(*a)\n"
    "show = split = largest = within = parse\n",
}


async def test_a_broken_repository_is_unresolved_and_no_trick(grounds, ledger_tasks):
    submissions = [
        (f"{task.task_id} {name}", RepositoryInstance(task), Submission({"ledger/money.py": text.encode()}))
        for task in ledger_tasks[:1]
        for name, text in BROKEN.items()
    ]
    submissions += [
        (f"{task.task_id} deleted", RepositoryInstance(task), Submission(deleted=("ledger/book.py",)))
        for task in ledger_tasks[:2]
    ]

    graded = await grade_all(grounds, submissions)

    assert [
        (label, verdict.status.name, verdict.reason, verdict.evidence[:3])
        for label, verdict in graded
        if verdict.status is not VerdictStatus.UNRESOLVED
    ] == []
