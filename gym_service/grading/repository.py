"""Repository-level grading: the task's own tests run over the submission, and the pattern of passes is the secret.

Exit codes, reports and anything else that a process says about itself can be forged from inside it, so what is asked
is something that code cannot know. Each grading renders the test files anew (`rendering`): no comments, random names,
and of the tests that can be turned a random half as *twins*, which have to fail. A second run in another sandbox has
the complementary half. Code that makes every assertion hold, every report say "passed", or that writes the records
itself lets a test and its twin both pass, which is a contradiction: TAMPER_SUSPECTED. In the second run the tests that
need no pytest run as a plain script, so that code which looks for pytest is seen without it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gym_service.grading.outcomes import parse_outcomes
from gym_service.grading.rendering import Role, render
from gym_service.sandbox.base import Completed, FileRefused, RunChecks, RunTests, Sandbox
from gym_service.tasks.repository import RepositoryTask, function_of
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

GRADER_VERSION = "repository-1"
SECONDS_PER_RUN = 60.0
_SECONDS_PER_TEST = 10.0
_MAX_EVIDENCE = 200

Lend = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True)
class Half:
    """One of the two runs: which tests are turned in it, and which run without pytest."""

    roles: Mapping[str, Role]
    """Every test function that runs: None as it is, else the place at which it is turned."""
    plain: frozenset[str] = frozenset()
    """The functions that run as a plain script."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one half, under the names that the task knows."""

    outcomes: Mapping[str, str]
    """The outcome of each test, by id."""
    turned: frozenset[str]
    """The functions that were turned."""
    anomalies: tuple[str, ...]
    """What no honest run does."""
    complete: bool
    """Whether every process came to its own end."""
    timed_out: bool
    out_of_memory: bool

    def passes(self, test: str) -> bool:
        """Whether a test passed, as it is or turned."""
        return self.outcomes.get(test) == "passed"


def graded_tree(task: RepositoryTask, submission: Submission) -> dict[str, bytes]:
    """The base tree with the submission, without any test file."""
    tree = {path: content for path, content in task.base.items() if path not in task.test_files}
    for path in submission.deleted:
        tree.pop(path, None)
    return tree | submission.files


def draw_halves(task: RepositoryTask, rng: random.Random) -> tuple[Half, Half]:
    """Draws which half of the tests is turned first. Tests without a twin run as they are in both."""
    functions = sorted({function_of(each) for each in (*task.fail_to_pass, *task.pass_to_pass)})
    sites = {name: rng.choice(task.twins[name]) for name in functions if name in task.twins}
    turned_first = {name for name in sites if rng.random() < 0.5}
    first: dict[str, Role] = {name: sites[name] if name in turned_first else None for name in functions}
    second: dict[str, Role] = {
        name: sites[name] if name in sites and name not in turned_first else None for name in functions
    }
    return Half(first), Half(second, frozenset(task.plain) & set(functions))


async def grade(lend: Lend, task: RepositoryTask, submission: Submission, rng: random.Random) -> Verdict:
    """Grades a submission in two sandboxes of `lend`, each fresh and its own. Raises SandboxLost."""
    hidden, public = task.fail_to_pass, task.pass_to_pass
    zero = TestCount(0, len(hidden)), TestCount(0, len(public))
    digest = submission.sha256
    if submission.refusal:
        return Verdict(VerdictStatus.REFUSED, *zero, reason=submission.refusal, submission_sha256=digest)
    tree = graded_tree(task, submission)
    rngs = [random.Random(rng.getrandbits(64)) for _ in range(2)]
    halves = draw_halves(task, rng)
    try:
        # Side by side, each with a sandbox of its own: neither waits for the other while it holds one.
        first, second = await _both(
            [run_half(lend, task, tree, half, each) for half, each in zip(halves, rngs, strict=True)]
        )
    except FileRefused as error:
        reason = f"the files cannot be placed: {error.kind.replace('_', ' ')}"
        return Verdict(VerdictStatus.REFUSED, *zero, reason=reason, submission_sha256=digest)
    return judge(task, first, second, digest)


