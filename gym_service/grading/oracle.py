"""Function-level grading: inputs go in, answers come out, and the expected values stay outside.

The sandbox holds the submission and nothing else. Each few inputs get a fresh process, so no state survives from
one to the next; the answers are parsed by `records` and compared here with what the reference solution gave, by the
rule that the task declares. What a case failed by is noted as evidence, which stays with the service: it names hidden
inputs.
"""

import asyncio
import random
from collections.abc import Sequence

from gym_service.grading.records import Answer, Failure, parse_answers
from gym_service.sandbox.base import CallFunction, Completed, FileRefused, Sandbox
from gym_service.tasks.comparison import Comparison
from gym_service.tasks.model import Case, FunctionInstance
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

GRADER_VERSION = "function-2"
MAX_SUBMISSION_BYTES = 256 << 10
_CALLS_PER_PROCESS = 8
_SECONDS_PER_PROCESS = 5.0
_SHOWN_CHARACTERS = 200
"""How much of an input or of an answer is evidence."""
_MAX_EVIDENCE = 40
ANOMALIES = {
    Failure.EXTRA_RECORDS: "extra_records",
    Failure.MALFORMED: "malformed_record",
    Failure.OUTPUT_TRUNCATED: "output_truncated",
}
"""What the sandbox's own code does not do, as flags: something else was writing."""


async def call_cases(sandbox: Sandbox, path: str, function: str, cases: Sequence[Case]) -> list[Answer]:
    """Calls a function of a file with the inputs of a few cases, in one process. Raises SandboxLost."""
    job = CallFunction(path, function, [case.arguments for case in cases])
    done = await sandbox.run(job, _SECONDS_PER_PROCESS)
    return _answers(done, len(cases))


def matches(answer: Answer, case: Case, comparison: Comparison) -> bool:
    """Says whether an answer is right by the rule of the task. Raises what a broken Checker raises."""
    return answer.returned and comparison.accepts(case.arguments, answer.value, case.expected)


async def grade(
    sandbox: Sandbox,
    instance: FunctionInstance,
    submission: Submission,
    hidden: Sequence[Case],
    rng: random.Random,
) -> Verdict:
    """Grades a submission in a sandbox that is fresh and its own. Raises SandboxLost.

    Hidden and public cases are mixed in an order drawn from `rng`, so that a submission cannot tell which is which.
    """
    path = f"{instance.function_name}.py"
    refusal = submission.refusal or refusal_of(submission.files.get(path))
    digest = submission.sha256
    public = instance.public_cases
    if refusal:
        zero = TestCount(0, len(hidden)), TestCount(0, len(public))
        return Verdict(VerdictStatus.REFUSED, *zero, reason=refusal, submission_sha256=digest)
    mixed = [(case, True) for case in hidden] + [(case, False) for case in public]
    rng.shuffle(mixed)
    batches = [
        mixed[start : start + _CALLS_PER_PROCESS] for start in range(0, len(mixed), _CALLS_PER_PROCESS)
    ]
    jobs = [
        CallFunction(path, instance.function_name, [case.arguments for case, _ in batch]) for batch in batches
    ]
    try:
        runs = await _call_all(sandbox, path, submission.files[path], jobs)
    except FileRefused as error:
        zero = TestCount(0, len(hidden)), TestCount(0, len(public))
        return Verdict(VerdictStatus.REFUSED, *zero, reason=error.kind, submission_sha256=digest)

    passed = {True: 0, False: 0}
    evidence: list[str] = []
    flags: set[str] = set()
    for batch, done in zip(batches, runs, strict=False):
        answers = _answers(done, len(batch))
        flags |= {ANOMALIES[each.failure] for each in answers if each.failure in ANOMALIES}
        for (case, is_hidden), answer in zip(batch, answers, strict=True):
            if matches(answer, case, instance.task.comparison):
                passed[is_hidden] += 1
            else:
                evidence.append(_describe(case, answer, done, is_hidden=is_hidden))
    out_of_memory = any(done.out_of_memory for done in runs)
    timed_out = any(done.timed_out for done in runs)
    counts = TestCount(passed[True], len(hidden)), TestCount(passed[False], len(public))
    status = VerdictStatus.UNRESOLVED
    reason = "some hidden test fails"
    if out_of_memory:
        status, reason = VerdictStatus.OUT_OF_MEMORY, "the submission used up the memory"
    elif timed_out:
        status, reason = VerdictStatus.TIMEOUT, "the submission used up the time"
    elif passed[True] == len(hidden):
        status, reason = VerdictStatus.RESOLVED, "every hidden test passes"
    return Verdict(
        status,
        *counts,
        reason=reason,
        submission_sha256=digest,
        flags=tuple(sorted(flags)),
        evidence=tuple(evidence[:_MAX_EVIDENCE]),
    )


def _answers(done: Completed, count: int) -> list[Answer]:
    return parse_answers(done.output, count, truncated=done.output_truncated)


def _describe(case: Case, answer: Answer, done: Completed, *, is_hidden: bool) -> str:
    """Says in one line which case failed, and by what."""
    came = f"returned {repr(answer.value)[:_SHOWN_CHARACTERS]}" if answer.failure is None else answer.failure
    if answer.failure is Failure.MISSING and done.out_of_memory:
        came = "out of memory"
    elif answer.failure is Failure.MISSING and done.timed_out:
        came = "timed out"
    kind = "hidden" if is_hidden else "public"
    return f"{kind} {repr(case.arguments)[:_SHOWN_CHARACTERS]}: {came}"


async def _call_all(
    sandbox: Sandbox, path: str, content: bytes, jobs: Sequence[CallFunction]
) -> list[Completed]:
    """Places the submission and runs the jobs, or only the first one if that uses up its time or memory.

    What is sent together travels together; a sandbox takes its requests in order. Raises FileRefused, SandboxLost.
    """
    write = sandbox.write_file(path, content)
    _, first = await asyncio.gather(write, sandbox.run(jobs[0], _SECONDS_PER_PROCESS))
    # One process more would cost as much again, and the submission has failed already.
    if first.timed_out or first.out_of_memory:
        return [first]
    return [first, *await asyncio.gather(*(sandbox.run(job, _SECONDS_PER_PROCESS) for job in jobs[1:]))]


def refusal_of(content: bytes | None) -> str:
    """Says why a file is not graded; an empty text if it is."""
    if content is None:
        return "the file to grade is missing"
    if len(content) > MAX_SUBMISSION_BYTES:
        return "the file to grade is too large"
    if b"\0" in content:
        return "the file to grade is binary"
    return ""
