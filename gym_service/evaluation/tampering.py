"""What may be shown of why a submission is suspected: enough for a reader to judge, and nothing of a hidden test.

A verdict's own evidence names hidden inputs and hidden tests and stays with the service. What is shown is put together
anew: what happened, in the service's words; the public tests, by name; the lines of the submission in which a flag was
found. Every character of it can be seen.
"""

from collections.abc import Iterable, Mapping

from gym_service.grading.instruments import lines_with
from gym_service.tasks.command import CommandInstance
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import Instance
from gym_service.values import Submission, Verdict, VerdictStatus
from gym_service.visible import printable

_SEEN = {
    "extra_records": "its process gave more answers than it was asked for",
    "malformed_record": "its process wrote answers that the gym's own code never writes",
    "output_truncated": "its process wrote more than all answers together can be",
    "kills_sandbox": "it ended its sandbox",
}
"""Flags of what was really done."""
TAMPERING = frozenset({"extra_records", "malformed_record", "kills_sandbox"})
"""Flags that no honest code gets: whoever has one is named beside those whose verdict suspects them."""
_CONTRADICTION = "contradiction: "
_FAILS = "fails: "
_MOST_LINES = 12
_MOST_OF_A_FLAG = 3
_MOST_CHARACTERS = 200


def is_suspected(verdict: Verdict) -> bool:
    """Whether a submission acted on its grading, by what was seen of it."""
    return verdict.status is VerdictStatus.TAMPER_SUSPECTED or not TAMPERING.isdisjoint(verdict.flags)


def shown_evidence(instance: Instance, submission: Submission, verdict: Verdict) -> tuple[str, ...]:
    """Gives what an evaluator may see of why a submission stands out."""
    lines = [_SEEN[flag] for flag in verdict.flags if flag in _SEEN]
    if isinstance(instance, RepositoryInstance | CommandInstance):
        lines += _contradictions(instance, verdict)
    for flag in verdict.flags:
        lines += _spelled(flag, submission, instance.tree)
    return tuple(printable(line)[:_MOST_CHARACTERS] for line in lines[:_MOST_LINES])


def _contradictions(instance: RepositoryInstance | CommandInstance, verdict: Verdict) -> Iterable[str]:
    if verdict.status is not VerdictStatus.TAMPER_SUSPECTED:
        return
    public = set(instance.task.pass_to_pass)
    hidden = 0
    for line in verdict.evidence:
        if line.startswith(_FAILS):
            continue
        test = line.removeprefix(_CONTRADICTION).removesuffix(" and its twin both pass")
        if not line.startswith(_CONTRADICTION):
            yield f"its runs reported what no runner writes: {line}"
        elif test in public:
            yield f"{test} passes, and so does its twin, which has to fail"
        else:
            hidden += 1
    if hidden:
        yield f"{hidden} hidden tests pass, and so do their twins, which have to fail"


def _spelled(flag: str, submission: Submission, base: Mapping[str, bytes]) -> Iterable[str]:
    found = 0
    for path, content in sorted(submission.files.items()):
        before = {line for _, line in lines_with(flag, base.get(path, b""))}
        for number, line in lines_with(flag, content):
            if line not in before and found < _MOST_OF_A_FLAG:
                found += 1
                yield f"{flag}: {path}:{number}: {line.strip()}"
