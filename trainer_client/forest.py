"""The picture of an ablation: every arm with its interval, and its difference to the first one."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from trainer_client.ablation import ArmResult
from trainer_client.dashboard import BLUE, INK, RED, STYLE
from trainer_client.statistics import Interval

HACKED_SHARE = 0.5
"""An arm of which so many held-out episodes pass the public tests alone is drawn in red."""


def draw_forest(results: Sequence[ArmResult], path: Path, title: str) -> None:
    """Draws the arms of an ablation, the first one on top, as a PNG 1,800 pixels wide."""
    base = results[0]
    places = range(len(results) - 1, -1, -1)
    colours = [RED if arm.mean("public_only") >= HACKED_SHARE else BLUE for arm in results]
    with matplotlib.rc_context(STYLE | {"axes.grid.axis": "x"}):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.03)
        figure = Figure(figsize=(12, 1.9 + 0.55 * len(results)), dpi=150, layout=layout)
        figure.suptitle(title.replace("$", r"\$"), x=0.01, ha="left", fontsize=13, fontweight="bold")
        rates, differences = figure.subplots(1, 2, sharey=True)
        rates.set_title("Held-out pass@1")
        differences.set_title(f"Paired difference to {base.name.replace('$', chr(92) + '$')}")
        for arm, place, colour in zip(results, places, colours, strict=True):
            _interval(rates, place, arm.pass_at_1, colour)
            for run in arm.runs:
                rates.plot(run.pass_at_1, place - 0.24, "o", color=colour, alpha=0.45, markersize=4, mew=0)
            if arm is base:
                differences.plot(0, place, "|", color=INK, markersize=12)
            else:
                _interval(differences, place, arm.difference(base), colour)
        rates.set_xlim(-0.02, 1.02)
        rates.set_ylim(-0.6, len(results) - 0.4)
        rates.set_yticks(list(places), [arm.name.replace("$", r"\$") for arm in results])
        differences.axvline(0, color=INK, linewidth=1, linestyle="--")
        differences.set_xlim(min(-0.3, differences.get_xlim()[0]), max(0.3, differences.get_xlim()[1]))
        caption = "large dot: mean over seeds with the 95% interval over tasks; small dots: each seed"
        if RED in colours:
            caption += "; red: most held-out episodes pass the public tests alone"
        figure.supxlabel(caption, fontsize=9, x=0.01, ha="left")
        figure.savefig(path)


def _interval(axes: "matplotlib.axes.Axes", place: float, interval: Interval, colour: str) -> None:
    axes.errorbar(
        interval.estimate,
        place,
        xerr=([interval.estimate - interval.low], [interval.high - interval.estimate]),
        color=colour,
        fmt="o",
        markersize=8,
        capsize=3,
        linewidth=1.6,
    )
