r"""Reading submissions: from lines of JSON, from a folder, or those that a suite brings itself.

A file holds one object in JSON per line:

    {"task_id": "bugfix/zero/share", "sample": 0, "files": {"share.py": "def share(...): ..."}}
    {"task_id": "toolz/...", "diff": "--- a/toolz/x.py\n+++ b/toolz/x.py\n@@ ..."}
    {"task_id": "...", "completion": "..."}

`sample`, or `sample_index`, may be left out: the samples of a task are then counted. A folder holds, for a task, under
its id with or without the suite, slashes as folders, `.` or `__`:

    TASK.py, TASK.diff      one sample: a completion, a diff
    TASK/0.py, TASK/1.diff  a sample each
    TASK/0/...              the files of a sample
    TASK/...                the files of the only sample

Whatever is wrong with one of them is told by its line or its path, and costs none of the others.
"""

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from gym_service.evaluation.evaluator import draw_of
from gym_service.grading.submissions import (
    MAX_CONTENT_BYTES,
    Completion,
    Content,
    Diff,
    Files,
    known_submissions,
)
from gym_service.tasks.suites import Task, open_task
from gym_service.visible import printable

KNOWN_SETS = ("canonical", "stubs")
"""The sets that a suite brings: its reference solutions, and what its tasks start from."""
_KINDS = ("files", "diff", "completion")
_MAX_LINE_BYTES = 4 * MAX_CONTENT_BYTES
"""JSON writes a byte with up to six; what is beyond is not read into memory."""
_MAX_SAMPLE = (1 << 31) - 1
_MAX_FILES = 5000
"""Files of one sample in a folder: more than are graded."""


class ReadingError(Exception):
    """There is nothing to read; the message says what is looked for."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One submission as it was handed in."""

    task: Task
    sample_index: int
    content: Content
    place: str
    """Where it comes from, for a reader."""

    @property
    def key(self) -> tuple[str, int]:
        """What it is called by."""
        return self.task.task_id, self.sample_index

    @property
    def sha256(self) -> str:
        """The hash over what was handed in, in hexadecimal; not that of what is graded of it."""
        match self.content:
            case Files(files):
                parts = [part for path, data in sorted(files.items()) for part in (_bytes(path), data)]
            case Diff(text) | Completion(text):
                parts = [_bytes(text)]
        digest = hashlib.sha256(type(self.content).__name__.encode())
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Complaint:
    """What could not be read as a submission."""

    place: str
    """The line or the path."""
    message: str


@dataclass(frozen=True, slots=True)
class Read:
    """What was found."""

    attempts: tuple[Attempt, ...]
    complaints: tuple[Complaint, ...]


def read_submissions(source: str, tasks: Sequence[Task]) -> Read:
    """Reads the submissions for the tasks of a suite. Raises ReadingError, OSError."""
    if source in KNOWN_SETS:
        return Read(tuple(_known(source, tasks)), ())
    path = Path(source)
    if not path.exists():
        raise ReadingError(f"there is no {source}: name a file, a folder, or one of {', '.join(KNOWN_SETS)}")
    return _read_folder(path, tasks) if path.is_dir() else _read_file(path, tasks)


def _known(source: str, tasks: Sequence[Task]) -> Iterator[Attempt]:
    for task in tasks:
        submissions = known_submissions(open_task(task, draw_of(task)))
        yield Attempt(task, 0, Files(dict(submissions[KNOWN_SETS.index(source)].files)), source)


class _Refused(Exception):
    """A submission that cannot be read; the message says why."""


# --- a file ---


