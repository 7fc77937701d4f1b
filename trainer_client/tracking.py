"""Where rows of metrics go beside the run folder: TensorBoard, or trackio. Both are extras, and both stay local.

A log holds what the history of its run holds. When a run is gone on with, its log is made anew from the history, so
that no step is there twice, whatever the break had left.
"""

import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer_client.config import RunConfig
from trainer_client.metrics import ColdStart, Evaluation, Row, StepRow

PROJECT = "coding-gym"
"""Under which trackio shows the runs together."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """An open log."""

    write: Callable[[Mapping[str, float], int], object]
    """Writes the figures of a step."""
    close: Callable[[], object]
    shown_by: str
    """The command that shows it."""

    def log(self, row: Row) -> None:
        """Writes what is a number in the row of a step or of an evaluation."""
        if not isinstance(row, ColdStart):
            self.write(scalars(row), row.step)


class SteadyLog:
    """A log that stops nothing: where it cannot be written that is said once, and the run goes on without it."""

    def __init__(self, tracker: Tracker, on_error: Callable[[str], None]) -> None:
        """Is given the open log, and what is told when it failed."""
        self._tracker = tracker
        self._on_error = on_error
        self._failed = False

    def log(self, row: Row) -> None:
        """Writes a row."""
        self._try(lambda: self._tracker.log(row))

    def close(self) -> None:
        """Writes what is left and closes the log."""
        self._try(self._tracker.close)

    def _try(self, act: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            act()
        except Exception as error:
            self._failed = True
            self._on_error(
                f"the log that --track asks for cannot be written any more: {error}. The run goes on without it"
            )


def require(name: str) -> None:
    """Raises ModuleNotFoundError that names the extra when what is asked for is not installed."""
    if name and find_spec(name) is None:
        raise ModuleNotFoundError(
            f"track is {name}, and that is not installed: pip install '.[{name}]', or leave out --track"
        )


def open_tracker(folder: Path, config: RunConfig, rows: Sequence[Row]) -> Tracker | None:
    """Opens the log that a run's settings ask for, with the rows that there are already; None where none is."""
    if not config.track:
        return None
    tracker = {"tensorboard": _tensorboard, "trackio": _trackio}[config.track](folder / config.track, config)
    for row in rows:
        tracker.log(row)
    return tracker


def scalars(row: StepRow | Evaluation) -> dict[str, float]:
    """Returns the numbers of a row by name, those of its parts as update/entropy.

    Of an evaluation it is the pass rate with its interval, under the split and occasion that it is labelled with.
    """
    if isinstance(row, Evaluation):
        name = row.label.removesuffix(f"/step-{row.step}")
        interval = row.pass_at_1
        return {
            f"{name}/pass_at_1": interval.estimate,
            f"{name}/low": interval.low,
            f"{name}/high": interval.high,
            f"{name}/public_only": row.behaviour.public_only,
        }
    values = asdict(row)
    if not row.update.tokens:
        # Nothing was learned from, so nothing was seen: an entropy of 0 would be a lie.
        del values["update"]
    return {name: value for name, value in _flat(values, "") if name != "step"}


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield prefix + name, float(value)


def _tensorboard(folder: Path, config: RunConfig) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    # Whoever reads the folder drops what was written before this, from step 0 on.
    writer = SummaryWriter(str(folder), purge_step=0, flush_secs=10)

    def write(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return Tracker(write, writer.close, f"tensorboard --logdir {folder.parent.parent}")


def _trackio(folder: Path, config: RunConfig) -> Tracker:
    shutil.rmtree(folder, ignore_errors=True)
    # Read when it is imported; the others would send the log elsewhere.
    os.environ["TRACKIO_DIR"] = str(folder.absolute())
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        os.environ.pop(name, None)
    import trackio
    from huggingface_hub import constants

    online = constants.HF_HUB_OFFLINE
    try:
        # It would ask the hub for the name of the user whose token lies on this machine.
        constants.HF_HUB_OFFLINE = True
        # What it says is meant for a terminal that nobody else writes to.
        with redirect_stdout(io.StringIO()):
            run = trackio.init(
                PROJECT,
                name=config.name,
                config=asdict(config),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
    finally:
        constants.HF_HUB_OFFLINE = online

    def close() -> None:
        with redirect_stdout(io.StringIO()):
            trackio.finish()

    return Tracker(
        lambda figures, step: run.log(dict(figures), step=step),
        close,
        f"TRACKIO_DIR={folder} trackio show --project {PROJECT}",
    )
