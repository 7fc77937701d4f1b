"""The picture of a run: eight panels that show together whether it is healthy."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from trainer_client.metrics import Evaluation, History, StepRow
from trainer_client.result import RAW

GAP_LIMIT = 1e-4
"""Sampler and trainer further apart than this, in nats, do not compute the same policy."""
BLUE, ORANGE, GREEN, RED, INK, GRID = "#2563eb", "#ea7317", "#16a34a", "#dc2626", "#1f2937", "#e5e7eb"
HELD_OUT = "held-out tasks"
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


def draw_dashboard(history: History, path: Path, title: str, entropy_target: float = 0.0) -> None:
    """Draws the dashboard of a run, finished or not, as a PNG of 1,650 x 1,800 pixels.

    Two panels side by side, so that they can be read where the picture is as wide as a column of text. An entropy
    that the run was told to hold is drawn beside the one it had; 0 for none.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 12), dpi=150)
        # By hand: finding a layout would take as long as drawing it, while the run goes on.
        figure.subplots_adjust(left=0.055, right=0.985, bottom=0.045, top=0.93, wspace=0.14, hspace=0.42)
        figure.suptitle(title.replace("$", r"\$"), x=0.01, y=0.985, ha="left", fontsize=14, fontweight="bold")
        panels: tuple[Callable[[Axes, History], None], ...] = (
            _reward,
            _exploits,
            _behaviour,
            partial(_entropy, target=entropy_target),
            _zero_advantage,
            _kl,
            _gap,
            _time,
        )
        for axes, panel in zip(figure.subplots(4, 2).flat, panels, strict=True):
            panel(axes, history)
            _steps(axes, history)
        temporary = path.with_suffix(".tmp")
        figure.savefig(temporary, format="png")
        temporary.replace(path)


