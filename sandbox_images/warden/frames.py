"""The frames on the wire between service and warden; the service imports this module too.

A request is a fixed header and a body; the answer likewise. Both sides know every length beforehand, so nothing
that a child prints can be taken for a frame: its output is counted bytes in the body of an answer.
"""

import struct
from enum import IntEnum

REQUEST = struct.Struct(">BIIII")
"""operation, UID, timeout in milliseconds, output limit in bytes, length of the body in bytes."""

ANSWER = struct.Struct(">BiBI")
"""status, exit status (negative: signal), flags, length of the body in bytes."""

WRITE_HEAD = struct.Struct(">I")
"""Opens the body of WRITE: length of the path in bytes; then path, then content."""

ENTRY = struct.Struct(">BHQH")
"""Opens each entry in the answer to LIST: kind, permission bits, size in bytes, length of the path in bytes; then path.

Entries come sorted by the bytes of their paths.
"""

ENTRY_KINDS = "file", "folder", "symlink", "other"
"""What an entry can be; the wire has the position. A folder that cannot be looked into is of the other kind."""

MAX_BODY_BYTES = 4 << 20
"""The largest body of a request or an answer."""

LOAD_PYTEST = b"pytest"

FLAG_TIMED_OUT = 1
FLAG_TRUNCATED = 2
FLAG_OUT_OF_MEMORY = 4


class Operation(IntEnum):
    """What a request asks for."""

    HELLO = 0
    """Facts about the sandbox, as an object in JSON. With LOAD_PYTEST as its body, pytest is loaded from then on."""
    READ = 1
    """The bytes of a file; the body is its path."""
    WRITE = 2
    """Creates or replaces a file."""
    REQUIRE_FILE = 5
    """Checks that a path is a regular file reached without a symlink; the body is the path."""
    REQUIRE_PATH = 6
    """The same, but a folder will do."""
    RUN = 3
    """Runs a job in a child; the body is the job as an object in JSON."""
    SCRUB = 4
    """Empties the sandbox and compares it with its state at start; answers what differs."""
    OPEN_PIPES = 7
    """Opens a pipe for `requests` and one for `answers`; gives the far end's descriptor and inode of each, in JSON."""
    USE_PIPES = 8
    """Closes the far ends, which the service has opened too, and serves over the pipes from the next request on."""
    LIST = 9
    """Lists everything that lies in the workspace."""


class Status(IntEnum):
    """What came of a request. Each failure is a kind of error that a policy can meet."""

    OK = 0
    NOT_FOUND = 1
    IS_DIRECTORY = 2
    NOT_A_REGULAR_FILE = 3
    PATH_OUTSIDE_WORKSPACE = 4
    PERMISSION_DENIED = 5
    NAME_TOO_LONG = 6
    DISK_FULL = 7
    TOO_LARGE = 8
    NOT_CLEAN = 9
    """SCRUB found a difference; the body says which."""
    FAILED = 10
    """The warden could not do it; the body says why."""
