"""One training step: its episodes are played, its turns are credited, the policy is moved."""

from collections.abc import Sequence
from statistics import fmean
from time import perf_counter

from transformers import PreTrainedModel

from trainer_client.behaviour import observe
from trainer_client.checkpoint import state_hash
from trainer_client.collate import collate
from trainer_client.config import RunConfig
from trainer_client.credit import credited
from trainer_client.curriculum import choose_groups
from trainer_client.distributed import play_together
from trainer_client.errors import GymUnavailable
from trainer_client.evaluation import count_tasks
from trainer_client.metrics import Fingerprint, Seconds, StepRow
from trainer_client.objective import move_entropy_bonus, teaching_groups, zero_advantage_share
from trainer_client.rollout import Played, Timing
from trainer_client.session import Session, keep_episodes, sampler
from trainer_client.trajectory import Trajectory, hash_groups, hash_tokens
from trainer_client.update import NOTHING_LEARNED, update_policy


async def play_step(
    session: Session, task_ids: Sequence[str], step: int, model: PreTrainedModel, weights_of: int
) -> Played:
    """Plays the groups of a step, and groups of further tasks in the place of silent ones where that is asked for.

    `model` plays, which has the weights after the step `weights_of`. Raises GymUnavailable when the gym lost every
    episode.
    """
    config, earlier = session.config, tuple(session.history.steps)
    policy = await sampler(session, model, weights_of)
    groups = choose_groups(task_ids, config, step, earlier)
    rounds: list[Played] = []
    episodes: list[Trajectory] = []
    while groups:
        session.console.doing(f"step {step}: playing {len(groups)} groups", step - 1, config.steps)
        rounds.append(await play_together(session.world, session.gym, policy, groups, session.settings))
        episodes += rounds[-1].trajectories
        missing = config.tasks_per_step - len(
            _teaching(_learnable(episodes, credited(episodes, config)[1], config))
        )
        if len(rounds) > config.refill_rounds or not missing:
            break
        tasks = {episode.task_id for episode in episodes}
        groups = choose_groups(
            task_ids, config, step, earlier, count=missing, refill=len(rounds), played=tasks
        )
    if not episodes:
        raise GymUnavailable(f"The gym lost every episode of step {step}. See: make gym-status")
    keep_episodes(session, episodes)
    return Played(
        episodes,
        lost=sum(each.lost for each in rounds),
        replayed=sum(each.replayed for each in rounds),
        timing=Timing(
            sum(each.timing.sampling_seconds for each in rounds),
            sum(each.timing.waiting_seconds for each in rounds),
        ),
    )


def learn_step(session: Session, step: int, played: Played, reference: PreTrainedModel | None) -> StepRow:
    """Moves the policy towards the turns that did better than others of their group."""
    config, episodes, earlier = session.config, played.trajectories, session.history.steps
    started = perf_counter()
    groups = [episode.group for episode in episodes]
    rewards, advantages = credited(episodes, config)
    learned = _learnable(episodes, advantages, config)
    if config.refill_rounds:
        teaching = _teaching(learned)
        learned = [(episode, turns) for episode, turns in learned if episode.group in teaching]
    bonus = entropy_bonus_of(config, earlier)
    update = NOTHING_LEARNED
    if learned:
        update = update_policy(
            session.model,
            session.optimizer,
            collate(*zip(*learned, strict=True)),
            config,
            session.world,
            reference=reference,
            entropy_bonus=bonus,
        )
    valid = [reward for reward in rewards if reward is not None]
    return StepRow(
        step=step,
        reward=sum(valid) / len(valid),
        pass_rate=sum(episode.verdict.status == "resolved" for episode in episodes) / len(episodes),
        zero_advantage_share=zero_advantage_share(advantages, groups),
        behaviour=observe(episodes),
        update=update,
        episodes=len(learned),
        lost=played.lost,
        replayed=played.replayed,
        seconds=Seconds(
            sampling=played.timing.sampling_seconds,
            waiting=played.timing.waiting_seconds,
            learning=perf_counter() - started,
        ),
        played=len(episodes),
        tasks=count_tasks(episodes),
        entropy_bonus=bonus,
        sampled_entropy=-fmean(value for episode in episodes for value in episode.logprobs),
        fingerprint=Fingerprint(
            groups=hash_groups(episodes),
            tokens=hash_tokens(episodes),
            weights=state_hash(session.model),
        ),
    )


def entropy_bonus_of(config: RunConfig, earlier: Sequence[StepRow]) -> float:
    """Returns the weight of the entropy in the next step: as set, or moved towards the target by the last step."""
    if not config.entropy_target:
        return config.entropy_bonus
    last = next((row for row in reversed(earlier) if row.update.tokens), None)
    if last is None:
        return 0.0
    return move_entropy_bonus(
        last.entropy_bonus, last.update.entropy, config.entropy_target, config.entropy_step
    )


def _learnable(
    episodes: Sequence[Trajectory], advantages: Sequence[tuple[float, ...]], config: RunConfig
) -> list[tuple[Trajectory, tuple[float, ...]]]:
    """Returns the episodes that may be learned from, with the advantages of their turns."""
    return [
        (episode, turns)
        for episode, turns in zip(episodes, advantages, strict=True)
        if not (episode.outcome.truncated and config.mask_truncated)
    ]


def _teaching(learnable: Sequence[tuple[Trajectory, tuple[float, ...]]]) -> set[str]:
    """Returns the groups in which an episode that may be learned from has an advantage."""
    return teaching_groups([turns for _, turns in learnable], [episode.group for episode, _ in learnable])
