"""HTTP/2 by hand: a client that sends frames as they are given, right or wrong, and reads what comes back.

An ordinary client makes no wrong frame, so these are made of bytes. Headers are literals without index and without
Huffman (RFC 7541, 6.2.2), which every server has to take.
"""

import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
CANCEL = (8).to_bytes(4)
SERVICE = "/gym.v1.GymService"


def frame(
    kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0, length: int | None = None
) -> bytes:
    """A frame; `length` is what it says of itself where that is not the truth."""
    said = len(payload) if length is None else length
    return struct.pack(">I", said)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _number(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    value -= most
    parts = [most]
    while value >= 128:
        parts.append(value % 128 | 128)
        value //= 128
    return bytes([*parts, value])


def literal(name: bytes, value: bytes) -> bytes:
    """A header as a literal that goes into no table."""
    return b"\x00" + _number(len(name), 7) + name + _number(len(value), 7) + value


def headers(path: str, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The headers of a call, encoded; `more` come after what every call has."""
    fixed = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"gym"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return b"".join(literal(name, value) for name, value in [*fixed, *more])


def message(data: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message; `length` is what its prefix says where that is not the truth."""
    return struct.pack(">BI", flag, len(data) if length is None else length) + data


def call(stream: int, path: str, body: bytes, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The frames of a whole unary call."""
    return frame(HEADERS, headers(path, more), stream, END_HEADERS) + frame(DATA, body, stream, END_STREAM)


class Wire:
    """A connection and nothing above it."""

    def __init__(self, address: str, *, greet: bool = True, seconds: float = 5.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._seconds = seconds
        self._received = b""
        if greet:
            self.send(PREFACE + frame(SETTINGS) + frame(SETTINGS, flags=ACK))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Sends bytes; returns whether the other side still took them."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def half_close(self) -> None:
        """Says that nothing more comes."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def frames(self, seconds: float | None = None) -> Iterator[tuple[int, int, int, bytes]]:
        """Gives kind, flags, stream and payload of what comes, until the end of the connection or of the time."""
        end = time.monotonic() + (self._seconds if seconds is None else seconds)
        while True:
            while len(self._received) >= 9:
                length = int.from_bytes(self._received[:3])
                if len(self._received) < 9 + length:
                    break
                kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
                payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
                yield kind, flags, stream, payload
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            self._received += data


def exchange(address: str, data: bytes, seconds: float = 5.0) -> list[tuple[int, int, int, bytes]]:
    """Sends frames over a connection of their own; gives what comes back until a call or the connection has ended."""
    got = []
    with Wire(address) as wire:
        wire.send(data)
        for each in wire.frames(seconds):
            got.append(each)
            kind, flags, *_ = each
            if kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
                break
    return got


def status_of(frames: Iterable[tuple[int, int, int, bytes]]) -> int | None:
    """The number of the status in trailers, None where no call was answered."""
    found = [
        re.search(rb"grpc-status[\x01\x02](\d+)", payload) for kind, *_, payload in frames if kind == HEADERS
    ]
    return next((int(each[1]) for each in found if each), None)
