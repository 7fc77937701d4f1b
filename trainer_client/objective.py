"""The objective of GRPO, in pure functions: rewards, advantages, the terms of the loss and what they are divided by.

The loss of a batch is, over its N sampled tokens,

    sum over n of  weight_n (surrogate_n + kl_coefficient kl_n - entropy_bonus entropy_n)  /  normaliser

Terms are returned token by token, because a batch passes the model in pieces that share one normaliser.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer_client.trajectory import Verdict


def reward_of(verdict: Verdict, kind: str) -> float:
    """Composes the reward of an episode from the components of its verdict, between 0 and 1.

    hidden: 1 if every hidden test passes; public: 1 if every public test passes; fraction and public_fraction: the
    share of them that pass. A submission that was refused, tampered or used up its limits is worth 0 in each.

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
    if kind == "public_fraction":
        return verdict.public_passed / verdict.public_total if verdict.public_total else 0.0
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


def teaching_groups(advantages: Sequence[Sequence[float]], groups: Sequence[str]) -> set[str]:
    """Returns the groups in which some turn of some episode has an advantage; the others teach nothing."""
    return {group for turns, group in zip(advantages, groups, strict=True) if any(turns)}


def zero_advantage_share(advantages: Sequence[Sequence[float]], groups: Sequence[str]) -> float:
    """Returns the share of groups in which no turn of any episode has an advantage. 0 without groups."""
    teaching = teaching_groups(advantages, groups)
    return 1.0 - len(teaching) / len(set(groups)) if groups else 0.0


def length_penalty(tokens: int, free: int, limit: int) -> float:
    """Returns what the length of an episode costs, between 0 and 1: the soft overlong punishment of DAPO.

    0 up to `free` sampled tokens, 1 from `limit` on, in a straight line between (arXiv 2503.14476, equation 13, with
    the sign turned).
    """
    return min(max((tokens - free) / (limit - free), 0.0), 1.0)


def clipped_surrogate(
    logp_N: Tensor,
    old_logp_N: Tensor,
    advantages_N: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns the surrogate of each token, sign turned for a loss, and whether it is clipped.

    -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logp - old_logp), as in PPO (arXiv 1707.06347,
    equation 7); with a clip_high of its own as in DAPO (arXiv 2503.14476). Where A < 0, the loss is not above
    -dual_clip A, if that is not 0 (dual-clip PPO, arXiv 1912.09729). A clipped token has no gradient.
    """
    ratio_N = torch.exp(logp_N - old_logp_N)
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_N
    objective_N = torch.minimum(plain_N, clipped_N)
    is_clipped_N = clipped_N < plain_N
    if dual_clip:
        bound_N = dual_clip * advantages_N
        too_low_N = (advantages_N < 0) & (objective_N < bound_N)
        objective_N = torch.where(too_low_N, bound_N, objective_N)
        is_clipped_N = is_clipped_N | too_low_N
    return -objective_N, is_clipped_N


def importance_weights(logp_N: Tensor, sampler_logp_N: Tensor, kind: str, cap: float) -> Tensor:
    """Returns how much each token counts that another policy sampled, from the ratio w = trainer / sampler.

    truncated: min(w, cap) (arXiv 1802.01561, as truncated importance sampling between engines). masked: 1 where
    1 / cap <= w <= cap, else 0. none: 1.
    """
    ratio_N = torch.exp(logp_N - sampler_logp_N)
    if kind == "truncated":
        return ratio_N.clamp(max=cap)
    if kind == "masked":
        return ((ratio_N >= 1.0 / cap) & (ratio_N <= cap)).to(ratio_N.dtype)
    return torch.ones_like(ratio_N)


def aggregation(lengths: Sequence[int], kind: str, constant_tokens: int = 0) -> tuple[list[float], float]:
    """Returns the weight of the tokens of each sequence, and the normaliser, from the sampled tokens of B sequences.

    token: weight 1, divided by all tokens (DAPO). sequence: weight 1 / length, divided by B (GRPO, arXiv 2402.03300).
    constant: weight 1, divided by B * constant_tokens, so that no token counts less for being one of many (Dr. GRPO,
    arXiv 2503.20783).
    """
    if kind == "sequence":
        return [1.0 / length for length in lengths], float(len(lengths))
    if kind == "constant":
        return [1.0] * len(lengths), float(len(lengths) * constant_tokens)
    return [1.0] * len(lengths), float(sum(lengths))


def entropy(logp_NV: Tensor) -> Tensor:
    """Returns the entropy in nats of each of N distributions over V tokens, from their log-probabilities."""
    return -(logp_NV.exp() * logp_NV).sum(dim=-1)


def move_entropy_bonus(bonus: float, entropy: float, target: float, step: float) -> float:
    """Returns the next weight of the entropy: a step more below the target, a step less above it, never below 0.

    After Skywork-OR1 (arXiv 2505.22312, adaptive entropy control).
    """
    return max(0.0, bonus + step if entropy < target else bonus - step)


def kl_estimate(kind: str, logp_N: Tensor, other_logp_N: Tensor) -> Tensor:
    """Estimates KL(p || q) in nats from tokens that p sampled, one value per token.

    With r = q / p: k1 is -log r, k2 is (log r)^2 / 2, k3 is r - 1 - log r, unbiased like k1 and never negative
    (J. Schulman, Approximating KL Divergence, 2020).

    Args:
        kind: k1, k2 or k3.
        logp_N: The log-probabilities under p.
        other_logp_N: The log-probabilities under q.
    """
    log_ratio_N = other_logp_N - logp_N
    if kind == "k1":
        return -log_ratio_N
    if kind == "k2":
        return log_ratio_N.square() / 2
    return torch.expm1(log_ratio_N) - log_ratio_N
