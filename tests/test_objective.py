"""The objective, against numbers worked out by hand."""

from math import exp, log

import pytest
import torch

from tests.trajectories import make_verdict
from trainer_client.objective import (
    aggregation,
    clipped_surrogate,
    entropy,
    group_advantages,
    importance_weights,
    kl_estimate,
    length_penalty,
    move_entropy_bonus,
    reward_of,
    zero_advantage_share,
)


@pytest.mark.parametrize(
    ("status", "hidden", "public", "expected"),
    [
        ("resolved", 4, 2, {"hidden": 1.0, "public": 1.0, "fraction": 1.0}),
        ("unresolved", 1, 2, {"hidden": 0.0, "public": 1.0, "fraction": 0.25}),
        ("unresolved", 3, 1, {"hidden": 0.0, "public": 0.0, "fraction": 0.75}),
        ("refused", 0, 2, {"hidden": 0.0, "public": 0.0, "fraction": 0.0}),
        ("tamper_suspected", 4, 2, {"hidden": 0.0, "public": 0.0, "fraction": 0.0}),
        ("timeout", 3, 2, {"hidden": 0.0, "public": 0.0, "fraction": 0.0}),
    ],
)
def test_rewards_are_composed_from_the_verdict(
    status: str, hidden: int, public: int, expected: dict[str, float]
) -> None:
    """What is rewarded is the trainer's choice; what was tampered with is worth nothing in any of them."""
    verdict = make_verdict(status=status, hidden=hidden, public=public)

    assert {kind: reward_of(verdict, kind) for kind in expected} == expected


def test_a_failure_of_the_gym_has_no_reward() -> None:
    """It must not be taken for 0."""
    with pytest.raises(ValueError, match="infrastructure_error"):
        reward_of(make_verdict(status="infrastructure_error"), "hidden")


def test_advantages_are_differences_from_the_mean_of_the_group() -> None:
    """Group a: mean 1/4. Group b: mean 1/2. They do not touch each other, in whatever order they come."""
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0], ["a", "b", "a", "b", "a", "a"]

    assert group_advantages(rewards, groups) == [0.75, -0.5, -0.25, 0.5, -0.25, -0.25]


def test_advantages_can_be_divided_by_the_standard_deviation() -> None:
    """Rewards 1, 0, 0, 0: mean 1/4, population variance 3/16."""
    found = group_advantages([1.0, 0.0, 0.0, 0.0], ["a"] * 4, "mean_std")

    assert found == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)], rel=1e-5)


def test_an_episode_without_reward_has_no_part_in_the_baseline() -> None:
    """The mean of 1 and 0 is 1/2, whatever happened to the third."""
    assert group_advantages([1.0, None, 0.0], ["a"] * 3) == [0.5, 0.0, -0.5]


def test_equal_rewards_give_exactly_zero() -> None:
    """Three times 0.1 divided by 3 is not 0.1 in floating point: the advantage is 0 all the same."""
    assert group_advantages([0.1] * 3, ["a"] * 3, "mean_std") == [0.0] * 3


def test_zero_advantage_share_counts_groups() -> None:
    """One of three groups has no episode with an advantage."""
    assert zero_advantage_share(
        [(0.5, 0.5), (-0.5,), (0.0,), (), (0.0,), (0.0, 0.1)], list("aabbcc")
    ) == pytest.approx(1 / 3)
    assert zero_advantage_share([], []) == 0.0


