"""The folder of a run, runs/<name>/, and what is written down when it is made.

config.json     settings, and the facts beside them that enter the numbers
metrics.jsonl   one row per step and per evaluation
episodes.jsonl  one row per graded episode: its verdict, and the hash that closes the gym's record of it
checkpoints/    model folders
stopping.json   the stopping rules, written down before step 1
transcripts.json  an episode of each kind of failure on the test tasks, as text
dashboard.png, report.html, result.json
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from trainer_client.config import RunConfig, resumed
from trainer_client.result import Result
from trainer_client.trajectory import Trajectory

RUNS = Path("runs")
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scipy")
ADJECTIVES = ("amber", "brisk", "calm", "deft", "eager", "fair", "keen", "lucid", "mellow", "nimble", "sunny")
NOUNS = (
    "alder",
    "badger",
    "cedar",
    "dipper",
    "finch",
    "heron",
    "kestrel",
    "maple",
    "otter",
    "plover",
    "robin",
)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where one run keeps what it writes."""

    path: Path

    @property
    def metrics(self) -> Path:
        """The rows of metrics."""
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        """The rows of episodes; what was played again after a break is there twice."""
        return self.path / "episodes.jsonl"

    @property
    def transcripts(self) -> Path:
        """Failed episodes of the test evaluations."""
        return self.path / "transcripts.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"


def name_run(config: RunConfig, runs: Path = RUNS) -> RunConfig:
    """Returns the config with a name that no run has yet: its own, or a made-up one with today's date.

    Raises FileExistsError where a run of its name exists: it is never written over.
    """
    if config.name:
        if (runs / config.name).exists():
            raise FileExistsError(
                f"{runs / config.name} exists: choose another --name, or go on with it by "
                f"--resume --name {config.name}"
            )
        return config
    # Not from the seed: runs of one seed must not be in each other's way.
    draw = SystemRandom()
    while True:
        name = f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}-{date.today().isoformat()}"
        if not (runs / name).exists():
            return replace(config, name=name)


def make_run(config: RunConfig, record: Mapping[str, str], runs: Path = RUNS) -> RunFolder:
    """Makes the folder of a new run and writes config.json. Raises FileExistsError where it exists."""
    folder, partial = RunFolder(runs / config.name), RunFolder(runs / f".{config.name}")
    if folder.path.exists():
        raise FileExistsError(f"{folder.path} exists: choose another --name")
    # A folder that is there has its settings: one without could neither be gone on with nor be begun.
    partial.checkpoints.mkdir(parents=True, exist_ok=True)
    write_json(partial.path / "config.json", {"config": asdict(config), "record": dict(record)})
    partial.path.rename(folder.path)
    return folder


def open_run(given: Mapping[str, Any], runs: Path = RUNS) -> tuple[RunFolder, RunConfig, dict[str, str]]:
    """Opens the run given["name"] to go on with it; returns folder, config and record.

    Raises FileNotFoundError where there is no such run, ValueError where other settings are given or where it was
    made by a version with others.
    """
    folder = RunFolder(runs / given["name"])
    if not (folder.path / "config.json").exists():
        raise FileNotFoundError(f"there is no run {folder.path}: leave out --resume to start one")
    config, record = read_settings(folder)
    return folder, resumed(config, dict(given)), record


def find_run(run: str) -> RunFolder:
    """Returns the folder of a run by its name below runs/, or by its path. Raises FileNotFoundError where it is not."""
    for path in (RUNS / run, Path(run)):
        if (path / "config.json").exists():
            return RunFolder(path)
    raise FileNotFoundError(
        f"there is no run {RUNS / run}, and no folder {run} with a config.json: name a run in {RUNS}/"
    )


def read_settings(folder: RunFolder) -> tuple[RunConfig, dict[str, str]]:
    """Reads config.json: the settings of a run, and the facts beside them.

    Raises ValueError where it is not that of a run, or was made by a version with other settings.
    """
    path = folder.path / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not {"config", "record"} <= content.keys():
        raise ValueError(f"{path} is not that of a run: name a run in {RUNS}/, or its folder")
    unknown = content["config"].keys() - {field.name for field in fields(RunConfig)}
    if unknown:
        raise ValueError(
            f"{path} has settings that are not known any more ({', '.join(sorted(unknown))}): use it with the "
            "version that made it, or start a new run"
        )
    return RunConfig(**content["config"]), dict(content["record"])


def record_of(config: RunConfig, facts: Mapping[str, str]) -> dict[str, str]:
    """Returns the facts that are no settings and still enter the numbers, with those given."""
    used = (*LIBRARIES, "peft") if config.lora_rank else LIBRARIES
    libraries = {name: version(name) for name in used}
    machine = {
        "python": platform.python_version(),
        "cpu kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    return {**libraries, **machine, **facts}


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each fact that is another one now."""
    return [
        f"{key} was {before.get(key, 'unknown')} and is {now.get(key, 'unknown')} now"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def append_episodes(folder: RunFolder, trajectories: Sequence[Trajectory]) -> None:
    """Keeps what is needed to find a change in the gym's records of these episodes."""
    rows = [
        {
            "group": each.group,
            "index": each.index,
            "episode_id": each.episode_id,
            "status": each.verdict.status,
            "record_sha256": each.record_sha256,
        }
        for each in trajectories
    ]
    _drop_torn_row(folder.episodes)
    with folder.episodes.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _drop_torn_row(path: Path) -> None:
    """Drops a last row without its end, which was being written when the trainer was killed."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def write_result(folder: RunFolder, result: Result) -> None:
    """Writes result.json: the figures of a finished run, for programs."""
    content = {
        "step": result.step,
        "weights_sha256": result.weights_sha256,
        "validation_pass_at_1": asdict(result.chosen.pass_at_1) if result.chosen else None,
        "test_pass_at_1_start": asdict(result.start.pass_at_1),
        "test_pass_at_1": asdict(result.trained.pass_at_1),
        "test_difference": asdict(result.difference),
        "test_pass_at_8_start": result.start.pass_at(8),
        "test_pass_at_8": result.trained.pass_at(8),
        "test_clustered_error_start": result.start.clustered_error,
        "test_clustered_error": result.trained.clustered_error,
        "test_looks": list(result.test_looks),
    }
    if result.raw:
        content |= {
            "test_pass_at_1_raw": asdict(result.raw.pass_at_1),
            "test_pass_at_8_raw": result.raw.pass_at(8),
            "test_differences": {name: asdict(difference) for name, difference in result.differences},
        }
    write_json(folder.path / "result.json", content)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
