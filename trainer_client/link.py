"""The line to the gym, which holds through breaks and restarts; only this module of the trainer imports grpc.

Commands that are issued in the same tick of the event loop leave in one message of the Rollout stream; each
waits for the result that carries its name. Everything that changes something has a key of exactly-once in the
contract, so a stream that broke is opened again and all unanswered commands are sent again as they were.
While the gym is away, callers just wait; they hear of it only when it stays away.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from trainer_client.endpoint import Endpoint
from trainer_client.errors import GymError, GymRefused, GymUnavailable, NoGym

MAX_MESSAGE_BYTES = 32 * 1024 * 1024  # The same as the service's limit, in gym_service/server.py.
MAX_COMMANDS_PER_MESSAGE = 64
_FRAME_BYTES = 16  # More than what surrounds a command in its message.

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A quiet stream must be told from a dead one. The service allows pings as often as this.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A proxy meant for the web must not get in between.
    ("grpc.enable_http_proxy", 0),
    # A new channel must try at once, not inherit the back-off of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
)
_RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
_NOT_LET_IN = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_NOT_LET_IN_SECONDS = (
    5.0  # A gym that was restarted may answer before its endpoint file says what its token is.
)
_LONGEST_DELAY_SECONDS = 2.0
_STABLE_STREAM_SECONDS = 5.0
_ANSWER_SECONDS = 300.0  # How long a command may take when the gym is there; grading takes longest.


@dataclass(frozen=True, slots=True)
class _Connection:
    channel: aio.Channel
    stub: Any
    metadata: tuple[tuple[str, str], ...]


class Link:
    """A line to one gym. Made by `connect`; belongs to the event loop in which it was made."""

    def __init__(
        self,
        locate: Callable[[], Endpoint],
        on_notice: Callable[[str], None],
        reconnect_timeout_seconds: float,
    ) -> None:
        self._locate = locate
        self._on_notice = on_notice
        self._reconnect_timeout_seconds = reconnect_timeout_seconds
        self._endpoint: Endpoint | None = None
        self._heard = 0.0
        """When the gym last answered on a stream."""
        self._connection: _Connection | None = None
        self._connected = asyncio.Event()
        self._failure: Exception | None = None
        self._names = itertools.count()
        self._pending: dict[str, tuple[pb.RolloutCommand, asyncio.Future[pb.RolloutResult]]] = {}
        self._outbox: list[pb.RolloutCommand] = []
        self._wake = asyncio.Event()
        self._tokenizers: dict[str, pb.RegisterTokenizerRequest] = {}
        """What this client has registered, by fingerprint."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        locate: Callable[[], Endpoint],
        on_notice: Callable[[str], None],
        reconnect_timeout_seconds: float,
    ) -> AsyncIterator[Self]:
        """Connects to the gym that `locate` finds, and looks it up again after each break.

        Raises:
            NoGym: There is none.
            GymUnavailable: Nothing answers there.
            GymRefused: The gym does not take the credential.
        """
        link = cls(locate, on_notice, reconnect_timeout_seconds)
        try:
            await link._open()
        except aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise GymUnavailable(
                    f"No gym answers: {error.details()}. {link._advice(error.details())}"
                ) from None
            raise _refusal(error) from None
        task = asyncio.create_task(link._keep_stream())
        try:
            yield link
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # Nobody is left to answer: who calls from now on must not wait.
            link._fail(GymUnavailable("The connection to the gym is closed: connect again"))
            await link._close_connection()

    def remember(self, fingerprint: str, tokenizer: pb.RegisterTokenizerRequest) -> None:
        """Registers a tokenizer again with a gym that was restarted and has forgotten it."""
        self._tokenizers[fingerprint] = tokenizer

    async def call(self, method: str, request: Message, timeout_seconds: float) -> Any:
        """Calls a unary method, all of which can be repeated, until it answers.

        Raises:
            GymRefused: With an error that trying again does not change, or no capacity for too long.
            GymUnavailable: The gym stayed away, or took too long to answer.
        """
        _check_size(request)
        give_up = _now() + self._reconnect_timeout_seconds
        for delay in _delays():
            await self._connected.wait()
            if self._failure:
                raise self._failure
            assert self._connection
            call = getattr(self._connection.stub, method)
            try:
                return await call(request, timeout=timeout_seconds, metadata=self._connection.metadata)
            except aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise GymUnavailable(
                        f"The gym did not answer {method} within {timeout_seconds:g} s: it is busy, or the rate of "
                        "your token is used up. Try again later"
                    ) from None
                # One that names no delay, such as that of an answer which is too large, stays.
                lasting = not _details(error).HasField("retry_delay") or _now() > give_up
                exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                if error.code() not in _RETRIED or (exhausted and lasting):
                    raise _refusal(error) from None
                if _now() > give_up:
                    raise GymUnavailable(f"The gym does not answer: {error.details()}") from None
                # Where no stream is open, nobody else finds out that the gym is elsewhere now.
                self._wake.set()
            except asyncio.CancelledError:
                # A connection that is given up for another takes its calls with it.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            await asyncio.sleep(delay)
        raise AssertionError  # The delays do not end.

    async def send(self, command: pb.RolloutCommand) -> pb.RolloutResult:
        """Sends a command until its result is one that trying again does not change; never an error.

        Raises:
            GymRefused: With an error that trying again does not change, or no capacity for too long.
            GymUnavailable: The gym stayed away.
        """
        command.command_id = str(next(self._names))
        _check_size(command)
        give_up = _now() + self._reconnect_timeout_seconds
        for delay in _delays():
            result = await self._exchange(command)
            if not result.HasField("error"):
                return result
            code = _status_code(result.error.code)
            if code not in _RETRIED or _now() > give_up:
                break
            asked = result.error.retry_delay.ToTimedelta().total_seconds()
            await asyncio.sleep(asked or delay)
        if code is grpc.StatusCode.UNAVAILABLE:
            raise GymUnavailable(f"The gym cannot work: {result.error.message}. See: make gym-status")
        raise GymRefused(code.name, result.error.reason, result.error.message)

    async def _exchange(self, command: pb.RolloutCommand) -> pb.RolloutResult:
        if self._failure:
            raise self._failure
        future: asyncio.Future[pb.RolloutResult] = asyncio.get_running_loop().create_future()
        self._pending[command.command_id] = (command, future)
        self._outbox.append(command)
        self._wake.set()
        try:
            async with asyncio.timeout(self._reconnect_timeout_seconds + _ANSWER_SECONDS):
                return await future
        except TimeoutError:
            raise GymUnavailable("The gym answers, but not to this command. See: make gym-status") from None
        finally:
            del self._pending[command.command_id]

    async def _keep_stream(self) -> None:
        """Keeps a stream open; when that fails for good, everybody who waits hears of it."""
        failing_since: float | None = None
        delays = iter(_delays())
        try:
            while True:
                opened = _now()
                try:
                    await self._serve_stream()
                    problem = "it closed the stream"
                except aio.AioRpcError as error:
                    problem = f"{error.code().name}: {error.details()}"
                    if _details(error).reason == "STREAM_IDLE":
                        continue
                    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                        # The role allows no commands, but calls perhaps.
                        self._wake.clear()
                        self._fail_pending(_refusal(error))
                        await self._wake.wait()
                        continue
                # A gym that answers and then breaks the stream at once is as good as away.
                if failing_since is None or self._heard > opened or _now() - opened > _STABLE_STREAM_SECONDS:
                    failing_since = _now()
                    delays = iter(_delays())
                elif _now() > failing_since + self._reconnect_timeout_seconds:
                    raise GymUnavailable(f"The gym breaks every stream ({problem}). {self._advice(problem)}")
                else:
                    await asyncio.sleep(next(delays))
                self._connected.clear()
                await self._reconnect(failing_since, problem)
        except Exception as error:
            self._fail(error)
            if not isinstance(error, GymError):
                raise

    def _fail(self, error: Exception) -> None:
        """Tells everybody who waits, and who comes later."""
        self._failure = error
        self._connected.set()
        self._fail_pending(error)

    def _fail_pending(self, error: Exception) -> None:
        for _, future in self._pending.values():
            if not future.done():
                future.set_exception(error)

    async def _serve_stream(self) -> None:
        """Writes commands and hands out results until the stream breaks."""
        assert self._connection
        stream = self._connection.stub.Rollout(metadata=self._connection.metadata)
        self._outbox = [command for command, future in self._pending.values() if not future.done()]
        self._wake.set()
        writer = asyncio.create_task(self._write(stream))
        try:
            while (response := await stream.read()) is not aio.EOF:  # type: ignore[attr-defined]
                self._heard = _now()
                for result in response.results:
                    _, future = self._pending.get(result.command_id, (None, None))
                    if future and not future.done():
                        future.set_result(result)
        finally:
            writer.cancel()
            stream.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, stream: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            commands, self._outbox = self._outbox, []
            for batch in _batches(commands):
                await stream.write(pb.RolloutRequest(commands=batch))

    async def _reconnect(self, failing_since: float, problem: str) -> None:
        """Opens a new connection, at once or after a while.

        Raises:
            GymUnavailable: The gym did not come back in time.
            GymRefused: It is there and does not take the credential any more.
        """
        give_up = failing_since + self._reconnect_timeout_seconds
        noticed = False
        for delay in _delays():
            try:
                await self._open()
                break
            except aio.AioRpcError as error:
                problem = f"{error.code().name}: {error.details()}"
                if error.code() in _NOT_LET_IN and _now() > failing_since + _NOT_LET_IN_SECONDS:
                    raise _refusal(error) from None
            except NoGym as error:
                problem = str(error)
            if _now() > give_up:
                raise GymUnavailable(
                    f"The gym did not come back within {self._reconnect_timeout_seconds:.0f} s ({problem}). "
                    f"{self._advice(problem)}"
                )
            if not noticed:
                self._on_notice(
                    f"The gym does not answer; waiting for it (up to {give_up - _now():.0f} s). "
                    "If it does not come back by itself, run: make gym-up"
                )
                noticed = True
            await asyncio.sleep(delay)
        if noticed:
            self._on_notice(f"The gym is back after {_now() - failing_since:.1f} s.")

    async def _open(self) -> None:
        """Makes a new connection the current one, if a gym answers on it and knows our tokenizers."""
        self._endpoint = endpoint = self._locate()
        if certificates := endpoint.read_certificates():
            credentials = grpc.ssl_channel_credentials(*certificates)
            channel = aio.secure_channel(endpoint.target, credentials, options=_CHANNEL_OPTIONS)
        else:
            channel = aio.insecure_channel(endpoint.target, options=_CHANNEL_OPTIONS)
        metadata = (("authorization", f"Bearer {endpoint.token}"),) if endpoint.token else ()
        stub = gym_pb2_grpc.GymServiceStub(channel)
        try:
            info = await stub.GetGymInfo(pb.GetGymInfoRequest(), timeout=10, metadata=metadata)
            known = {tokenizer.fingerprint for tokenizer in info.tokenizers}
            for fingerprint, request in self._tokenizers.items():
                if fingerprint not in known:
                    await stub.RegisterTokenizer(request, timeout=120, metadata=metadata)
        except BaseException:
            await channel.close(None)
            raise
        await self._close_connection()
        self._connection = _Connection(channel, stub, metadata)
        self._connected.set()

    def _advice(self, problem: str | None) -> str:
        return self._endpoint.advice(problem or "") if self._endpoint else "Run: make gym-up"

    async def _close_connection(self) -> None:
        if self._connection:
            await self._connection.channel.close(None)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _batches(commands: Iterable[pb.RolloutCommand]) -> Iterator[list[pb.RolloutCommand]]:
    """Divides commands into what fits into a message each; long turns are many megabytes together."""
    batch: list[pb.RolloutCommand] = []
    size = 0
    for command in commands:
        more = command.ByteSize() + _FRAME_BYTES
        if batch and (len(batch) == MAX_COMMANDS_PER_MESSAGE or size + more > MAX_MESSAGE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(command)
        size += more
    if batch:
        yield batch


def _check_size(message: Message) -> None:
    """Raises GymRefused for what no message takes: it would break the stream, again and again."""
    if (size := message.ByteSize() + _FRAME_BYTES) > MAX_MESSAGE_BYTES:
        what = f"this has {size} bytes, and a message {MAX_MESSAGE_BYTES} at most: send less"
        raise GymRefused("INVALID_ARGUMENT", "MESSAGE_TOO_LARGE", what)


def _delays() -> Iterable[float]:
    """Yields delays in seconds that double from 0.1 to the longest, without end."""
    delay = 0.1
    while True:
        yield delay
        delay = min(2 * delay, _LONGEST_DELAY_SECONDS)


def _status_code(number: int) -> grpc.StatusCode:
    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)


def _refusal(error: aio.AioRpcError) -> GymRefused:
    details = _details(error)
    return GymRefused(error.code().name, details.reason, details.message)


def _details(error: aio.AioRpcError) -> pb.Error:
    """Gives what the gym says of an error; of one that is not the gym's, what gRPC says."""
    details = pb.Error(message=error.details() or "")
    trailers: Any = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == "gym-error-bin":
            with suppress(DecodeError):
                details = pb.Error.FromString(value)
    return details
