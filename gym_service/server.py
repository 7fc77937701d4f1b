"""The process of the service: parts put together, started, drained and taken apart again."""

import asyncio
import gc
import logging
import secrets
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service.callers import CALLER, OWNER, STRANGER, Bearers, Caller, TokenBook
from gym_service.config import ServiceConfig
from gym_service.episodes import Episodes
from gym_service.errors import GymError, InvalidRequest, Unauthenticated
from gym_service.evaluation.evaluator import Evaluator
from gym_service.fairness import Turnstile
from gym_service.grading.cache import VerdictCache
from gym_service.grading.certificate import Signer
from gym_service.hardening import make_server
from gym_service.listener import endpoint_of, listen, read_identity, warn_of_end
from gym_service.proof import ProofBook, open_grounds, prove_all
from gym_service.record import Sealer
from gym_service.record_folder import RecordFolder
from gym_service.sandbox import selftest
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.isolation import Assurance, RuntimeResult
from gym_service.sandbox.machine import gaps, read_machine
from gym_service.sandbox.pool import Elsewhere, Pool, StartSandbox
from gym_service.sandbox.surroundings import Surroundings
from gym_service.servicer import GymServicer, abort
from gym_service.state import TOKENS_FILE, StateFolder
from gym_service.tasks.store import known_suites
from gym_service.tasks.suites import Catalogue
from gym_service.tokens.folder import open_tokenizer
from sandbox_images.build import image_reference

logger = logging.getLogger(__name__)

_OPEN_METHOD = f"/{health.SERVICE_NAME}/Check"
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["GymService"].full_name
_RENEW_METHOD = f"/{SERVICE_NAME}/RenewLeases"
"""No rate holds it up: who waits for its rate must not lose its episodes for it."""

# Tied to the limits of the client (trainer_client/link.py): what one side sends, the other must take.
MAX_MESSAGE_BYTES = 32 << 20

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A policy may think for minutes: pings of the client on a quiet stream are welcome.
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Who says nothing, not even what every connection begins with, does not hold a descriptor for long.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.max_allowed_incoming_connections", 512),
    # Of one connection; those beyond are refused as UNAVAILABLE, and unread. Without it calls that are reset as fast as
    # they are made push those of others out.
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.so_reuseport", 0),
)
_DRAIN_SECONDS = 10.0
_READ_AT_ONCE = 16
"""Messages of unary calls that are taken in at a time, of one caller. Others wait unread, in the client."""


@dataclass(frozen=True, slots=True)
class RunningGym:
    """A service that serves."""

    address: str
    """As it is called from this machine."""
    token: str = field(repr=False)
    episodes: Episodes
    drain: Callable[[], Awaitable[None]]
    """Takes no new episodes and says so in the health check; those that live go on."""
    viewer: str = ""
    """Where its page is; empty without one."""


