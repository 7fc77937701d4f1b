"""What a repository may hold that a task starts from, wherever it is read: files under plain paths, and not too many.

A sandbox has the files in memory, and writes them one by one for each episode and each grading.
"""

from collections.abc import Iterable
from pathlib import Path

from gym_service.tasks.importing import ImportRefused

MAX_FILES = 5_000
"""With compiled modules beside them they still fit into the inodes of a sandbox."""
MAX_FILE_BYTES = 4_000_000
MAX_BYTES = 32 << 20
LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache"})
"""Names that stay out with all below them: a history tells the solution, the others come by themselves."""


def check_path(path: str) -> None:
    """Checks that a path leads to a place inside of the repository. Raises ImportRefused."""
    # Not printable are NUL and what was no UTF-8, too.
    if {"", ".", ".."} & {*path.split("/")} or "\\" in path or not path.isprintable():
        raise ImportRefused(f"{path[:200]!a} is no plain path inside of the repository")


class Room:
    """What is left of the room for one repository."""

    def __init__(self) -> None:
        self._files = MAX_FILES
        self._bytes = MAX_BYTES

    def take(self, path: str, size_bytes: int) -> None:
        """Counts a file, before it is read. Raises ImportRefused."""
        check_path(path)
        self._files -= 1
        self._bytes -= size_bytes
        if size_bytes > MAX_FILE_BYTES:
            raise ImportRefused(f"it is too large: {path} has more than {MAX_FILE_BYTES / 1e6:g} MB")
        if self._files < 0:
            raise ImportRefused(f"it is too large: it has more than {MAX_FILES} files")
        if self._bytes < 0:
            raise ImportRefused(f"it is too large: it has more than {MAX_BYTES >> 20} MiB")


def is_left_out(path: str) -> bool:
    """Whether a path stays out of a base tree."""
    return not LEFT_OUT.isdisjoint(path.split("/"))


def import_roots(paths: Iterable[str]) -> tuple[str, ...]:
    """The folder that packages are imported from: `src` or `lib` if packages lie there, else the top."""
    inits = [path.split("/") for path in paths if path.endswith("/__init__.py")]
    for root in ("src", "lib"):
        if any(len(parts) == 3 and parts[0] == root for parts in inits):
            return (root,)
    return ("",)


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder of this machine by path, with the same bounds. Raises ImportRefused, OSError."""
    found = {}
    room = Room()
    for place in sorted(folder.rglob("*")):
        path = place.relative_to(folder).as_posix()
        if is_left_out(path):
            continue
        if place.is_symlink() or not (place.is_file() or place.is_dir()):
            raise ImportRefused(f"{place} is no file of its own: a task has no links")
        if place.is_file():
            room.take(path, place.stat().st_size)
            found[path] = place.read_bytes()
    return found
