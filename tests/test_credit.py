"""What turns are credited with, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from tests.trajectories import make_trajectory, make_verdict
from trainer_client.config import RunConfig
from trainer_client.credit import shaped_reward, turn_advantages
from trainer_client.trajectory import Trajectory

TWO_TURNS = (((3, 4), (5,)), ((6,), ()))
ONE_TURN = (((3, 4, 5), ()),)


def episode(
    turns: object = TWO_TURNS, group: str = "g", passed: bool = True, **verdict: object
) -> Trajectory:
    return make_trajectory(group=group, turns=turns, verdict=make_verdict(passed, **verdict))  # type: ignore[arg-type]


def test_each_turn_costs() -> None:
    config = RunConfig(turn_cost=0.1)

    assert [shaped_reward(each, config) for each in (episode(), episode(ONE_TURN))] == pytest.approx(
        [0.8, 0.9]
    )


@pytest.mark.parametrize(
    ("passed", "public", "expected"), [(True, 2, 1.0), (False, 2, 0.25), (False, 1, 0.125), (False, 0, 0.0)]
)
def test_public_tests_can_be_a_part_of_the_reward(passed: bool, public: int, expected: float) -> None:
    """Three quarters for all hidden tests, a quarter for the share of the two public ones."""
    found = shaped_reward(episode(passed=passed, public=public), RunConfig(public_weight=0.25))

    assert found == pytest.approx(expected)


def test_public_tests_of_a_tampered_submission_count_for_nothing() -> None:
    tampered = make_trajectory(verdict=make_verdict(status="tamper_suspected"))

    assert shaped_reward(tampered, RunConfig(public_weight=0.25)) == 0.0


@pytest.mark.parametrize(("free", "limit", "expected"), [(3, 5, 1.0), (2, 4, 0.5), (1, 3, 0.0), (0, 4, 0.25)])
def test_length_costs_from_the_free_tokens_to_the_limit(free: int, limit: int, expected: float) -> None:
    """Both episodes have three sampled tokens."""
    config = RunConfig(length_free_tokens=free, length_limit_tokens=limit)

    assert [shaped_reward(each, config) for each in (episode(), episode(ONE_TURN))] == [expected, expected]


def test_an_episode_without_a_valid_verdict_has_no_reward_and_no_part_in_the_baseline() -> None:
    config = RunConfig(turn_cost=0.1)
    lost = make_trajectory(group="g", verdict=make_verdict(status="infrastructure_error"))
    group = [episode(ONE_TURN), lost, episode(ONE_TURN, passed=False)]
    rewards = [shaped_reward(each, config) for each in group]

    assert rewards[1] is None
    assert turn_advantages(group, rewards, config) == [(0.5,), (0.0,), (-0.5,)]


def test_by_episode_all_turns_have_its_advantage() -> None:
    group = [episode(), episode(ONE_TURN, passed=False)]

    assert turn_advantages(group, [1.0, 0.0], RunConfig()) == [(0.5, 0.5), (-0.5,)]


def test_by_turn_only_episodes_that_got_as_far_are_compared() -> None:
    """First turns: 1, 0, 1 with the mean 2/3. Second turns, of the first two alone: 1, 0 with the mean 1/2."""
    group = [episode(), episode(passed=False), episode(ONE_TURN)]

    found = turn_advantages(group, [1.0, 0.0, 1.0], RunConfig(credit="turn"))

    assert [pytest.approx(each) for each in found] == [(1 / 3, 1 / 2), (-2 / 3, -1 / 2), (1 / 3,)]


def test_by_turn_the_cost_of_earlier_turns_is_not_charged_to_later_ones() -> None:
    """Rewards 1 - 0.2 and 1 - 0.1. Of first turns 0.8 and 0.9 were to come; the second had nothing to compare with."""
    config = RunConfig(credit="turn", turn_cost=0.1)
    group = [episode(), episode(ONE_TURN)]
    rewards = [shaped_reward(each, config) for each in group]

    found = turn_advantages(group, rewards, config)

    assert [pytest.approx(each) for each in found] == [(-0.05, 0.0), (0.05,)]


def test_groups_are_compared_each_for_itself() -> None:
    group = [episode(ONE_TURN, "a"), episode(ONE_TURN, "b"), episode(ONE_TURN, "a"), episode(ONE_TURN, "b")]
    config = replace(RunConfig(), advantage="leave_one_out")

    assert turn_advantages(group, [1.0, 1.0, 0.0, 1.0], config) == [(1.0,), (0.0,), (-1.0,), (0.0,)]
