"""The files of a commit, read out of a local git clone of a stranger's without running anything of it.

Objects are read as they are stored (`ls-tree`, `cat-file`): no checkout, so no hook, no filter and no attribute has a
part in it. What a clone's configuration could start all the same (a monitor of files, the fetching of what a partial
clone lacks) is switched off. Of links and submodules: a repository with a link is refused, a submodule is left out.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Timer

from gym_service.tasks.base_tree import MAX_BYTES, MAX_FILES, Room, is_left_out
from gym_service.tasks.importing import ImportRefused

_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SECONDS = 60.0
_MOST_ENTRY_BYTES = 500
_HEADER_BYTES = 100
_OPTIONS = (
    *("-c", "core.fsmonitor=false"),
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "protocol.allow=never"),
)
_VARIABLES = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    # A replaced commit would be another one under its name.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}


def find_clone(folder: Path, repo: str) -> Path | None:
    """The clone of OWNER/NAME in a folder of clones, as OWNER/NAME or OWNER__NAME. Raises ImportRefused."""
    if not _REPO.fullmatch(repo):
        raise ImportRefused(f"its repo is {repo[:200]!a}: OWNER/NAME is expected")
    places = (folder / repo, folder / repo.replace("/", "__"))
    return next((place for place in places if place.is_dir()), None)


def read_commit(clone: Path, commit: str) -> dict[str, bytes]:
    """The files of a commit by path. Raises ImportRefused."""
    if not _COMMIT.fullmatch(commit):
        raise ImportRefused(f"its base_commit is {commit[:200]!a}: a whole hash is expected")
    # Named, so that no folder around it is taken for it; and no file `.git`, which names a folder elsewhere.
    store = clone / ".git" if (clone / ".git").is_dir() else clone
    if not (store / "objects").is_dir():
        raise ImportRefused(f"{clone} is no git clone")
    listing = _git(
        store, ["ls-tree", "-r", "-z", "-l", "--full-tree", commit], b"", MAX_FILES * _MOST_ENTRY_BYTES
    )
    room = Room()
    blobs: dict[str, bytes] = {}
    for entry in listing.split(b"\0")[:-1]:
        head, _, name = entry.partition(b"\t")
        mode, kind, blob, size = head.split()
        path = name.decode("utf-8", "surrogateescape")
        if kind == b"commit" or is_left_out(path):
            continue
        if mode == b"120000":
            raise ImportRefused(f"its repository holds a link, {path[:200]!a}: a task has no links")
        if not size.isdigit():
            raise _lacks(clone, path)
        room.take(path, int(size))
        blobs[path] = blob
    wanted = b"".join(blob + b"\n" for blob in blobs.values())
    answer = _git(store, ["cat-file", "--batch"], wanted, MAX_BYTES + len(blobs) * _HEADER_BYTES)
    return _contents(answer, blobs, clone)


def _contents(answer: bytes, blobs: dict[str, bytes], clone: Path) -> dict[str, bytes]:
    files = {}
    at = 0
    for path, blob in blobs.items():
        end = answer.find(b"\n", at)
        head = answer[at:end].split()
        if len(head) != 3 or head[:2] != [blob, b"blob"]:
            raise _lacks(clone, path)
        at = end + 1 + int(head[2]) + 1
        files[path] = answer[end + 1 : at - 1]
    return files


def _lacks(clone: Path, path: str) -> ImportRefused:
    return ImportRefused(f"{clone} lacks the content of {path[:200]!a}: make it a whole clone")


def _git(store: Path, arguments: Sequence[str], wanted: bytes, most_bytes: int) -> bytes:
    """What git answers; a clone may be made so that an answer has no end. Raises ImportRefused."""
    command = ["git", "--no-pager", f"--git-dir={store.absolute()}", *_OPTIONS]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(wanted)
        given.seek(0)
        try:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_VARIABLES | {"PATH": os.environ.get("PATH", os.defpath)},
                cwd=tempfile.gettempdir(),
            )
        except OSError as error:
            raise ImportRefused(f"git cannot be run: {error}") from error
        with process:
            assert process.stdout is not None
            clock = Timer(_SECONDS, process.kill)
            clock.start()
            answer = process.stdout.read(most_bytes + 1)
            if len(answer) > most_bytes:
                process.kill()
            process.wait()
            clock.cancel()
        if len(answer) > most_bytes:
            raise ImportRefused("its repository is too large")
        if process.returncode != 0:
            errors.seek(0)
            said = errors.read(300).decode(errors="replace").strip()
            hint = " (is the clone whole, and up to date?)" if said else ""
            raise ImportRefused(f"git does not read it from {store}: {said or 'it takes too long'}{hint}")
        return answer
