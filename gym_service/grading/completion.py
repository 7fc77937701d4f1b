"""Grading a completed file: like a function where the check is plain calls, else by record and replay.

The check of a task is code that nobody here wrote, and the submission is a stranger's; they never share a process.
Where the check says no more than `candidate(...) == value`, it does not run: inputs go in, answers come out and are
compared here, by Python's `==`. Any other check runs twice in sandboxes of its own: with the reference solution, to
learn what it calls, and with the answers of the submission, which was called so in another sandbox and sent plain data.

All calls are made in one process and in the check's order, as the check itself would make them. Where they depend on
the answers, the check is run again with each answer that it asked for; and where an answer of the reference solution is
an argument later, what comes before is answered by a process that does not have it. What a call did to its arguments
travels beside its answer, and the check finds them so; what is no plain data by then is there as something that equals
nothing. Not covered: a check that wants an exception, which the reference solution does not pass, so that no such task
is proven; an argument that is made of an earlier answer and is another value, which a submission that looks ahead sees
(HumanEval has none).
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gym_service.grading import plain_calls
from gym_service.grading.oracle import ANOMALIES, refusal_of
from gym_service.grading.records import MAX_DEPTH, Answer, Failure, parse_answers, parse_record
from gym_service.sandbox.base import CallFunction, Completed, FileRefused, Lend
from gym_service.tasks.comparison import EQUAL
from gym_service.tasks.completion import PATH, CompletionTask
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

GRADER_VERSION = "completion-3"
_SECONDS = 5.0
"""How long all calls of one submission may take together, and one run of a check."""
_MOST_ROUNDS = 20
"""How often a check is run whose calls depend on the answers."""
_MOST_CUTS = 8
"""How often a submission is run anew because an argument is an answer: a small number often is one by accident."""
_SCRIPT = "plain_calls.py"
_SOURCE = Path(plain_calls.__file__).read_bytes()
_MAX_JOB_BYTES = 3 << 20
"""A sandbox takes no longer jobs, with some room."""
_SHOWN_CHARACTERS = 200
_MAX_EVIDENCE = 40


class BrokenTask(Exception):
    """The task cannot be graded, whatever is submitted; the message says why."""


@dataclass(frozen=True, slots=True)
class _Called:
    """What came of calling a submission, or of running a check with its answers."""

    answers: Sequence[Answer]
    done: Completed

    @property
    def failed(self) -> VerdictStatus | None:
        """What the submission used up; None if nothing."""
        if self.done.out_of_memory:
            return VerdictStatus.OUT_OF_MEMORY
        return VerdictStatus.TIMEOUT if self.done.timed_out else None


async def grade(lend: Lend, task: CompletionTask, submission: Submission, rng: random.Random) -> Verdict:
    """Grades a submission in sandboxes of `lend`. Raises SandboxLost, BrokenTask."""
    try:
        refusal = submission.refusal or refusal_of(submission.files.get(PATH))
        if refusal:
            return _verdict(task, submission, VerdictStatus.REFUSED, refusal)
        if task.cases is not None:
            return await _grade_cases(lend, task, submission)
        return await _grade_by_replay(lend, task, submission, rng.getrandbits(64))
    except FileRefused as error:
        return _verdict(task, submission, VerdictStatus.REFUSED, error.kind)


async def _grade_cases(lend: Lend, task: CompletionTask, submission: Submission) -> Verdict:
    assert task.cases is not None
    try:
        calls = [json.dumps(plain_calls.encode((case.arguments, {}))) for case in task.cases]
    except (plain_calls.NotPlainData, ValueError):
        raise BrokenTask(
            "the check calls with a number that is too long, or with what nests too deep"
        ) from None
    called = await _call(lend, task, submission, calls, "call")
    right = [
        answer.returned and EQUAL.accepts(case.arguments, answer.value, case.expected)
        for case, answer in zip(task.cases, called.answers, strict=True)
    ]
    evidence = [
        f"{repr(case.arguments)[:_SHOWN_CHARACTERS]}: {_came(answer)}"
        for case, answer, is_right in zip(task.cases, called.answers, right, strict=True)
        if not is_right
    ]
    return _decide(task, submission, called, sum(right), evidence)


async def _grade_by_replay(lend: Lend, task: CompletionTask, submission: Submission, seed: int) -> Verdict:
    calls, cuts = await _record(lend, task, seed)
    for _ in range(_MOST_ROUNDS):
        called = _with_changes(await _call_in_parts(lend, task, submission, calls, cuts))
        failures = [
            f"{call[:_SHOWN_CHARACTERS]}: {_came(answer)}"
            for call, answer in zip(calls, called.answers, strict=True)
            if not answer.returned
        ]
        if failures:
            return _decide(task, submission, called, 0, failures)
        outcome, called = await _replay(lend, task, seed, calls, called)
        if not isinstance(outcome, list):
            failures = [] if outcome == "passed" else ["the check fails with these answers"]
            return _decide(task, submission, called, 0 if failures else 1, failures)
        calls, cuts = outcome, []  # From here on it is the submission's own answers that come back.
    return _decide(task, submission, called, 0, ["the check goes on asking"])


async def _call(
    lend: Lend, task: CompletionTask, submission: Submission, calls: Sequence[str], way: str
) -> _Called:
    """Calls the function of a submission, by one of the script's ways. Raises SandboxLost, FileRefused."""
    job = CallFunction(_SCRIPT, way, [[task.entry_point, call] for call in calls])
    if not _fits(job):
        raise BrokenTask("the check calls with arguments that are too long")
    done = await _run(lend, job, {PATH: submission.files[PATH]})
    claims = parse_answers(done.output, len(calls), truncated=done.output_truncated)
    return _Called([*map(_unwrap, claims)], done)


