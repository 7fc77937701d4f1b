"""Repeats a run from its record: `python -m trainer_client.replay RUN`.

The run is made once more in a folder of its own, runs/RUN-replay, by the code that made it, and each step is compared
with the row that was written then: which episodes were played, their tokens, and the weights that came of them. Where
one of them differs the replay goes on, so that it shows how far the two runs part. Only what does not touch the
weights is left out: validations, tests and the report.

What enters the numbers beside the settings (versions, threads, the processor's kernels, the gym's image) is compared
first. Another number of threads changes the order of sums: --threads shows what comes of that.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.dashboard import draw_replay
from trainer_client.distributed import ALONE
from trainer_client.exit_codes import INTERRUPTED, exit_code
from trainer_client.gym import GymClient
from trainer_client.metrics import ColdStart, Evaluation, History, Row, StepRow, read_history
from trainer_client.run import learn, start_cold
from trainer_client.run_folder import RUNS, RunFolder, changes, find_run, read_settings
from trainer_client.session import make_repeatable, prepare

SAME, DIFFERENT = 0, 3
"""Exit codes beside those of a run."""
LAST_STEPS = 5
"""Over so many steps the rewards of both runs are told in the end."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run as it was written down."""

    folder: RunFolder
    config: RunConfig
    facts: dict[str, str]
    history: History

    @property
    def unbroken_steps(self) -> int:
        """The steps from 1 on up to the first one without a row."""
        steps = self.history.steps
        return next((place for place, row in enumerate(steps) if row.step != place + 1), len(steps))


@dataclass(slots=True)
class Comparison:
    """A record beside the run that repeats it, step by step."""

    recorded: History
    on_difference: Callable[[str], None]
    first: dict[str, int] = field(default_factory=dict)
    """The first step in which they differ, by what differs."""
    compared: dict[str, None] = field(default_factory=dict)
    """The names of what was compared, in order."""
    repeated: History = field(default_factory=History)

    def see(self, row: Row) -> None:
        """Compares a row with the one that was recorded."""
        self.repeated.add(row)
        match row:
            case ColdStart():
                before = self.recorded.cold_start
                # One that is not over was not recorded.
                self._compare(0, "losses of the cold start", before and before.losses, row.losses)
            case StepRow():
                then = next(each for each in self.recorded.steps if each.step == row.step)
                for name, value in parts(then, like=then).items():
                    self._compare(row.step, name, value, parts(row, like=then)[name])
            case Evaluation():
                pass

    def _compare(self, step: int, name: str, then: object, now: object) -> None:
        self.compared[name] = None
        if then != now and name not in self.first:
            self.first[name] = step
            self.on_difference(f"step {step}: other {name} than recorded")

    @property
    def parted(self) -> int | None:
        """The first step in which anything differs; None where nothing does."""
        return min(self.first.values(), default=None)


def parts(row: StepRow, like: StepRow) -> dict[str, object]:
    """Returns what is compared of a step, by name: its fingerprint, or figures where `like` has none."""
    if like.fingerprint and row.fingerprint:
        return {
            "groups": row.fingerprint.groups,
            "tokens": row.fingerprint.tokens,
            "weights": row.fingerprint.weights,
        }
    return {"reward": row.reward, "loss": row.update.loss}


