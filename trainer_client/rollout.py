"""Plays groups of episodes: the policy samples here, the gym carries out, turn after turn.

Episodes play in cohorts, consecutive ones of the list, and a cohort in lock-step: all its turns are sampled in
one batch. Two cohorts play at a time, so that one samples while the gym carries out the other's calls. Which
episodes share a batch thus never depends on what arrives when, and a repeated run has the same numbers. With a
policy that batches continuously, every episode is a cohort of its own, and as many play as would in two cohorts.

A loss that is the gym's own fault is worth no reward. The loss of one episode changes the batches of all others
in its cohort, so the whole cohort is played again from its start, where equal seeds give equal episodes. What
is still lost on the last try is left out and counted.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import TypeVar

from trainer_client.errors import ContractBroken, EpisodeLost
from trainer_client.gym import GymClient
from trainer_client.models.policy import Policy, Row, Sampled
from trainer_client.trajectory import Outcome, Trajectory, Turn
from trainer_client.wire import Delta

COHORTS_AT_A_TIME = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group of episodes of one task that share a baseline."""

    task_id: str
    group: str
    """The name of the group, unique in the run; with the seed of the run it fixes the group's episodes."""
    size: int
    """Episodes."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How episodes are played."""

    run_seed: int
    toolset: str
    """menu or coding."""
    fingerprint: str
    """The policy's tokenizer, as the gym registered it."""
    max_context_tokens: int
    """The ids that a sequence may have; an episode with no room for another turn is ended."""
    max_turns: int = 0
    """0 for the toolset's own."""
    max_edits: int = 0
    """0 for the toolset's own, -1 for any number."""
    cohort_size: int = 32
    """Episodes that are sampled in one batch; part of what makes a run repeatable."""
    continuous_batching: bool = False
    """Whether each episode goes on as soon as its observation is back, instead of waiting for its cohort."""
    trainers: int = 1
    """Processes that play at the same time and share the gym's capacity. If each took all of it, cohorts that are
    half open would wait for each other's places."""
    tries: int = 3
    """How often a cohort is played before the episodes that the gym lost are left out."""
    on_graded: Callable[[], object] = field(default=lambda: None, compare=False)
    """Is called for each episode that has its verdict, to tell of progress."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a batch of episodes went; the two add up to its wall clock."""

    sampling_seconds: float
    """The policy sampled."""
    waiting_seconds: float
    """The policy waited for the gym."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a batch of episodes."""

    trajectories: list[Trajectory]
    """In the order of the groups, and by index in each."""
    lost: int
    """Episodes that the gym lost on every try, left out above."""
    replayed: int
    """Cohorts that were played again."""
    timing: Timing


@dataclass(slots=True)
class _Episode:
    """A live episode."""

    spec: GroupSpec
    index: int
    episode_id: str
    row: Row
    prompt_length: int
    turns: list[Turn] = field(default_factory=list)
    outcome: Outcome | None = None


