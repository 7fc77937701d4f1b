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


def result_of(history: History, weights_sha256: str) -> Result:
    """Reads the result off the rows of a run. Raises ValueError while an evaluation is missing."""
    chosen = choose(history.validations)
    start = history.evaluation(START)
    # Where the start itself was chosen, it is not played a second time.
    trained = history.evaluation(CHOSEN) if chosen.step > 0 else start
    if start is None or trained is None:
        raise ValueError("the test tasks have not been played yet")
    return Result(chosen, start, trained, weights_sha256)
