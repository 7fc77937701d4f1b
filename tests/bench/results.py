"""Results as they are printed: one JSON object per line, as soon as each is there."""

import json
from collections.abc import Sequence

from tests.bench.latencies import Latencies
from tests.bench.rates import Rate


def show(name: str, value: float, unit: str, **more: object) -> None:
    """Prints one result."""
    print(json.dumps({"name": name, "value": _rounded(value), "unit": unit, **more}), flush=True)


def show_rate(name: str, rate: Rate, unit: str) -> None:
    """Prints a rate."""
    show(name, rate.per_second, unit, cpu_ms=_rounded(rate.cpu_ms))


def compare_rates(name: str, ours: Rate, baseline: str, theirs: Rate) -> None:
    """Prints a rate beside its baseline; the ratio says how many times as fast ours is."""
    show(
        name,
        ours.per_second,
        "episodes/s",
        baseline=baseline,
        baseline_value=_rounded(theirs.per_second),
        ratio=_rounded(ours.per_second / theirs.per_second),
        cpu_ms=_rounded(ours.cpu_ms),
        baseline_cpu_ms=_rounded(theirs.cpu_ms),
    )


def compare(name: str, value: float, unit: str, baseline: str, baseline_value: float) -> None:
    """Prints a figure beside its baseline."""
    show(
        name,
        value,
        unit,
        baseline=baseline,
        baseline_value=_rounded(baseline_value),
        ratio=_rounded(value / baseline_value),
    )


def compare_latencies(
    name: str, ours: Latencies, baseline: str, theirs: Latencies, percents: Sequence[int] = (50, 99)
) -> None:
    """Prints percentiles beside those of a baseline; the ratio says how many times as long ours takes."""
    for percent in percents:
        value, baseline_value = ours.percentile(percent), theirs.percentile(percent)
        show(
            f"{name}.p{percent}",
            value,
            "ms",
            baseline=baseline,
            baseline_value=_rounded(baseline_value),
            ratio=_rounded(value / baseline_value),
            samples=len(ours.milliseconds),
            baseline_samples=len(theirs.milliseconds),
        )


def _rounded(value: float) -> float:
    """Keeps four digits: what is small must not become 0."""
    return float(f"{value:.4g}")
