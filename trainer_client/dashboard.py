"""The picture of a run: six panels that show together whether it is healthy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from trainer_client.metrics import History, StepRow

GAP_LIMIT = 1e-4
"""Sampler and trainer further apart than this, in nats, do not compute the same policy."""
BLUE, ORANGE, GREEN, RED, INK, GRID = "#2563eb", "#ea7317", "#16a34a", "#dc2626", "#1f2937", "#e5e7eb"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def draw_dashboard(history: History, path: Path, title: str) -> None:
    """Draws the dashboard of a run, finished or not, as a PNG of 1,950 x 1,050 pixels."""
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.02, hspace=0.04)
        figure = Figure(figsize=(13, 7), dpi=150, layout=layout)
        figure.suptitle(title.replace("$", r"\$"), x=0.01, ha="left", fontsize=13, fontweight="bold")
        panels = (_reward, _behaviour, _entropy, _zero_advantage, _kl, _gap)
        for axes, panel in zip(figure.subplots(2, 3).flat, panels, strict=True):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
            panel(axes, history)
            axes.set_xlabel("step", labelpad=2)
        figure.savefig(path)


def _line(
    axes: Axes, history: History, value: Callable[[StepRow], float], colour: str, label: str | None = None
) -> None:
    few = len(history.steps) < 3
    steps = [row.step for row in history.steps]
    values = [value(row) for row in history.steps]
    axes.plot(
        steps, values, color=colour, linewidth=1.8, label=label, marker="o" if few else None, markersize=4
    )


def _reward(axes: Axes, history: History) -> None:
    axes.set_title("Reward")
    _line(axes, history, lambda row: row.reward, BLUE, "training batch")
    validations = history.validations
    if validations:
        intervals = [row.pass_at_1 for row in validations]
        axes.errorbar(
            [row.step for row in validations],
            [interval.estimate for interval in intervals],
            yerr=(
                [interval.estimate - interval.low for interval in intervals],
                [interval.high - interval.estimate for interval in intervals],
            ),
            color=ORANGE,
            fmt="o",
            markersize=5,
            capsize=3,
            linewidth=1.3,
            label="validation pass@1, 95% interval over tasks",
        )
    axes.set_ylim(-0.02, 1.28)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.legend(loc="upper left", borderaxespad=0.2)


def _behaviour(axes: Axes, history: History) -> None:
    axes.set_title("Calls per episode")
    _line(axes, history, lambda row: row.behaviour.reads, BLUE, "reads")
    _line(axes, history, lambda row: row.behaviour.tests, GREEN, "tests")
    _line(axes, history, lambda row: row.behaviour.edits, ORANGE, "edits")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]) * 1.22)
    axes.legend(loc="upper left", ncols=3, borderaxespad=0.2)


def _entropy(axes: Axes, history: History) -> None:
    axes.set_title("Entropy on sampled tokens (nats)")
    _line(axes, history, lambda row: row.update.entropy, BLUE)
    axes.set_ylim(bottom=0)


def _zero_advantage(axes: Axes, history: History) -> None:
    axes.set_title("Share of groups without advantage")
    _line(axes, history, lambda row: row.zero_advantage_share, BLUE)
    axes.set_ylim(-0.02, 1.02)


def _kl(axes: Axes, history: History) -> None:
    axes.set_title("KL of one update (nats)")
    # A step without any advantage moves nothing: a gap in the line, since zero has no place on a log scale.
    _line(axes, history, lambda row: row.update.kl if row.update.kl > 0 else float("nan"), BLUE)
    if any(row.update.kl > 0 for row in history.steps):
        axes.set_yscale("log")


def _gap(axes: Axes, history: History) -> None:
    axes.set_title("Sampler-trainer gap (nats)")
    _line(axes, history, lambda row: row.update.sampler_gap or float("nan"), BLUE, "mean absolute difference")
    axes.axhline(GAP_LIMIT, color=RED, linewidth=1.2, linestyle="--", label="limit 1e-4")
    axes.set_yscale("log")
    axes.set_ylim(top=GAP_LIMIT * 30)
    axes.legend(loc="upper left", borderaxespad=0.2)
