"""What a finished run claims: the chosen checkpoint against the starting policy on tasks that chose nothing."""

from dataclasses import dataclass

from trainer_client.metrics import Evaluation, History, choose
from trainer_client.statistics import Interval, paired_difference

START, CHOSEN = "test/start", "test/chosen"
"""Labels of the two test evaluations."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run."""

    chosen: Evaluation
    """The validation by which the checkpoint was chosen."""
    start: Evaluation
    """The starting policy on the test tasks."""
    trained: Evaluation
    """The chosen checkpoint on the same episodes of the test tasks."""
    weights_sha256: str
    """Hash of the chosen checkpoint's weights."""

    @property
    def difference(self) -> Interval:
        """Paired difference of pass@1, trained minus start, over the tasks that both have."""
        start = {task.task_id: task.rate for task in self.start.tasks}
        shared = [task for task in self.trained.tasks if task.task_id in start]
        return paired_difference([task.rate for task in shared], [start[task.task_id] for task in shared])


def result_of(history: History, weights_sha256: str) -> Result | None:
    """Reads the result off the rows of a run; None while an evaluation is missing."""
    start, trained = history.evaluation(START), history.evaluation(CHOSEN)
    if start is None or trained is None:
        return None
    return Result(choose(history.validations), start, trained, weights_sha256)
