"""Repository-level tasks out of a real package: one fault put into its sources, the tests that it breaks hidden.

From the source distribution of a pinned version: its test functions are run in sandboxes, as each grading will run
them, and those that always pass are kept. Faults are put into the sources one at a time; one that makes some tests
fail and leaves the others is a task. Everything is drawn from the requirement's own text, so that the same version
gives the same tasks wherever it is done.
"""

import asyncio
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gym_service.grading.collection import plain_functions, test_functions
from gym_service.grading.rendering import value_claims
from gym_service.grading.repository import with_only
from gym_service.proof import Grounds, prove
from gym_service.sandbox.pool import Pool
from gym_service.tasks.faults import Fault, faults_of
from gym_service.tasks.hiding import remove_tests, written_tests
from gym_service.tasks.layout import Layout, find_layout
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask, function_of
from gym_service.tasks.sdist import SdistError, unpack
from gym_service.tasks.suites import built_in
from gym_service.trials import AT_ONCE, Progress, find_twins, run_all

_QUICK_SECONDS = 1.2
"""A slower test is not used, because a grading runs it twice. By the wall clock, so far from what most tests take."""
_MOST_HIDDEN = 12
"""Test functions that a fault may break: one that breaks more is found without looking."""
_MOST_PUBLIC = 60
"""Test functions that run beside the hidden ones, so that a grading stays a matter of a second."""
_FAULTS_PER_TASK = 8
"""Faults that are tried for each task that is asked for, before the package counts as having too few."""


@dataclass(frozen=True, slots=True)
class _Package:
    """A package as it is, with those of its tests that always pass."""

    suite: str
    requirement: str
    layout: Layout
    whole: RepositoryTask
    """The repository without a fault, as a task that has nothing hidden."""
    functions: Sequence[str]
    """All test functions, by id."""
    ids: Mapping[str, tuple[str, ...]]
    """The tests of each function that passes each time, by the function's id."""
    plain: frozenset[str]
    """The functions that pass without pytest too."""


async def synthesize(
    requirement: str, archive: bytes, count: int, grounds: Grounds, progress: Progress
) -> AsyncIterator[RepositoryTask]:
    """Makes `count` proven tasks from a source distribution, fewer if it does not have as many.

    Raises SdistError for a distribution that does not do, and SandboxLost.
    """
    package = await _study(requirement, archive, grounds.pool, progress)
    candidates = list(_candidates(package))[: count * _FAULTS_PER_TASK]
    used: set[str] = set()
    taken: set[str] = set()
    while candidates and len(taken) < count:
        chosen = [fault for fault in candidates if fault.function not in used][:AT_ONCE]
        if not chosen:
            break
        candidates = [fault for fault in candidates if fault not in chosen]
        made = await asyncio.gather(*(_try(package, fault, grounds) for fault in chosen))
        for fault, outcome in zip(chosen, made, strict=True):
            name = f"{fault.operator:12} {fault.function} in {fault.path}"
            if isinstance(outcome, str):
                progress(f"  -  {name}: {outcome}")
            elif len(taken) < count and fault.function not in used and outcome.task_id not in taken:
                taken.add(outcome.task_id)
                # A function has one fault: what was learned of one task says nothing about another.
                used.add(fault.function)
                progress(f"{len(taken):3}  {name}: {len(outcome.fail_to_pass)} tests hidden")
                yield outcome