def judge(task: RepositoryTask, first: Run, second: Run, submission_sha256: str) -> Verdict:
    """Gives the verdict of two runs."""
    runs = (first, second)

    def holds(test: str) -> bool:
        """Passed wherever it ran as it is."""
        return all(run.passes(test) for run in runs if function_of(test) not in run.turned)

    def contradicts(test: str) -> bool:
        """Passed as it is and passed as its own contrary."""
        return function_of(test) in task.twins and all(run.passes(test) for run in runs)

    tests = (*task.fail_to_pass, *task.pass_to_pass)
    contradictions = [test for test in tests if contradicts(test)]
    anomalies = [anomaly for run in runs for anomaly in run.anomalies]
    failing = [test for test in tests if not holds(test)]
    hidden, public = (
        TestCount(sum(map(holds, ids)), len(ids)) for ids in (task.fail_to_pass, task.pass_to_pass)
    )
    if contradictions or anomalies:
        status, reason = VerdictStatus.TAMPER_SUSPECTED, "the tests were not run as they are"
    elif any(run.out_of_memory for run in runs):
        status, reason = VerdictStatus.OUT_OF_MEMORY, "the submission used up the memory"
    elif any(run.timed_out for run in runs):
        status, reason = VerdictStatus.TIMEOUT, "the submission used up the time"
    elif any(test in task.fail_to_pass for test in failing):
        status, reason = VerdictStatus.UNRESOLVED, "some hidden test fails"
    elif failing:
        status, reason = VerdictStatus.UNRESOLVED, "some public test fails"
    elif not all(run.complete and run.outcomes.keys() <= set(tests) for run in runs):
        # Parameters of a test can come from the code under test, so that others are no trick by themselves.
        status, reason = VerdictStatus.UNRESOLVED, "the run of the tests did not come to its end"
    else:
        status, reason = VerdictStatus.RESOLVED, "every test passes"
    evidence = [
        *(f"contradiction: {test} and its twin both pass" for test in contradictions),
        *anomalies,
        *(f"fails: {test}" for test in failing),
    ]
    return Verdict(
        status,
        hidden,
        public,
        reason=reason,
        submission_sha256=submission_sha256,
        evidence=tuple(evidence[:_MAX_EVIDENCE]),
    )


async def run_half(
    lend: Lend,
    task: RepositoryTask,
    tree: Mapping[str, bytes],
    half: Half,
    rng: random.Random,
    seconds_each: float = _SECONDS_PER_TEST,
) -> Run:
    """Runs one half in a sandbox of its own. Raises SandboxLost, FileRefused."""
    jobs: list[RunTests | RunChecks] = []
    names: dict[str, str] = {}
    files = dict(tree)
    with_pytest = []
    for path, source in sorted(task.test_files.items()):
        for plain in (True, False):
            chosen = {
                function.partition("::")[2].replace("::", "."): role
                for function, role in half.roles.items()
                if function.startswith(f"{path}::") and (function in half.plain) is plain
            }
            if not chosen:
                continue
            rendered = render(source.decode(), chosen, rng, without_pytest=plain)
            # In the folder where the test file was, for the data beside it and for relative imports.
            stem = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=10))
            new_path = f"{path.rpartition('/')[0]}/test_{stem}.py".lstrip("/")
            files[new_path] = rendered.source.encode()
            for new, stored in rendered.names.items():
                names[f"{new_path}::{new.replace('.', '::')}"] = f"{path}::{stored.replace('.', '::')}"
            if plain:
                jobs.append(RunChecks(new_path, tuple(rendered.names), task.roots, seconds_each))
            else:
                with_pytest.append(new_path)
    if with_pytest:
        jobs.append(RunTests(tuple(with_pytest), task.roots, seconds_each))
    async with lend() as sandbox:
        await asyncio.gather(*(sandbox.write_file(path, content) for path, content in files.items()))
        runs = []
        for job in jobs:
            runs.append(await sandbox.run(job, SECONDS_PER_RUN))
            if runs[-1].timed_out or runs[-1].out_of_memory:
                break
    return _read_runs(half, names, jobs, runs)


def _read_runs(
    half: Half,
    names: Mapping[str, str],
    jobs: Collection[RunTests | RunChecks],
    runs: Collection[Completed],
) -> Run:
    reported: dict[str, str] = {}
    anomalies: list[str] = []
    complete = len(runs) == len(jobs)
    for done in runs:
        outcomes = parse_outcomes(done.output, truncated=done.output_truncated)
        anomalies += outcomes.anomalies
        complete = complete and outcomes.ended
        for test_id, outcome in outcomes.by_id.items():
            function = function_of(test_id)
            stored = names.get(function, "") + test_id[len(function) :]
            if function not in names or stored in reported:
                anomalies.append(f"a test that does not run there: {test_id[:200]}")
            else:
                reported[stored] = outcome
    return Run(
        outcomes=reported,
        turned=frozenset(name for name, role in half.roles.items() if role is not None),
        anomalies=tuple(anomalies),
        complete=complete,
        timed_out=any(done.timed_out for done in runs),
        out_of_memory=any(done.out_of_memory for done in runs),
    )


async def _both(runs: Sequence[Awaitable[Run]]) -> list[Run]:
    """Waits for both, whatever becomes of the first, so that no sandbox is in use any more when this ends."""
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Run)]
