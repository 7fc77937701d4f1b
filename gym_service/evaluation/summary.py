"""What an evaluation came to: rates over tasks, failures by kind, flags; and as a table for the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gym_service.evaluation.reading import Complaint
from gym_service.evaluation.rows import Row
from gym_service.evaluation.signs import POSSIBLE, SURENESS, Sign
from gym_service.evaluation.statistics import Estimate, all_pass_at

_LISTED = 20
"""Lines of one kind that the terminal gets; the report has all."""
_NAMED = 500
"""Samples that it names under one sign."""


@dataclass(frozen=True, slots=True)
class OfTask:
    """What came of the samples of one task."""

    task_id: str
    samples: int
    """Those that were graded."""
    passed: int
    statuses: Mapping[str, int]
    flags: Mapping[str, int]
    suspected: int
    seconds: float
    """All samples together."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of all."""

    tasks: tuple[OfTask, ...]
    pass_at: Mapping[int, Estimate]
    """By k; over the tasks of which some sample was graded."""
    statuses: Mapping[str, int]
    flags: Mapping[str, int]
    suspected: tuple[Row, ...]
    tried: tuple[Row, ...]
    """Those with a sign of something hostile, be it that honest code has it, too; the surest first."""
    ungraded: tuple[Complaint, ...]
    """What came to no verdict, and was no fault of the submission."""
    complaints: tuple[Complaint, ...]
    """What could not be read."""
    untried: tuple[str, ...]
    """The tasks of the suite that nothing was handed in for."""

    @property
    def graded(self) -> int:
        """The samples that were graded."""
        return sum(task.samples for task in self.tasks)

    @property
    def passed(self) -> int:
        """The samples that are right."""
        return sum(task.passed for task in self.tasks)

    @property
    def hostile(self) -> tuple[Row, ...]:
        """Those with a sign that honest code does not have."""
        return tuple(row for row in self.tried if row.sure != POSSIBLE)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was handed in came to a verdict."""
        return not self.ungraded and not self.complaints


def summarize(
    rows: Sequence[Row],
    untried: Sequence[str] = (),
    unproven: Sequence[Complaint] = (),
    complaints: Sequence[Complaint] = (),
) -> Summary:
    """Counts the rows of an evaluation. `unproven` is what was not graded because its task is not proven."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.task_id, []).append(row)
    tasks = tuple(_of_task(task_id, of) for task_id, of in by_task.items())
    failed = [Complaint(row.name, row.verdict["reason"]) for row in rows if not row.is_graded]
    return Summary(
        tasks=tasks,
        pass_at=all_pass_at([(task.samples, task.passed) for task in tasks if task.samples]),
        statuses=Counter(row.status.name for row in rows),
        flags=Counter(flag for row in rows for flag in row.flags),
        suspected=tuple(row for row in rows if row.is_suspected),
        tried=tuple(sorted((row for row in rows if row.signs), key=lambda row: SURENESS.index(row.sure))),
        ungraded=(*unproven, *failed),
        complaints=tuple(complaints),
        untried=tuple(untried),
    )


def _of_task(task_id: str, rows: Sequence[Row]) -> OfTask:
    return OfTask(
        task_id,
        samples=sum(row.is_graded for row in rows),
        passed=sum(row.passed for row in rows),
        statuses=Counter(row.status.name for row in rows),
        flags=Counter(flag for row in rows for flag in row.flags),
        suspected=sum(row.is_suspected for row in rows),
        seconds=sum(row.seconds for row in rows),
    )


def terminal_table(summary: Summary) -> str:
    """The outcome for a terminal."""
    lines = [f"{summary.passed} of {summary.graded} samples pass, of {len(summary.tasks)} tasks"]
    if summary.untried:
        lines.append(
            f"nothing was handed in for {len(summary.untried)} tasks of the suite: they are not counted"
        )
    rows = [
        (f"pass@{k}", f"{estimate}  (95%, bootstrap over tasks)") for k, estimate in summary.pass_at.items()
    ]
    rows += [(kind_of(status), str(count)) for status, count in _most(summary.statuses)]
    rows += [(f"flag {flag}", str(count)) for flag, count in _most(summary.flags)]
    width = max([len(name) for name, _ in rows], default=0)
    lines += [f"  {name:{width}}  {value}" for name, value in rows]
    suspected = [
        f"{row.name}: {'; '.join(row.evidence[:1]) or row.verdict['reason']}" for row in summary.suspected
    ]
    for title, found in (
        ("suspected of tampering", suspected),
        ("could not be graded", [f"{each.place}: {each.message}" for each in summary.ungraded]),
        ("could not be read", [f"{each.place}: {each.message}" for each in summary.complaints]),
    ):
        if found:
            lines.append(f"{len(found)} {title}:")
            lines += [f"  {line}" for line in found[:_LISTED]]
            lines += [f"  and {len(found) - _LISTED} more, in the report"] if len(found) > _LISTED else []
    if summary.hostile:
        lines.append(
            f"{len(summary.hostile)} with signs of something hostile, {told_sureness(summary.hostile)}:"
        )
        for (sure, meaning), names in by_sign(summary.hostile).items():
            others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(f"  {sure}: {meaning} ({len(names)}): {'; '.join(names[:_NAMED])}{others}")
    if possible := len(summary.tried) - len(summary.hostile):
        lines.append(f"{possible} with signs that honest code has, too: they are in the report")
    return "\n".join(lines)


def told_sureness(tried: Sequence[Row]) -> str:
    """How many of them are how sure."""
    counts = Counter(row.sure for row in tried)
    return ", ".join(f"{counts[sure]} {sure}" for sure in SURENESS if counts[sure])


def by_sign(tried: Sequence[Row]) -> dict[tuple[str, str], list[str]]:
    """Names the samples under what each tried, the surest of its signs alone, so that each is named once."""
    named: dict[tuple[str, str], list[str]] = {}
    for row in tried:
        first: Sign = row.signs[0]
        named.setdefault((first.sure, first.meaning), []).append(f"{row.task_id} {row.sample_index}")
    return named


def kind_of(status: str) -> str:
    """A status in words."""
    return status.lower().replace("_", " ")


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