async def _study(requirement: str, archive: bytes, pool: Pool, progress: Progress) -> _Package:
    """Finds the tests that pass each time, renamed and, where they can, without pytest."""
    files = unpack(archive)
    layout = find_layout(files)
    test_files = {path: files[path] for path in layout.test_files if _can_be_read(files[path])}
    for path in layout.test_files:
        if path not in test_files:
            progress(f"     {path} cannot be read as Python in UTF-8: its tests are left out")
    suite = re.sub(r"[-_.]+", "-", requirement.partition("==")[0]).lower()
    if suite in built_in().suites:
        raise SdistError(
            f"{suite} is the name of a suite that ships with the service; choose another package"
        )
    whole = RepositoryTask(
        task_id=f"{suite}/whole",
        suite=suite,
        split=Split.TRAIN,
        family="",
        request="",
        base={path: files[path] for path in layout.kept},
        gold={},
        test_files=test_files,
        fail_to_pass=(),
        pass_to_pass=(),
        twins={},
        plain=(),
        roots=layout.roots,
        source=f"{requirement} sha256:{hashlib.sha256(archive).hexdigest()}",
    )
    if not any(map(whole.is_source, layout.source_files)):
        raise SdistError(
            "its tests lie beside its sources, where a repair cannot be told from a change of the tests; choose a "
            "package with its tests in a folder of their own"
        )
    functions = [
        function_id(path, name)
        for path, content in whole.test_files.items()
        for name in test_functions(content.decode())
    ]
    able = {
        function_id(path, name)
        for path, content in whole.test_files.items()
        for name in plain_functions(content.decode())
    }
    rng = random.Random(requirement)
    passed: list[dict[str, str]] = []
    for plain in (frozenset(), frozenset(), frozenset(able)):
        chosen = [name for name in functions if not plain or name in plain]
        runs = await run_all(
            pool,
            whole,
            whole.base,
            dict.fromkeys(chosen),
            rng,
            plain=plain,
            seconds_each=_QUICK_SECONDS,
            progress=progress,
        )
        if anomalies := [each for run in runs for each in run.anomalies]:
            raise SdistError(
                f"its tests report what a runner does not ({anomalies[0]}), so that every grading would suspect them, "
                "as when one forks and goes on twice; choose another package"
            )
        passed.append({test: outcome for run in runs for test, outcome in run.outcomes.items()})
    first, second, without = passed
    ids: dict[str, list[str]] = defaultdict(list)
    for test in first:
        ids[function_of(test)].append(test)
    stable = {
        name: tuple(tests)
        for name, tests in ids.items()
        if all(first[test] == second.get(test) == "passed" for test in tests)
    }
    if not stable:
        raise SdistError("none of its tests passes in a sandbox; choose another package")
    progress(f"{len(stable)} of {len(functions)} test functions pass each time and are quick")
    plain_ok = frozenset(name for name in stable if without.get(name) == "passed")
    return _Package(suite, requirement, layout, whole, functions, stable, plain_ok)


def _candidates(package: _Package) -> Iterator[Fault]:
    """Gives faults in a fixed order in which operators and functions take turns."""
    rng = random.Random(f"{package.requirement} faults")
    by_operator: dict[str, list[Fault]] = defaultdict(list)
    for path in filter(package.whole.is_source, package.layout.source_files):
        with suppress(UnicodeDecodeError):  # A submission is in UTF-8.
            for fault in faults_of(path, package.whole.base[path].decode()):
                by_operator[fault.operator].append(fault)
    for faults in by_operator.values():
        rng.shuffle(faults)
    while any(by_operator.values()):
        for operator in sorted(by_operator):
            if by_operator[operator]:
                yield by_operator[operator].pop()