async def play_groups(
    gym: GymClient, policy: Policy, groups: Sequence[GroupSpec], settings: RolloutSettings
) -> Played:
    """Plays all episodes of the groups to their verdicts.

    Raises:
        GymUnavailable: The gym went away and stayed away.
        GymRefused: A task, toolset or tokenizer is not known.
        ContractBroken: A delta does not continue the sequence, or is of another tokenizer.
        ValueError: A cohort does not fit the gym's capacity, or a prompt and a turn do not fit max_context_tokens.
    """
    capacity = (await gym.get_info()).capacity // settings.trainers
    if capacity < settings.cohort_size:
        raise ValueError(
            f"cohort_size is {settings.cohort_size}: the gym has a capacity of {capacity} episodes for each trainer; "
            "give it more, or set cohort_size to that or less"
        )
    live = min(COHORTS_AT_A_TIME, capacity // settings.cohort_size) * settings.cohort_size
    size = 1 if settings.continuous_batching else settings.cohort_size
    places = [(spec, index) for spec in groups for index in range(spec.size)]
    cohorts = [places[start : start + size] for start in range(0, len(places), size)]
    session = _Session(gym, policy, settings, asyncio.Semaphore(live // size))
    started = perf_counter()
    playing = [asyncio.create_task(session.play_cohort(cohort)) for cohort in cohorts]
    try:
        trajectories = [each for cohort in await asyncio.gather(*playing) for each in cohort]
    finally:
        for task in playing:
            task.cancel()
    sampling_seconds = session.clock.seconds
    return Played(
        trajectories=trajectories,
        lost=len(places) - len(trajectories),
        replayed=session.replayed,
        timing=Timing(sampling_seconds, perf_counter() - started - sampling_seconds),
    )


@dataclass(slots=True)
class _Clock:
    """Measures for how long there is anything under way."""

    seconds: float = 0.0
    _under_way: int = 0
    _since: float = 0.0

    def __enter__(self) -> None:
        if not self._under_way:
            self._since = perf_counter()
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.seconds += perf_counter() - self._since


@dataclass(slots=True)
class _Session:
    """One batch of episodes being played."""

    gym: GymClient
    policy: Policy
    settings: RolloutSettings
    room: asyncio.Semaphore
    clock: _Clock = field(default_factory=_Clock)
    replayed: int = 0

    async def play_cohort(self, places: Sequence[tuple[GroupSpec, int]]) -> list[Trajectory]:
        """Plays a cohort until nothing is lost, or the tries are used up."""
        async with self.room:
            for _ in range(self.settings.tries - 1):
                played = await self._play_once(places, give_up_at_a_loss=True)
                if len(played) == len(places):
                    return played
                self.replayed += 1
            return await self._play_once(places, give_up_at_a_loss=False)

    async def _play_once(
        self, places: Sequence[tuple[GroupSpec, int]], *, give_up_at_a_loss: bool
    ) -> list[Trajectory]:
        """Returns the episodes that were not lost."""
        gradings: list[asyncio.Task[Trajectory | EpisodeLost]] = []
        try:
            live = _kept(await asyncio.gather(*(_or_loss(self._create(*place)) for place in places)))
            complete = len(live) == len(places)
            while live and (complete or not give_up_at_a_loss):
                with self.clock:
                    turns = await self.policy.sample_turn([episode.row for episode in live])
                steps = (_or_loss(self._step(*each)) for each in zip(live, turns, strict=True))
                kept = _kept(await asyncio.gather(*steps))
                complete = complete and len(kept) == len(live)
                gradings += [asyncio.create_task(_or_loss(self._grade(e))) for e in kept if e.outcome]
                live = [episode for episode in kept if not episode.outcome]
            graded = _kept(await asyncio.gather(*gradings))
            await asyncio.gather(*(_or_loss(self.gym.end(e.episode_id, "cancelled")) for e in live))
        finally:
            for grading in gradings:
                grading.cancel()
            await asyncio.gather(*gradings, return_exceptions=True)
        order = {(spec.group, index): place for place, (spec, index) in enumerate(places)}
        return sorted(graded, key=lambda trajectory: order[trajectory.group, trajectory.index])

    async def _create(self, spec: GroupSpec, index: int) -> _Episode:
        created = await self.gym.create(
            spec.task_id,
            self.settings.toolset,
            run_seed=self.settings.run_seed,
            group=spec.group,
            index=index,
            fingerprint=self.settings.fingerprint,
            max_turns=self.settings.max_turns,
            max_edits=self.settings.max_edits,
        )
        row = Row(ids=[], random=Random(f"{self.settings.run_seed}/{spec.group}/{index}"))
        self._append(row, created.prompt)
        needed = len(row.ids) + self.policy.max_new_tokens
        if needed > self.settings.max_context_tokens:
            raise ValueError(
                f"{spec.task_id}: prompt and first turn take {needed} tokens, and an episode may have "
                f"{self.settings.max_context_tokens}: raise max_context_tokens (0 for all that the model can take), "
                "lower max_new_tokens, or choose another model"
            )
        return _Episode(spec, index, created.episode_id, row, prompt_length=len(row.ids))

    async def _step(self, episode: _Episode, turn: Sampled) -> _Episode:
        """Plays one turn, and ends the episode where there is no room for another."""
        stepped = await self.gym.step(
            episode.episode_id,
            len(episode.turns),
            turn.token_ids,
            turn.logprobs,
            policy_version=self.policy.version,
            temperature=self.policy.temperature,
        )
        row = episode.row
        row.ids.extend(turn.token_ids)
        observation: tuple[int, ...] = ()
        if stepped.outcome is None:
            observation = self._append(row, stepped.delta)
        episode.turns.append(Turn(turn.token_ids, turn.logprobs, stepped.tool_results, observation))
        episode.outcome = stepped.outcome
        needed = len(row.ids) + self.policy.max_new_tokens
        if not episode.outcome and needed > self.settings.max_context_tokens:
            episode.outcome = await self.gym.end(episode.episode_id, "context_overflow")
        return episode

    async def _grade(self, episode: _Episode) -> Trajectory:
        graded = await self.gym.grade(episode.episode_id)
        if graded.outcome.errored or not graded.verdict.valid:
            raise EpisodeLost(f"{graded.outcome.stop_reason}: {graded.verdict.reason}")
        self.settings.on_graded()
        return Trajectory(
            task_id=episode.spec.task_id,
            group=episode.spec.group,
            index=episode.index,
            prompt_ids=tuple(episode.row.ids[: episode.prompt_length]),
            turns=tuple(episode.turns),
            outcome=graded.outcome,
            verdict=graded.verdict,
            episode_id=episode.episode_id,
            record_sha256=graded.record_sha256,
        )

    def _append(self, row: Row, delta: Delta | None) -> tuple[int, ...]:
        """Appends a delta to the row, if it continues it."""
        if delta is None:
            raise ContractBroken("The gym sent no token ids for an episode with a tokenizer")
        if delta.fingerprint != self.settings.fingerprint:
            raise ContractBroken(
                f"The gym's ids are of tokenizer {delta.fingerprint[:12]}, not of the policy's"
            )
        if delta.position != len(row.ids):
            raise ContractBroken(f"The gym's ids go to position {delta.position}, but {len(row.ids)} is due")
        row.ids.extend(delta.token_ids)
        return delta.token_ids


async def _or_loss(work: Coroutine[None, None, T]) -> T | EpisodeLost:
    """Returns a loss as a value, because the other episodes of a cohort have to be seen to all the same."""
    try:
        return await work
    except EpisodeLost as loss:
        return loss


def _kept(results: Iterable[T | EpisodeLost]) -> list[T]:
    return [result for result in results if not isinstance(result, EpisodeLost)]
