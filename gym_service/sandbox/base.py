"""What a sandbox is to the rest of the service, whatever it is made of.

Everything that comes out of one is a bounded number of bytes from a stranger. Two kinds of failure:
`FileRefused` is the episode's own doing and becomes an observation; `SandboxLost` ends the episode.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

WORKSPACE = "/workspace"
"""Where the repository lies, unless a task says otherwise."""
MAX_FILE_BYTES = 4_000_000
"""The largest file that is read or written as a whole."""


class FileRefused(Exception):
    """A file operation that fails by the state of the workspace or by its rules."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
        """The kind of tool error, such as not_found."""


class SandboxLost(Exception):
    """The sandbox no longer answers, or could not be started."""

    def __init__(self, message: str, *, by_policy: bool = False) -> None:
        super().__init__(message)
        self.by_policy = by_policy
        """Whether the service saw the episode's own code bring it down."""


class EnvironmentRefused(SandboxLost):
    """An environment of which there can be no sandbox; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Execute:
    """A program of the image, by its path or found on PATH; other paths are relative to the workspace."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunPython:
    """A Python file of the workspace, then its arguments."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunPytest:
    """The arguments of pytest."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallFunction:
    """Calls of one function in one fresh process, a record for each."""

    file: str
    """The file of the workspace that defines it."""
    function: str
    arguments: Sequence[Sequence[object]]
    """The arguments of each call, plain data."""


@dataclass(frozen=True, slots=True)
class RunTests:
    """The tests of files, run by pytest under the service's configuration alone, a record for each."""

    files: tuple[str, ...]
    roots: tuple[str, ...]
    """The folders of the workspace from which its modules are imported; "" is the workspace itself."""
    functions: tuple[str, ...] = ()
    """The test functions that run, each an id without parameters; empty for all in the files."""
    seconds_each: float = 10.0
    """How long each of setting up, running and tearing down one test may take; code can get around it."""


@dataclass(frozen=True, slots=True)
class RunChecks:
    """Tests that need no pytest, run in a process that never had it, a record for each."""

    functions: tuple[str, ...]
    """Each by its id: of a function without arguments, or of a method."""
    roots: tuple[str, ...]
    seconds_each: float = 10.0


Job = Execute | RunPython | RunPytest | CallFunction | RunTests | RunChecks


@dataclass(frozen=True, slots=True)
class Completed:
    """What came of a job."""

    exit_status: int
    """The exit status; negative for a signal."""
    output: bytes
    """What it printed, cut at the output limit; or its records, cut far beyond that."""
    timed_out: bool
    output_truncated: bool
    out_of_memory: bool
    """The kernel killed a process of this job for memory, by the kernel's own count."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One thing in a workspace."""

    path: str
    """Relative to the workspace; bytes that are no UTF-8 are escaped as surrogates, and `read_file` takes them so."""
    kind: str
    """file, folder, symlink or other; a folder that the episode itself cannot look into is other."""
    mode: int
    """The permission bits."""
    size_bytes: int
    """0 for all but files."""


class Sandbox(Protocol):
    """One isolated workspace, used by one episode at a time and by one call at a time."""

    @property
    def command_timeout_seconds(self) -> float:
        """The longest that a job may run."""

    async def read_file(self, path: str) -> bytes:
        """Reads a whole regular file. Raises FileRefused, SandboxLost."""

    async def write_file(self, path: str, content: bytes) -> None:
        """Creates or replaces a regular file, all or nothing. Raises FileRefused, SandboxLost."""

    async def require_path(self, path: str, *, folder_allowed: bool) -> None:
        """Checks that a path is a regular file (or a folder). Raises FileRefused, SandboxLost."""

    async def list_files(self) -> tuple[FileEntry, ...]:
        """Lists all that lies in the workspace, sorted by the bytes of the paths; no link is followed.

        Raises FileRefused, too_large when it is too much or too deep, and SandboxLost.
        """

    async def run(self, job: Job, timeout_seconds: float) -> Completed:
        """Runs a job; afterwards none of its processes is left. Raises SandboxLost."""

    async def scrub(self) -> str:
        """Empties the workspace. Returns what still differs from the state at start, or an empty text."""

    async def close(self) -> None:
        """Removes the sandbox. Never fails; can be called again."""


Lend = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Lends a sandbox that is as new for the length of a block. Raises SandboxLost."""
