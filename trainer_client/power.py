"""What it takes to see an effect: `python -m trainer_client.power ABLATION`.

Two spreads of a finished ablation decide.

seed sd   standard deviation of held-out pass@1 over seeds, pooled within arms: what two arms of the same mean differ
          by when each is run with so many seeds on these tasks. Seeds per arm come from the two-sample t-test.
task sd   standard deviation, over tasks, of the difference between an arm and the first one, each task's rates first
          averaged over seeds; pooled over the pairs. Not that of the rates themselves: arms are compared task by task,
          which takes the difficulty of the tasks out. Tasks come from the paired t-test. It holds for as many seeds
          and episodes per task as the ablation has, whose noise is in it.

Numbers are exact for normal figures (noncentral t); those of the normal approximation stand beside them, which takes
the sd as known and is too low where few suffice. And an sd from few seeds is itself uncertain: its chi-square
interval is given, and what the numbers would be at both its ends. Pairs of arms share the first arm, so the task sd
counts as known from one pair, not from all.

An arm near 0 or 1 has next to no room to vary, and differs from the others by what each task was worth: it says
nothing about a comparison of arms that are close, and is left out unless --arms names it.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev, variance

from rich.console import Console
from rich.table import Table
from scipy.stats import chi2, nct, norm, t

from trainer_client.ablation import ArmResult, read_results
from trainer_client.console import WIDTH_WITHOUT_TERMINAL
from trainer_client.run_folder import RUNS
from trainer_client.statistics import CONFIDENCE

EFFECTS = (0.10, 0.05, 0.02)
COLLAPSED = 0.1
"""An arm within this of 0 or 1 is left out."""
MOST = 10**8
"""No number above this is looked for."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A standard deviation, with the interval that its degrees of freedom leave it."""

    sd: float
    degrees: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Need:
    """How many it takes to see an effect, if the sd is what it was found to be or at the ends of its interval."""

    exact: int
    low: int
    high: int
    normal: int
    """By the normal approximation, for the sd as it was found."""

    def __str__(self) -> str:
        """Returns the form 12 [6, 52]."""
        return f"{self.exact} [{self.low}, {self.high}]"


@dataclass(frozen=True, slots=True)
class Power:
    """What one effect takes."""

    effect: float
    seeds: Need | None
    """Seeds per arm; None where every arm has one seed."""
    tasks: Need | None
    """Tasks; None with a single arm or task."""


def spread(sd: float, degrees: int) -> Spread:
    """Returns an sd with its chi-square interval."""
    tail = (1 - CONFIDENCE) / 2
    low, high = (sd * math.sqrt(degrees / float(chi2.ppf(share, degrees))) for share in (1 - tail, tail))
    return Spread(sd, degrees, low, high)


def seed_spread(arms: Sequence[ArmResult]) -> Spread | None:
    """Returns the sd of pass@1 over seeds, pooled within arms; None where no arm has two seeds."""
    samples = [[run.pass_at_1 for run in arm.runs] for arm in arms if len(arm.runs) > 1]
    degrees = sum(len(sample) - 1 for sample in samples)
    if not degrees:
        return None
    squares = sum(variance(sample) * (len(sample) - 1) for sample in samples)
    return spread(math.sqrt(squares / degrees), degrees)


def task_spread(arms: Sequence[ArmResult]) -> Spread | None:
    """Returns the sd of paired differences over tasks, pooled over pairs with the first arm; None without a pair."""
    pairs = [arm.differences(arms[0]) for arm in arms[1:]]
    pairs = [pair for pair in pairs if len(pair) > 1]
    if not pairs:
        return None
    return spread(math.sqrt(fmean(stdev(pair) ** 2 for pair in pairs)), min(map(len, pairs)) - 1)


def chosen_arms(results: Sequence[ArmResult], names: Sequence[str]) -> tuple[list[ArmResult], list[str]]:
    """Returns the arms that spreads are taken from, and the names of those left out as collapsed.

    Raises ValueError for a name that no arm has, and where no arm is left.
    """
    known = {arm.name: arm for arm in results}
    for name in names:
        if name not in known:
            raise ValueError(f"arm {name!r}: the ablation has {', '.join(known)}")
    if names:
        return [known[name] for name in names], []
    collapsed = [arm.name for arm in results if not COLLAPSED < arm.pass_at_1.estimate < 1 - COLLAPSED]
    arms = [arm for arm in results if arm.name not in collapsed]
    if not arms:
        raise ValueError("every arm is near 0 or 1, where nothing can vary: name some with --arms")
    return arms, collapsed


def two_sample_power(count: int, effect: float, sd: float, alpha: float) -> float:
    """Returns the power of the two-sided two-sample t-test with so many in each sample."""
    return _power(2 * count - 2, effect / sd * math.sqrt(count / 2), alpha)


def paired_power(count: int, effect: float, sd: float, alpha: float) -> float:
    """Returns the power of the two-sided t-test of so many differences whose sd is given."""
    return _power(count - 1, effect / sd * math.sqrt(count), alpha)


def _power(degrees: int, noncentrality: float, alpha: float) -> float:
    limit = t.ppf(1 - alpha / 2, degrees)
    return float(nct.sf(limit, degrees, noncentrality) + nct.cdf(-limit, degrees, noncentrality))


