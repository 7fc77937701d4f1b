"""The record of a run as it grows: one row per step and per evaluation, one JSON object per line."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trainer_client.behaviour import Behaviour
from trainer_client.statistics import Interval, clustered_error, mixed_group, pass_at_k, task_interval
from trainer_client.update import UpdateStats


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where wall-clock time went."""

    sampling: float = 0.0
    """The policy was drawing tokens."""
    waiting: float = 0.0
    """Nothing could be done before the gym answered."""
    learning: float = 0.0
    """The policy was updated."""
    evaluation: float = 0.0
    """Episodes were played that nothing is learned from."""

    @property
    def total(self) -> float:
        """The sum."""
        return self.sampling + self.waiting + self.learning + self.evaluation

    def __add__(self, other: "Seconds") -> "Seconds":
        """Adds part by part."""
        return Seconds(
            self.sampling + other.sampling,
            self.waiting + other.waiting,
            self.learning + other.learning,
            self.evaluation + other.evaluation,
        )


@dataclass(frozen=True, slots=True)
class TaskCount:
    """How one task went."""

    task_id: str
    episodes: int
    passed: int
    """Episodes that pass every hidden test."""

    @property
    def rate(self) -> float:
        """Share of episodes that pass."""
        return self.passed / self.episodes


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """SHA-256 of what a step was made of and led to, in hex: equal in a run that repeats another one bit for bit."""

    groups: str
    """The names and sizes of the groups that were played."""
    tokens: str
    """The ids of every episode, sampled ones and observations."""
    weights: str
    """The policy's weights after the step (`trainer_client.checkpoint.state_hash`)."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step."""

    step: int
    """From 1: the number of steps after it. Its episodes were played by the policy before it."""
    reward: float
    """Mean reward of the episodes."""
    pass_rate: float
    """Share of episodes that pass every hidden test."""
    zero_advantage_share: float
    """Share of groups whose rewards are all equal."""
    behaviour: Behaviour
    update: UpdateStats
    episodes: int
    """Episodes that were learned from."""
    lost: int
    """Episodes that were left out because the gym failed."""
    replayed: int
    """Cohorts that were played again because the gym had lost one of their episodes."""
    seconds: Seconds
    played: int = 0
    """Episodes that were played for it; more than were learned from where some were cut off, or silent groups were
    replaced."""
    tasks: tuple[TaskCount, ...] = ()
    """How each task went in all groups that were played, in the order of their names."""
    entropy_bonus: float = 0.0
    """Weight of the entropy in the objective of this step."""
    sampled_entropy: float | None = None
    """Entropy in nats over all sampled tokens, those of episodes that are not learned from included: estimated, without
    bias, as the mean of -log p of what was sampled. None in a row of an earlier version."""
    fingerprint: Fingerprint | None = None
    """What the step was made of and led to; None in a row of an earlier version."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A frozen policy on the tasks of one split."""

    label: str
    """Split and occasion, such as validation/step-10."""
    step: int
    """The training steps of the policy."""
    tasks: tuple[TaskCount, ...]
    """In the order of their names; tasks without a graded episode are left out."""
    behaviour: Behaviour
    lost: int
    """Episodes that were left out because the gym failed."""
    seconds: Seconds
    sequences: dict[str, int] = field(default_factory=dict)
    """The most frequent sequences of calls (`trainer_client.sequences`) and how many episodes have each."""
    first_edits: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each family of tasks what the first edit was, and in how many episodes."""

    @property
    def episodes(self) -> int:
        """Episodes that were graded."""
        return sum(task.episodes for task in self.tasks)

    @property
    def pass_at_1(self) -> Interval:
        """Mean pass rate over tasks, with the interval over tasks."""
        return task_interval([task.rate for task in self.tasks])

    @property
    def clustered_error(self) -> float | None:
        """Standard error of the share of episodes that pass, clustered by task; None for a single task."""
        if len(self.tasks) < 2:
            return None
        return clustered_error(
            [[1.0] * task.passed + [0.0] * (task.episodes - task.passed) for task in self.tasks]
        )

    def gradient_share(self, size: int) -> float | None:
        """Expected share of groups of this size, over tasks, that hold a pass and a failure; None as with pass_at."""
        if any(task.episodes < size for task in self.tasks):
            return None
        return sum(mixed_group(task.episodes, task.passed, size) for task in self.tasks) / len(self.tasks)

    def pass_at(self, k: int) -> float | None:
        """Mean over tasks of the unbiased pass@k; None where a task has fewer than k episodes."""
        if any(task.episodes < k for task in self.tasks):
            return None
        return sum(pass_at_k(task.episodes, task.passed, k) for task in self.tasks) / len(self.tasks)


@dataclass(frozen=True, slots=True)
class ColdStart:
    """What the policy learned from demonstrations before the first step."""

    played: int
    """Demonstrations."""
    kept: int
    """Demonstrations that the gym found resolved: those that were learned from."""
    rejected: dict[str, int]
    """The others by the status of their verdict."""
    tokens: int
    """Ids that the kept demonstrations hold, prompts and observations included."""
    said: int
    """Those of them that the demonstrator said."""
    behaviour: Behaviour
    """Of the kept demonstrations."""
    losses: tuple[float, ...]
    """The loss before each step, in nats per id that the demonstrator said."""
    seconds: Seconds


Row: TypeAlias = ColdStart | StepRow | Evaluation


@dataclass(slots=True)
class History:
    """The rows of a run, of each kind in the order in which they were written."""

    steps: list[StepRow] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    cold_start: ColdStart | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows: the cold start, the steps, the evaluations."""
        return [*([self.cold_start] if self.cold_start else []), *self.steps, *self.evaluations]

    def add(self, row: Row) -> None:
        """Appends a row."""
        match row:
            case ColdStart():
                self.cold_start = row
            case StepRow():
                self.steps.append(row)
            case Evaluation():
                self.evaluations.append(row)

    def evaluation(self, label: str) -> Evaluation | None:
        """Returns the evaluation with this label, None if there is none yet."""
        return next((row for row in self.evaluations if row.label == label), None)

    @property
    def validations(self) -> list[Evaluation]:
        """The evaluations on the validation tasks."""
        return [row for row in self.evaluations if row.label.startswith("validation/")]

    @property
    def seconds(self) -> Seconds:
        """The time of all rows."""
        return sum((row.seconds for row in self.rows), Seconds())


