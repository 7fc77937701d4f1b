"""The zygote of pytest: a second process of the warden's that has pytest in memory and forks for every run of it.

It starts with the sandbox, or where that serves one episode only, with the first run of pytest, and stays. The warden
itself stays small, so that whatever needs no pytest costs the fork of a small process. Like the warden it runs under
a UID of its own, is not dumpable, and never reads anything of a repository: it is told a UID, forks, and reports how
the child ended.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import struct
import sys

from . import privileges
from .child import become_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_ORDER = struct.Struct("II")
"""UID, length of the job in bytes."""
_REPORT = struct.Struct("i")
MAX_JOB_BYTES = 60 << 10
"""The longest job: it must fit into a pipe, whether the child reads it or not."""


class ZygoteLost(Exception):
    """The zygote has ended, which only the kernel's want of memory brings about."""


class Zygote:
    """The warden's side of it."""

    def __init__(self, *, workspace_is_empty: bool) -> None:
        """Starts the process, which then loads pytest. Raises OSError."""
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        self._jobs_read, self._jobs = os.pipe2(os.O_CLOEXEC)
        self.reports, reports = os.pipe2(os.O_CLOEXEC)
        self.output, output = os.pipe2(os.O_CLOEXEC)
        self.process_id = os.fork()
        if self.process_id == 0:
            _live(orders, self._jobs_read, reports, output, workspace_is_empty=workspace_is_empty)
        for descriptor in (orders, reports, output):
            os.close(descriptor)
        os.set_blocking(self._jobs_read, False)
        self._ready = False

    def wait_until_ready(self) -> None:
        """Waits until pytest is loaded. Raises ZygoteLost."""
        if not self._ready:
            self.report()
            self._ready = True

    def start(self, job: memoryview, uid: int) -> None:
        """Has a child carry out a job as `uid`; what it prints comes out of `output`. Raises ZygoteLost."""
        if len(job) > MAX_JOB_BYTES:
            raise ValueError(f"a job of pytest has at most {MAX_JOB_BYTES} bytes")
        try:
            os.write(self._jobs, job)
            os.write(self._orders, _ORDER.pack(uid, len(job)))
        except BrokenPipeError:
            raise ZygoteLost from None

    def report(self) -> int:
        """Waits for the end of the child and returns its exit status. Raises ZygoteLost."""
        report = os.read(self.reports, _REPORT.size)
        if not report:
            raise ZygoteLost
        try:
            # A child that was killed early has left its job, which is nobody else's.
            os.read(self._jobs_read, MAX_JOB_BYTES)
        except BlockingIOError:
            pass
        (exit_status,) = _REPORT.unpack(report)
        return int(exit_status)

    def close(self) -> None:
        """Closes this side of the pipes."""
        for descriptor in (self._orders, self._jobs_read, self._jobs, self.reports, self.output):
            os.close(descriptor)


def _live(*inherited: int, workspace_is_empty: bool) -> NoReturn:
    """The life of the zygote, which ends with the container."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # First above the numbers that they get, so that none is overwritten before it is moved.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 7) for descriptor in inherited]
        orders, job_pipe, reports, output = (os.dup2(source, 3 + place) for place, source in enumerate(high))
        os.closerange(7, 1024)
        privileges.become_zygote()
        from . import pytest_session

        pytest_session.prepare(workspace_is_empty=workspace_is_empty)
        gc.collect()
        gc.freeze()
        os.write(reports, _REPORT.pack(0))
        while order := os.read(orders, _ORDER.size):
            uid, length = _ORDER.unpack(order)
            process_id = os.fork()
            if process_id == 0:
                become_child(os.read(job_pipe, length), uid, output, {"pytest": pytest_session.run})
            _, wait_status = os.waitpid(process_id, 0)
            while os.WIFSTOPPED(wait_status):
                # A child that asked to be traced reports stops too.
                _, wait_status = os.waitpid(process_id, 0)
            os.write(reports, _REPORT.pack(os.waitstatus_to_exitcode(wait_status)))
    except BaseException:
        # Nobody but the log of the service ever sees it.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)
