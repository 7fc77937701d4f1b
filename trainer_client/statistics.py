"""Statistics over tasks: pass@k and intervals that say how far a figure would move with other tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from scipy.stats import bootstrap

CONFIDENCE = 0.95
RESAMPLES = 9_999
BOOTSTRAP_SEED = 0
"""Fixed, so that the same counts always give the same interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the interval around it."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns the form 0.62 [0.29, 0.96]."""
        return f"{self.estimate:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def signed(self) -> str:
        """The form +0.47 [+0.13, +0.81], for a difference."""
        return f"{self.estimate:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def pass_at_k(episodes: int, passed: int, k: int) -> float:
    """Returns the probability that at least one of k episodes passes, unbiased, from `passed` of `episodes`.

    1 - C(n - c, k) / C(n, k) (Chen et al., arXiv 2107.03374). Raises ValueError when k is not in 1..episodes.
    """
    if not 1 <= k <= episodes:
        raise ValueError(f"pass@{k} cannot be estimated from {episodes} episodes")
    return 1.0 - comb(episodes - passed, k) / comb(episodes, k)


def mixed_group(episodes: int, passed: int, size: int) -> float:
    """Returns the probability that a group of `size` episodes holds a pass and a failure, so that it has a gradient.

    Unbiased, from `passed` of `episodes`, as pass@k is. Raises ValueError when size is not in 1..episodes.
    """
    return pass_at_k(episodes, passed, size) - comb(passed, size) / comb(episodes, size)


def clustered_error(clusters: Sequence[Sequence[float]]) -> float:
    """Returns the standard error of the mean over all values, which are alike within clusters: episodes, by task.

    With n values s, their mean m, and i, j in one cluster (Miller, arXiv 2411.00640, equations 1 and 4):
    SE**2 = sum((s - m)**2) / (n * (n - 1)) + sum((s_i - m) * (s_j - m) for i != j) / n**2. Like the bootstrap over
    tasks it is on the small side where clusters are few. Raises ValueError for less than two.
    """
    if len(clusters) < 2:
        raise ValueError(f"{len(clusters)} clusters say nothing about others")
    n = sum(map(len, clusters))
    mean = sum(map(sum, clusters)) / n
    squares = sum((value - mean) ** 2 for cluster in clusters for value in cluster)
    products = sum((sum(cluster) - len(cluster) * mean) ** 2 for cluster in clusters) - squares
    return sqrt(max(0.0, squares / (n * (n - 1)) + products / n**2))


def task_interval(rates: Sequence[float]) -> Interval:
    """Returns the mean of per-task rates with its 95% percentile bootstrap interval over tasks.

    Tasks are what is resampled: they are the largest source of variance, and the claim is about tasks. One task
    says nothing about others: its interval is the whole range from 0 to 1. Raises ValueError without tasks.
    """
    if not rates:
        raise ValueError("no tasks to take a mean over")
    return _interval(rates, 0.0, 1.0)


def paired_difference(rates: Sequence[float], base: Sequence[float]) -> Interval:
    """Returns the mean of per-task differences, rates - base, with its 95% percentile bootstrap interval.

    Pairing by task takes the difficulty of the tasks out of the comparison. Both lists hold the same tasks in the
    same order; ValueError otherwise. One task has the interval from -1 to 1.
    """
    if len(rates) != len(base) or not rates:
        raise ValueError(f"cannot pair {len(rates)} tasks with {len(base)}")
    return _interval([rate - other for rate, other in zip(rates, base, strict=True)], -1.0, 1.0)


def _interval(values: Sequence[float], least: float, most: float) -> Interval:
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, least, most)
    if np.all(sample == sample[0]):
        # Every resample is the sample itself.
        return Interval(mean, mean, mean)
    found = bootstrap(
        (sample,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))
