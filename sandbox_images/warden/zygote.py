"""The zygote of pytest: a second process of the warden's that has pytest in memory and forks for every run of it.

It starts with the sandbox, or where that serves one episode only, with the first run of pytest, and stays. The warden
itself stays small, so that whatever needs no pytest costs the fork of a small process. Like the warden it runs under
a UID of its own, is not dumpable, and never reads anything of a repository: it is given a UID, a job and a place for
the output, forks, and reports how the child ended. Job and output are files of one run and of nothing else: what a
child does to them, or leaves in them, ends with it.
"""

from __future__ import annotations

import _socket
import array
import gc
import os
import signal
import struct
import sys

from . import privileges
from .child import become_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_ORDER = struct.Struct("I")
"""UID; the job and the output come with it as descriptors."""
_REPORT = struct.Struct("i")
_LINE = 3
"""The descriptor of the zygote's only line."""


class ZygoteLost(Exception):
    """The zygote has ended, which only the kernel's want of memory brings about."""


class Zygote:
    """The warden's side of it."""

    def __init__(self, *, workspace_is_empty: bool) -> None:
        """Starts the process, which then loads pytest. Raises OSError."""
        self._line, line = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.process_id = os.fork()
        if self.process_id == 0:
            _live(line, workspace_is_empty=workspace_is_empty)
        line.close()
        self.descriptor = self._line.fileno()
        """Readable when there is a report."""
        self.ended = False
        """Set by who reaps it."""
        self._ready = False

    def wait_until_ready(self) -> None:
        """Waits until pytest is loaded. Raises ZygoteLost."""
        if not self._ready:
            self.report()
            self._ready = True

    def start(self, job: memoryview, uid: int, output: int) -> None:
        """Has a child carry out a job as `uid` that prints to `output`. Raises ZygoteLost."""
        job_file = os.memfd_create("job")
        try:
            os.write(job_file, job)
            os.lseek(job_file, 0, os.SEEK_SET)
            descriptors = array.array("i", [job_file, output])
            rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)
            self._line.sendmsg([_ORDER.pack(uid)], [rights])
        except (BrokenPipeError, ConnectionResetError):
            raise ZygoteLost from None
        finally:
            os.close(job_file)

    def report(self) -> int:
        """Waits for the end of the child and returns its exit status. Raises ZygoteLost."""
        try:
            report = self._line.recv(_REPORT.size)
        except ConnectionResetError:
            report = b""
        if not report:
            raise ZygoteLost
        (exit_status,) = _REPORT.unpack(report)
        return int(exit_status)

    def close(self) -> None:
        """Closes this side of the line."""
        self._line.close()


def _live(line: _socket.socket, *, workspace_is_empty: bool) -> NoReturn:
    """The life of the zygote, which ends with the container."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(line.detach(), _LINE)
        line = _socket.socket(fileno=_LINE)
        os.closerange(_LINE + 1, 1024)
        privileges.become_zygote()
        from . import pytest_session

        kinds: dict[str, Callable[..., int]] = {
            "pytest": pytest_session.run,
            "pytest_records": pytest_session.run_graded,
        }
        pytest_session.prepare(workspace_is_empty=workspace_is_empty)
        gc.collect()
        gc.freeze()
        line.send(_REPORT.pack(0))
        while True:
            uid, job_file, output = _receive_order(line)
            process_id = os.fork()
            if process_id == 0:
                job = os.read(job_file, os.fstat(job_file).st_size)
                become_child(job, uid, output, kinds)
            os.close(job_file)
            os.close(output)
            line.send(_REPORT.pack(_wait_for(process_id)))
    except BaseException:
        # Nobody but the log of the service ever sees it.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _receive_order(line: _socket.socket) -> tuple[int, int, int]:
    descriptors = array.array("i")
    space = _socket.CMSG_LEN(2 * descriptors.itemsize)
    order, rights, _, _ = line.recvmsg(_ORDER.size, space)
    if not order:
        os._exit(0)
    for _, _, data in rights:
        descriptors.frombytes(data)
    job_file, output = descriptors
    (uid,) = _ORDER.unpack(order)
    return uid, job_file, output


def _wait_for(child: int) -> int:
    while True:
        process_id, wait_status = os.waitpid(-1, 0)
        # A child that asked to be traced reports stops too.
        if process_id == child and not os.WIFSTOPPED(wait_status):
            return os.waitstatus_to_exitcode(wait_status)
