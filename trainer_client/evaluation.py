"""Plays a frozen policy on the tasks of a split and counts what comes of it. Nothing is learned from it."""

from collections.abc import Callable, Sequence
from time import perf_counter

from trainer_client.behaviour import observe
from trainer_client.distributed import World, play_together
from trainer_client.errors import GymUnavailable
from trainer_client.gym import GymClient
from trainer_client.metrics import Evaluation, Seconds, TaskCount
from trainer_client.models.policy import Policy
from trainer_client.rollout import GroupSpec, RolloutSettings
from trainer_client.sequences import Decode, first_edits, frequent_sequences
from trainer_client.trajectory import Trajectory
from trainer_client.wire import Task


async def evaluate(
    world: World,
    gym: GymClient,
    policy: Policy,
    settings: RolloutSettings,
    tasks: Sequence[Task],
    decode: Decode,
    *,
    label: str,
    step: int,
    episodes: int,
    stream: str,
    on_played: Callable[[Sequence[Trajectory]], None] = lambda _: None,
) -> Evaluation:
    """Plays so many episodes of each task and returns the counts.

    The episodes come from seeds of their own, named by `stream`: evaluating leaves training as it is, and two
    policies that are evaluated with the same stream meet the same episodes. `decode` turns the policy's ids into text,
    `on_played` is given what was played.

    Raises:
        GymUnavailable: The gym went away and stayed away, or failed in every episode.
    """
    started = perf_counter()
    groups = [GroupSpec(task.task_id, f"{stream}/{task.task_id}", episodes) for task in tasks]
    played = await play_together(world, gym, policy, groups, settings)
    on_played(played.trajectories)
    graded = [trajectory for trajectory in played.trajectories if trajectory.verdict.valid]
    if not graded:
        raise GymUnavailable(
            f"{label}: the gym failed in every one of the {episodes * len(tasks)} episodes. See: make gym-status"
        )
    return Evaluation(
        label=label,
        step=step,
        tasks=count_tasks(graded),
        behaviour=observe(graded),
        lost=episodes * len(tasks) - len(graded),
        seconds=Seconds(evaluation=perf_counter() - started),
        sequences=frequent_sequences(graded, decode),
        first_edits=first_edits(graded, {task.task_id: task.family for task in tasks}, decode),
    )


def count_tasks(trajectories: Sequence[Trajectory]) -> tuple[TaskCount, ...]:
    """Counts episodes and passes by task, in the order of the tasks' names."""
    passes: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        passes.setdefault(trajectory.task_id, []).append(trajectory.verdict.status == "resolved")
    return tuple(TaskCount(task_id, len(each), sum(each)) for task_id, each in sorted(passes.items()))