def test_surrogate_clips_what_would_go_too_far_and_nothing_else() -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages 2, -2, 2, -2 and clips at 0.8 and 1.3.

    Terms: min(3, 2.6) = 2.6; min(-3, -2.6) = -3; min(1, 1.6) = 1; min(-1, -1.6) = -1.6.
    """
    old = torch.full((4,), -1.0)
    logp = (old + torch.tensor([1.5, 1.5, 0.5, 0.5]).log()).requires_grad_()

    loss, clipped = clipped_surrogate(logp, old, torch.tensor([2.0, -2.0, 2.0, -2.0]), 0.2, 0.3)
    loss.sum().backward()

    assert loss.tolist() == pytest.approx([-2.6, 3.0, -1.0, 1.6], abs=1e-6)
    assert clipped.tolist() == [True, False, False, True]
    assert logp.grad is not None
    # d loss / d logp = -ratio * advantage where the plain term is the smaller one, else 0.
    assert logp.grad.tolist() == pytest.approx([0.0, 3.0, -1.0, 0.0], abs=1e-6)


def test_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    """Ratios 4 and 4 with advantages -1 and 1, bound 3: -max(-4, -3) = 3 without gradient; the clip above has 1.2."""
    old = torch.zeros(3)
    logp = torch.tensor([4.0, 4.0, 2.0]).log().requires_grad_()

    loss, clipped = clipped_surrogate(logp, old, torch.tensor([-1.0, 1.0, -1.0]), 0.2, 0.2, dual_clip=3.0)
    loss.sum().backward()

    assert loss.tolist() == pytest.approx([3.0, -1.2, 2.0], abs=1e-6)
    assert clipped.tolist() == [True, True, False]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([0.0, 0.0, 2.0], abs=1e-6)


def test_importance_weights_are_ratios_up_to_a_cap_or_a_mask() -> None:
    """Trainer / sampler: 4, 1.5, 1, 0.6, 0.25 with the cap 2, whose inverse is 0.5."""
    ratio = torch.tensor([4.0, 1.5, 1.0, 0.6, 0.25])
    sampler = torch.full((5,), -3.0)

    found = {
        kind: importance_weights(sampler + ratio.log(), sampler, kind, 2.0).tolist()
        for kind in ("truncated", "masked", "none")
    }

    assert found == {
        "truncated": pytest.approx([2.0, 1.5, 1.0, 0.6, 0.25]),
        "masked": [0.0, 1.0, 1.0, 1.0, 0.0],
        "none": [1.0] * 5,
    }


@pytest.mark.parametrize(
    ("kind", "weights", "normaliser"),
    [("token", [1.0, 1.0], 5.0), ("sequence", [0.25, 1.0], 2.0), ("constant", [1.0, 1.0], 20.0)],
)
def test_aggregation_of_sequences_of_four_and_one_tokens(
    kind: str, weights: list[float], normaliser: float
) -> None:
    """Losses of 1 on the long one and 2 on the short one: (4 + 2) / 5, (1 + 2) / 2, (4 + 2) / (2 * 10)."""
    assert aggregation([4, 1], kind, 10) == (weights, normaliser)


@pytest.mark.parametrize(("tokens", "penalty"), [(0, 0.0), (100, 0.0), (125, 0.25), (200, 1.0), (900, 1.0)])
def test_the_penalty_rises_from_the_free_tokens_to_the_limit(tokens: int, penalty: float) -> None:
    assert length_penalty(tokens, 100, 200) == penalty


def test_leave_one_out_compares_with_the_others() -> None:
    """Rewards 1, 0, 0: the others of the first have the mean 0, those of the second and third 1/2."""
    assert group_advantages([1.0, 0.0, 0.0], ["a"] * 3, "leave_one_out") == pytest.approx([1.0, -0.5, -0.5])
    assert group_advantages([1.0], ["a"], "leave_one_out") == [0.0]


def test_the_entropy_bonus_moves_towards_the_target_and_not_below_zero() -> None:
    assert move_entropy_bonus(0.01, entropy=0.2, target=0.3, step=0.001) == pytest.approx(0.011)
    assert move_entropy_bonus(0.01, entropy=0.4, target=0.3, step=0.001) == pytest.approx(0.009)
    assert move_entropy_bonus(0.0005, entropy=0.4, target=0.3, step=0.001) == 0.0


@pytest.mark.parametrize(("kind", "expected"), [("k1", [-1.0, 0.0, 1.0]), ("k2", [0.5, 0.0, 0.5])])
def test_kl_k1_and_k2_of_known_ratios(kind: str, expected: list[float]) -> None:
    """Log-ratios 1, 0, -1: k1 turns the sign, k2 is half the square."""
    assert kl_estimate(kind, torch.zeros(3), torch.tensor([1.0, 0.0, -1.0])).tolist() == expected


def test_entropy_of_known_distributions() -> None:
    """Four equal tokens have log 4 nats; 1/2, 1/4, 1/8, 1/8 has 1.75 log 2."""
    logp = torch.tensor([[0.25] * 4, [0.5, 0.25, 0.125, 0.125]]).log()

    assert entropy(logp).tolist() == pytest.approx([log(4), 1.75 * log(2)])


def test_kl_k3_of_known_ratios() -> None:
    """New / old = e: e - 1 - 1. Equal: 0. The estimate is never negative."""
    old = torch.zeros(3)

    assert kl_estimate("k3", old, torch.tensor([1.0, 0.0, -1.0])).tolist() == pytest.approx(
        [exp(1) - 2, 0.0, exp(-1)], abs=1e-6
    )


def test_kl_k3_is_right_on_average() -> None:
    """Over all tokens of p = (3/4, 1/4) against q = (1/2, 1/2) its mean under p is KL(p || q)."""
    p, q = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])

    estimate = (p * kl_estimate("k3", p.log(), q.log())).sum().item()

    assert estimate == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5), abs=1e-6)
