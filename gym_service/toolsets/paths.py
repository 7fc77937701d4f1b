"""Paths that a policy writes. The host never resolves one: this is only spelling, the sandbox does the rest."""

import posixpath
import re

from gym_service.sandbox.base import WORKSPACE
from gym_service.toolsets.base import Misuse

MAX_PATH_CHARACTERS = 1024
_DEVICE = re.compile(r"/{1,2}dev/(?!(?:shm|mqueue)(?:/|$))")
"""What lies in /dev; the two folders in it hold files like any other place outside."""


def workspace_path(path: str, workspace: str = WORKSPACE) -> str:
    """Gives a path relative to the workspace, `.` for the workspace itself.

    Raises Misuse: invalid_path, name_too_long, not_a_regular_file (a device), path_outside_workspace.
    """
    if not path or "\0" in path:
        raise Misuse("invalid_path", "the path is empty or holds a NUL byte")
    if len(path) > MAX_PATH_CHARACTERS or any(
        len(part.encode(errors="replace")) > 255 for part in path.split("/")
    ):
        raise Misuse("name_too_long", "the path is too long")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Misuse("invalid_path", "the path is no valid text") from None
    inside = path
    if path.startswith("/"):
        if _DEVICE.match(posixpath.normpath(path)):
            raise Misuse("not_a_regular_file", f"{shown(path)} is a device")
        if path != workspace and not path.startswith(workspace + "/"):
            raise Misuse("path_outside_workspace", f"{shown(path)} is outside {workspace}")
        inside = path[len(workspace) :]
    parts: list[str] = []
    for part in inside.split("/"):
        if part == "..":
            if not parts:
                raise Misuse("path_outside_workspace", f"{shown(path)} is outside {workspace}")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "."


def shown(text: str) -> str:
    """Renders a stranger's text on one line: what does not print is escaped, what is long is cut."""
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:200])
    return printable + ("..." if len(text) > 200 else "")
