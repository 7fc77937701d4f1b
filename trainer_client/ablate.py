"""Compares settings of a run: `python -m trainer_client.ablate --arms default,kl_k3_0.05 --seeds 0,1,2`.

The runs are processes of their own (`trainer_client.side_by_side`), as many at a time as there are cores and as the gym
has room for: a run repeats bit for bit, whatever runs beside it. The same command again, or --resume, goes on: finished
runs stay, the others are gone on with.

A run that fails does not stop the others; what it said last is shown in the end. All processes hold a lock on
ablation.json, so that no two work on one folder, not even where some outlive an ablation that was killed.
"""

import argparse
import asyncio
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from trainer_client.ablation import (
    DEFAULTS,
    NAMED_ARMS,
    TABLE_HEAD,
    TABLE_PARTS,
    Ablation,
    ArmResult,
    plan,
    read_ablation,
    seed_run,
    table_rows,
    write_ablation,
    write_results,
)
from trainer_client.config import RunConfig
from trainer_client.console import WIDTH_WITHOUT_TERMINAL, RunConsole
from trainer_client.distributed import ALONE
from trainer_client.exit_codes import FAILED, FINISHED, INTERRUPTED, exit_code
from trainer_client.flags import parse_flags
from trainer_client.forest import draw_forest
from trainer_client.gym import GymClient
from trainer_client.metrics import read_history
from trainer_client.run_folder import RUNS, RunFolder, name_run
from trainer_client.session import find_start
from trainer_client.side_by_side import Runs

ARMS = ",".join(NAMED_ARMS)
SEEDS = "0,1,2"
LOG_LINES = 15
"""Lines of a failed run's log that are shown."""


@exit_code()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs an ablation and returns its exit code."""
    given, settings = parse_arguments(argv)
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=WIDTH_WITHOUT_TERMINAL)
    disable_progress_bar()
    ablation = find_ablation(given, settings)
    folder = RUNS / ablation.name
    jobs = 1
    if any(not is_finished(folder, config) for config in ablation.configs):
        room = asyncio.run(prepare(ablation.configs, console))
        jobs = choose_jobs(ablation, given.jobs, room)
    if not ablation.gym_share:
        ablation = replace(ablation, gym_share=jobs)
        write_ablation(folder, ablation)
    with lock(folder) as locked:
        runs = Runs(
            folder,
            [config for config in ablation.configs if not is_finished(folder, config)],
            locked,
            console,
        )
        console.print(Text(describe(ablation, folder, len(runs.configs), jobs)))
        asyncio.run(runs.play(jobs))
        if unfinished := [config for config in runs.configs if not is_finished(folder, config)]:
            tell_unfinished(ablation, runs, unfinished)
            return INTERRUPTED if runs.stopping else FAILED
        report(ablation, folder, console)
        return FINISHED


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Returns the flags of the ablation, None for those that were not given, and the settings of all runs."""
    named = "\n".join(
        f"  {name}: {' '.join(f'{field}={value}' for field, value in changes.items()) or 'nothing'}"
        for name, changes in NAMED_ARMS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.ablate",
        description="Runs settings that differ in one field, with equal seeds, and compares them on held-out tasks.\n"
        "Every other flag of python -m trainer_client.run, such as --toolset coding, holds for all arms.",
        epilog=f"arms with a name, and what they change:\n{named}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--name", help="name of the ablation and of its folder below runs/; made up when left out"
    )
    parser.add_argument(
        "--arms",
        help="arms with commas between them, each a name or one FIELD=VALUE, such as turn_cost=0.02; the first is "
        f"what the others are compared with (default: {ARMS})",
    )
    parser.add_argument("--seeds", help=f"seeds with commas between them (default: {SEEDS})")
    parser.add_argument(
        "--jobs", type=int, help="runs at a time (default: one a core, as far as the gym has room for them)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the ablation --name")
    for name, value in DEFAULTS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(
            flag, type=int, help=f"of every run (default: {value})", default=argparse.SUPPRESS
        )
    given, others = parser.parse_known_args(argv)
    if given.resume and not given.name:
        parser.error("--resume needs --name, the ablation to go on with")
    if given.jobs is not None and given.jobs < 1:
        parser.error(f"--jobs is {given.jobs}: set it to 1 or more")
    settings, _ = parse_flags(others)
    if settings.pop("preset", ""):
        # What it sets holds, except for what only runs have that choose a checkpoint.
        settings.pop("validation_episodes", None)
    return given, settings | {name: vars(given)[name] for name in DEFAULTS if name in given}


def find_ablation(given: argparse.Namespace, settings: dict[str, Any]) -> Ablation:
    """Returns the ablation that is asked for: a new one, whose share of the gym is still 0, or one to go on with.

    Raises:
        ValueError: Arms, seeds or settings make no ablation, or are not those of the one of that name.
        FileNotFoundError: There is none to go on with.
        FileExistsError: There is a run of that name.
    """
    folder = RUNS / (given.name or "")
    stored = read_ablation(folder) if given.resume or (given.name and is_ablation(folder)) else None
    # What is not said is what it was when going on is asked for, else what it is by default.
    known = stored if given.resume else None
    arms = (
        given.arms.split(",")
        if given.arms
        else [arm.name for arm in known.arms]
        if known
        else ARMS.split(",")
    )
    seeds = _numbers(given.seeds) if given.seeds else known.seeds if known else _numbers(SEEDS)
    asked = plan(given.name or "", arms, seeds, (known.settings if known else {}) | settings)
    if stored is None:
        return replace(asked, name=name_run(RunConfig(name=asked.name)).name)
    asked = replace(asked, gym_share=stored.gym_share)
    if asked != stored:
        raise ValueError(
            f"the ablation {stored.name} was made with {_difference(stored, asked)}: go on with it by --resume --name "
            f"{stored.name} and without those flags, or choose another --name"
        )
    return stored


