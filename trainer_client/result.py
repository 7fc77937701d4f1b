"""What a finished run claims: the chosen checkpoint against the starting policy on tasks that chose nothing."""

from dataclasses import dataclass
from itertools import combinations

from trainer_client.metrics import Evaluation, History, choose
from trainer_client.statistics import Interval, paired_difference

RAW, START, CHOSEN, LAST = "test/raw", "test/start", "test/chosen", "test/last"
"""Labels of the test evaluations: before the cold start, where there is one, before step 1, and of the checkpoint,
which was chosen or is the last one."""
LOOK = "test/look-"
"""How the labels of later looks at tasks that a run reports on begin; the run's own look is the first."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run."""

    step: int
    """The step of the checkpoint that is reported."""
    chosen: Evaluation | None
    """The validation by which it was chosen; None where it is the last one, without a choice."""
    start: Evaluation
    """The starting policy on the test tasks."""
    trained: Evaluation
    """That checkpoint on the same episodes of the test tasks."""
    weights_sha256: str
    """Hash of that checkpoint's weights."""
    raw: Evaluation | None = None
    """The policy before the cold start on the same episodes of the test tasks; None without a cold start."""
    test_looks: tuple[str, ...] = ()
    """Labels of the evaluations in which the test tasks were looked at again, by force."""

    @property
    def difference(self) -> Interval:
        """Paired difference of pass@1, trained minus start, over the tasks that both have."""
        return paired_by_task(self.trained, self.start)

    @property
    def policies(self) -> tuple[tuple[str, Evaluation], ...]:
        """What was played on the test tasks, by name, the earliest first."""
        later = (("start", self.start), (f"step {self.step}", self.trained))
        return (("raw", self.raw), *later) if self.raw else later

    @property
    def differences(self) -> tuple[tuple[str, Interval], ...]:
        """Paired differences of pass@1 between the policies, by the names of both."""
        pairs = combinations(self.policies, 2)
        return tuple((f"{name} - {base}", paired_by_task(row, other)) for (base, other), (name, row) in pairs)


def paired_by_task(row: Evaluation, base: Evaluation) -> Interval:
    """Returns the paired difference of pass@1, row - base, over the tasks that both have."""
    rates = {task.task_id: task.rate for task in base.tasks}
    shared = [task for task in row.tasks if task.task_id in rates]
    return paired_difference([task.rate for task in shared], [rates[task.task_id] for task in shared])


def result_of(history: History, weights_sha256: str) -> Result:
    """Reads the result off the rows of a run. Raises ValueError while an evaluation is missing."""
    chosen = choose(history.validations) if history.validations else None
    start, last = history.evaluation(START), history.evaluation(LAST)
    # Where the start itself was chosen, it is not played a second time.
    trained = start if chosen and chosen.step == 0 else history.evaluation(CHOSEN) if chosen else last
    raw = history.evaluation(RAW)
    if start is None or trained is None or (history.cold_start and raw is None):
        raise ValueError("the test tasks have not been played yet")
    return Result(trained.step, chosen, start, trained, weights_sha256, raw, later_looks(history))


def later_looks(history: History) -> tuple[str, ...]:
    """Returns the labels of the evaluations in which the tasks that a run reports on were looked at again."""
    return tuple(row.label for row in history.evaluations if row.label.startswith(LOOK))
