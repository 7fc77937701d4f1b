"""Tests of a draft run in sandboxes, as grading will run them, and where they can be turned so that they have to fail.

A twin convicts whoever makes claims hold that do not. Of a hidden test that is the claim at which it fails in the base
tree: code that forges this claim alone, and is right about the others, would pass every grading whose twins deny only
those.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gym_service.grading.rendering import Role, count_sites, end_after_sites
from gym_service.grading.repository import SECONDS_PER_TEST, run_round
from gym_service.grading.rounds import Round, Run, graded_tree
from gym_service.sandbox.pool import Pool
from gym_service.tasks.repository import RepositoryTask, function_of
from gym_service.values import Submission

AT_ONCE = 2
"""Sandboxes that run at a time: each has a whole suite to run."""
_FUNCTIONS_PER_RUN = 100
_MOST_SITES = 3
"""Places at which a test is turned."""
_MOST_TRIES = 4
"""How often a place is tried: the other value that is drawn there can be the one that the faulty sources give."""

Progress = Callable[[str], None]


async def run_all(
    pool: Pool,
    task: RepositoryTask,
    tree: Mapping[str, bytes],
    roles: Mapping[str, Role],
    rng: random.Random,
    *,
    plain: Collection[str] = (),
    seconds_each: float = SECONDS_PER_TEST,
    progress: Progress | None = None,
) -> list[Run]:
    """Runs functions a part at a time, so that no run comes near its limits."""
    names = list(roles)
    parts = [names[start : start + _FUNCTIONS_PER_RUN] for start in range(0, len(names), _FUNCTIONS_PER_RUN)]
    places = asyncio.Semaphore(AT_ONCE)
    without_tests = {path: content for path, content in tree.items() if path not in task.test_files}

    async def run(part: Sequence[str], seed: int) -> Run:
        drawn = Round({name: roles[name] for name in part}, frozenset(plain) & set(part))
        async with places:
            if progress:
                progress(f"     running {len(part)} test functions")
            lend = partial(pool.lend, task.environment)
            return await run_round(lend, task, without_tests, drawn, random.Random(seed), seconds_each)

    return await asyncio.gather(*(run(part, rng.getrandbits(64)) for part in parts))


async def find_twins(
    task: RepositoryTask, functions: Sequence[str], pool: Pool, rng: random.Random
) -> dict[str, tuple[int, ...]]:
    """Finds the places at which a test, turned, fails with the gold patch and in the base tree.

    Of a hidden test the place that decides comes first, if it is among them.
    """
    deciding = await find_deciding(task, pool, rng)
    untried: dict[str, list[int]] = {}
    for function in functions:
        places = list(range(_count(task, function)))
        rng.shuffle(places)
        first = [deciding[function]] if function in deciding else []
        untried[function] = [*first, *(place for place in places if place not in first)][:_MOST_SITES]
    found: dict[str, list[int]] = defaultdict(list)
    tries: Counter[tuple[str, int]] = Counter()
    trees = (graded_tree(task, Submission(dict(task.gold))), graded_tree(task, Submission()))
    while roles := {name: sites.pop(0) for name, sites in untried.items() if sites}:
        fails_repaired, fails_faulty = [
            _failing(await run_all(pool, task, tree, roles, rng, plain=task.plain)) for tree in trees
        ]
        for name, site in roles.items():
            tries[name, site] += 1
            if name in fails_repaired and name in fails_faulty:
                found[name].append(site)
            elif name in fails_repaired and tries[name, site] < _MOST_TRIES:
                untried[name].append(site)
    return {
        name: tuple(sorted(each, key=lambda place: (place != deciding.get(name), place)))
        for name, each in sorted(found.items())
    }


async def find_deciding(task: RepositoryTask, pool: Pool, rng: random.Random) -> dict[str, int]:
    """Finds of each hidden test the first place behind which it has failed in the base tree.

    A test that fails behind its last place, or has none, is left out.
    """
    faulty = graded_tree(task, Submission())
    # Those behind which it has failed are from `high` on, those behind which it has not are below `low`.
    bounds = {name: (0, _count(task, name)) for name in task.hidden_functions}
    while middles := {name: (low + high) // 2 for name, (low, high) in bounds.items() if low < high}:
        cut = replace(task, test_files=dict(task.test_files) | _cut(task, middles))
        holds = _passing(await run_all(pool, cut, faulty, dict.fromkeys(middles), rng, plain=task.plain))
        for name, middle in middles.items():
            low, high = bounds[name]
            bounds[name] = (middle + 1, high) if name in holds else (low, middle)
    return {name: low for name, (low, _) in bounds.items() if low < _count(task, name)}


def _cut(task: RepositoryTask, places: Mapping[str, int]) -> dict[str, bytes]:
    """The test files with these tests, each of which ends behind a place."""
    by_file: dict[str, dict[str, int]] = defaultdict(dict)
    for function, place in places.items():
        path, name = _place_of(function)
        by_file[path][name] = place
    return {
        path: end_after_sites(task.test_files[path].decode(), sites).encode()
        for path, sites in by_file.items()
    }


def _count(task: RepositoryTask, function: str) -> int:
    path, name = _place_of(function)
    return count_sites(task.test_files[path].decode(), name)


def _place_of(function: str) -> tuple[str, str]:
    """The file of a test function, and its name there."""
    path, _, name = function.partition("::")
    return path, name.replace("::", ".")


def _passing(runs: Sequence[Run]) -> set[str]:
    """The test functions of which all tests pass."""
    ran = {function_of(test) for run in runs for test in run.outcomes}
    return ran - {function_of(test) for run in runs for test in run.outcomes if not run.passes(test)}


def _failing(runs: Sequence[Run]) -> set[str]:
    """The test functions of which some test fails and none passes."""
    failed = {
        function_of(test) for run in runs for test, outcome in run.outcomes.items() if outcome == "failed"
    }
    return failed - {function_of(test) for run in runs for test in run.outcomes if run.passes(test)}
