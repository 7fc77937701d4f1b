"""A task with a test command, from a folder (`tasks.scaffold`) to a task that can be proven.

Each test file is run as grading will run it: with the gold, where all have to pass; in the base tree, where the public
ones pass and the hidden ones fail. Then twins of the hidden ones are looked for, beside those that the author wrote.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from gym_service.grading.command import how_it_ended, passes, run_check
from gym_service.grading.command_twins import find_twins
from gym_service.grading.rounds import MIN_GUESSES, graded_tree
from gym_service.proof import Grounds
from gym_service.tasks.command import CommandTask
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.scaffold import TEST_FOLDER, TaskFolder
from gym_service.values import Submission


async def make_command_task(folder: TaskFolder, grounds: Grounds) -> CommandTask:
    """Makes a task of a folder, yet to be proven. Raises ImportRefused, SandboxLost."""
    task, given = _draft(folder, grounds.image_digest)
    lend, rng = partial(grounds.pool.lend, task.environment), random.Random(task.sha256)
    base, repaired = graded_tree(task, Submission()), graded_tree(task, Submission(dict(task.gold)))
    for path, content in task.test_files.items():
        with_gold = await run_check(lend, task, repaired, path, content, rng)
        if not passes(with_gold):
            raise ImportRefused(
                f"{path} does not pass with gold/: {how_it_ended(with_gold)}{_last(with_gold.output)}"
            )
        passes_at_start = passes(await run_check(lend, task, base, path, content, rng))
        if path in task.fail_to_pass and passes_at_start:
            raise ImportRefused(f"{path} passes at the start: a hidden test fails there; move it to public/")
        if path in task.pass_to_pass and not passes_at_start:
            raise ImportRefused(f"{path} fails at the start: a public test passes there; move it to hidden/")
    twins = {path: await find_twins(lend, task, path, given[path], rng) for path in task.fail_to_pass}
    for path in task.fail_to_pass:
        if unlike := len(set(given[path]) - set(twins[path])):
            raise ImportRefused(
                f"{unlike} of the twins of {path} in twins/ fail not as a test fails that finds something wrong: with "
                "gold/ a twin fails, and what it prints, or its exit status, is another than at the start"
            )
        if not twins[path]:
            raise ImportRefused(f"{path} has no twin: {_HOW_TWINS}")
    if (count := sum(map(len, twins.values()))) < MIN_GUESSES:
        raise ImportRefused(
            f"there are {count} twins of hidden tests, and {MIN_GUESSES} are needed: {_HOW_TWINS}"
        )
    return replace(task, twins=twins)


_HOW_TWINS = (
    "write claims with plain numbers or texts, such as `is(f(2), 4)`, that fail at the start, in tests that print what "
    "they got; or write twins, in twins/SET/ by the same path, with another value in one line"
)


def _draft(folder: TaskFolder, image_digest: str) -> tuple[CommandTask, Mapping[str, list[bytes]]]:
    """The task before anything has run, and the twins that the author wrote. Raises ImportRefused."""
    public, hidden = folder.placed_tests()
    for path in hidden:
        if not _is_test(folder, path):
            raise ImportRefused(
                f"hidden/{_inside(path)} is no {folder.tests}; what is no test lies in public/"
            )
    tests = {path: content for path, content in {**public, **hidden}.items() if _is_test(folder, path)}
    for path, content in tests.items():
        if not re.fullmatch(r"[\w.+/-]+", path, re.ASCII) or not _is_text(content):
            raise ImportRefused(
                f"{path!a} is no test file: a text in UTF-8, with a name of letters, digits and _.+-"
            )
    task = CommandTask(
        task_id=folder.task_id,
        suite=folder.suite,
        split=folder.split,
        family="authored",
        request=folder.request,
        base={**folder.repo, **public},
        gold=folder.gold,
        test_files=tests,
        fail_to_pass=tuple(sorted(hidden)),
        pass_to_pass=tuple(sorted(tests.keys() - hidden.keys())),
        twins={},
        test_command=folder.test_command,
        test_names=folder.tests,
        sources=folder.sources,
        image_digest=image_digest,
        source=f"the folder {folder.name}",
        environment=folder.environment,
    )
    for path in folder.gold:
        if not task.is_source(path):
            raise ImportRefused(
                f"gold/{path} is none of the sources ({', '.join(folder.sources)}), or a file that says how programs "
                "are built or run"
            )
    return task, _given_twins(folder, task)


def _given_twins(folder: TaskFolder, task: CommandTask) -> Mapping[str, list[bytes]]:
    """The twins that the author wrote, by the path of their check. Raises ImportRefused."""
    given: dict[str, list[bytes]] = {path: [] for path in task.fail_to_pass}
    for name, twin in sorted(folder.twins.items()):
        path = f"{TEST_FOLDER}/{name.partition('/')[2]}"
        if path not in given:
            raise ImportRefused(
                f"twins/{name} is no twin of a hidden test: it is called twins/SET/ and the path of one"
            )
        lines, others = task.test_files[path].splitlines(), twin.splitlines()
        if len(lines) != len(others) or sum(a != b for a, b in zip(lines, others, strict=True)) != 1:
            raise ImportRefused(
                f"twins/{name} differs from hidden/{_inside(path)} in more than one line, or in none"
            )
        given[path].append(twin)
    return given


def _last(output: bytes) -> str:
    """The end of what a test printed, for its author."""
    lines = output.decode(errors="replace").strip().splitlines()[-5:]
    return "".join(f"\n    {line[:200]}" for line in lines)


def _is_test(folder: TaskFolder, path: str) -> bool:
    return fnmatchcase(path.rpartition("/")[2], folder.tests)


def _inside(path: str) -> str:
    return path.removeprefix(f"{TEST_FOLDER}/")


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
