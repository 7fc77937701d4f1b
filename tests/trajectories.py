"""Trajectories for tests, made from the few facts that a test is about."""

from collections.abc import Sequence

from trainer_client.collate import Batch, collate
from trainer_client.trajectory import Outcome, ToolResult, Trajectory, Turn, Verdict


def make_verdict(passed: bool = True, status: str = "", hidden: int = 4, public: int = 2) -> Verdict:
    """Returns a verdict over 4 hidden and 2 public tests; `passed` decides unless a status is given."""
    return Verdict(status or ("resolved" if passed else "unresolved"), hidden, 4, public, 2, "")


def make_trajectory(
    task_id: str = "s/f/a",
    group: str = "g",
    index: int = 0,
    prompt: Sequence[int] = (1, 2),
    turns: Sequence[tuple[Sequence[int], Sequence[int]]] = (((3, 4), ()),),
    logprobs: Sequence[float] | None = None,
    results: Sequence[ToolResult] = (),
    verdict: Verdict | None = None,
) -> Trajectory:
    """Returns a trajectory; each turn is (sampled ids, observed ids), tool results go to the turns in order."""
    values = list(logprobs) if logprobs is not None else [-1.0] * sum(len(action) for action, _ in turns)
    made = []
    for place, (action, observation) in enumerate(turns):
        mine, values = values[: len(action)], values[len(action) :]
        made.append(Turn(tuple(action), tuple(mine), tuple(results[place : place + 1]), tuple(observation)))
    outcome = Outcome("submitted", terminated=True, truncated=False, timed_out=False, errored=False)
    return Trajectory(task_id, group, index, tuple(prompt), tuple(made), outcome, verdict or make_verdict())


def collate_episodes(trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> Batch:
    """Returns a batch in which all turns of an episode have its advantage."""
    turns = [(value,) * len(each.turns) for each, value in zip(trajectories, advantages, strict=True)]
    return collate(trajectories, turns)
