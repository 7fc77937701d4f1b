"""Statistics over tasks: pass@k and intervals that say how far a figure would move with other tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

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