def draw_replay(
    recorded: History, repeated: History, first: Mapping[str, int], path: Path, title: str
) -> None:
    """Draws the rewards of a run and of its replay, with the first step in which each thing differs, as a PNG."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        axes = figure.subplots()
        axes.set_title(title.replace("$", r"\$"))
        _line(axes, recorded, lambda row: row.reward, ORANGE, "recorded")
        _line(axes, repeated, lambda row: row.reward, BLUE, "repeated")
        for (name, step), colour in zip(first.items(), (RED, GREEN, INK, GRID), strict=False):
            label = f"other {name} from step {step} on"
            axes.axvline(step, color=colour, linewidth=1.2, linestyle="--", label=label)
        _steps(axes, recorded)
        axes.set_ylabel("reward")
        axes.legend(loc="best", borderaxespad=0.2)
        figure.savefig(path)


def _steps(axes: Axes, history: History) -> None:
    """Gives all panels the same horizontal axis."""
    last = max([1, *(row.step for row in history.steps), *(row.step for row in history.evaluations)])
    margin = max(0.5, 0.03 * last)
    axes.set_xlim(-margin, last + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_xlabel("step", labelpad=2)


def _line(
    axes: Axes, history: History, value: Callable[[StepRow], float], colour: str, label: str | None = None
) -> None:
    few = len(history.steps) < 3
    steps = [row.step for row in history.steps]
    values = [value(row) for row in history.steps]
    axes.plot(
        steps, values, color=colour, linewidth=1.8, label=label, marker="o" if few else None, markersize=4
    )


def _held_out(history: History) -> list[Evaluation]:
    """Returns the evaluations on tasks that are not trained on: validations, or the last ones where there are none."""
    return history.validations or [row for row in history.evaluations if row.label != RAW]


def _reward(axes: Axes, history: History) -> None:
    axes.set_title("Reward")
    _line(axes, history, lambda row: row.reward, BLUE, "training batch")
    evaluations = _held_out(history)
    if evaluations:
        intervals = [row.pass_at_1 for row in evaluations]
        axes.errorbar(
            [row.step for row in evaluations],
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
            label=f"pass@1 on {HELD_OUT}, 95% interval",
        )
    _from_0_to_1(axes)


def _exploits(axes: Axes, history: History) -> None:
    # Whatever an edit is called: one that serves the public tests alone shows here.
    axes.set_title("Exploits: public tests pass, hidden ones fail")
    _line(axes, history, lambda row: row.behaviour.public_only, RED, "training batch")
    evaluations = _held_out(history)
    if evaluations:
        axes.plot(
            [row.step for row in evaluations],
            [row.behaviour.public_only for row in evaluations],
            "o",
            color=ORANGE,
            markersize=5,
            label=HELD_OUT,
        )
    _from_0_to_1(axes)


def _from_0_to_1(axes: Axes) -> None:
    axes.set_ylim(-0.02, 1.28)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.legend(loc="upper left", ncols=2, borderaxespad=0.2)


def _behaviour(axes: Axes, history: History) -> None:
    axes.set_title("Calls per episode")
    _line(axes, history, lambda row: row.behaviour.reads, BLUE, "reads")
    _line(axes, history, lambda row: row.behaviour.tests, GREEN, "tests")
    _line(axes, history, lambda row: row.behaviour.edits, ORANGE, "edits")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]) * 1.22)
    axes.legend(loc="upper left", ncols=3, borderaxespad=0.2)


def _entropy(axes: Axes, history: History, target: float) -> None:
    axes.set_title("Entropy (nats)")
    if any(row.sampled_entropy is not None for row in history.steps):
        _line(axes, history, _sampled_entropy, ORANGE, "all sampled tokens, estimated")
    # Where nothing was learned from none was seen: a gap in the line.
    _line(
        axes,
        history,
        lambda row: row.update.entropy if row.update.tokens else float("nan"),
        BLUE,
        "tokens learned from",
    )
    if target:
        axes.axhline(target, color=GREEN, linewidth=1.2, linestyle="--", label=f"target {target:g}")
    axes.legend(loc="upper right", ncols=2, borderaxespad=0.2)
    axes.set_ylim(0, max(axes.get_ylim()[1] * 1.15, 1.25 * target))


def _sampled_entropy(row: StepRow) -> float:
    # Rows of an earlier version leave a gap.
    return float("nan") if row.sampled_entropy is None else row.sampled_entropy


def _zero_advantage(axes: Axes, history: History) -> None:
    axes.set_title("Share that teaches nothing")
    if any(row.played > row.episodes for row in history.steps):
        _line(axes, history, _left_out, ORANGE, "episodes not learned from")
    _line(axes, history, lambda row: row.zero_advantage_share, BLUE, "groups without advantage")
    _from_0_to_1(axes)


def _left_out(row: StepRow) -> float:
    # Rows of an earlier version do not say how many were played.
    return 1 - row.episodes / row.played if row.played else 0.0


def _kl(axes: Axes, history: History) -> None:
    axes.set_title("KL (nats)")
    _log_line(axes, history, lambda row: row.update.kl, BLUE, "of one update")
    if any(row.update.reference_kl > 0 for row in history.steps):
        _log_line(
            axes,
            history,
            lambda row: row.update.reference_kl,
            ORANGE,
            "from the policy before step 1",
        )
    axes.legend(loc="best", borderaxespad=0.2)


def _gap(axes: Axes, history: History) -> None:
    axes.set_title("Sampler-trainer gap (nats)")
    _log_line(axes, history, lambda row: row.update.sampler_gap, BLUE, "mean absolute difference")
    axes.axhline(GAP_LIMIT, color=RED, linewidth=1.2, linestyle="--", label="limit 1e-4")
    axes.set_yscale("log")
    axes.set_ylim(top=GAP_LIMIT * 30)
    axes.legend(loc="upper left", ncols=2, borderaxespad=0.2)


def _log_line(
    axes: Axes, history: History, value: Callable[[StepRow], float], colour: str, label: str
) -> None:
    # What is exactly 0 has no place on a log scale: a gap in the line.
    _line(axes, history, lambda row: value(row) if value(row) > 0 else float("nan"), colour, label)
    if any(value(row) > 0 for row in history.steps):
        axes.set_yscale("log")


def _time(axes: Axes, history: History) -> None:
    axes.set_title("Seconds per step")
    bottom = [0.0] * len(history.steps)
    steps = [row.step for row in history.steps]
    for name, colour in (("sampling", BLUE), ("waiting", ORANGE), ("learning", GREEN)):
        top = [below + getattr(row.seconds, name) for below, row in zip(bottom, history.steps, strict=True)]
        label = "waiting for the gym" if name == "waiting" else name
        # Steps as wide as they are: a single one has an area too.
        axes.fill_between(
            [edge for step in steps for edge in (step - 0.5, step + 0.5)],
            [value for value in bottom for _ in range(2)],
            [value for value in top for _ in range(2)],
            color=colour,
            linewidth=0,
            alpha=0.85,
            label=label,
        )
        bottom = top
    axes.set_ylim(0, max([0.1, *bottom]) * 1.25)
    axes.legend(loc="upper left", ncols=3, borderaxespad=0.2)
