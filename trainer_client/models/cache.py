"""Where model folders are kept that are made once: the starting policy, and what is converted from elsewhere."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns the folder of model folders, which exists afterwards."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coding-gym"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(made: Path, folder: Path) -> None:
    """Puts a folder that is complete in its place, whole or not at all."""
    try:
        made.rename(folder)
    except OSError:
        # If somebody else was quicker, theirs is the same.
        if not folder.is_dir():
            raise
