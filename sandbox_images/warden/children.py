"""Children of the warden: forked, stripped of every right, watched, and gone when the run is over."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable

from . import frames, jobs, privileges
from .child import become_child
from .zygote import Zygote, ZygoteLost

_PAUSE_MS = 2
"""How long processes that were killed are given to die before the next look at them."""


class Ended:
    """How a run ended. Its output lies in the buffer that the caller gave."""

    __slots__ = ("exit_status", "flags", "output_bytes")

    def __init__(self, exit_status: int, flags: int, output_bytes: int) -> None:
        """The exit status, negative for a signal; FLAG_ bits of `frames`; the length of the output."""
        self.exit_status = exit_status
        self.flags = flags
        self.output_bytes = output_bytes


class Children:
    """Runs one child at a time and leaves none behind."""

    def __init__(self) -> None:
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A handler, even an empty one, is what makes a signal reach PID 1 at all.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self.count_oom_kills = _oom_kill_counter()
        """Counts the processes of this container that the kernel killed for memory so far."""
        self._count_tasks = _task_counter()
        self._zygote: Zygote | None = None
        self._child = 0
        """The child that was forked here; 0 while none is, or the zygote has it."""
        self._exit_status: int | None = None
        """How the latest child ended."""
        self._requests = 0

    def run(
        self, job: memoryview, uid: int, timeout_seconds: float, output: memoryview, requests: int
    ) -> Ended:
        """Runs `job` as `uid` and keeps what it prints, whatever ends it; who fills `output` is killed.

        When nobody can write to `requests` any more, nobody waits for the answer, and the container ends. Raises
        OSError when no child can be made.
        """
        oom_kills = self.count_oom_kills()
        self._child, self._exit_status = 0, None
        self._requests = requests
        # As the episode: then it can open its own output again by name.
        privileges.use_files_as(uid)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        try:
            if jobs.wants_pytest(job):
                ended = self._run_in_zygote(job, uid, timeout_seconds, output, read_end, write_end)
            else:
                self._fork(job, uid, write_end)
                ended = self._watch(uid, read_end, timeout_seconds, output)
        finally:
            os.close(read_end)
        if self.count_oom_kills() > oom_kills:
            ended.flags |= frames.FLAG_OUT_OF_MEMORY
        return ended

    def load_pytest(self, *, workspace_is_empty: bool) -> Zygote:
        """Starts the zygote unless there is one, and does not wait for it. Raises OSError."""
        self._reap()
        if self._zygote and self._zygote.ended:
            self._zygote.close()
            self._zygote = None
        if self._zygote is None:
            self._zygote = Zygote(workspace_is_empty=workspace_is_empty)
        return self._zygote

    def kill_all(self, uid: int) -> None:
        """Kills and reaps every process of the episode; returns when none is left."""
        self._reap()
        while self.count_others():
            # In the episode's name, not by right: the zygote must live on.
            privileges.kill_processes_of(uid)
            self._reap()
            if self.count_others():
                time.sleep(_PAUSE_MS / 1000)

    def count_others(self) -> int:
        """Counts the tasks of the container beside the warden and its zygote, those that nobody reaped included.

        By the kernel's own count, which no process can slip through by forking and ending.
        """
        return self._count_tasks() - (2 if self._zygote and not self._zygote.ended else 1)

    def _fork(self, job: memoryview, uid: int, write_end: int) -> None:
        try:
            self._child = os.fork()
            if self._child == 0:
                become_child(bytes(job), uid, write_end)
        finally:
            os.close(write_end)

    def _run_in_zygote(
        self,
        job: memoryview,
        uid: int,
        timeout_seconds: float,
        output: memoryview,
        read_end: int,
        write_end: int,
    ) -> Ended:
        try:
            try:
                zygote = self.load_pytest(workspace_is_empty=False)
                zygote.wait_until_ready()
                zygote.start(job, uid, write_end)
            finally:
                os.close(write_end)
            return self._watch(uid, read_end, timeout_seconds, output, zygote)
        except ZygoteLost:
            # Out of memory, as the counter will say. What it was running is an orphan, and the warden's.
            self.kill_all(uid)
            return Ended(-signal.SIGKILL, 0, 0)

    def _watch(
        self,
        uid: int,
        read_end: int,
        timeout_seconds: float,
        output: memoryview,
        zygote: Zygote | None = None,
    ) -> Ended:
        """Waits for the child, here or in the zygote, and ends whatever it left. Raises ZygoteLost."""
        deadline = time.monotonic() + timeout_seconds
        reports = zygote.descriptor if zygote else -1
        poll = select.poll()
        for descriptor in (read_end, self._wake_read, *([reports] if zygote else [])):
            poll.register(descriptor, select.POLLIN)
        poll.register(self._requests, 0)  # Tells that the other end was closed, and nothing else.
        length, flags = 0, 0
        while self._exit_status is None and flags == 0:
            left_ms = max(0, round((deadline - time.monotonic()) * 1000))
            ready = [descriptor for descriptor, _ in poll.poll(left_ms)]
            if self._requests in ready:
                sys.exit()
            if read_end in ready:
                count = _read_some(read_end, output[length:])
                length += count
                if length == len(output):
                    flags |= frames.FLAG_TRUNCATED
                elif count == 0:
                    poll.unregister(read_end)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap()
            if zygote and reports in ready:
                self._exit_status = zygote.report()
            # Whatever was ready: who prints or dies without a pause gains no time by it.
            if self._exit_status is None and time.monotonic() >= deadline:
                flags |= frames.FLAG_TIMED_OUT
        self.kill_all(uid)
        while zygote and self._exit_status is None:
            # The zygote may not even have forked yet.
            if _is_readable(reports, _PAUSE_MS):
                self._exit_status = zygote.report()
            self.kill_all(uid)
        # Everybody who could write is gone: what is still in the pipe is all there will ever be.
        while length < len(output) and (count := _read_some(read_end, output[length:])):
            length += count
        if length == len(output):
            flags |= frames.FLAG_TRUNCATED
        assert self._exit_status is not None
        return Ended(self._exit_status, flags, length)

    def _reap(self) -> None:
        """Reaps whatever has ended, orphans included."""
        while True:
            try:
                process_id, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process_id == 0:
                return
            if os.WIFSTOPPED(wait_status):
                # A child that asked to be traced reports stops too.
                continue
            if process_id == self._child:
                self._exit_status = os.waitstatus_to_exitcode(wait_status)
            elif self._zygote and process_id == self._zygote.process_id:
                self._zygote.ended = True


def _is_readable(descriptor: int, wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_ms))


def _read_some(descriptor: int, into: memoryview) -> int:
    try:
        return os.readv(descriptor, [into]) if into else 0
    except BlockingIOError:
        return 0


def _oom_kill_counter() -> Callable[[], int]:
    """Gives a reader of the cgroup's counter of processes that were killed for memory."""
    descriptor = _open_counter("memory.events", "memory/memory.oom_control")
    if descriptor is None:
        # A runtime that shows none is refused by the service's self-test, which needs a warden to say so.
        return lambda: 0

    def read() -> int:
        for line in os.pread(descriptor, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return 0

    return read


def _task_counter() -> Callable[[], int]:
    """Gives a reader of the cgroup's counter of tasks: threads of processes, and what has ended but is not reaped."""
    descriptor = _open_counter("pids.current", "pids/pids.current")
    if descriptor is None:
        return lambda: sum(name.isdigit() for name in os.listdir("/proc"))
    return lambda: int(os.pread(descriptor, 32, 0))


def _open_counter(*names: str) -> int | None:
    for name in names:
        try:
            return os.open(f"/sys/fs/cgroup/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return None
