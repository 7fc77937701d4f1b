"""`python -m gym_service tasks import`, as somebody calls it."""

import subprocess
import sys


def tasks_import(state, path, *options):
    """Imports what lies under a path into a state folder; gives what the command says and how it ends."""
    command = [
        sys.executable,
        "-m",
        "gym_service",
        "--state-folder",
        str(state),
        "tasks",
        "import",
        str(path),
    ]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=280, check=False)
