"""Frames by hand against a service in a process of its own: it lives, answers others, and writes no log of it.

Each attack is made FRAME_ATTACKS times, 1,000 unless told otherwise; the fuzz tries half as many sequences of frames.
"""

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym_service.state import StateFolder
from tests import frames
from tests.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SERVICE,
    SETTINGS,
    WINDOW_UPDATE,
    Wire,
    call,
    frame,
    headers,
    literal,
    message,
)

ATTACKS = int(os.environ.get("FRAME_ATTACKS", "1000"))
LOG_BYTES = 2000
"""What may be logged of all attacks of a kind together."""
GROWTH_BYTES = 96 << 20
"""What memory may grow by an attack; what was used is kept by the allocator for the next use."""
IDLE_SECONDS = 0.25
IDLE_CPU_SECONDS = 0.05
"""What a service may use in that time if nobody asks for anything."""
SETTLING_SECONDS = 20.0


@dataclass
class Service:
    """The attacked process, as its operator sees it, and a client of it."""

    process: subprocess.Popen[bytes]
    log: Path
    address: str
    token: str
    stub: gym_pb2_grpc.GymServiceStub
    metadata: tuple[tuple[str, str], ...]
    bearer: list[tuple[bytes, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self.bearer = [(b"authorization", f"Bearer {self.token}".encode())]

    def honest(self) -> None:
        """Asks for something that takes the whole way through the service."""
        self.stub.GetGymInfo(pb.GetGymInfoRequest(), metadata=self.metadata, timeout=30)

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def idles(self) -> bool:
        before = self.cpu_seconds
        time.sleep(IDLE_SECONDS)
        return self.cpu_seconds - before <= IDLE_CPU_SECONDS


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("frames")
    state = StateFolder(folder / "state")
    log = folder / "log"
    with log.open("wb") as file:
        command = (sys.executable, "-m", "tests.bench.fake_service", state.folder, "8")
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        while (endpoint := state.endpoint()) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        with grpc.insecure_channel(endpoint.address) as channel:
            metadata = (("authorization", f"Bearer {endpoint.token}"),)
            stub = gym_pb2_grpc.GymServiceStub(channel)
            yield Service(process, log, endpoint.address, endpoint.token, stub, metadata)
        process.send_signal(signal.SIGTERM)
        # An orderly end, after all that.
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def nobody_notices(service: Service) -> Iterator[None]:
    """Beside the attack all calls are answered; after it the process is as it was."""
    service.honest()
    descriptors, resident_bytes = service.descriptors, service.resident_bytes
    logged = service.log.stat().st_size
    failures: list[grpc.RpcError] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.02):
            try:
                service.honest()
            except grpc.RpcError as error:
                failures.append(error)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
    assert failures == []
    assert service.process.poll() is None
    deadline = time.monotonic() + SETTLING_SECONDS
    while service.descriptors > descriptors + 2 or not service.idles():
        assert time.monotonic() < deadline, (service.descriptors, descriptors)
    assert service.resident_bytes - resident_bytes < GROWTH_BYTES
    assert service.log.stat().st_size - logged < LOG_BYTES, service.log.read_text()[logged:][:4000]
    service.honest()


# --- frames that are wrong ---

INFO = f"{SERVICE}/GetGymInfo"


def _opened(service: Service, path: str = INFO, stream: int = 1, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, headers(path, service.bearer), stream, flags)


def _rest(stream: int = 1) -> bytes:
    return frame(DATA, message(b""), stream, END_STREAM)


def _with(service: Service, *more: bytes) -> bytes:
    """A call with further headers, encoded as they are given."""
    return frame(HEADERS, headers(INFO, service.bearer) + b"".join(more), 1, END_HEADERS) + _rest()


WRONG: dict[str, Callable[[Service], bytes]] = {
    "stream_0": lambda s: _opened(s, stream=0) + _rest(0),
    "even_stream": lambda s: _opened(s, stream=2) + _rest(2),
    "stream_that_goes_back": lambda s: _opened(s, stream=5) + _opened(s, stream=3),
    "stream_twice": lambda s: (_opened(s) + _rest()) * 2,
    "data_of_no_stream": lambda s: frame(DATA, b"x", 7) + frame(DATA, b"x", 0),
    "frame_too_large": lambda s: frame(DATA, bytes(20_000), 1),
    "length_too_large": lambda s: frame(DATA, b"x", 1, length=(1 << 24) - 1),
    "length_too_small": lambda s: frame(HEADERS, headers(INFO), 1, END_HEADERS, length=3),
    "padding": lambda s: frame(HEADERS, b"\xff" + headers(INFO), 1, END_HEADERS | PADDED),
    "settings_cut": lambda s: frame(SETTINGS, b"12345"),
    "settings_of_a_stream": lambda s: frame(SETTINGS, b"", 1),
    "settings_acknowledged_with_more": lambda s: frame(SETTINGS, b"123456", 0, ACK),
    "settings_out_of_range": lambda s: frame(SETTINGS, struct.pack(">HI", 4, 2**32 - 1)),
    "frame_size_out_of_range": lambda s: frame(SETTINGS, struct.pack(">HI", 5, 1)),
    "ping_cut": lambda s: frame(PING, b"123"),
    "reset_cut": lambda s: frame(RST_STREAM, b"1", 1),
    "window_of_0": lambda s: frame(WINDOW_UPDATE, bytes(4)),
    "window_overflow": lambda s: frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff") * 3,
    "promise": lambda s: frame(PUSH_PROMISE, bytes([0, 0, 0, 2]) + headers(INFO), 1, END_HEADERS),
    "priority_of_itself": lambda s: frame(PRIORITY, b"\0\0\0\1\x10", 1),
    "unknown_kind": lambda s: frame(99, b"x", 1),
    "continuation_alone": lambda s: frame(CONTINUATION, b"", 1, END_HEADERS),
    "headers_interrupted": lambda s: _opened(s, flags=0) + frame(PING, b"12345678"),
    "farewell": lambda s: frame(GOAWAY, bytes(8)) * 10,
    "index_without_end": lambda s: _with(s, b"\xff" * 9 + b"\x7f"),
    "index_of_nothing": lambda s: _with(s, b"\xfe"),
    "literal_that_lies": lambda s: _with(s, b"\x00\x7f\xff\xff\xff\x0fabc"),
    "huffman_of_nothing": lambda s: _with(s, b"\x00\x81\xff\x81\xff"),
    "table_too_large": lambda s: _with(s, b"\x3f\xff\xff\xff\xff\x0f"),
    "no_headers": lambda s: frame(HEADERS, b"", 1, END_HEADERS | END_STREAM),
    "no_path": lambda s: frame(HEADERS, literal(b":method", b"POST"), 1, END_HEADERS | END_STREAM),
    "two_paths": lambda s: _with(s, literal(b":path", b"/x")),
    "upper_case": lambda s: _with(s, literal(b"X-Y", b"1")),
    "zero_in_header": lambda s: _with(s, literal(b"x", b"a\0b")),
    "line_in_header": lambda s: _with(s, literal(b"x", b"a\r\nb: c")),
    "no_utf8_in_header": lambda s: _with(s, literal(b"x", b"\xff\xfe")),
    "no_base64_in_header": lambda s: _with(s, literal(b"x-bin", b"!!!")),
    "no_utf8_in_token": lambda s: call(1, INFO, message(b""), [(b"authorization", b"Bearer \xff")]),
    "no_utf8_in_path": lambda s: frame(
        HEADERS, headers("/PATH").replace(b"PATH", b"\xff\xfe\xfd\xfc"), 1, END_HEADERS | END_STREAM
    ),
    "unknown_path": lambda s: call(1, "/no.such/Method", message(b"")),
    "no_post": lambda s: frame(HEADERS, headers(INFO).replace(b"\x04POST", b"\x03GET"), 1, END_HEADERS),
    "no_grpc": lambda s: _opened(s).replace(b"application/grpc", b"application/json") + _rest(),
    "timeout_that_is_none": lambda s: _with(s, literal(b"grpc-timeout", b"soon")),
    "encoding_that_is_none": lambda s: _with(s, literal(b"grpc-encoding", b"br")),
    "packed_that_is_not": lambda s: _opened(s) + frame(DATA, message(b"x", flag=1), 1, END_STREAM),
    "unknown_flag": lambda s: _opened(s) + frame(DATA, message(b"x", flag=0xFE), 1, END_STREAM),
    "message_longer_than_told": lambda s: _opened(s) + frame(DATA, message(b"xyz", length=1), 1, END_STREAM),
    "message_shorter_than_told": lambda s: _opened(s) + frame(DATA, message(b"xyz", length=9), 1, END_STREAM),
    "message_without_end": lambda s: _opened(s) + frame(DATA, message(b"xyz", length=32 << 20), 1),
    "message_beyond_measure": lambda s: _opened(s) + frame(DATA, message(b"", length=2**32 - 1), 1),
    "two_messages": lambda s: _opened(s) + frame(DATA, message(b"") * 2, 1, END_STREAM),
    "no_message": lambda s: _opened(s, flags=END_HEADERS | END_STREAM),
    "no_message_of_a_stranger": lambda s: frame(HEADERS, headers(INFO), 1, END_HEADERS),
}


def test_whatever_is_wrong_with_a_frame_harms_its_connection_alone(service: Service) -> None:
    """All of them in turn, each over a connection of its own that is cut at once or after what comes back."""
    makers = list(WRONG.values())
    for number in range(ATTACKS):
        with Wire(service.address) as wire:
            wire.send(makers[number % len(makers)](service))
            if number // len(makers) % 2:
                wire.half_close()
                list(wire.frames(0.05))


def test_a_frame_that_is_wrong_is_no_line_of_the_log(service: Service) -> None:
    logged = {"": service.log.stat().st_size}
    for name, make in WRONG.items():
        data = make(service)
        for _ in range(3):
            with Wire(service.address) as wire:
                wire.send(data)
                wire.half_close()
                list(wire.frames(0.1))
        logged[name] = service.log.stat().st_size

    assert [name for name, size in logged.items() if size != logged[""]] == []


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\0",
        PREFACE[:10],
        PREFACE[:-1] + b"X",
        PREFACE * 2,
        b"GET / HTTP/1.1\r\nHost: gym\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-x\r\n",
        bytes(range(256)) * 100,
        b"A" * 100_000,
    ],
    ids=["nothing", "zero", "half", "almost", "twice", "http1", "tls", "ssh", "bytes", "long"],
)
def test_who_does_not_begin_as_agreed_is_left_alone(service: Service, greeting: bytes) -> None:
    for _ in range(ATTACKS // 10):
        with Wire(service.address, greet=False) as wire:
            wire.send(greeting)


# --- floods ---


def _each(count: int, make: Callable[[int], bytes]) -> Callable[[Wire], None]:
    """Sends what is made for each number, until it is all sent or the other side has had enough."""

    def send(wire: Wire) -> None:
        for number in range(count):
            if not wire.send(make(number)):
                return

    return send


FLOODS: dict[str, Callable[[Service], Callable[[Wire], None]]] = {
    "rapid_reset": lambda s: _each(
        5 * ATTACKS,
        lambda n: _opened(s, stream=2 * n + 1) + frame(RST_STREAM, CANCEL, 2 * n + 1),
    ),
    "rapid_reset_of_whole_calls": lambda s: _each(
        5 * ATTACKS,
        lambda n: call(2 * n + 1, INFO, message(b""), s.bearer) + frame(RST_STREAM, CANCEL, 2 * n + 1),
    ),
    "rapid_reset_of_a_stranger": lambda s: _each(
        5 * ATTACKS, lambda n: call(2 * n + 1, INFO, message(b"")) + frame(RST_STREAM, CANCEL, 2 * n + 1)
    ),
    "calls_of_a_stranger": lambda s: _each(ATTACKS, lambda n: call(2 * n + 1, INFO, message(b""))),
    "unknown_methods": lambda s: _each(ATTACKS, lambda n: call(2 * n + 1, "/a/b", message(b""))),
    "settings": lambda s: _each(
        20 * ATTACKS, lambda n: frame(SETTINGS, struct.pack(">HI", 4, 65_535 + n % 2))
    ),
    "acknowledgements": lambda s: _each(20 * ATTACKS, lambda n: frame(SETTINGS, flags=ACK)),
    "pings": lambda s: _each(20 * ATTACKS, lambda n: frame(PING, b"12345678")),
    "pongs": lambda s: _each(20 * ATTACKS, lambda n: frame(PING, b"12345678", flags=ACK)),
    "windows": lambda s: _each(20 * ATTACKS, lambda n: frame(WINDOW_UPDATE, (1).to_bytes(4))),
    "priorities": lambda s: _each(20 * ATTACKS, lambda n: frame(PRIORITY, b"\0\0\0\0\x10", 2 * n + 1)),
    "continuations": lambda s: _each(
        5 * ATTACKS,
        lambda n: frame(CONTINUATION, literal(b"x", bytes(1000)), 1) if n else _opened(s, flags=0),
    ),
    "empty_continuations": lambda s: _each(
        20 * ATTACKS, lambda n: frame(CONTINUATION, b"", 1) if n else _opened(s, flags=0)
    ),
    "empty_data": lambda s: _each(
        20 * ATTACKS, lambda n: frame(DATA, b"", 1) if n else _opened(s, f"{SERVICE}/Rollout")
    ),
    "empty_messages": lambda s: _each(
        ATTACKS // 10,
        lambda n: frame(DATA, message(b"") * 1000, 1) if n else _opened(s, f"{SERVICE}/Rollout"),
    ),
    "names_of_one_large_header": lambda s: _each(
        ATTACKS,
        lambda n: frame(
            HEADERS,
            headers(INFO) + (b"\xbe" * 8000 if n else b"\x40" + literal(b"x", b"y" * 3900)[1:]),
            2 * n + 1,
            END_HEADERS | END_STREAM,
        ),
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_harms_its_connection_alone(service: Service, name: str) -> None:
    with Wire(service.address) as wire:
        FLOODS[name](service)(wire)
        list(wire.frames(0.2))


def test_a_flood_of_pings_is_told_to_go_away(service: Service) -> None:
    with Wire(service.address) as wire:
        _each(2000, lambda _: frame(PING, b"12345678"))(wire)
        farewells = [payload for kind, *_, payload in wire.frames(5) if kind == GOAWAY]

    assert farewells[0].endswith(b"too_many_pings")


# --- who is slow, and who holds on ---


def test_messages_that_are_never_finished_are_not_taken_in_from_a_stranger(service: Service) -> None:
    """Each says that it is as long as may be. Without a token nothing of it is read."""
    with Wire(service.address) as wire:
        for stream in range(1, 201, 2):
            wire.send(
                frame(HEADERS, headers(f"{SERVICE}/CreateEpisode"), stream, END_HEADERS)
                + frame(DATA, message(bytes(600), length=32 << 20), stream)
            )
        answered = {
            stream for kind, flags, stream, _ in wire.frames(3) if kind == HEADERS and flags & END_STREAM
        }

    assert len(answered) == 100


def test_who_says_a_byte_at_a_time_holds_nobody_up(service: Service) -> None:
    whole = PREFACE + frame(SETTINGS) + call(1, INFO, message(b""), service.bearer)
    wires = [Wire(service.address, greet=False) for _ in range(50)]
    try:
        for byte in whole:
            for wire in wires:
                wire.send(bytes([byte]))
        assert all(frames.status_of(wire.frames(0.3)) == 0 for wire in wires[:3])
    finally:
        for wire in wires:
            wire.__exit__(None, None, None)


def test_connections_are_not_held_without_number_nor_for_ever(service: Service) -> None:
    """Who holds as many as there can be keeps no descriptor that the service needs; who is silent is cut off."""
    before = service.descriptors
    wires = []
    try:
        for _ in range(700):
            with suppress(OSError):
                wires.append(Wire(service.address, greet=False))
        assert service.descriptors < before + 600
        deadline = time.monotonic() + 30
        while service.descriptors > before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        for wire in wires:
            wire.__exit__(None, None, None)


# --- anything ---

STREAMS = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 2**31 - 1, 2**32 - 1])
CALLS = st.sampled_from(["/GetGymInfo", "/CreateEpisode", "/StepEpisode", "/Rollout", "/", "/\u20ac"])


@st.composite
def _payload(draw: st.DrawFn) -> tuple[str, bytes]:
    """Something that could be the content of a frame, marked where the token is to be."""
    shape = draw(st.sampled_from(["bytes", "headers", "message", "packed", "settings"]))
    if shape == "bytes":
        return "", draw(st.binary(max_size=64))
    if shape == "headers":
        more = draw(
            st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=20)), max_size=3)
        )
        return draw(st.sampled_from(["token", ""])), headers(SERVICE + draw(CALLS), more)
    if shape == "settings":
        return "", struct.pack(">HI", draw(st.integers(0, 65535)), draw(st.integers(0, 2**32 - 1)))
    flag = 1 if shape == "packed" else draw(st.integers(0, 255))
    return "", message(draw(st.binary(max_size=40)), flag, draw(st.none() | st.integers(0, 2**32 - 1)))


