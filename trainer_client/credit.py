"""From the episodes of a step to what each of their turns is credited with."""

from collections.abc import Sequence

from trainer_client.config import RunConfig
from trainer_client.objective import group_advantages, length_penalty, reward_of
from trainer_client.trajectory import Trajectory


def shaped_reward(episode: Trajectory, config: RunConfig) -> float | None:
    """Returns the reward of an episode, less what its turns and its length cost; None without a valid verdict."""
    verdict = episode.verdict
    if not verdict.valid:
        return None
    reward = reward_of(verdict, config.reward)
    if config.public_weight:
        public = reward_of(verdict, "public_fraction")
        reward = (1.0 - config.public_weight) * reward + config.public_weight * public
    if config.length_limit_tokens:
        tokens = sum(len(turn.action_ids) for turn in episode.turns)
        reward -= length_penalty(tokens, config.length_free_tokens, config.length_limit_tokens)
    return reward - config.turn_cost * len(episode.turns)


def turn_advantages(
    episodes: Sequence[Trajectory], rewards: Sequence[float | None], config: RunConfig
) -> list[tuple[float, ...]]:
    """Returns the advantage of each turn of each episode.

    By episode, all turns of one have the advantage of its reward in its group. By turn, a turn is credited with what
    was still to come from it on, which is the reward without the cost of earlier turns, compared with that of the
    same turn in the episodes of the group that have one.
    """
    if config.credit == "episode":
        groups = [episode.group for episode in episodes]
        per_episode = group_advantages(rewards, groups, config.advantage)
        return [
            (advantage,) * len(episode.turns)
            for advantage, episode in zip(per_episode, episodes, strict=True)
        ]
    to_come: list[float | None] = []
    groups = []
    for reward, episode in zip(rewards, episodes, strict=True):
        for turn in range(len(episode.turns)):
            to_come.append(None if reward is None else reward + config.turn_cost * turn)
            groups.append(f"{episode.group}/turn-{turn}")
    per_turn = iter(group_advantages(to_come, groups, config.advantage))
    return [tuple(next(per_turn) for _ in episode.turns) for episode in episodes]


def credited(
    episodes: Sequence[Trajectory], config: RunConfig
) -> tuple[list[float | None], list[tuple[float, ...]]]:
    """Returns the reward of each episode and the advantages of its turns."""
    rewards = [shaped_reward(episode, config) for episode in episodes]
    return rewards, turn_advantages(episodes, rewards, config)
