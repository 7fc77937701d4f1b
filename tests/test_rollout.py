import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest

from tests.fake_gym import STOP, FakeGym, serve
from trainer_client.errors import ContractBroken, GymUnavailable
from trainer_client.gym import GymClient
from trainer_client.models.policy import Row, Sampled
from trainer_client.rollout import GroupSpec, Played, RolloutSettings, play_groups

GROUPS = [GroupSpec("fake/0", "train/0/a", 5), GroupSpec("fake/1", "train/0/b", 4)]


class DicePolicy:
    """Draws ids from each row's own randomness, and remembers the batches that it was asked for."""

    version = "dice-1"
    temperature = 1.0
    max_new_tokens = 3

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    async def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        self.batches.append([list(row.ids) for row in rows])
        return [self._draw(row) for row in rows]

    def _draw(self, row: Row) -> Sampled:
        ids = [row.random.randrange(2, 12) for _ in range(row.random.randint(0, 2))]
        return Sampled((*ids, STOP), tuple(-0.5 for _ in range(len(ids) + 1)))


def settings(**changes: int) -> RolloutSettings:
    numbers = {"max_context_tokens": 1000, "cohort_size": 4} | changes
    return RolloutSettings(run_seed=3, toolset="menu", fingerprint="tiny", **numbers)


@pytest.fixture
def gym() -> FakeGym:
    return FakeGym()


@pytest.fixture(autouse=True)
async def server(
    gym: FakeGym, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[grpc.aio.Server]:
    monkeypatch.setenv("GYM_STATE_DIR", str(tmp_path))
    running = await serve(gym, tmp_path)
    yield running
    await running.stop(0)


async def play(policy: DicePolicy, **changes: int) -> Played:
    async with GymClient.connect(reconnect_timeout_seconds=1.0) as client:
        await client.register_tokenizer(b"tiny", "template", "<|end|>")
        return await play_groups(client, policy, GROUPS, settings(**changes))


async def test_all_episodes_come_back_in_the_order_of_groups_and_indexes(gym: FakeGym) -> None:
    played = await play(DicePolicy())

    places = [(each.task_id, each.group, each.index) for each in played.trajectories]
    assert places == [(spec.task_id, spec.group, index) for spec in GROUPS for index in range(spec.size)]
    assert played.lost == played.replayed == 0
    assert gym.live() == []


async def test_a_trajectory_is_the_sequence_that_the_gym_counted(gym: FakeGym) -> None:
    played = await play(DicePolicy())

    lengths = sorted(episode.length for episode in gym.episodes.values())
    assert sorted(len(trajectory.token_ids) for trajectory in played.trajectories) == lengths
    for trajectory in played.trajectories:
        assert sum(trajectory.mask) == len(trajectory.logprobs)
        assert trajectory.turns[-1].observation_ids == ()
        assert trajectory.verdict.status == "resolved"


async def test_batches_do_not_depend_on_how_fast_the_gym_is(gym: FakeGym) -> None:
    quick, slow = DicePolicy(), DicePolicy()
    first = await play(quick)
    gym.slow_seconds = 0.02
    second = await play(slow)

    assert first.trajectories == second.trajectories
    assert sorted(quick.batches) == sorted(slow.batches)
    assert second.timing.waiting_seconds > 0.08


async def test_with_continuous_batching_no_episode_waits_for_another(gym: FakeGym) -> None:
    policy = DicePolicy()
    expected = await play(DicePolicy())
    gym.lose_steps_of["train/0/a", 2] = 1

    played = await play(policy, continuous_batching=True)

    assert played.trajectories == expected.trajectories
    assert {len(batch) for batch in policy.batches} == {1}
    assert played.replayed == 1


async def test_a_lost_episode_has_its_cohort_played_again_to_the_same_result(gym: FakeGym) -> None:
    expected = await play(DicePolicy())
    gym.lose_steps_of["train/0/a", 2] = 1
    gym.fail_gradings_of["train/0/b", 0] = 1

    played = await play(DicePolicy())

    assert played.trajectories == expected.trajectories
    assert (played.lost, played.replayed) == (0, 2)
    assert gym.live() == []


async def test_an_episode_that_stays_lost_is_left_out_and_counted(gym: FakeGym) -> None:
    gym.lose_steps_of["train/0/a", 2] = 3
    gym.fail_gradings_of["train/0/b", 0] = 3

    played = await play(DicePolicy(), tries=3)

    places = {(each.group, each.index) for each in played.trajectories}
    assert len(places) == 7
    assert not places & {("train/0/a", 2), ("train/0/b", 0)}
    assert (played.lost, played.replayed) == (2, 4)


async def test_an_episode_without_room_for_another_turn_is_ended(gym: FakeGym) -> None:
    played = await play(DicePolicy(), max_context_tokens=12)

    cut = [each for each in played.trajectories if each.outcome.stop_reason == "context_overflow"]
    assert cut
    assert all(each.outcome.truncated and each.turns[-1].observation_ids for each in cut)
    assert all(len(turns) > 0 for turns in (each.turns for each in played.trajectories))


async def test_more_episodes_than_capacity_play_one_cohort_after_the_other(gym: FakeGym) -> None:
    gym.capacity = 5
    assert len((await play(DicePolicy())).trajectories) == 9


async def test_a_cohort_that_can_never_fit_is_refused(gym: FakeGym) -> None:
    gym.capacity = 3
    with pytest.raises(ValueError, match="cohort_size"):
        await play(DicePolicy())


async def test_two_processes_share_the_capacity(gym: FakeGym) -> None:
    """With a place for one cohort each, neither is left holding half of one while it waits for the other."""
    gym.capacity = 8
    gym.slow_seconds = 0.01
    async with asyncio.timeout(20):
        played = await asyncio.gather(*(play(DicePolicy(), trainers=2) for _ in range(2)))

    assert [len(each.trajectories) for each in played] == [9, 9]
    with pytest.raises(ValueError, match="capacity of 2 episodes for each trainer"):
        await play(DicePolicy(), trainers=4)


async def test_a_prompt_without_room_for_a_turn_is_no_fault_of_the_policy(gym: FakeGym) -> None:
    with pytest.raises(ValueError, match="raise max_context_tokens"):
        await play(DicePolicy(), max_context_tokens=8)


async def test_ids_of_another_tokenizer_are_not_learned_from(gym: FakeGym) -> None:
    gym.fingerprint_sent = "other"
    with pytest.raises(ContractBroken, match="tokenizer other"):
        await play(DicePolicy())


async def test_ids_that_do_not_continue_the_sequence_are_not_learned_from(gym: FakeGym) -> None:
    gym.position_shift = 1
    with pytest.raises(ContractBroken, match="position"):
        await play(DicePolicy())


async def test_a_gym_that_goes_away_for_good_ends_the_batch(gym: FakeGym, server: grpc.aio.Server) -> None:
    gym.slow_seconds = 0.05
    playing = asyncio.create_task(play(DicePolicy()))
    await asyncio.sleep(0.2)
    await server.stop(0)

    with pytest.raises(GymUnavailable):
        await playing