@exit_code()
def main(argv: Sequence[str] | None = None) -> int:
    """Repeats a run and returns the exit code: 0 where everything is the same, 3 where something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.replay",
        description="Repeats a run from its record and reports the first step in which episodes, tokens or weights "
        "differ. Exit code 0: nothing differs; 3: something does.",
    )
    parser.add_argument("run", metavar="RUN", help="name of the run, or its folder")
    parser.add_argument("--threads", type=int, help="CPU threads, where other than the run had")
    parser.add_argument("--steps", type=int, help="steps to repeat (default: all that are recorded)")
    arguments = parser.parse_args(argv)
    disable_progress_bar()
    recorded = open_record(arguments.run)
    config = settings_of(recorded, arguments.threads, arguments.steps)
    make_repeatable(config)
    return asyncio.run(replay(recorded, config, RunConsole(config.steps)))


def open_record(run: str) -> Recorded:
    """Reads what a run has written down. Raises FileNotFoundError where there is no such run."""
    folder = find_run(run)
    return Recorded(folder, *read_settings(folder), read_history(folder.metrics))


def settings_of(recorded: Recorded, threads: int | None, steps: int | None) -> RunConfig:
    """Returns the settings of the replay: those of the run, with a name that is free, and without validations.

    Raises ValueError where the record has not so many steps.
    """
    there = recorded.unbroken_steps
    if not there:
        raise ValueError(
            f"{recorded.folder.path} has no step that could be repeated: there is no row of step 1"
        )
    if steps is not None and not 1 <= steps <= there:
        raise ValueError(f"steps is {steps}: set it between 1 and {there}, the steps that are recorded")
    names = (f"{recorded.config.name}-replay{'' if n == 1 else f'-{n}'}" for n in count(1))
    return replace(
        recorded.config,
        name=next(name for name in names if not (RUNS / name).exists()),
        threads=recorded.config.threads if threads is None else threads,
        steps=there if steps is None else steps,
        report="last",
        validation_episodes=RunConfig().validation_episodes,
        track="",
    )


async def replay(recorded: Recorded, config: RunConfig, console: RunConsole) -> int:
    """Makes the run once more and tells what differs; returns the exit code."""
    comparison = Comparison(recorded.history, console.notice)
    with console.live():
        console.doing("connecting to the gym")
        async with GymClient.connect(on_notice=console.notice) as gym:
            session = await prepare(config, False, gym, console, ALONE)
            console.say(
                f"Repeats {recorded.folder.path}: {config.steps} of the {len(recorded.history.steps)} steps recorded"
            )
            for sentence in (*changes(recorded.facts, session.record), *obstacles(recorded)):
                console.notice(sentence)
            session = replace(session, watchers=[comparison.see])
            try:
                await start_cold(session)
                await learn(session)
            except asyncio.CancelledError:
                console.notice("stopped")
                return INTERRUPTED
            finally:
                if session.vllm:
                    session.vllm.close()
                # The weights of a step are told by its row.
                shutil.rmtree(session.folder.checkpoints, ignore_errors=True)
                if comparison.repeated.steps:
                    conclude(comparison, session.folder.path, console)
                elif not comparison.repeated.rows:
                    # Nothing has come of it: the name is free again.
                    shutil.rmtree(session.folder.path, ignore_errors=True)
    return DIFFERENT if comparison.first else SAME


def obstacles(recorded: Recorded) -> list[str]:
    """Returns a sentence for each reason why the run cannot be repeated, or not be compared, to the last bit."""
    config, steps, unbroken = recorded.config, recorded.history.steps, recorded.unbroken_steps
    lost = [str(row.step) for row in steps if row.lost]
    sentences = {
        "the run was sampled by vllm: it cannot be repeated to the last bit": config.sampler == "vllm",
        "the run was sampled with continuous_batching: it cannot be repeated to the last bit": (
            config.continuous_batching
        ),
        f"the run was made by {recorded.facts.get('processes')} processes, which add up in another order than one": (
            recorded.facts.get("processes", "1") != "1"
        ),
        f"the gym lost episodes in step {', '.join(lost)}: other tokens from there on": bool(lost),
        f"the record has no row of step {unbroken + 1}, and rows after it: it is repeated up to step {unbroken}": (
            unbroken < len(steps)
        ),
        "rows without fingerprints, of an earlier version: reward and loss are compared in their place": any(
            row.fingerprint is None for row in steps
        ),
    }
    return [sentence for sentence, holds in sentences.items() if holds]


def conclude(comparison: Comparison, folder: Path, console: RunConsole) -> None:
    """Prints where the two runs part and how far they came, and draws their rewards."""
    repeated = comparison.repeated.steps
    recorded = comparison.recorded.steps[: len(repeated)]
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("compared")
    table.add_column("first step that differs")
    for name in comparison.compared:
        table.add_row(name, str(comparison.first.get(name, "none")))
    console.table(table)
    console.say(
        f"Reward      {mean_reward(recorded):.3f} recorded, {mean_reward(repeated):.3f} repeated, mean of the last "
        f"{min(LAST_STEPS, len(repeated))} steps"
    )
    outcome = "nothing differs" if not comparison.first else f"the runs part in step {comparison.parted}"
    console.say(f"Outcome     {len(repeated)} steps: {outcome}")
    picture = folder / "replay.png"
    draw_replay(
        History(recorded), comparison.repeated, comparison.first, picture, f"{folder.name}: {outcome}"
    )
    console.say(f"Picture     {picture}")


def mean_reward(rows: Sequence[StepRow]) -> float:
    """Returns the mean reward of the last steps."""
    last = [row.reward for row in rows[-LAST_STEPS:]]
    return sum(last) / len(last)


if __name__ == "__main__":
    sys.exit(main())
