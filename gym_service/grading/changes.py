"""What an episode changed of its repository, found by trusted code in what its sandbox holds at the end.

The base tree is compared with the files as they lie there, so neither a version control in there nor anything that
the episode says takes part. Sources cross into grading; tests, configuration and files beside the sources stay
behind, which is noted; what no repair needs and tricks are made of has the whole submission refused, with the reason.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence

from gym_service.sandbox.base import FileEntry, FileRefused, Sandbox
from gym_service.tasks.command import CommandTask
from gym_service.tasks.repository import RepositoryTask
from gym_service.values import Submission

MAX_CHANGED_FILES = 100
MAX_FILE_BYTES = 1 << 20
MAX_CHANGED_BYTES = 2 << 20
_MAX_ENTRIES = 4000
_MAX_NOTED = 100
_MAX_PATH_CHARACTERS = 255

_INSTALLED = frozenset(
    {
        "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "attr", "attrs", "py", "setuptools",
        "pkg_resources", "sitecustomize", "usercustomize", "warden",
    }
)  # fmt: skip
"""Modules of the sandbox image beside the standard library, and those that an interpreter looks for."""
_COMPILED = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".pth", ".egg", ".egg-link", ".whl")
_METADATA = (".dist-info", ".egg-info")
_PLAIN_NAME = re.compile(r"[ -.0-~]{1,255}")
"""What prints in ASCII: editors leave names such as `#money.py#` and `money.py~` beside a file."""


class Refused(Exception):
    """A submission that is not graded, with the reason."""


async def take_changes(sandbox: Sandbox, task: RepositoryTask | CommandTask) -> Submission:
    """Reads what an episode left in its sandbox, which nothing runs in any more. Raises SandboxLost."""
    try:
        entries = await sandbox.list_files()
        paths = [entry.path for entry in _check(task, entries)]
        contents = await asyncio.gather(*(_read(sandbox, path) for path in paths))
        return compare(task, entries, dict(zip(paths, contents, strict=True)))
    except FileRefused as error:
        return Submission(refusal=f"the workspace: {error.kind.replace('_', ' ')}")
    except Refused as refusal:
        return Submission(refusal=str(refusal))


def changes_of(
    task: RepositoryTask | CommandTask, files: Mapping[str, bytes], deleted: Sequence[str]
) -> Submission:
    """Reads what somebody changed who had no sandbox, as if it lay in one over the base tree. Raises Refused."""
    if len(files) > _MAX_ENTRIES:
        raise Refused("too large: more files than are graded")
    for path in files:
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise Refused(f"{_shown(path)} is no path inside the repository")
        if path not in task.base and len(path) > _MAX_PATH_CHARACTERS:
            raise Refused(f"{_shown(path)} is too long for a path")
    gone = set(deleted)
    tree = {path: content for path, content in task.base.items() if path not in gone} | dict(files)
    folders = {path[:end] for path in tree for end, character in enumerate(path) if character == "/"}
    if clash := folders & tree.keys():
        raise Refused(f"{_shown(min(clash))} is a file and a folder")
    entries = [FileEntry(path, "folder", 0o755, 0) for path in folders]
    entries += [FileEntry(path, "file", 0o644, len(content)) for path, content in tree.items()]
    entries.sort(key=lambda entry: entry.path)
    return compare(task, entries, {entry.path: tree[entry.path] for entry in _check(task, entries)})


async def _read(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.read_file(path)
    except FileRefused as error:
        raise Refused(f"{_shown(path)}: {error.kind.replace('_', ' ')}") from error


def compare(
    task: RepositoryTask | CommandTask, entries: Sequence[FileEntry], contents: Mapping[str, bytes]
) -> Submission:
    """Takes the difference to the base tree, given the contents of sources and protected files. Raises Refused."""
    files = {}
    for path, content in contents.items():
        if task.is_source(path) and content != task.base.get(path):
            _check_text(path, content, task.base.get(path))
            files[path] = content
    if len(files) > MAX_CHANGED_FILES or sum(map(len, files.values())) > MAX_CHANGED_BYTES:
        raise Refused("too large: more changes than are graded")
    present = {entry.path for entry in entries if entry.kind == "file"}
    gone = sorted(set(task.base) - present)
    beside = [
        path for path in present if contents.get(path) != task.base.get(path, b"\0") and path not in files
    ]
    ignored = [path for path in [*beside, *gone] if not task.is_source(path)]
    return Submission(
        files,
        deleted=tuple(path for path in gone if task.is_source(path)),
        ignored=tuple(sorted(map(_shown, ignored))[:_MAX_NOTED]),
    )


def _check(task: RepositoryTask | CommandTask, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Gives the files that have to be read to tell what changed. Raises Refused."""
    if len(entries) > _MAX_ENTRIES + len(task.base):
        raise Refused("too large: more files than are graded")
    sources = []
    others = []
    for entry in entries:
        _check_name(task, entry)
        if entry.kind == "symlink":
            raise Refused(f"{_shown(entry.path)} is a symbolic link")
        if entry.kind == "other":
            raise Refused(f"{_shown(entry.path)} is no regular file")
        if entry.kind == "file" and task.is_source(entry.path):
            # Where any file may be a source, a program may be one; it crosses without being executable.
            if entry.mode & (0o7000 if task.sources == "all" else 0o7111):
                raise Refused(f"{_shown(entry.path)} has the mode {entry.mode:o}")
            if entry.size_bytes > max(MAX_FILE_BYTES, len(task.base.get(entry.path, b""))):
                raise Refused(f"too large: {_shown(entry.path)}")
            sources.append(entry)
        elif entry.path in task.base and entry.size_bytes == len(task.base[entry.path]):
            others.append(entry)
    if sum(entry.size_bytes for entry in sources) > MAX_CHANGED_BYTES + sum(map(len, task.base.values())):
        raise Refused("too large: more changes than are graded")
    return sources + others


def _check_name(task: RepositoryTask | CommandTask, entry: FileEntry) -> None:
    if entry.path in task.base:
        return
    parts = entry.path.split("/")
    name = parts[-1]
    if task.is_source(entry.path) and not all(map(_PLAIN_NAME.fullmatch, parts)):
        raise Refused(f"{_shown(entry.path)} has a name that no source file has")
    # Python itself leaves `__pycache__`; nothing in there crosses.
    if name.endswith(_COMPILED) and "__pycache__" not in parts:
        raise Refused(f"{_shown(entry.path)} is compiled or installs something")
    if any(part.endswith(_METADATA) for part in parts):
        raise Refused(f"{_shown(entry.path)} is metadata of a package")
    if ".git" in parts or name == ".gitmodules":
        raise Refused(f"{_shown(entry.path)} is version control")
    for root in task.roots:
        below = entry.path.removeprefix(f"{root}/" if root else "")
        # A folder of that name is listed itself, before what lies in it. Modules named like one of the standard
        # library stay behind as scratch files do: a `trace.py` is nothing unusual.
        module = below.removesuffix(".py")
        if (not root or below != entry.path) and module in _INSTALLED:
            raise Refused(f"{_shown(entry.path)} takes the name of an installed module")


def _check_text(path: str, content: bytes, before: bytes | None) -> None:
    if b"\0" in content:
        raise Refused(f"{_shown(path)} is binary")
    if not _is_utf8(content) and (before is None or _is_utf8(before)):
        raise Refused(f"{_shown(path)} is no text in UTF-8")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shown(path: str) -> str:
    return ascii(path)[1:-1][:200]