def normal_count(effect: float, sd: float, power: float, alpha: float, samples: int) -> int:
    """Returns how many the normal approximation asks for in each of two samples, or in one of differences."""
    quantiles = float(norm.ppf(1 - alpha / 2) + norm.ppf(power))
    return max(1, math.ceil(samples * (quantiles * sd / effect) ** 2))


def least_count(power_of: Callable[[int], float], wanted: float) -> int:
    """Returns the least count from 2 on with the wanted power, which grows with the count."""
    high = 2
    while power_of(high) < wanted:
        high *= 2
        if high > MOST:
            raise ValueError(f"more than {MOST:,} would be needed: look for a larger effect")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= wanted else (middle, high)
    return high


def need(
    found: Spread,
    power_at: Callable[[int, float, float, float], float],
    samples: int,
    effect: float,
    power: float,
    alpha: float,
) -> Need:
    """Returns how many it takes by a test, whose power is `power_at` and which has one or two samples."""

    def exact(sd: float) -> int:
        # Without any spread two of a kind show every effect.
        return least_count(lambda count: power_at(count, effect, sd, alpha), power) if sd else 2

    low, middle, high = map(exact, (found.low, found.sd, found.high))
    return Need(middle, low, high, normal_count(effect, found.sd, power, alpha, samples))


def power_table(
    seeds: Spread | None, tasks: Spread | None, effects: Sequence[float], power: float, alpha: float
) -> list[Power]:
    """Returns what each effect takes."""
    return [
        Power(
            effect,
            need(seeds, two_sample_power, 2, effect, power, alpha) if seeds else None,
            need(tasks, paired_power, 1, effect, power, alpha) if tasks else None,
        )
        for effect in effects
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what it takes to see some effects and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.power",
        description="Says how many seeds per arm, and how many tasks, it takes to see an effect, from the spreads of a "
        "finished ablation.",
    )
    parser.add_argument("ablation", help="name of the ablation, or its folder")
    parser.add_argument(
        "--effect",
        type=float,
        nargs="+",
        default=EFFECTS,
        help="differences of pass@1 (default: 0.10 0.05 0.02)",
    )
    parser.add_argument("--power", type=float, default=0.8, help="chance of seeing them (default: 0.8)")
    parser.add_argument(
        "--alpha", type=float, default=0.05, help="level of the two-sided test (default: 0.05)"
    )
    parser.add_argument(
        "--arms", default="", help="arms to take the spreads from, the first to pair the others with"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args(argv)
    for name in ("power", "alpha"):
        if not 0 < getattr(given, name) < 1:
            parser.error(f"--{name} is {getattr(given, name)}: set it between 0 and 1")
    if given.power <= given.alpha:
        parser.error(f"--power is {given.power}: set it above --alpha, which chance alone reaches")
    if any(not 0 < effect < 1 for effect in given.effect):
        parser.error("--effect: give differences between 0 and 1")
    try:
        folder = RUNS / given.ablation
        results = read_results(folder if folder.exists() else Path(given.ablation))
        arms, collapsed = chosen_arms(results, given.arms.split(",") if given.arms else [])
        seeds, tasks = seed_spread(arms), task_spread(arms)
        if seeds is None and tasks is None:
            left = f" without {', '.join(collapsed)}, near 0 or 1" if collapsed else ""
            raise ValueError(
                f"nothing varies in {given.ablation}{left}: it takes two seeds or two arms; --arms names those to use"
            )
        table = power_table(seeds, tasks, given.effect, given.power, given.alpha)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        content = {
            "power": given.power,
            "alpha": given.alpha,
            "arms": [arm.name for arm in arms],
            "left_out": collapsed,
            "seed_sd": asdict(seeds) if seeds else None,
            "task_sd": asdict(tasks) if tasks else None,
            "needed": [asdict(row) for row in table],
        }
        print(json.dumps(content, indent=2))
    else:
        show(table, arms, collapsed, seeds, tasks, given.power)
    return 0


def show(
    table: Sequence[Power],
    arms: Sequence[ArmResult],
    collapsed: Sequence[str],
    seeds: Spread | None,
    tasks: Spread | None,
    power: float,
) -> None:
    """Prints the spreads and the table."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=WIDTH_WITHOUT_TERMINAL)

    def say(text: str) -> None:
        console.print(text, markup=False)

    say(f"Arms        {', '.join(arm.name for arm in arms)}")
    if collapsed:
        say(f"Left out    {', '.join(collapsed)}: within {COLLAPSED} of 0 or 1, where nothing can vary")
    say(f"Seed sd     {_described(seeds)}" if seeds else "Seed sd     unknown: one seed per arm")
    say(f"Task sd     {_described(tasks)}" if tasks else "Task sd     unknown: no two arms, or one task")
    found = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    titles = (
        f"effect, power {power:.0%}",
        "seeds per arm",
        "normal approximation",
        "tasks",
        "normal approximation",
    )
    for title in titles:
        found.add_column(title)
    for row in table:
        cells = [
            each
            for side in (row.seeds, row.tasks)
            for each in (str(side or "-"), str(side.normal) if side else "-")
        ]
        found.add_row(f"{row.effect:.2f}", *(cell.replace("[", r"\[") for cell in cells))
    console.print(found)
    say("In brackets: the same for an sd at either end of its 95% interval.")


def _described(found: Spread) -> str:
    return f"{found.sd:.3f}, 95% interval {found.low:.3f} to {found.high:.3f} ({found.degrees} degrees of freedom)"


if __name__ == "__main__":
    sys.exit(main())
