"""The objective of GRPO, in pure functions: rewards, advantages, the clipped surrogate and what is read off it.

Shape letter N: the sampled tokens of a batch. Sums are returned where a caller splits a batch into pieces, so that
one normaliser can serve all of them.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer_client.trajectory import Verdict


def reward_of(verdict: Verdict, kind: str) -> float:
    """Composes the reward of an episode from the components of its verdict, between 0 and 1.

    hidden: 1 if every hidden test passes; public: 1 if every public test passes; fraction: share of hidden tests
    that pass. A submission that was refused, tampered or used up its limits is worth 0 in each.

    Raises ValueError for a verdict that the gym failed to give: it is worth nothing, not 0.
    """
    if not verdict.valid:
        raise ValueError(f"no reward comes of a verdict with status {verdict.status}")
    if verdict.status not in ("resolved", "unresolved"):
        return 0.0
    if kind == "hidden":
        return float(verdict.status == "resolved")
    if kind == "public":
        return float(0 < verdict.public_total == verdict.public_passed)
    if kind == "fraction":
        return verdict.hidden_passed / verdict.hidden_total if verdict.hidden_total else 0.0
    raise ValueError(f"unknown reward {kind!r}")


def group_advantages(
    rewards: Sequence[float | None], groups: Sequence[str], advantage: str = "mean"
) -> list[float]:
    """Compares each reward r with the others of its group, whose n rewards have the mean m.

    mean: r - m, as in Dr. GRPO (arXiv 2503.20783): groups that almost always pass or fail weigh no more than others.
    mean_std: (r - m) / (s + 1e-6) with the standard deviation s in the form that divides by n (GRPO, arXiv
    2402.03300, with 1e-6 as in its implementations).
    leave_one_out: r less the mean of the other n - 1, which is (r - m) n / (n - 1) (RLOO, arXiv 2402.14740).

    None stands for an episode without a reward: it has advantage 0 and no part in the mean. Alone in its group, a
    reward has nothing to be compared with and advantage 0.
    """
    by_group: dict[str, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            by_group.setdefault(group, []).append(reward)
    # Summed from the least one, so that equal rewards give an advantage of exactly 0.
    mean = {
        group: min(values) + sum(value - min(values) for value in values) / len(values)
        for group, values in by_group.items()
    }

    def scale(group: str) -> float:
        values = by_group[group]
        if advantage == "mean_std":
            variance = sum((value - mean[group]) ** 2 for value in values) / len(values)
            return 1.0 / (math.sqrt(variance) + 1e-6)
        if advantage == "leave_one_out":
            return len(values) / max(len(values) - 1, 1)
        return 1.0

    scales = {group: scale(group) for group in by_group}
    return [
        0.0 if reward is None else (reward - mean[group]) * scales[group]
        for reward, group in zip(rewards, groups, strict=True)
    ]


def zero_advantage_share(advantages: Sequence[float], groups: Sequence[str]) -> float:
    """Returns the share of groups in which no episode has an advantage: they teach nothing. 0 without groups."""
    teaching = {group for advantage, group in zip(advantages, groups, strict=True) if advantage != 0.0}
    return 1.0 - len(teaching) / len(set(groups)) if groups else 0.0


def clipped_surrogate(
    logp_N: Tensor, old_logp_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Returns the loss and the number of clipped tokens, both summed over tokens.

    loss = -sum min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logp - old_logp), as in PPO
    (arXiv 1707.06347, equation 7); with a clip_high of its own as in DAPO (arXiv 2503.14476). A token is clipped
    where the minimum is the clipped term, so that it has no gradient.
    """
    ratio_N = torch.exp(logp_N - old_logp_N)
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_N
    return -torch.minimum(plain_N, clipped_N).sum(), (clipped_N < plain_N).sum()


def entropy(logp_NV: Tensor) -> Tensor:
    """Returns the entropy in nats of each of N distributions over V tokens, from their log-probabilities."""
    return -(logp_NV.exp() * logp_NV).sum(dim=-1)


def kl_k3(logp_N: Tensor, old_logp_N: Tensor) -> Tensor:
    """Estimates KL(old || new) in nats from tokens that the old policy sampled, one value per token.

    The k3 estimator, r - 1 - log r with r = new / old: unbiased and never negative
    (J. Schulman, Approximating KL Divergence, 2020).
    """
    log_ratio_N = logp_N - old_logp_N
    return torch.expm1(log_ratio_N) - log_ratio_N
