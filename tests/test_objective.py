"""The objective, against numbers worked out by hand."""

from math import exp, log

import pytest
import torch

from tests.trajectories import make_verdict
from trainer_client.objective import (
    clipped_surrogate,
    entropy,
    group_advantages,
    kl_estimate,
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
