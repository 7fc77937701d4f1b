"""Rates over tasks: the unbiased pass@k of Chen et al. (2021), and how far it would go with other tasks like these."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

ATTEMPTS = (1, 2, 5, 10, 100)
"""The k of pass@k that are told, as far as every task has so many samples."""
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that of k samples, drawn from these without putting any back, one passes: 1 - C(n-c, k) / C(n, k)."""
    if not 0 < k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@{k} of {passed} in {samples} samples is not defined")
    none_passes = 1.0
    # As a product, whose factors stay small whatever the numbers; it is 0 where fewer than k have failed.
    for number in range(samples - passed + 1, samples + 1):
        none_passes *= 1 - k / number
    return 1.0 - max(none_passes, 0.0) if samples - passed >= k else 1.0


def over_tasks(rates: Sequence[float]) -> Estimate:
    """The mean of the tasks, with a bootstrap over tasks: samples of one task are not independent, tasks are.

    The same rates give the same interval.
    """
    rng = random.Random("bootstrap")
    count = len(rates)
    means = sorted(sum(rng.choices(rates, k=count)) / count for _ in range(_RESAMPLES))
    low, high = (means[round(share * (_RESAMPLES - 1))] for share in (0.025, 0.975))
    return Estimate(sum(rates) / count, low, high)


def all_pass_at(counts: Sequence[tuple[int, int]]) -> dict[int, Estimate]:
    """Gives pass@k, by k, of tasks that are each (samples, passed)."""
    if not counts:
        return {}
    fewest = min(samples for samples, _ in counts)
    return {
        k: over_tasks([pass_at_k(samples, passed, k) for samples, passed in counts])
        for k in ATTEMPTS
        if k <= fewest
    }