ENDS = st.sampled_from([0, END_HEADERS, END_STREAM, END_HEADERS | END_STREAM])


@dataclass(frozen=True)
class Made:
    """A frame before the token is in it."""

    kind: int
    payload: tuple[str, bytes]
    stream: int
    flags: int
    lie: int | None
    """The length that it says it has."""


FRAMES = st.builds(
    Made,
    st.sampled_from([HEADERS, DATA]) | st.integers(0, 12),
    _payload(),
    STREAMS,
    ENDS | st.integers(0, 255),
    st.none() | st.none() | st.integers(0, (1 << 24) - 1),
)


def test_no_frames_at_all_are_a_defect(service: Service) -> None:
    """Sequences of anything, with a right beginning or a wrong one, whole or cut."""

    @settings(
        max_examples=max(1, ATTACKS // 2),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        before=st.one_of(st.just(PREFACE + frame(SETTINGS)), st.binary(max_size=40)),
        made=st.lists(FRAMES, max_size=8),
        cut=st.integers(0, 20),
        waits=st.booleans(),
    )
    def attack(before: bytes, made: list[Made], cut: int, waits: bool) -> None:
        data = before
        for each in made:
            mark, payload = each.payload
            bearer = b"".join(literal(*header) for header in service.bearer) if mark else b""
            data += frame(each.kind, payload + bearer, each.stream, each.flags, each.lie)
        with Wire(service.address, greet=False) as wire:
            wire.send(data[: len(data) - cut])
            if waits:
                wire.half_close()
                list(wire.frames(0.02))

    attack()
