"""The cold start: before reinforcement learning a model learns from scripted episodes how an episode is played.

The episodes are played through the gym like all others, on training tasks alone, and only those that the gym found
resolved are learned from.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer_client.config import RunConfig
from trainer_client.distributed import World, play_together
from trainer_client.gym import GymClient
from trainer_client.models.demonstrator import Demonstrator
from trainer_client.rollout import GroupSpec, RolloutSettings
from trainer_client.supervised import SupervisedSettings
from trainer_client.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What came of the scripted episodes."""

    kept: list[Trajectory]
    """Those that the gym found resolved."""
    rejected: dict[str, int]
    """How many of the others there are, by the status of their verdict; lost for those that the gym lost."""


async def play_demonstrations(
    world: World,
    gym: GymClient,
    demonstrator: Demonstrator,
    task_ids: Sequence[str],
    settings: RolloutSettings,
    episodes_per_task: int,
    on_progress: Callable[[int, Sequence[Trajectory]], None] = lambda kept, played: None,
) -> Demonstrations:
    """Plays so many episodes of each task and keeps what is resolved.

    `on_progress` is given the episodes kept so far and those that were played since it was called last.

    Raises:
        GymUnavailable: The gym went away and stayed away.
        ValueError: A turn does not fit, or nothing was resolved.
    """
    groups = [GroupSpec(task_id, f"demonstration/{task_id}", episodes_per_task) for task_id in task_ids]
    kept: list[Trajectory] = []
    rejected: Counter[str] = Counter()
    # A few tasks at a time, so that there is progress to tell of.
    at_once = max(1, 2 * settings.cohort_size // episodes_per_task)
    for first in range(0, len(groups), at_once):
        played = await play_together(world, gym, demonstrator, groups[first : first + at_once], settings)
        for episode in played.trajectories:
            if episode.verdict.status == "resolved":
                kept.append(episode)
            else:
                rejected[episode.verdict.status] += 1
        rejected["lost"] += played.lost
        on_progress(len(kept), played.trajectories)
    if not kept:
        raise ValueError(
            f"none of the {episodes_per_task * len(task_ids)} demonstrations is resolved "
            f"({', '.join(sorted(+rejected))}): set demonstrations to 0, or choose a suite whose faults the "
            "demonstrator knows (bugfix), and max_turns so that it can repair them"
        )
    return Demonstrations(kept, dict(sorted((+rejected).items())))


def supervised_settings(config: RunConfig) -> SupervisedSettings:
    """Returns how a run's model learns from its demonstrations."""
    return SupervisedSettings(
        seed=config.seed,
        steps=config.cold_start_steps,
        batch_size=config.cold_start_batch,
        learning_rate=config.cold_start_learning_rate,
        warmup_steps=config.cold_start_steps // 10,
        foresight=config.cold_start_foresight,
        max_grad_norm=config.max_grad_norm,
        microbatch_tokens=config.microbatch_tokens,
    )