@asynccontextmanager
async def running_gym(
    config: ServiceConfig,
    start_sandbox: StartSandbox,
    assurance: Assurance,
    catalogue: Catalogue,
    private_seed: bytes,
    elsewhere: Elsewhere | None = None,
) -> AsyncIterator[RunningGym]:
    """Runs a service for the length of a block. Raises ValueError where it may not listen as it is told.

    `elsewhere` is what has the sandboxes of tasks that bring an environment.
    """
    identity = read_identity(config)
    size = config.capacity + config.graders
    pool = Pool(start_sandbox, config.limits, size=size, reuse=config.reuse, elsewhere=elsewhere)
    isolation = assurance.isolation
    records = RecordFolder(config.state_folder / "records", config.records, Sealer(private_seed))
    cache = VerdictCache(isolation.image_digest, isolation.seccomp_sha256) if config.verdict_cache else None
    turnstile = Turnstile()
    signer = Signer(isolation.image_digest, isolation.seccomp_sha256, private_seed)
    episodes = Episodes(
        pool,
        catalogue,
        capacity=config.capacity,
        max_lease_seconds=config.max_lease_seconds,
        kept=config.kept_episodes,
        private_seed=private_seed,
        graders=config.graders,
        signer=signer,
        records=records,
        cache=cache,
    )
    token = secrets.token_urlsafe(32)
    bearers = Bearers(token, TokenBook(config.state_folder / TOKENS_FILE))
    gate = _Gate(bearers, turnstile, episodes.accounts.errors)
    server = make_server(interceptors=[gate], options=_OPTIONS)
    evaluator = Evaluator(episodes.grader, signer, pool.image_of)
    servicer = GymServicer(episodes, evaluator, pool, assurance, turnstile, MAX_MESSAGE_BYTES)
    gym_pb2_grpc.add_GymServiceServicer_to_server(servicer, server)
    healthcheck = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(healthcheck, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address = listen(server, config, identity)
    viewer = None
    if config.viewer_port is not None:
        # Metrics bring a library that a service without them does not need.
        from gym_service.viewer import open_viewer

        viewer = await open_viewer(config.viewer_port, episodes, pool, bearers)

    async def drain() -> None:
        episodes.draining = True
        await healthcheck.enter_graceful_shutdown()

    pool.open()
    reaper = asyncio.create_task(episodes.reap())
    try:
        await server.start()
        await healthcheck.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        yield RunningGym(address, token, episodes, drain, viewer.address if viewer else "")
    finally:
        if viewer:
            await viewer.close()
        await drain()
        await episodes.close()
        await server.stop(grace=1.0)
        reaper.cancel()
        await pool.close()
        records.close()


async def serve(config: ServiceConfig, state: StateFolder) -> None:
    """Serves episodes in containers until SIGTERM or SIGINT; the caller holds the lock of the state folder.

    Raises SandboxLost when there is no engine, no image, or no sandbox that holds; OSError when the state
    folder cannot be written; RuntimeError when the port is taken; ValueError for a tokenizer that cannot be registered,
    and where the service may not listen as it is told.
    """
    # Before the first container is started: from here on every end is an orderly one.
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # Before everything that takes long: a wrong name, or an address that takes a certificate, is told at once.
    warn_of_end(await asyncio.to_thread(read_identity, config))
    tokenizers = [await asyncio.to_thread(open_tokenizer, name) for name in config.tokenizers]
    image = image_reference()
    engine = await asyncio.to_thread(
        DockerEngine, image, config.limits, state.owner, config.runtime, reuse=config.reuse
    )
    try:
        leftovers = await asyncio.to_thread(engine.remove_leftovers)
        if leftovers:
            logger.info("removed %d containers of an earlier service", leftovers)
        assurance = await assure(engine, config.profile)
        look_for_garbage_rarely()
        catalogue = await _prove(engine, state)
        elsewhere = Surroundings(engine)
        async with running_gym(
            config, engine.start, assurance, catalogue, state.grading_seed(), elsewhere
        ) as gym:
            for tokenizer in tokenizers:
                gym.episodes.tokenizers.add(tokenizer, OWNER)
            state.publish(replace(endpoint_of(config, gym.address, gym.token, image), viewer=gym.viewer))
            logger.info("serving at %s, image %s", gym.address, engine.facts.image_digest)
            try:
                await stopped.wait()
            finally:
                state.withdraw()
            await gym.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(gym.episodes.idle.wait(), _DRAIN_SECONDS)
    finally:
        # A thread that was starting a container when the pool closed has come to its end after this line.
        await loop.shutdown_default_executor()
        try:
            engine.remove_leftovers()
        except SandboxLost as error:
            logger.warning("what is left on the engine could not be removed: %s", error)


def look_for_garbage_rarely() -> None:
    """Spares what lives long from being looked through again and again, which would cost every turn its share.

    With thousands of episodes the collector's own settings take two fifths of the service's time, and stop it for a
    fifth of a second now and then.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


async def assure(engine: DockerEngine, profile: str) -> Assurance:
    """Tries every wall before anything is served. Raises SandboxLost, naming what does not hold and what to do."""
    found = find_gaps(engine)
    if found and profile == "evaluation":
        raise SandboxLost("this machine does not do for evaluation:\n  " + "\n  ".join(found))
    for gap in found:
        logger.warning("gap of this machine: %s", gap)
    result, isolation = await selftest.require_walls(engine)
    _, *others = engine.runtimes
    # Others are not tried at each start: they serve nothing here. `self-test` tries them all.
    return Assurance(isolation, (result, *map(RuntimeResult, others)), profile, tuple(found))


async def _prove(engine: DockerEngine, state: StateFolder) -> Catalogue:
    """Gives the tasks that are proven. Those of `bugfix` are proven now if need be, which takes two seconds."""
    book = ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
    known = known_suites(state.suites)
    functions = [task for task in known.suite("bugfix") if not book.holds(task)]
    if functions:
        async with open_grounds(engine) as grounds:
            book.add(await prove_all(functions, grounds))
    proven = {name: [task for task in tasks if book.holds(task)] for name, tasks in known.suites.items()}
    left_out = {name: len(tasks) - len(proven[name]) for name, tasks in known.suites.items()}
    for name, count in left_out.items():
        if count:
            command = f"python -m gym_service tasks check {name}"
            logger.warning(
                "%d tasks of %s are not proven and not served; `%s` proves them, or says why not",
                count,
                name,
                command,
            )
    return Catalogue(proven, left_out, known.absent)


def find_gaps(engine: DockerEngine) -> list[str]:
    """Says what the engine and its machine lack of what evaluation asks for."""
    facts = engine.facts
    return gaps(
        read_machine(
            engine_version=facts.engine_version,
            runtime=facts.runtime,
            runtime_version=facts.runtime_version,
            kernel_version=facts.kernel_version,
            socket_path=facts.socket_path,
        )
    )


class _Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Lets through who brings a token whose role allows the call, and nothing that is no message of the contract.

    One call is open: the health check, which says nothing but whether the service serves.
    """

    def __init__(self, bearers: Bearers, turnstile: Turnstile, errors: Counter[str]) -> None:
        self._bearers = bearers
        self._turnstile = turnstile
        self._errors = errors
        self._reading: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_READ_AT_ONCE)
        )
        """Bounds the messages that are taken in, by caller; those of streams are bounded by their number."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method, metadata = details.method, tuple(details.invocation_metadata or ())
        brought = [value for key, value in metadata if key == "authorization"]

        def admit() -> Caller:
            try:
                caller = self._bearers.caller_of(brought)
            except Unauthenticated:
                if method != _OPEN_METHOD:
                    raise
                return STRANGER
            if method != _OPEN_METHOD:
                caller.check_method(*method.strip("/").split("/", 1))
            return caller

        try:
            caller = admit()
        except GymError as error:
            self._errors[error.reason] += 1
            return _refusing(error)
        if handler.response_streaming and not handler.request_streaming:
            return handler
        reading, is_counted = self._reading[caller.name], method != _RENEW_METHOD
        return _decoding(
            handler, caller, admit, self._turnstile, reading, self._errors, is_counted=is_counted
        )


def _decoding(
    handler: Any,
    caller: Caller,
    admit: Callable[[], Caller],
    turnstile: Turnstile,
    reading: asyncio.Semaphore,
    errors: Counter[str],
    *,
    is_counted: bool,
) -> Any:
    """Gives a handler that knows its caller, and answers bytes which are no message with INVALID_ARGUMENT.

    gRPC itself would answer UNKNOWN and write a stack trace to the log, for each of them. A stream may outlive the
    token that opened it, so `admit` is asked again for each of its messages. `is_counted` says whether a unary call
    counts for the caller's rate.
    """
    malformed = InvalidRequest("the message is not of the kind that this method takes", "MESSAGE_MALFORMED")

    async def refuse(context: Any, error: GymError) -> NoReturn:
        errors[error.reason] += 1
        await abort(context, error)

    async def call(_: Any, context: Any) -> Any:
        CALLER.set(caller)
        async with reading:
            data = await context.read()
        # A call that ends before its message does would get no answer from gRPC.
        if not isinstance(data, bytes):
            await refuse(context, malformed)
        if is_counted:
            await turnstile.keep_rate()
        await turnstile.enter()
        turnstile.charge(len(data))
        try:
            request = handler.request_deserializer(data)
        except DecodeError:
            await refuse(context, malformed)
        response = await handler.unary_unary(request, context)
        turnstile.charge(response.ByteSize())
        return response

    async def stream(parts: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        CALLER.set(caller)
        refusal: GymError | None = None

        async def requests() -> AsyncIterator[Any]:
            nonlocal refusal
            async for data in parts:
                try:
                    admit()
                    await turnstile.enter()
                    turnstile.charge(len(data))
                    request = handler.request_deserializer(data)
                except GymError as error:
                    refusal = error
                    return
                except DecodeError:
                    refusal = malformed
                    return
                yield request

        async for response in handler.stream_stream(requests(), context):
            yield response
        if refusal:
            await refuse(context, refusal)

    return _with_behaviour(handler, call, stream)


def _refusing(error: GymError) -> Any:
    """Gives a handler that answers everything with an error, before it has taken in a message of any length."""

    async def refuse(_: Any, context: Any) -> None:
        await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _with_behaviour(handler: Any, call: Any, stream: Any) -> Any:
    """Gives a handler that takes bytes as they come, and of a unary call also when they come."""
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)
    return grpc.stream_unary_rpc_method_handler(call, None, handler.response_serializer)
