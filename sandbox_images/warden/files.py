"""Files of the workspace: no symlink is followed, only regular files are touched, a write is all or nothing.

Every function expects `privileges.use_files_as(uid)` to be in force, so what the episode's own processes could not
open, it cannot open either.
"""

import errno
import os
import stat

from . import WORKSPACE
from .frames import ENTRY, ENTRY_KINDS, Status

MAX_DEPTH = 64
"""Folders on the way to a file; deeper paths are refused."""

_TEMPORARY = ".gym-write-in-progress"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_STATUS = {
    errno.ENOENT: Status.NOT_FOUND,
    errno.EISDIR: Status.IS_DIRECTORY,
    errno.ELOOP: Status.PATH_OUTSIDE_WORKSPACE,
    # A parent that is a symlink (or a file) is no folder when it is not followed.
    errno.ENOTDIR: Status.PATH_OUTSIDE_WORKSPACE,
    errno.EXDEV: Status.PATH_OUTSIDE_WORKSPACE,
    errno.EACCES: Status.PERMISSION_DENIED,
    errno.EPERM: Status.PERMISSION_DENIED,
    errno.EROFS: Status.PERMISSION_DENIED,
    errno.ENAMETOOLONG: Status.NAME_TOO_LONG,
    errno.ENOSPC: Status.DISK_FULL,
    errno.EDQUOT: Status.DISK_FULL,
    errno.EFBIG: Status.TOO_LARGE,
    errno.ENXIO: Status.NOT_A_REGULAR_FILE,
}


class FileError(Exception):
    """A file operation that the episode's own doing made fail."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


def classify(error: OSError) -> Status:
    """Gives the kind of a failed file operation; FAILED for what an episode cannot cause."""
    return _STATUS.get(error.errno or 0, Status.FAILED)


def read_into(path: str, buffer: memoryview) -> int:
    """Reads a whole regular file into `buffer` and returns its length in bytes.

    Raises FileError: TOO_LARGE when it fills the buffer, IS_DIRECTORY, NOT_A_REGULAR_FILE. Raises OSError.
    """
    folder, name = _open_parent(path, create=False)
    try:
        # O_NONBLOCK: opening a FIFO must not wait for its writer.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        present = os.fstat(descriptor)
        _require_regular(present)
        # Known before anything is read, so that nothing of it stays in the buffer.
        if present.st_size >= len(buffer):
            raise FileError(Status.TOO_LARGE)
        length = 0
        while length < len(buffer):
            count = os.readv(descriptor, [buffer[length:]])
            if count == 0:
                return length
            length += count
        raise FileError(Status.TOO_LARGE)
    finally:
        os.close(descriptor)


def require_path(path: str, *, folder_allowed: bool) -> None:
    """Checks that `path` is a regular file (or a folder, where that is allowed) reached without a symlink.

    Raises FileError and OSError.
    """
    if path == ".":
        if not folder_allowed:
            raise FileError(Status.IS_DIRECTORY)
        return
    folder, name = _open_parent(path, create=False)
    try:
        present = os.stat(name, dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(folder)
    if stat.S_ISLNK(present.st_mode):
        raise FileError(Status.PATH_OUTSIDE_WORKSPACE)
    if not (folder_allowed and stat.S_ISDIR(present.st_mode)):
        _require_regular(present)


def list_into(buffer: memoryview) -> int:
    """Lists everything below the workspace as `frames.ENTRY` says; returns the length of that in bytes.

    Raises FileError: TOO_LARGE when it fills the buffer, or where something lies too deep. Raises OSError.
    """
    found: dict[bytes, tuple[str, int, int]] = {}
    room = len(buffer)
    waiting: list[list[str]] = [[]]
    while waiting:
        parts = waiting.pop()
        try:
            inside = _look_into(parts)
        except PermissionError:
            path = os.fsencode("/".join(parts))
            found[path] = ("other", *found[path][1:])
            continue
        if inside and len(parts) == MAX_DEPTH:
            raise FileError(Status.TOO_LARGE)
        for name, status in inside:
            path = os.fsencode("/".join([*parts, name]))
            room -= ENTRY.size + len(path)
            if room <= 0:
                raise FileError(Status.TOO_LARGE)
            kind = _kind(status)
            found[path] = (kind, stat.S_IMODE(status.st_mode), status.st_size if kind == "file" else 0)
            if kind == "folder":
                waiting.append([*parts, name])
    length = 0
    for path, (kind, mode, size_bytes) in sorted(found.items()):
        entry = ENTRY.pack(ENTRY_KINDS.index(kind), mode, size_bytes, len(path)) + path
        buffer[length : length + len(entry)] = entry
        length += len(entry)
    return length


def _look_into(parts: list[str]) -> list[tuple[str, os.stat_result]]:
    """Names what lies in a folder. Opens it from the top each time: held open, a deep tree would use up descriptors."""
    folder = _open_folder(parts, create=False)
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(folder)


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "file"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "symlink" if stat.S_ISLNK(status.st_mode) else "other"


def replace(path: str, content: memoryview) -> None:
    """Creates a file with its folders, or replaces a regular one keeping its mode; never half of it.

    Raises FileError and OSError; the old content is then intact.
    """
    folder, name = _open_parent(path, create=True)
    try:
        mode = 0o644
        try:
            present = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            if stat.S_ISLNK(present.st_mode):
                raise FileError(Status.PATH_OUTSIDE_WORKSPACE)
            _require_regular(present)
            # The rename would succeed on a read-only file, which is not what its mode says.
            if not present.st_mode & 0o200:
                raise FileError(Status.PERMISSION_DENIED)
            mode = stat.S_IMODE(present.st_mode)
        _write_and_rename(folder, name, content, mode)
    finally:
        os.close(folder)


def _write_and_rename(folder: int, name: str, content: memoryview, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.unlink(_TEMPORARY, dir_fd=folder)
    except FileNotFoundError:
        pass
    descriptor = os.open(_TEMPORARY, flags, 0o600, dir_fd=folder)
    try:
        try:
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:])
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.rename(_TEMPORARY, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(_TEMPORARY, dir_fd=folder)
        raise


def _open_parent(path: str, *, create: bool) -> tuple[int, str]:
    """Opens the folder of `path`; the caller closes it."""
    parts = path.split("/")
    if not all(part and part not in (".", "..") for part in parts):
        raise FileError(Status.PATH_OUTSIDE_WORKSPACE)
    if len(parts) > MAX_DEPTH:
        raise FileError(Status.NAME_TOO_LONG)
    return _open_folder(parts[:-1], create=create), parts[-1]


def _open_folder(parts: list[str], *, create: bool) -> int:
    """Opens a folder step by step without following anything; the caller closes it."""
    folder = os.open(WORKSPACE, _FOLDER)
    for part in parts:
        try:
            try:
                below = os.open(part, _FOLDER, dir_fd=folder)
            except FileNotFoundError:
                if not create:
                    raise
                os.mkdir(part, 0o755, dir_fd=folder)
                below = os.open(part, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileError(Status.IS_DIRECTORY)
    if not stat.S_ISREG(status.st_mode):
        raise FileError(Status.NOT_A_REGULAR_FILE)
