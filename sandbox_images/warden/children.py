"""Children of the warden: forked, stripped of every right, watched, and gone when the run is over."""

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import frames, jobs, privileges

_NULL = "/dev/null"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. Its output lies in the buffer that the caller gave."""

    exit_status: int
    """The exit status, negative for a signal."""
    flags: int
    """FLAG_ bits of `frames`."""
    output_bytes: int


class Children:
    """Runs one child at a time and leaves none behind."""

    def __init__(self) -> None:
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A handler, even an empty one, is what makes a signal reach PID 1 at all.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self.count_oom_kills = _oom_kill_counter()
        """Counts the processes of this container that the kernel killed for memory so far."""

    def run(self, job: memoryview, uid: int, timeout_seconds: float, output: memoryview) -> Ended:
        """Runs `job` as `uid` and keeps what it prints, whatever ends it; who fills `output` is killed.

        Raises OSError when no child can be made.
        """
        oom_kills = self.count_oom_kills()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                child = os.fork()
                if child == 0:
                    _be_child(bytes(job), uid, write_end)
            finally:
                os.close(write_end)
            ended = self._watch(child, read_end, time.monotonic() + timeout_seconds, output)
        finally:
            os.close(read_end)
        if self.count_oom_kills() > oom_kills:
            return Ended(ended.exit_status, ended.flags | frames.FLAG_OUT_OF_MEMORY, ended.output_bytes)
        return ended

    def _watch(self, child: int, read_end: int, deadline: float, output: memoryview) -> Ended:
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        length, flags, exit_status = 0, 0, None
        while exit_status is None and flags == 0:
            left_ms = max(0, round((deadline - time.monotonic()) * 1000))
            ready = [descriptor for descriptor, _ in poll.poll(left_ms)]
            if read_end in ready:
                count = _read_some(read_end, output[length:])
                length += count
                if length == len(output):
                    flags |= frames.FLAG_TRUNCATED
                elif count == 0:
                    poll.unregister(read_end)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                exit_status = reap(child)
            # Whatever was ready: who prints or dies without a pause gains no time by it.
            if exit_status is None and time.monotonic() >= deadline:
                flags |= frames.FLAG_TIMED_OUT
        killed_status = kill_all(child)
        if exit_status is None:
            exit_status = killed_status
        # Everybody who could write is gone: what is still in the pipe is all there will ever be.
        os.set_blocking(read_end, False)
        while length < len(output) and (count := _read_some(read_end, output[length:])):
            length += count
        if length == len(output):
            flags |= frames.FLAG_TRUNCATED
        return Ended(exit_status, flags, length)


def reap(child: int) -> int | None:
    """Reaps whatever has ended, orphans included; returns the exit status of `child` if it is among them."""
    exit_status = None
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exit_status
        if pid == 0:
            return exit_status
        if pid == child:
            exit_status = os.waitstatus_to_exitcode(wait_status)


def kill_all(child: int = 0) -> int:
    """Kills and reaps every other process of the container; returns the exit status of `child` if it was left.

    PID 1 is the parent of all orphans, so the loop ends exactly when nothing is left.
    """
    exit_status = -signal.SIGKILL
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            pid, wait_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return exit_status
        if pid == child:
            exit_status = os.waitstatus_to_exitcode(wait_status)


def _read_some(descriptor: int, into: memoryview) -> int:
    try:
        return os.readv(descriptor, [into]) if into else 0
    except BlockingIOError:
        return 0


def _be_child(job: bytes, uid: int, output: int) -> None:
    """Never returns. Nothing of the repository is read before the rights are gone."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(_NULL, os.O_RDONLY), 0)
        if jobs.wants_result_channel(job):
            os.dup2(output, jobs.RESULT_DESCRIPTOR)
            null = os.open(_NULL, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.closerange(jobs.RESULT_DESCRIPTOR + 1, 1024)
        else:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, 1024)
        privileges.become_episode(uid)
        os._exit(jobs.perform(job))
    finally:
        os._exit(jobs.EXIT_WARDEN_FAILED)


def _oom_kill_counter() -> Callable[[], int]:
    """Gives a reader of the cgroup's counter of processes that were killed for memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue

        def read(descriptor: int = descriptor) -> int:
            for line in os.pread(descriptor, 4096, 0).splitlines():
                name, _, value = line.partition(b" ")
                if name == b"oom_kill":
                    return int(value)
            return 0

        return read
    raise RuntimeError("no cgroup memory counter is visible in this sandbox")