def _read_file(path: Path, tasks: Sequence[Task]) -> Read:
    names = _names_of(tasks)
    attempts: dict[tuple[str, int], Attempt] = {}
    complaints: list[Complaint] = []
    counted: Counter[str] = Counter()
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            place = f"line {number}"
            try:
                if (attempt := _attempt(line, place, names, counted)) is None:
                    continue
                if attempt.key in attempts:
                    raise _Refused(
                        f"sample {attempt.sample_index} of {attempt.task.task_id} is in {attempts[attempt.key].place}"
                    )
                attempts[attempt.key] = attempt
            except _Refused as error:
                complaints.append(Complaint(place, printable(str(error))))
    return Read(tuple(attempts.values()), tuple(complaints))


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Gives the lines, and None for one that is too long."""
    while line := file.readline(_MAX_LINE_BYTES + 1):
        if len(line) <= _MAX_LINE_BYTES:
            yield line
            continue
        while not line.endswith(b"\n") and (line := file.readline(_MAX_LINE_BYTES)):
            pass
        yield None


def _attempt(
    line: bytes | None, place: str, names: Mapping[str, Task], counted: Counter[str]
) -> Attempt | None:
    """Reads a line; None for a blank one. Raises _Refused."""
    if line is None:
        raise _Refused(f"it is longer than {_MAX_LINE_BYTES >> 20} MiB")
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"it is no JSON: {str(error)[:100]}") from None
    if not isinstance(row, dict):
        raise _Refused('it is no object, such as {"task_id": "...", "completion": "..."}')
    task_id = row.get("task_id")
    if not isinstance(task_id, str):
        raise _Refused("task_id is missing, or is no text")
    task = names.get(task_id) or names.get(task_id.lower())
    if task is None:
        raise _Refused(f"the suite has no task {task_id[:100]!r}")
    content = _content(row)
    given = [row[name] for name in ("sample", "sample_index") if name in row]
    sample = given[0] if given else counted[task.task_id]
    if not isinstance(sample, int) or isinstance(sample, bool) or not 0 <= sample <= _MAX_SAMPLE:
        raise _Refused(f"sample must be a whole number from 0 on, not {str(sample)[:40]!r}")
    counted[task.task_id] = max(counted[task.task_id], sample + 1)
    return Attempt(task, sample, content, place)


def _content(row: Mapping[str, object]) -> Content:
    found = [kind for kind in _KINDS if kind in row]
    if len(found) != 1:
        raise _Refused(f"one of {', '.join(_KINDS)} is to be there, and {len(found)} are")
    match found[0], row[found[0]]:
        case "files", dict() as files if all(isinstance(text, str) for text in files.values()):
            return Files({path: _bytes(text) for path, text in files.items()})
        case "diff", str(text):
            return Diff(text)
        case "completion", str(text):
            return Completion(text)
    wanted = "an object of paths and texts" if found[0] == "files" else "a text"
    raise _Refused(f"{found[0]} must be {wanted}")


def _names_of(tasks: Sequence[Task]) -> dict[str, Task]:
    """The tasks by the ways to write their ids: with the suite or without it, in lower case."""
    names: dict[str, Task] = {}
    for spell in (str.lower, str):
        for task in tasks:
            names[spell(task.task_id.removeprefix(f"{task.suite}/"))] = task
        for task in tasks:
            names[spell(task.task_id)] = task
    return names


def _bytes(text: str) -> bytes:
    # What JSON can spell need not be UTF-8; neither need the name of a file.
    return text.encode("utf-8", "surrogatepass")


# --- a folder ---


def _read_folder(folder: Path, tasks: Sequence[Task]) -> Read:
    places = {
        name: task
        for task in tasks
        for full in (task.task_id, task.task_id.removeprefix(f"{task.suite}/"))
        for name in (full, full.replace("/", "."), full.replace("/", "__"))
    }
    attempts: dict[tuple[str, int], Attempt] = {}
    complaints: list[Complaint] = []

    def add(task: Task, sample: int, path: Path) -> None:
        place = printable(path.relative_to(folder).as_posix())
        try:
            attempt = Attempt(task, sample, _content_of(path), place)
            if attempt.key in attempts:
                raise _Refused(f"sample {sample} of {task.task_id} is in {attempts[attempt.key].place}")
            attempts[attempt.key] = attempt
        except (_Refused, OSError) as error:
            complaints.append(Complaint(place, printable(str(error))))

    def complain(path: Path, message: str) -> None:
        complaints.append(Complaint(printable(path.relative_to(folder).as_posix()), printable(message)))

    def walk(path: Path) -> None:
        try:
            found = sorted(path.iterdir())
        except OSError as error:
            complain(path, str(error))
            return
        for each in found:
            name = each.relative_to(folder).as_posix()
            stem = re.sub(r"\.(py|diff|patch)$", "", name)
            is_folder = each.is_dir() and not each.is_symlink()
            if is_folder and name in places:
                try:
                    samples, others = _samples(each)
                except OSError as error:
                    complain(each, str(error))
                    continue
                for sample, place in samples:
                    add(places[name], sample, place)
                for other in others:
                    complain(other, "it is beside numbered samples, and has no number")
            elif not is_folder and stem in places:
                add(places[stem], 0, each)
            elif is_folder and any(known.startswith(f"{name}/") for known in places):
                walk(each)
            elif not each.name.startswith("."):
                complain(each, "it has the name of no task of the suite")

    walk(folder)
    return Read(tuple(attempts.values()), tuple(complaints))


def _samples(folder: Path) -> tuple[list[tuple[int, Path]], list[Path]]:
    """The samples of one task: those that are numbered, or else the folder itself; and what lies beside them."""
    numbered = []
    others = []
    for each in sorted(folder.iterdir()):
        if found := re.fullmatch(r"(\d{1,9})(\.py|\.diff|\.patch)?", each.name):
            numbered.append((int(found[1]), each))
        elif not each.name.startswith("."):
            others.append(each)
    return (sorted(numbered), others) if numbered else ([(0, folder)], [])


def _content_of(path: Path) -> Content:
    """Reads what lies at a path; no link is followed. Raises _Refused, OSError."""
    if path.is_dir() and not path.is_symlink():
        files: dict[str, bytes] = {}
        left = MAX_CONTENT_BYTES + 1
        for each in _files_below(path):
            if len(files) == _MAX_FILES:
                raise _Refused(f"it has more than {_MAX_FILES} files")
            files[each.relative_to(path).as_posix()] = data = _read_plain(each, left)
            left = max(1, left - len(data))
        return Files(files)
    text = _read_plain(path, MAX_CONTENT_BYTES + 1).decode("utf-8", "surrogateescape")
    return Completion(text) if path.name.endswith(".py") else Diff(text)


def _files_below(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> NoReturn:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in (
            *sorted(names),
            *(each for each in folders if os.path.islink(os.path.join(parent, each))),
        ):
            yield Path(parent, name)


def _read_plain(path: Path, most_bytes: int) -> bytes:
    """Reads the first bytes of a plain file."""
    # Opened before it is looked at, so that what is looked at is what is read; a pipe does not hold this up.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _Refused(f"{path.name} cannot be read, or is a link: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Refused(f"{path.name} is no plain file")
        return file.read(most_bytes)
