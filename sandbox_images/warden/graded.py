"""What the graded runs share: records on a channel of their own, the way to the sources, a time limit for each test.

A run tells of each test by a record `{"id": ..., "outcome": ...}` and of its own end by `{"end": exit status}`. The
code that is graded shares the process and can write there too, and disarm the limit: the service believes no record
for itself, and the run as a whole has its time.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from . import WORKSPACE

RESULT_DESCRIPTOR = 3
"""Where records go."""
JOB_DESCRIPTOR = 4
"""Where an interpreter of the image finds its job."""


class Records:
    """The channel."""

    def __init__(self) -> None:
        self._file = open(RESULT_DESCRIPTOR, "w", encoding="utf-8")

    def add(self, test: str, outcome: str) -> None:
        """Tells how a test ended."""
        self._write({"id": test, "outcome": outcome})

    def end(self, exit_status: int) -> None:
        """Tells that the run came to its end."""
        self._write({"end": exit_status})

    def _write(self, record: dict[str, object]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


class OutOfTime(BaseException):
    """A test took too long. No Exception, which many a test catches."""


def start_clock(seconds: float) -> None:
    """Has OutOfTime raised in the main thread after `seconds`, and again each time that they pass."""
    signal.signal(signal.SIGALRM, _raise_out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def stop_clock() -> None:
    """Lets the time run on."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def add_roots(roots: list[str]) -> None:
    """Lets imports find the sources, by folders of the workspace.

    After the standard library, so that none of them stands in for a module of it; before the packages that are
    installed, as the repository may be one of these.
    """
    installed = next(n for n, folder in enumerate([*sys.path, "-packages"]) if folder.endswith("-packages"))
    sys.path[installed:installed] = [os.path.normpath(f"{WORKSPACE}/{root}") for root in roots]


def _raise_out_of_time(*_: object) -> None:
    raise OutOfTime