async def _try(package: _Package, fault: Fault, grounds: Grounds) -> RepositoryTask | str:
    """Makes a proven task of a fault, or says why not."""
    whole = package.whole
    rng = random.Random(f"{package.requirement} {fault.path} {fault.function} {fault.line} {fault.operator}")
    faulty = {**whole.base, fault.path: fault.faulty_source.encode()}
    runs = await run_all(grounds.pool, whole, faulty, dict.fromkeys(package.ids), rng)
    if any(run.timed_out or run.out_of_memory or not run.complete for run in runs):
        return "the tests do not come to their end"
    outcomes = {test: outcome for run in runs for test, outcome in run.outcomes.items()}
    failing = {test for tests in package.ids.values() for test in tests if outcomes.get(test) != "passed"}
    hidden = {function_of(test) for test in failing}
    if not 1 <= len(hidden) <= _MOST_HIDDEN:
        return f"{len(hidden)} test functions fail"
    if not any(claims_value(whole, name) for name in hidden):
        return "no hidden test says what a value is"
    public = _choose_public(package, hidden, rng)
    chosen = [name for name in package.ids if name in hidden or name in public]
    # Slow tests, and those that fail anyway, would only keep a policy waiting.
    unfit = {name for name in package.functions if name not in package.ids}
    try:
        visible = {
            path: remove_tests(
                content.decode(),
                _names_in(path, hidden) | (_names_in(path, unfit) & written_tests(content.decode())),
            ).encode()
            for path, content in whole.test_files.items()
        }
    except ValueError as error:
        return f"the tests cannot be hidden: {error}"
    outermost = fault.function.partition(".")[0]
    digest = hashlib.sha256(f"{package.suite} {outermost}".encode()).digest()[0]
    name = re.sub(r"[^a-z0-9_]+", "-", fault.function.lower()).strip("-_")
    command = "pytest " + " ".join(sorted({test.partition("::")[0] for test in hidden}))
    task = replace(
        whole,
        task_id=f"{package.suite}/{fault.operator.replace(' ', '-')}/{name}",
        family=fault.operator,
        # By the outermost function or class: the same code is never learned from and reported on.
        split=(Split.VALIDATION, Split.TEST, Split.TRAIN, Split.TRAIN, Split.TRAIN)[digest % 5],
        request=(
            f"The repository is {package.requirement.replace('==', ' ')} with one fault in it: `{fault.function}` in "
            f"{fault.path} does not do what its documentation and its callers expect. Find the fault and repair it; "
            f"change no test. `{command}` runs the tests that are there; others decide. Only what changes in "
            f"{', '.join(sorted(whole.source_names))} is graded."
        ),
        base={**faulty, **visible},
        test_files={path: _only(path, content, chosen) for path, content in whole.test_files.items()},
        gold={fault.path: whole.base[fault.path]},
        fail_to_pass=tuple(sorted(failing)),
        pass_to_pass=tuple(sorted({test for name in chosen for test in package.ids[name]} - failing)),
        plain=tuple(name for name in chosen if name in package.plain),
        image_digest=grounds.image_digest,
        test_command=command,
    )
    task = replace(task, twins=await find_twins(task, chosen, grounds.pool, rng))
    proof = await prove(task, grounds)
    return "; ".join(proof.faults) or task


def claims_value(task: RepositoryTask, function: str) -> bool:
    """Whether a test can get a twin that nobody can tell by reading, which a proof asks of one of the hidden ones."""
    path, _, name = function.partition("::")
    return name.replace("::", ".") in value_claims(task.test_files[path].decode())


def _choose_public(package: _Package, hidden: Collection[str], rng: random.Random) -> set[str]:
    """Chooses public tests: first those of the files in which the hidden ones are."""
    near = {name.partition("::")[0] for name in hidden}
    others = [name for name in package.ids if name not in hidden]
    rng.shuffle(others)
    others.sort(key=lambda name: name.partition("::")[0] not in near)
    return set(others[:_MOST_PUBLIC])


def _can_be_read(content: bytes) -> bool:
    """Whether a test file parses: some are templates, or meant for another Python."""
    try:
        test_functions(content.decode())
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _only(path: str, content: bytes, functions: Collection[str]) -> bytes:
    """A test file without the tests that do not run, so that each grading has less to render."""
    return with_only(content, frozenset(_names_in(path, functions))).encode()


def function_id(path: str, name: str) -> str:
    """The id of a test function of a file, by its name there."""
    return f"{path}::{name.replace('.', '::')}"


def _names_in(path: str, functions: Collection[str]) -> set[str]:
    """The functions of one file, by the names in it."""
    found = (name.partition("::") for name in functions)
    return {name.replace("::", ".") for file, _, name in found if file == path}