def append_row(path: Path, row: Row) -> None:
    """Appends one row to the file, so that it is on disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_encode(row))
        file.flush()
        os.fsync(file.fileno())


def read_history(path: Path) -> History:
    """Reads a file of rows; one that does not exist is empty.

    A last line without its end was being written when the machine stopped, and is dropped. Raises ValueError for
    any other line that is no row.
    """
    history = History()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            row = _decode(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ValueError(f"{path.name}, line {number} is no row of metrics: {error}") from error
        history.add(row)
    return history


def rewind(path: Path, step: int) -> History:
    """Drops the rows of the file that are later than a step, and returns the others.

    The cold start ends at step 0; step -1 is before it.
    """
    history = read_history(path)
    kept = History(
        [row for row in history.steps if row.step <= step],
        [row for row in history.evaluations if row.step <= step],
        history.cold_start if step >= 0 else None,
    )
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(_encode(row) for row in kept.rows), encoding="utf-8")
    temporary.replace(path)
    return kept


def choose(validations: Sequence[Evaluation]) -> Evaluation:
    """Returns the evaluation with the highest pass@1, the earliest of those that share it.

    Raises ValueError without evaluations.
    """
    if not validations:
        raise ValueError("no validation to choose by")
    return min(validations, key=lambda row: (-row.pass_at_1.estimate, row.step))


_KINDS: dict[str, type[Row]] = {"cold_start": ColdStart, "step": StepRow, "evaluation": Evaluation}


def _encode(row: Row) -> str:
    kind = next(name for name, each in _KINDS.items() if isinstance(row, each))
    return json.dumps({"kind": kind, **asdict(row)}) + "\n"


def _decode(content: dict[str, Any]) -> Row:
    parts: dict[str, Callable[[Any], Any]] = {
        "behaviour": lambda value: Behaviour(**value),
        "update": lambda value: UpdateStats(**value),
        "seconds": lambda value: Seconds(**value),
        "tasks": lambda value: tuple(TaskCount(**task) for task in value),
        "losses": tuple,
        "fingerprint": lambda value: value and Fingerprint(**value),
    }
    kind = _KINDS[content.pop("kind")]
    return kind(**{name: parts[name](value) if name in parts else value for name, value in content.items()})
