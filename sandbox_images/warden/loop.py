"""The warden's life: set up once, then one request after the other until the service closes the pipe."""

import gc
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable

from . import WORKSPACE, files, frames, jobs, privileges, scrub
from .children import Children
from .frames import Operation, Status

_MAX_COMPLAINT_BYTES = 2000


class Warden:
    """Serves requests on two descriptors that no child inherits."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._pipes: tuple[int, int, int, int] | None = None
        """Both ends of the pipe for requests, then of the one for answers; None while they are not open, or in use."""
        # Contents live in these two only and are wiped after use: a child inherits the warden's memory.
        self._body, self._wipe_body = _make_buffer(frames.MAX_BODY_BYTES)
        self._output, self._wipe_output = _make_buffer(frames.MAX_BODY_BYTES + 1)
        self._children = Children()
        self._state_at_start = self._read_state()

    def serve(self) -> None:
        """Answers requests until the service is gone."""
        header = memoryview(bytearray(frames.REQUEST.size))
        while self._receive(header):
            operation, uid, timeout_ms, output_limit, length = frames.REQUEST.unpack(header)
            body = self._body[:length]
            if not self._receive(body):
                return
            try:
                self._answer(Operation(operation), uid, timeout_ms / 1000, output_limit, body)
            except files.FileError as error:
                self._send(error.status)
            except OSError as error:
                self._send(files.classify(error), body=str(error).encode()[:_MAX_COMPLAINT_BYTES])
            except ValueError as error:
                self._send(Status.FAILED, body=str(error).encode()[:_MAX_COMPLAINT_BYTES])
            self._wipe_body()

    def _answer(
        self, operation: Operation, uid: int, timeout_seconds: float, output_limit: int, body: memoryview
    ) -> None:
        # One byte more than may be sent, which tells a full answer from a cut one.
        output_limit = min(output_limit, frames.MAX_BODY_BYTES)
        output = self._output[: output_limit + 1]
        match operation:
            case Operation.HELLO:
                if bytes(body) == frames.LOAD_PYTEST:
                    zygote = self._children.load_pytest(workspace_is_empty=True)
                    # As soon as this is answered the workspace may be somebody's.
                    zygote.wait_until_ready()
                self._send(Status.OK, body=json.dumps(_facts()).encode())
            case Operation.OPEN_PIPES:
                self._pipes = (*os.pipe2(os.O_CLOEXEC), *os.pipe2(os.O_CLOEXEC))
                _, requests, answers, _ = self._pipes
                ends = {"requests": requests, "answers": answers}
                numbers = {name: [end, os.fstat(end).st_ino] for name, end in ends.items()}
                self._send(Status.OK, body=json.dumps(numbers).encode())
            case Operation.USE_PIPES:
                assert self._pipes is not None
                self._send(Status.OK)
                self._requests, far_requests, far_answers, self._answers = self._pipes
                os.close(far_requests)
                os.close(far_answers)
            case Operation.READ:
                privileges.use_files_as(uid)
                length = files.read_into(os.fsdecode(bytes(body)), output)
                self._send(Status.OK, body=output[:length])
                self._wipe_output()
            case Operation.LIST:
                privileges.use_files_as(uid)
                length = files.list_into(output)
                self._send(Status.OK, body=output[:length])
                self._wipe_output()
            case Operation.WRITE:
                privileges.use_files_as(uid)
                head = frames.WRITE_HEAD.size
                (path_length,) = frames.WRITE_HEAD.unpack(body[:head])
                path = os.fsdecode(bytes(body[head : head + path_length]))
                files.replace(path, body[head + path_length :])
                self._send(Status.OK)
            case Operation.REQUIRE_FILE | Operation.REQUIRE_PATH:
                privileges.use_files_as(uid)
                files.require_path(
                    os.fsdecode(bytes(body)), folder_allowed=operation is Operation.REQUIRE_PATH
                )
                self._send(Status.OK)
            case Operation.RUN:
                ended = self._children.run(body, uid, timeout_seconds, output, self._requests)
                text = output[: min(ended.output_bytes, output_limit)]
                self._send(Status.OK, ended.exit_status, ended.flags, text)
                self._wipe_output()
            case Operation.SCRUB:
                self._children.kill_all(uid)
                privileges.use_files_as(uid)
                scrub.empty_folders()
                found = scrub.differences(self._state_at_start, self._read_state())
                self._send(
                    Status.NOT_CLEAN if found else Status.OK,
                    body="; ".join(found).encode()[:_MAX_COMPLAINT_BYTES],
                )

    def _read_state(self) -> dict[str, object]:
        # The engine remembers a kill for memory and would blame the next episode for a death of this container.
        kills = self._children.count_oom_kills()
        return scrub.read_state() | {"tasks": self._children.count_others(), "out of memory": kills}

    def _receive(self, into: memoryview) -> bool:
        """Fills `into`; False when the service has closed its end."""
        done = 0
        while done < len(into):
            count = os.readv(self._requests, [into[done:]])
            if count == 0:
                return False
            done += count
        return True

    def _send(
        self, status: Status, exit_status: int = 0, flags: int = 0, body: memoryview | bytes = b""
    ) -> None:
        head = frames.ANSWER.pack(status, exit_status, flags, len(body))
        sent = os.writev(self._answers, [head, body])
        while sent < len(head):
            sent += os.write(self._answers, head[sent:])
        while sent - len(head) < len(body):
            sent += os.write(self._answers, body[sent - len(head) :])


def main() -> None:
    """Becomes the warden and serves."""
    requests, answers = _take_standard_streams()
    os.umask(0o022)
    # Python's own handler would let a signal end it; without one PID 1 takes no signal from inside.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The workspace holds only what the episode put there.
    sys.dont_write_bytecode = True
    privileges.become_warden()
    _open_folders()
    jobs.prepare()
    warden = Warden(requests, answers)
    # What is frozen is not touched by the collector of a child and so stays shared with it.
    gc.collect()
    gc.freeze()
    warden.serve()


def _open_folders() -> None:
    """Lets an episode fill its folders, not own them: the runtime gives a tmpfs the mode of the image's folder."""
    try:
        if os.path.realpath(WORKSPACE) != WORKSPACE:
            sys.exit(f"the workspace {WORKSPACE} is a link to {os.path.realpath(WORKSPACE)}: name that")
        os.chmod(WORKSPACE, 0o777)
    except PermissionError:
        sys.exit(f"a folder above the workspace {WORKSPACE} is closed: let others pass it, `chmod o+x`")
    os.chmod("/tmp", 0o1777)


def _make_buffer(size: int) -> tuple[memoryview, Callable[[], None]]:
    """Gives a buffer that takes memory only where it is used, and the function that empties it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(memory), lambda: memory.madvise(mmap.MADV_DONTNEED)


def _take_standard_streams() -> tuple[int, int]:
    """Moves the pipe to the service away from 0 and 1, so that nothing prints into it by mistake."""
    requests, answers = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return requests, answers


def _facts() -> dict[str, str]:
    return {
        "python_version": sys.version.split()[0],
        "kernel_version": os.uname().release,
        "warden_uid": str(os.getuid()),
    }
