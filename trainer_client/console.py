"""What a run says in the terminal: a line per step, a line per evaluation, and a closing summary.

In a terminal a last, moving line tells what is going on, with a bar and the time that is left where it is known how
much there is to do. Without one (a file, a pipe) there are plain lines only.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from trainer_client.behaviour import Behaviour
from trainer_client.dashboard import GAP_LIMIT
from trainer_client.metrics import Evaluation, Seconds, StepRow
from trainer_client.result import Result
from trainer_client.supervised import SupervisedStep

WIDTH_WITHOUT_TERMINAL = 120
REMARKABLE_PUBLIC_ONLY = 0.05
"""A share of episodes above this that pass the public tests alone is said in the line of a step."""


class RunConsole:
    """Prints the progress of one run."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        """Prints for a run of so many steps, to stdout unless another console is given."""
        if console is None:
            console = Console(highlight=False, soft_wrap=True)
            if not console.is_terminal:
                console = Console(highlight=False, soft_wrap=True, width=WIDTH_WITHOUT_TERMINAL)
        self._console = console
        self._steps = steps
        self._started = monotonic()
        self._first_step: int | None = None
        self._status: Status | None = None
        self._work = (0, 0, monotonic())
        """How much the work under way is in all, how much was done when it began, and when that was."""
        self._done = 0
        """How much of it was done when that was last said."""

    @contextmanager
    def live(self) -> Iterator[None]:
        """Shows the moving line while the block runs, where there is a terminal."""
        with self._console.status("starting", spinner_style="blue") as self._status:
            yield
        self._status = None

    def doing(self, what: str, done: int = 0, total: int = 0) -> None:
        """Says what is going on now, on the moving line, and how much of it is done; of 0 it is not known."""
        if self._status is None:
            return
        if not total:
            self._status.update(Text(what, style="dim"))
            return
        if self._work[0] != total or done < self._done:
            self._work = (total, done, monotonic())
        self._done = done
        _, begun_at, begun = self._work
        seconds = (monotonic() - begun) / (done - begun_at) * (total - done) if done > begun_at else None
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            Text(what, style="dim"),
            ProgressBar(total=total, completed=done, width=24),
            Text("" if seconds is None else f"{clock(seconds)} left", style="dim"),
        )
        self._status.update(line)

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(Text(text))

    def table(self, table: Table) -> None:
        """Prints a table, with a line before it."""
        self._console.print()
        self._console.print(table)

    def notice(self, text: str) -> None:
        """Prints a line that must not be overlooked."""
        self._console.print(Text(f"! {text}", style="yellow"))

    def demonstrations(self, kept: int, rejected: Mapping[str, int]) -> None:
        """Says how many demonstrations are learned from, and what became of the others."""
        others = "".join(f", {count} {status}" for status, count in rejected.items())
        self._console.print(Text(f"Cold start: {kept} demonstrations resolved{others}"))

    def cold_step(self, row: SupervisedStep, steps: int) -> None:
        """Shows a step of the cold start on the moving line, and prints the line of every tenth of them."""
        text = f"cold start {row.step}/{steps}  loss {row.loss:.3f}  {row.tokens} tokens  {row.seconds:.1f} s"
        self.doing(text, row.step, steps)
        if row.step % max(1, steps // 10) == 0 or row.step in (1, steps):
            self._console.print(Text(text))

    def step(self, row: StepRow) -> None:
        """Prints the line of a step."""
        if self._first_step is None:
            self._first_step = row.step - 1
            self._started = monotonic() - row.seconds.total
        done = row.step - self._first_step
        left = (monotonic() - self._started) / done * (self._steps - row.step)
        seconds = row.seconds
        line = Text()
        line.append(f"{row.step:>{len(str(self._steps))}}/{self._steps}", style="bold")
        line.append("  reward ")
        line.append(f"{row.reward:.2f}", style="bold blue")
        line.append(f"  pass {row.pass_rate:.2f}")
        line.append(f"  entropy {row.update.entropy:.2f}" if row.update.tokens else "  entropy -")
        line.append(
            f"  {seconds.total:4.1f} s (sampling {seconds.sampling:.1f}, learning {seconds.learning:.1f}, "
            f"waiting {seconds.waiting:.1f})  {clock(left)} left",
            style="dim",
        )
        if row.behaviour.public_only > REMARKABLE_PUBLIC_ONLY:
            line.append(f"  public only {row.behaviour.public_only:.0%}", style="yellow")
        if row.update.sampler_gap > GAP_LIMIT:
            line.append(f"  gap {row.update.sampler_gap:.0e}", style="yellow")
        if not row.episodes:
            line.append("  no episode to learn from: see --mask-truncated, --refill-rounds", style="yellow")
        if row.lost:
            line.append(f"  {row.lost} episodes lost", style="yellow")
        if row.replayed:
            line.append(f"  {row.replayed} cohorts played again", style="yellow")
        self._console.print(line)

    def evaluation(self, row: Evaluation) -> None:
        """Prints the line of an evaluation."""
        lost = f", {row.lost} episodes lost" if row.lost else ""
        line = Text(f"{'':>{2 * len(str(self._steps)) + 1}}  {row.label}: pass@1 ")
        line.append(str(row.pass_at_1), style="bold dark_orange3")
        line.append(f" over {len(row.tasks)} tasks, {row.seconds.total:.1f} s{lost}", style="dim")
        self._console.print(line)

    def summary(self, result: Result, seconds: Seconds, report: Path) -> None:
        """Prints what the run found, where its time went and where its report is."""
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
        table.add_column("test tasks")
        table.add_column("pass@1 [95%]")
        table.add_column("pass@8")
        for name, evaluation in result.policies:
            table.add_row(name, str(evaluation.pass_at_1), percentage_or_dash(evaluation.pass_at(8)))
        for name, difference in result.differences:
            table.add_row(f"difference, paired: {name}", difference.signed, "", style="bold")
        calls = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
        for title in ("calls per episode", "turns", *COUNTED, "failed by kind"):
            calls.add_column(title)
        for name, evaluation in result.policies:
            seen = evaluation.behaviour
            calls.add_row(name, f"{seen.turns:.2f}", *counted(seen), by_kind(seen))
        self._console.print()
        self._console.print(
            f"Chosen on validation: step {result.step}, pass@1 {result.chosen.pass_at_1}"
            if result.chosen
            else f"Reported: the last step, {result.step}, on validation and test tasks"
        )
        self._console.print(table)
        self._console.print(calls)
        self._console.print(f"Time        {time_split(seconds)}")
        self._console.print(f"Weights     sha256 {result.weights_sha256}")
        self._console.print(f"Report      {report}")


def clock(seconds: float) -> str:
    """Returns the form 3:07 or 1:03:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def percentage_or_dash(value: float | None) -> str:
    """Returns a share with two decimals, a dash for one that could not be estimated."""
    return "-" if value is None else f"{value:.2f}"


COUNTED = ("reads", "edits", "tests", "malformed", "failed")
"""What the tables show of a behaviour, by the names of its fields."""


def counted(behaviour: Behaviour) -> list[str]:
    """Returns the figures of COUNTED, with two decimals."""
    return [f"{getattr(behaviour, name):.2f}" for name in COUNTED]


def by_kind(behaviour: Behaviour) -> str:
    """Returns the failed calls by kind in the form not_read 0.31, malformed_call 0.02; a dash without any."""
    return ", ".join(f"{kind} {count:.2f}" for kind, count in behaviour.failures.items()) or "-"


def time_split(seconds: Seconds) -> str:
    """Returns the total and its parts, with the share of each."""
    total = seconds.total or 1.0
    parts: Sequence[tuple[str, float]] = (
        ("sampling", seconds.sampling),
        ("learning", seconds.learning),
        ("waiting for the gym", seconds.waiting),
        ("evaluation", seconds.evaluation),
    )
    listed = ", ".join(f"{name} {value:.0f} s ({value / total:.0%})" for name, value in parts)
    return f"{clock(seconds.total)}: {listed}"
