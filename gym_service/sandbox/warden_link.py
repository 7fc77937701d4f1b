"""The line to the warden of one container: requests out, answers back, in order.

It begins on the container's standard streams, which the engine carries, each piece through two more processes. Where
this service may look into the container's processes (as root on the engine's machine), it moves to two pipes that the
warden has opened, which it finds by their numbers under /proc and knows by their inodes. The attached streams stay:
they tell of the container's end, and what the warden complains of comes over them.
"""

import asyncio
import os
import stat
import struct
from collections import deque
from dataclasses import dataclass, field

from gym_service.sandbox.base import SandboxLost
from sandbox_images.warden import frames
from sandbox_images.warden.frames import Status

_STREAM_HEAD = struct.Struct(">BxxxI")
_STANDARD_ERROR = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the warden."""

    status: Status
    exit_status: int
    flags: int
    body: bytes


@dataclass(slots=True)
class WardenLink(asyncio.Protocol):
    """Matches answers to requests. Takes the engine's multiplexed stream apart as long as they come over it."""

    _waiting: deque[asyncio.Future[Answer]] = field(default_factory=deque)
    _requests: list[bytes] = field(default_factory=list)
    """What was sent in this turn of the loop: it leaves in one piece, as the way to the warden costs by pieces."""
    _raw: bytearray = field(default_factory=bytearray)
    _answers: bytearray = field(default_factory=bytearray)
    _complaint: bytes = b""
    _writers: list[asyncio.WriteTransport] = field(default_factory=list)
    """The attached streams and then the pipe; requests go to the last one."""
    _reader: asyncio.ReadTransport | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return bool(self._writers) and not any(each.is_closing() for each in self._writers)

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Sends a request; the future holds its answer, or SandboxLost."""
        loop = asyncio.get_running_loop()
        if not self.is_open:
            raise self._lost()
        if not self._requests:
            loop.call_soon(self._flush)
        self._requests.append(request)
        self._waiting.append(loop.create_future())
        return self._waiting[-1]

    async def move(self, pipes: tuple[int, int]) -> None:
        """Goes on over two pipes, one to write requests to and one to read answers from, which it closes at its end."""
        loop = asyncio.get_running_loop()
        requests, answers = (os.fdopen(pipe, mode, 0) for pipe, mode in zip(pipes, ("wb", "rb"), strict=True))
        writer, _ = await loop.connect_write_pipe(lambda: _Pipe(self), requests)
        self._writers.append(writer)
        self._reader, _ = await loop.connect_read_pipe(lambda: _Pipe(self), answers)

    def close(self) -> None:
        """Lets go of the container; its warden ends when it sees this."""
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.is_closing():
                writer.abort()
        if self._reader is not None:
            self._reader.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writers.append(transport)  # type: ignore[arg-type]  # a socket's can be written to

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while len(self._raw) >= _STREAM_HEAD.size:
            stream, length = _STREAM_HEAD.unpack_from(self._raw)
            end = _STREAM_HEAD.size + length
            if len(self._raw) < end:
                return
            payload = bytes(self._raw[_STREAM_HEAD.size : end])
            del self._raw[:end]
            if stream == _STANDARD_ERROR:
                self._complaint = (self._complaint + payload)[-2000:]
            else:
                self.take_answers(payload)

    def connection_lost(self, error: Exception | None) -> None:
        self.close()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._lost())

    def take_answers(self, data: bytes) -> None:
        """Takes what came of answers, whole or not."""
        self._answers += data
        head = frames.ANSWER.size
        while len(self._answers) >= head:
            status, exit_status, flags, length = frames.ANSWER.unpack_from(self._answers)
            if len(self._answers) < head + length:
                return
            body = bytes(self._answers[head : head + length])
            del self._answers[: head + length]
            future = self._waiting.popleft()
            # A caller that gave up leaves a cancelled future; its answer belongs to nobody.
            if not future.done():
                future.set_result(Answer(Status(status), exit_status, flags, body))

    def _flush(self) -> None:
        requests = b"".join(self._requests)
        self._requests.clear()
        if self.is_open:
            self._writers[-1].write(requests)

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"the sandbox is gone {self._complaint.decode(errors='replace')[-500:]}")


@dataclass(slots=True)
class _Pipe(asyncio.Protocol):
    """One of the two pipes."""

    _link: WardenLink

    def data_received(self, data: bytes) -> None:
        self._link.take_answers(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._link.connection_lost(error)


def open_pipes(process_id: int, numbers: dict[str, list[int]]) -> tuple[int, int]:
    """Opens the pipes of a warden by what it says of them: for `requests` and `answers` a descriptor and an inode.

    Raises OSError when this service may not, or finds other pipes there.
    """
    opened: list[int] = []
    try:
        for name, mode in (("requests", os.O_WRONLY), ("answers", os.O_RDONLY)):
            descriptor, inode = numbers[name]
            opened.append(os.open(f"/proc/{process_id}/fd/{descriptor}", mode | os.O_NONBLOCK | os.O_CLOEXEC))
            found = os.fstat(opened[-1])
            if not stat.S_ISFIFO(found.st_mode) or found.st_ino != inode:
                raise FileNotFoundError(f"process {process_id} is not the warden")
    except OSError:
        for pipe in opened:
            os.close(pipe)
        raise
    return opened[0], opened[1]
