"""Suites of repository-level tasks on disk.

SUITE/tasks/NAME.json   a task, with hashes in the place of contents
SUITE/blobs/HASH        a content, under its SHA-256; the tasks of a suite share most of theirs
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask
from gym_service.tasks.suites import Catalogue, built_in

_FILES = ("base", "gold", "test_files")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""A suite is called as its package is on an index."""


class DamagedSuite(ValueError):
    """A stored suite that is not what was written; the message says which file."""


def known_suites(folder: Path) -> Catalogue:
    """The suites that ship with the service and those that are stored in the folder. Raises DamagedSuite."""
    shipped = built_in().suites
    folders = [each for each in sorted(folder.glob("[!.]*")) if each.is_dir()]
    for each in folders:
        if each.name in shipped or not _NAME.fullmatch(each.name):
            raise DamagedSuite(f"{each} cannot have the name {each.name!a}; move it away, or remove it")
    return Catalogue({**shipped, **{each.name: load_suite_folder(each) for each in folders}})


def save_task(folder: Path, task: RepositoryTask) -> Path:
    """Writes a task into the folder of its suite; returns its file."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for content in set(task.contents()):
        blob = blobs / hashlib.sha256(content).hexdigest()
        if not blob.exists():
            _write(blob, content)
    (folder / "tasks").mkdir(exist_ok=True)
    path = folder / "tasks" / _file_name(task)
    _write(path, json.dumps(task.to_json(), indent=1, sort_keys=True).encode())
    return path


def drop_other_sources(folder: Path, source: str) -> None:
    """Removes the tasks that come from another version of the package. Raises DamagedSuite."""
    if not folder.exists():
        return
    for task in load_suite_folder(folder):
        if task.source != source:
            (folder / "tasks" / _file_name(task)).unlink()


def load_suite_folder(folder: Path) -> tuple[RepositoryTask, ...]:
    """Reads the tasks of a suite in the order of their names. Raises DamagedSuite."""
    blobs = {path.name: path.read_bytes() for path in (folder / "blobs").glob("*")}
    for name, content in blobs.items():
        if hashlib.sha256(content).hexdigest() != name and not name.endswith(".new"):
            raise DamagedSuite(
                f"{folder / 'blobs' / name} is damaged; remove {folder} and synthesize it again"
            )
    return tuple(_read(path, blobs) for path in sorted((folder / "tasks").glob("*.json")))


def _read(path: Path, blobs: Mapping[str, bytes]) -> RepositoryTask:
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        for name in _FILES:
            fields[name] = {key: blobs[value] for key, value in fields[name].items()}
        fields["split"] = Split(fields["split"])
        fields["twins"] = {key: tuple(value) for key, value in fields["twins"].items()}
        for name in ("fail_to_pass", "pass_to_pass", "plain", "roots"):
            fields[name] = tuple(fields[name])
        task = RepositoryTask(**fields)
        suite = path.parent.parent.name
        if task.suite != suite or not task.task_id.startswith(f"{suite}/") or path.name != _file_name(task):
            raise ValueError(f"a file of this name does not hold {task.task_id!a}")
        return task
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedSuite(f"{path} is no task: {error!r}; remove it and synthesize it again") from error


def _file_name(task: RepositoryTask) -> str:
    return f"{task.task_id.partition('/')[2].replace('/', '.')}.json"


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)
