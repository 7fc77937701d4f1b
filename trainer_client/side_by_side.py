"""The runs of an ablation, as processes side by side.

They are out of reach of the terminal's Ctrl-C, which is handed to them once, so that each saves its last finished step.
All of them hold the lock of their ablation.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from trainer_client.config import RunConfig
from trainer_client.console import clock
from trainer_client.exit_codes import FINISHED
from trainer_client.metrics import read_history
from trainer_client.run_folder import RUNS, RunFolder

LOOK_SECONDS = 0.5
"""How often the rows of the runs are looked at."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ways to be told to stop: all of them mean that the runs save and end."""


@dataclass(slots=True)
class Runs:
    """The runs of an ablation that are not finished, as processes."""

    folder: Path
    configs: Sequence[RunConfig]
    locked: int
    """The descriptor of the lock, which the processes hold too."""
    console: Console
    live: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    """The processes that there are, by the name of the run."""
    stopping: bool = False

    async def play(self, jobs: int) -> None:
        """Plays them to their ends, so many at a time; once it was told to stop, no other one begins."""
        slots = asyncio.Semaphore(jobs)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop)
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.gather(*(self._play_one(config, slots) for config in self.configs))
        finally:
            watching.cancel()
            if left := list(self.live.values()):
                # Something went wrong here: nothing is to go on unwatched.
                self.stop()
                await asyncio.gather(*(process.wait() for process in left))
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Has every process save its last finished step and end; the second time, give that up."""
        self.stopping = True
        for process in self.live.values():
            process.send_signal(signal.SIGINT)

    def log_of(self, config: RunConfig) -> Path:
        """Returns the file with what a run says."""
        return self.folder / "logs" / f"{config.name}.log"

    async def _play_one(self, config: RunConfig, slots: asyncio.Semaphore) -> None:
        async with slots:
            if self.stopping:
                return
            started = monotonic()
            with self.log_of(config).open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "trainer_client.run", *self._flags(config)),
                    cwd=self.folder,
                    env=_environment(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(self.locked,),
                )
            self.live[config.name] = process
            self.console.print(Text(f"{config.name}: begins", style="dim"))
            if self.stopping:
                process.send_signal(signal.SIGINT)
            code = await process.wait()
            del self.live[config.name]
            if code == FINISHED:
                self.console.print(Text(f"{config.name}: finished, {clock(monotonic() - started)}"))
            elif not self.stopping:
                self.console.print(Text(f"! {config.name}: failed with status {code}", style="yellow"))

    def _flags(self, config: RunConfig) -> list[str]:
        if (self.folder / RUNS / config.name / "config.json").exists():
            return ["--resume", f"--name={config.name}"]
        given = [each for each in fields(RunConfig) if getattr(config, each.name) != each.default]
        return [_flag(each.name, getattr(config, each.name)) for each in given]

    async def _watch(self) -> None:
        """Shows, in a terminal, how far the runs are."""
        if not self.console.is_terminal:
            return
        started = monotonic()
        # The steps, and in the end two evaluations, with a cold start three.
        steps = {config.name: config.steps for config in self.configs}
        totals = {config.name: config.steps + (3 if config.demonstrations else 2) for config in self.configs}
        before = sum(map(self._rows, totals))
        bars: dict[str, TaskID] = {}
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[state]}"),
            console=self.console,
            transient=True,
        ) as progress:
            overall = progress.add_task("all runs", total=sum(totals.values()), state="")
            while True:
                rows = {name: self._rows(name) for name in totals}
                for name in bars.keys() - self.live.keys():
                    progress.remove_task(bars.pop(name))
                for name in self.live:
                    state = (
                        f"step {rows[name]} of {steps[name]}"
                        if rows[name] < steps[name]
                        else "held-out tasks"
                    )
                    bar = bars.get(name) or bars.setdefault(
                        name, progress.add_task(name, total=totals[name], state="")
                    )
                    progress.update(bar, completed=rows[name], state=state)
                done, total = sum(rows.values()), sum(totals.values())
                left = (monotonic() - started) / max(done - before, 1) * (total - done)
                state = f"{clock(left)} left" if done > before else ""
                if self.stopping:
                    state = "stopping: every run saves its last finished step; Ctrl-C again gives that up"
                progress.update(overall, completed=done, state=state)
                await asyncio.sleep(LOOK_SECONDS)

    def _rows(self, name: str) -> int:
        """Counts the steps and evaluations that a run has written."""
        history = read_history(RunFolder(self.folder / RUNS / name).metrics)
        return len(history.steps) + len(history.evaluations)


def _environment() -> dict[str, str]:
    """Returns the environment of the runs, which start in another folder and are to be of this code."""
    places = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    if state := os.environ.get("GYM_STATE_DIR"):
        environment["GYM_STATE_DIR"] = str(Path(state).resolve())
    return environment


def _flag(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"
