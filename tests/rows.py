"""Rows of metrics for tests."""

from trainer_client.behaviour import Behaviour
from trainer_client.metrics import ColdStart, Evaluation, History, Seconds, StepRow, TaskCount
from trainer_client.update import UpdateStats

BEHAVIOUR = Behaviour(
    reads=1.0,
    tests=0.5,
    edits=1.0,
    failed=0.25,
    malformed=0.0,
    turns=3.5,
    public_only=0.0,
    failures={"not_read": 0.25},
)
COLD_START = ColdStart(
    played=20,
    kept=18,
    rejected={"unresolved": 2},
    tokens=1800,
    said=360,
    behaviour=BEHAVIOUR,
    losses=(2.5, 0.25),
    seconds=Seconds(learning=2.0),
)


def make_row(step: int) -> StepRow:
    """Returns the row of a step."""
    return StepRow(
        step=step,
        reward=0.5,
        pass_rate=0.5,
        zero_advantage_share=0.25,
        behaviour=BEHAVIOUR,
        update=UpdateStats(-0.01, 0.2, 0.0, 0.5, 1e-3, 1e-7, 1000),
        episodes=64,
        lost=0,
        replayed=0,
        seconds=Seconds(sampling=1.0, waiting=0.5, learning=0.25),
    )


def make_evaluation(label: str, step: int, passed: int = 4, task: str = "bugfix/minmax/peak") -> Evaluation:
    """Returns an evaluation of two tasks, each with so many passes among 16 episodes."""
    tasks = (TaskCount("bugfix/init/total", 16, passed), TaskCount(task, 16, passed))
    return Evaluation(label, step, tasks, BEHAVIOUR, 0, Seconds(evaluation=3.0))


def make_history(steps: int) -> History:
    """Returns the rows of a run that validated at its start and at its end."""
    validations = [make_evaluation(f"validation/step-{step}", step, 4 + step) for step in (0, steps)]
    return History([make_row(step) for step in range(1, steps + 1)], validations)
