"""Files for their owner alone."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Writes a file for its owner alone: all of it, or nothing where the disk is full."""
    temporary = path.with_name(f"{path.name}.new")
    # One that a crash left behind could have any mode.
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
