"""Rounds of tests in which some are turned, and the verdict on what came of them; whatever the tests are written in.

What convicts is a contradiction, a test and its twin that both pass: code that is wrong and honest lets one of them
pass at most.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gym_service.grading.rendering import Role
from gym_service.sandbox.base import FileRefused
from gym_service.tasks.repository import function_of
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

MIN_GUESSES = 10
"""How often who forges the hidden tests has to guess whether one is turned: blind luck is one in a thousand."""
_MAX_EVIDENCE = 200


class Tested(Protocol):
    """What the verdict takes of a task."""

    @property
    def base(self) -> Mapping[str, bytes]:
        """The base tree."""

    @property
    def test_files(self) -> Mapping[str, bytes]:
        """The whole test files."""

    @property
    def fail_to_pass(self) -> tuple[str, ...]:
        """The hidden tests."""

    @property
    def pass_to_pass(self) -> tuple[str, ...]:
        """The public tests."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run of tests: which run in it, which of them turned, and which without pytest."""

    roles: Mapping[str, Role]
    """Every test function that runs: None as it is, else the place at which it is turned."""
    plain: frozenset[str] = frozenset()
    """The functions that run as a plain script."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one round, under the names that the task knows."""

    roles: Mapping[str, Role]
    """Which functions ran, and how."""
    outcomes: Mapping[str, str]
    """The outcome of each test, by id."""
    anomalies: tuple[str, ...]
    """What no honest run does."""
    complete: bool
    """Whether every process came to its own end."""
    timed_out: bool
    out_of_memory: bool

    def passes(self, test: str) -> bool:
        """Whether a test passed, as it is or turned."""
        return self.outcomes.get(test) == "passed"


def graded_tree(task: Tested, submission: Submission) -> dict[str, bytes]:
    """The base tree with the submission, without any test file."""
    tree = {path: content for path, content in task.base.items() if path not in task.test_files}
    for path in submission.deleted:
        tree.pop(path, None)
    return tree | submission.files


async def grade_rounds(
    task: Tested,
    submission: Submission,
    rounds: Sequence[Callable[[], Awaitable[Run]]],
    *,
    counts_parts: bool = False,
) -> Verdict:
    """Has the first two rounds run, and the others if all is well by these. Raises SandboxLost, FileRefused.

    With `counts_parts` the others run also if some hidden test passes so far: who forges it may only have been lucky.
    """
    digest = submission.sha256
    # Side by side, each with a sandbox of its own: none waits for another while it holds one.
    runs = await _all(begin() for begin in rounds[:2])
    verdict = judge(task, runs, digest)
    in_part = verdict.status is VerdictStatus.UNRESOLVED and verdict.hidden and verdict.hidden.passed
    if rounds[2:] and (verdict.status is VerdictStatus.RESOLVED or (counts_parts and in_part)):
        runs += await _all(begin() for begin in rounds[2:])
        verdict = judge(task, runs, digest)
    return verdict


def refuse(task: Tested, submission: Submission, error: FileRefused) -> Verdict:
    """Gives the verdict on a submission that cannot be graded."""
    zero = TestCount(0, len(task.fail_to_pass)), TestCount(0, len(task.pass_to_pass))
    reason = submission.refusal or f"the files cannot be placed: {error.kind.replace('_', ' ')}"
    return Verdict(VerdictStatus.REFUSED, *zero, reason=reason, submission_sha256=submission.sha256)


def judge(task: Tested, runs: Sequence[Run], submission_sha256: str) -> Verdict:
    """Gives the verdict on what came of the rounds."""

    def seen(test: str, *, turned: bool) -> list[bool]:
        """Whether a test passed in each round that had it so."""
        function = function_of(test)
        return [
            run.passes(test)
            for run in runs
            if function in run.roles and (run.roles[function] is not None) is turned
        ]

    tests = (*task.fail_to_pass, *task.pass_to_pass)
    holding = {test for test in tests if all(seen(test, turned=False))}
    contradictions = [
        test for test in tests if any(seen(test, turned=False)) and any(seen(test, turned=True))
    ]
    anomalies = [anomaly for run in runs for anomaly in run.anomalies]
    failing = [test for test in tests if test not in holding]
    hidden, public = (
        TestCount(len(holding & set(ids)), len(ids)) for ids in (task.fail_to_pass, task.pass_to_pass)
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


async def _all(rounds: Iterable[Awaitable[Run]]) -> list[Run]:
    """Waits for all, whatever becomes of one, so that no sandbox is in use any more when this ends."""
    outcomes = await asyncio.gather(*rounds, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Run)]