def _unwrap(claim: Answer) -> Answer:
    """Takes the script's own record out of the warden's, which has no sets."""
    if not claim.returned:
        return claim
    if isinstance(claim.value, str):
        return parse_record(claim.value.encode(errors="replace"))
    return Answer(failure=Failure.MALFORMED)


async def _call_in_parts(
    lend: Lend, task: CompletionTask, submission: Submission, calls: Sequence[str], cuts: Sequence[int]
) -> _Called:
    """Calls the function of a submission; no answer is of a process that was sent calls beyond the next cut."""
    answers: list[Answer] = []
    for end in [*cuts[:_MOST_CUTS], len(calls)]:
        called = await _call(lend, task, submission, calls[:end], "call_and_look")
        answers += called.answers[len(answers) :]
        if not all(answer.returned for answer in answers):
            break
    missing = [Answer(failure=Failure.MISSING)] * (len(calls) - len(answers))
    return replace(called, answers=[*answers, *missing])


def _with_changes(called: _Called) -> _Called:
    """Takes no answer that comes without the arguments that the call changed."""

    def checked(answer: Answer) -> Answer:
        match answer.value:
            case (_, dict()):
                return answer
        return answer if answer.failure else Answer(failure=Failure.MALFORMED)

    return replace(called, answers=[*map(checked, called.answers)])


async def _record(lend: Lend, task: CompletionTask, seed: int) -> tuple[list[str], list[int]]:
    """Gives the calls that the check makes, and the cuts between them. Raises SandboxLost, BrokenTask."""
    job = CallFunction(_SCRIPT, "record", [[task.reference, task.check, task.entry_point, seed]])
    if not _fits(job):
        raise BrokenTask("the check or the reference solution is too long")
    done = await _run(lend, job, {})
    [answer] = parse_answers(done.output, 1, truncated=done.output_truncated)
    if done.timed_out or done.out_of_memory:
        raise BrokenTask("the check takes too much of time or memory with the reference solution")
    match answer.value:
        case (list(calls), list(cuts)) if all(isinstance(each, str) for each in calls) and all(
            isinstance(each, int) for each in cuts
        ):
            return calls, cuts
    raise BrokenTask(
        "the check fails with the reference solution, or a call in it takes or gives what is no plain data: "
        f"{answer.failure}"
    )


async def _replay(
    lend: Lend, task: CompletionTask, seed: int, calls: Sequence[str], called: _Called
) -> tuple[object, _Called]:
    """Gives "passed", the calls that the check makes up to the first without an answer, or None if it fails."""
    # Who sends a record of his own can nest a little deeper than the script does.
    texts = [json.dumps(plain_calls.encode(answer.value, levels=2 * MAX_DEPTH)) for answer in called.answers]
    arguments = [task.reference, task.check, task.entry_point, seed, list(calls), texts]
    job = CallFunction(_SCRIPT, "replay", [arguments])
    if not _fits(job):  # By the answers: else the calls would not have been recorded.
        return None, called
    done = await _run(lend, job, {})
    [answer] = parse_answers(done.output, 1, truncated=done.output_truncated)
    return answer.value, _Called(called.answers, done)


async def _run(lend: Lend, job: CallFunction, files: dict[str, bytes]) -> Completed:
    """Runs the script in a sandbox of its own, with other files beside it. Raises SandboxLost, FileRefused."""
    async with lend() as sandbox:
        writes = [sandbox.write_file(path, text) for path, text in {**files, _SCRIPT: _SOURCE}.items()]
        # What is sent together travels together; a sandbox takes its requests in order.
        _, done = await asyncio.gather(asyncio.gather(*writes), sandbox.run(job, _SECONDS))
    return done


def _fits(job: CallFunction) -> bool:
    return len(json.dumps(job.arguments)) <= _MAX_JOB_BYTES


def _came(answer: Answer) -> str:
    return answer.failure or f"returned {repr(answer.value)[:_SHOWN_CHARACTERS]}"


def _decide(
    task: CompletionTask, submission: Submission, called: _Called, passed: int, evidence: Sequence[str]
) -> Verdict:
    if passed == task.test_count:
        status, reason = VerdictStatus.RESOLVED, "every hidden test passes"
    elif called.failed is VerdictStatus.OUT_OF_MEMORY:
        status, reason = called.failed, "the submission used up the memory"
    elif called.failed is VerdictStatus.TIMEOUT:
        status, reason = called.failed, "the submission used up the time"
    else:
        status, reason = VerdictStatus.UNRESOLVED, "some hidden test fails"
    verdict = _verdict(task, submission, status, reason, passed, evidence)
    flags = {ANOMALIES[each.failure] for each in called.answers if each.failure in ANOMALIES}
    return replace(verdict, flags=tuple(sorted(flags)))


def _verdict(
    task: CompletionTask,
    submission: Submission,
    status: VerdictStatus,
    reason: str,
    passed: int = 0,
    evidence: Sequence[str] = (),
) -> Verdict:
    return Verdict(
        status,
        TestCount(passed, task.test_count),
        TestCount(0, 0),
        reason=reason,
        submission_sha256=submission.sha256,
        evidence=tuple(evidence[:_MAX_EVIDENCE]),
    )
