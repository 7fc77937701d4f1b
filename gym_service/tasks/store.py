"""Suites on disk: of repository-level tasks, in Python or with a test command, or of completions.

SUITE/tasks/NAME.json   a task; of a repository, with hashes in the place of contents
SUITE/blobs/HASH        a content, under its SHA-256; the tasks of a suite share most of theirs
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gym_service.tasks import humaneval
from gym_service.tasks.command import CommandTask
from gym_service.tasks.completion import CompletionTask
from gym_service.tasks.environment import Environment
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask
from gym_service.tasks.suites import Catalogue, Task, built_in

StoredTask: TypeAlias = RepositoryTask | CompletionTask | CommandTask

_FILES = ("base", "gold", "test_files")
_OF_PYTEST = ("plain", "roots")
_OF_COMMAND = ("test_command", "sources")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""A suite is called as its package is on an index, or nearly as the file that it comes from."""


class DamagedSuite(ValueError):
    """A stored suite that is not what was written; the message says which file."""


def known_suites(folder: Path) -> Catalogue:
    """The suites that ship with the service, are installed, or are stored in the folder. Raises DamagedSuite."""
    shipped: dict[str, Sequence[Task]] = dict(built_in().suites)
    absent = {}
    try:
        shipped[humaneval.SUITE] = humaneval.load()
    except humaneval.NotInstalled as error:
        absent[humaneval.SUITE] = str(error)
    folders = [each for each in sorted(folder.glob("[!.]*")) if each.is_dir()]
    for each in folders:
        if each.name in shipped or each.name in absent or not _NAME.fullmatch(each.name):
            raise DamagedSuite(f"{each} cannot have the name {each.name!a}; move it away, or remove it")
    stored = {each.name: load_suite_folder(each) for each in folders}
    return Catalogue({**shipped, **stored}, absent=absent)


def check_new_suite(folder: Path, name: str, *kinds: type[StoredTask]) -> None:
    """Checks that tasks of these kinds may be written as a suite of this name. Raises ImportRefused, DamagedSuite."""
    known = known_suites(folder)
    if name in {*built_in().suites, *known.absent, humaneval.SUITE} or not _NAME.fullmatch(name):
        raise ImportRefused(
            f"a suite cannot be called {name!a} here: choose another --name (a-z, 0-9, dashes)"
        )
    if not all(isinstance(task, kinds) for task in known.suites.get(name, ())):
        raise ImportRefused(f"there is a suite {name} of another kind: choose another --name")


def check_not_taken(folder: Path, task: StoredTask) -> None:
    """Checks that no task of another source has this id. Raises ImportRefused, DamagedSuite."""
    path = folder / "tasks" / _file_name(task)
    if not path.exists():
        return
    known = next(each for each in load_suite_folder(folder) if _file_name(each) == path.name)
    if known.source != task.source:
        raise ImportRefused(
            f"{task.source} and {known.source} would both be {task.task_id}: rename one, or remove {path}"
        )


def save_task(folder: Path, task: StoredTask) -> Path:
    """Writes a task into the folder of its suite; returns its file."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for content in () if isinstance(task, CompletionTask) else set(task.contents()):
        blob = blobs / hashlib.sha256(content).hexdigest()
        if not blob.exists():
            _write(blob, content)
    (folder / "tasks").mkdir(exist_ok=True)
    path = folder / "tasks" / _file_name(task)
    _write(path, json.dumps(task.to_json(), indent=1, sort_keys=True).encode())
    return path


def drop_other_sources(folder: Path, source: str) -> None:
    """Removes the tasks that come from another version of the package or file. Raises DamagedSuite."""
    if not folder.exists():
        return
    for task in load_suite_folder(folder):
        if task.source != source:
            (folder / "tasks" / _file_name(task)).unlink()


def load_suite_folder(folder: Path) -> tuple[StoredTask, ...]:
    """Reads the tasks of a suite in the order of their names. Raises DamagedSuite."""
    blobs = {path.name: path.read_bytes() for path in (folder / "blobs").glob("*")}
    for name, content in blobs.items():
        if hashlib.sha256(content).hexdigest() != name and not name.endswith(".new"):
            raise DamagedSuite(f"{folder / 'blobs' / name} is damaged; remove {folder} and make it again")
    return tuple(_read(path, blobs) for path in sorted((folder / "tasks").glob("*.json")))


def _read(path: Path, blobs: Mapping[str, bytes]) -> StoredTask:
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        fields["split"] = Split(fields["split"])
        task = CompletionTask(**fields) if "entry_point" in fields else _repository(fields, blobs)
        suite = path.parent.parent.name
        if task.suite != suite or not task.task_id.startswith(f"{suite}/") or path.name != _file_name(task):
            raise ValueError(f"a file of this name does not hold {task.task_id!a}")
        return task
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedSuite(f"{path} is no task: {error!r}; remove it and make it again") from error


def _repository(fields: dict[str, Any], blobs: Mapping[str, bytes]) -> RepositoryTask | CommandTask:
    for name in _FILES:
        fields[name] = {key: blobs[value] for key, value in fields[name].items()}
    fields["twins"] = {key: tuple(value) for key, value in fields["twins"].items()}
    fields["environment"] = Environment.from_json(fields.get("environment", {}))
    has_command = "test_names" in fields
    for name in ("fail_to_pass", "pass_to_pass", *(_OF_COMMAND if has_command else _OF_PYTEST)):
        fields[name] = tuple(fields[name])
    if has_command:
        fields["twins"] = {
            key: tuple(blobs[each] for each in value) for key, value in fields["twins"].items()
        }
        return CommandTask(**fields)
    return RepositoryTask(**fields)


def _file_name(task: StoredTask) -> str:
    return f"{task.task_id.partition('/')[2].replace('/', '.')}.json"


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)