def is_ablation(folder: Path) -> bool:
    """Tells whether a folder is that of an ablation."""
    return (folder / "ablation.json").exists()


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Tells whether a run of the ablation in this folder has its result."""
    return (folder / RUNS / config.name / "result.json").exists()


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds {text}: give whole numbers with commas between them") from None


def _difference(stored: Ablation, asked: Ablation) -> str:
    def described(ablation: Ablation) -> dict[str, str]:
        arms = ",".join(arm.name for arm in ablation.arms)
        seeds = ",".join(map(str, ablation.seeds))
        return {"arms": arms, "seeds": seeds, **{key: str(value) for key, value in ablation.settings.items()}}

    old, new = described(stored), described(asked)
    return ", ".join(
        f"{key} {old.get(key, 'left out')}, not {new.get(key, 'left out')}"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )


async def prepare(configs: Sequence[RunConfig], console: Console) -> int:
    """Has every starting policy made or found, and returns how many runs the gym has room for at a time.

    Before the runs, since else they would all make the same one, each with the whole gym to itself.
    """
    say = RunConsole(0, console)
    with say.live():
        say.doing("connecting to the gym")
        async with GymClient.connect(on_notice=say.notice) as gym:
            await gym.list_tasks(configs[0].suite)
            for config in {each.model: each for each in configs}.values():
                await find_start(config, gym, say, ALONE)
            capacity = (await gym.get_info()).capacity
    return capacity // max(config.cohort_size for config in configs)


def choose_jobs(ablation: Ablation, asked: int | None, room: int) -> int:
    """Returns how many runs to play at a time.

    Raises ValueError where so many were asked for that their shares of the gym do not hold a cohort each.
    """
    # The share of the gym is part of runs that have begun.
    most = ablation.gym_share or max(room, 1)
    if asked and asked > most:
        raise ValueError(
            f"--jobs is {asked}: the ablation {ablation.name} was begun with {most} at a time, which share the gym; "
            "leave --jobs out"
            if ablation.gym_share
            else f"--jobs is {asked}: the gym has room for {most} runs at a time; start it with more --capacity, or "
            "set --jobs or --cohort-size to less"
        )
    cores = (os.cpu_count() or 1) // max(config.threads for config in ablation.configs)
    return asked or max(1, min(cores, most, len(ablation.configs)))


@contextmanager
def lock(folder: Path) -> Iterator[int]:
    """Holds the lock of an ablation; gives its descriptor. Raises BlockingIOError while another process has it."""
    with (folder / "ablation.json").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"{folder}: runs of this ablation are going on; wait for them") from None
        yield file.fileno()


def describe(ablation: Ablation, folder: Path, unfinished: int, jobs: int) -> str:
    """Returns what is going to happen, in a line."""
    total = len(ablation.configs)
    done = f", {total - unfinished} of them finished" if unfinished < total else ""
    seeds = f"{len(ablation.seeds)} seed{'s' * (len(ablation.seeds) > 1)}"
    return (
        f"{folder}: {len(ablation.arms)} arms x {seeds}, {total} runs of "
        f"{ablation.settings['steps']} steps{done}, {jobs} at a time"
    )


def tell_unfinished(ablation: Ablation, runs: Runs, unfinished: Sequence[RunConfig]) -> None:
    """Prints what runs that failed said last, and how to go on."""
    for config in () if runs.stopping else unfinished:
        log = runs.log_of(config)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        runs.console.print(Text(f"{config.name} failed; the end of {log}:", style="yellow"))
        runs.console.print(Text("\n".join(f"    {line}" for line in lines), style="dim"))
    runs.console.print(f"Unfinished  {len(unfinished)} of {len(ablation.configs)} runs")
    runs.console.print(Text(f"Go on with  python -m trainer_client.ablate --resume --name {ablation.name}"))


def report(ablation: Ablation, folder: Path, console: Console) -> None:
    """Writes and prints what came of an ablation that is finished."""
    results = read_arms(ablation, folder)
    write_results(folder, ablation, results)
    config, seeds = ablation.configs[0], ", ".join(map(str, ablation.seeds))
    title = f"{ablation.name}: {config.toolset}, {config.suite}, {config.steps} steps, seeds {seeds}"
    draw_forest(results, folder / "forest.png", title)
    rows = table_rows(results)
    for columns in TABLE_PARTS:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(TABLE_HEAD[column], no_wrap=column == 0)
        for row in rows:
            table.add_row(*(Text(row[column]) for column in columns))
        console.print()
        console.print(table)
    console.print()
    console.print(Text(f"Written     {folder}/ result.json, table.md, forest.png"))


def read_arms(ablation: Ablation, folder: Path) -> list[ArmResult]:
    """Reads the arms off the folders of their runs."""

    def read(config: RunConfig) -> Any:
        run = RunFolder(folder / RUNS / config.name)
        result = json.loads((run.path / "result.json").read_text(encoding="utf-8"))
        return seed_run(config.seed, read_history(run.metrics), result["weights_sha256"])

    return [
        ArmResult(arm.name, tuple(read(ablation.config(arm, seed)) for seed in ablation.seeds))
        for arm in ablation.arms
    ]


if __name__ == "__main__":
    sys.exit(main())
