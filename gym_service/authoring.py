"""A task of one's own, from a folder (`tasks.scaffold`) to a proven task.

The tests are run in sandboxes as grading will run them: with the gold patch, where all have to pass, with and without
pytest; in the base tree, where the public ones pass and the hidden ones fail. Then each test is turned, to find twins.
Nothing of the folder is executed here.
"""

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gym_service.command_authoring import make_command_task
from gym_service.grading.collection import plain_functions, test_functions
from gym_service.grading.rounds import graded_tree
from gym_service.proof import Grounds
from gym_service.synthesis import claims_value, function_id
from gym_service.tasks.command import CommandTask
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.repository import RepositoryTask, function_of
from gym_service.tasks.scaffold import TEST_FOLDER, TaskFolder
from gym_service.trials import find_twins, run_all
from gym_service.values import Submission


async def make_task(folder: TaskFolder, grounds: Grounds) -> RepositoryTask | CommandTask:
    """Makes a task of a folder, yet to be proven. Raises ImportRefused, SandboxLost."""
    if folder.dockerfile and not folder.environment.image:
        raise ImportRefused(f"the image of {folder.dockerfile} is not built: name an image by its digest")
    if folder.test_command:
        return await make_command_task(folder, grounds)
    task = _draft(folder, grounds.image_digest)
    hidden, public = (
        find_functions(task, [f"{TEST_FOLDER}/{path}" for path in part])
        for part in (folder.hidden, folder.public)
    )
    functions = [*hidden, *public]
    rng = random.Random(task.sha256)
    tried = await try_out(task, functions, rng, grounds)
    with_gold, at_start = tried.with_gold, tried.at_start
    for name in functions:
        tests = [test for test in with_gold if function_of(test) == name]
        if not tests or not all(with_gold[test] for test in tests):
            raise ImportRefused(f"{name} does not pass with gold/")
        passes = [at_start.get(test, False) for test in tests]
        if name in hidden and any(passes):
            raise ImportRefused(f"{name} passes at the start: a hidden test fails there; move it to public/")
        if name in public and not all(passes):
            raise ImportRefused(f"{name} fails at the start: a public test passes there; move it to hidden/")
    task = replace(
        task,
        fail_to_pass=tuple(sorted(test for test in with_gold if function_of(test) in hidden)),
        pass_to_pass=tuple(sorted(test for test in with_gold if function_of(test) in public)),
    )
    return await turn(task, functions, tried, rng, grounds)


@dataclass(frozen=True, slots=True)
class Tried:
    """What tests did in sandboxes, as they are."""

    with_gold: Mapping[str, bool]
    """Whether a test passed, by its id: of a function with parameters there are several."""
    at_start: Mapping[str, bool]
    plain: frozenset[str]
    """The test functions that pass with the gold without pytest, too."""


async def try_out(
    task: RepositoryTask, functions: Sequence[str], rng: random.Random, grounds: Grounds
) -> Tried:
    """Runs the test functions of a draft as grading will run them. Raises ImportRefused, SandboxLost."""
    repaired = graded_tree(task, Submission(dict(task.gold)))
    files = {name.partition("::")[0] for name in functions}
    able = [name for name in find_functions(task, files, plain=True) if name in {*functions}]
    with_gold = await _passing(task, repaired, functions, rng, grounds)
    without_pytest = await _passing(task, repaired, able, rng, grounds, plain=True)
    at_start = await _passing(task, graded_tree(task, Submission()), functions, rng, grounds)
    plain = {function_of(test) for test, passed in without_pytest.items() if passed}
    return Tried(with_gold, at_start, frozenset(plain))


async def turn(
    task: RepositoryTask, functions: Sequence[str], tried: Tried, rng: random.Random, grounds: Grounds
) -> RepositoryTask:
    """Gives a draft whose tests are chosen its twins. Raises ImportRefused, SandboxLost."""
    if not any(claims_value(task, name) for name in task.hidden_functions):
        raise ImportRefused("no hidden test says what a value is: write one like `assert f(2) == 4`")
    task = replace(task, plain=tuple(name for name in functions if name in tried.plain))
    return replace(task, twins=await find_twins(task, functions, grounds.pool, rng))


def _draft(folder: TaskFolder, image_digest: str) -> RepositoryTask:
    """The task before anything has run. Raises ImportRefused."""
    public, hidden = folder.placed_tests()
    for path in hidden:
        if not _is_test(path):
            raise ImportRefused(
                f"hidden/{path.removeprefix(TEST_FOLDER)[1:]} is no test_*.py; data lies in public/"
            )
    tests = {path: text for path, text in {**public, **hidden}.items() if _is_test(path)}
    task = RepositoryTask(
        task_id=folder.task_id,
        suite=folder.suite,
        split=folder.split,
        family="authored",
        request=folder.request,
        base={**folder.repo, **public},
        gold=folder.gold,
        test_files=tests,
        fail_to_pass=(),
        pass_to_pass=(),
        twins={},
        plain=(),
        image_digest=image_digest,
        source=f"the folder {folder.name}",
        environment=folder.environment,
    )
    for path in folder.gold:
        if not task.is_source(path):
            raise ImportRefused(
                f"gold/{path} is no source of repo/: a solution changes modules and packages alone"
            )
    return task


async def _passing(
    task: RepositoryTask,
    tree: dict[str, bytes],
    functions: Sequence[str],
    rng: random.Random,
    grounds: Grounds,
    *,
    plain: bool = False,
) -> dict[str, bool]:
    """Runs test functions as they are; says of each test whether it passed. Raises ImportRefused, SandboxLost."""
    without = functions if plain else ()
    runs = await run_all(grounds.pool, task, tree, dict.fromkeys(functions), rng, plain=without)
    if anomalies := [each for run in runs for each in run.anomalies]:
        raise ImportRefused(f"the tests report what no runner does: {anomalies[0]}")
    if any(run.timed_out or run.out_of_memory for run in runs):
        raise ImportRefused("the tests take too much of time or memory")
    return {test: run.passes(test) for run in runs for test in run.outcomes}


def find_functions(task: RepositoryTask, files: Collection[str], *, plain: bool = False) -> list[str]:
    """The ids of the test functions in some of the test files. Raises ImportRefused."""
    find = plain_functions if plain else test_functions
    found = []
    for path in sorted(task.test_files.keys() & set(files)):
        try:
            found += [function_id(path, name) for name in find(task.test_files[path].decode())]
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ImportRefused(f"{path} cannot be read as Python: {error}") from error
    return found


def _is_test(path: str) -> bool:
    return re.fullmatch(r"(.*/)?test_[^/]*\.py", path) is not None
