"""The process of the service: parts put together, started, drained and taken apart again."""

import asyncio
import hmac
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import wire
from gym_service.config import ServiceConfig
from gym_service.episodes import Episodes
from gym_service.errors import Unauthenticated
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.docker import DockerEngine, DockerSandbox
from gym_service.sandbox.pool import Pool, PooledSandbox
from gym_service.servicer import GymServicer, abort
from gym_service.state import Endpoint, StateFolder
from sandbox_images.build import image_reference

logger = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["GymService"].full_name

# Tied to the limits of the client (trainer_client/link.py): what one side sends, the other must take.
MAX_MESSAGE_BYTES = 32 << 20

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A policy may think for minutes: pings of the client on a quiet stream are welcome.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
_DRAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunningGym:
    """A service that serves."""

    address: str
    token: str
    episodes: Episodes
    pool: Pool


@asynccontextmanager
async def running_gym(
    config: ServiceConfig,
    start_sandbox: Callable[[], Awaitable[PooledSandbox]],
    isolation: Callable[[], pb.Isolation],
    private_seed: bytes,
) -> AsyncIterator[RunningGym]:
    """Runs a service on the loopback interface for the length of a block."""
    pool = Pool(start_sandbox, size=config.capacity + config.graders, reuse=config.reuse)
    episodes = Episodes(
        pool,
        capacity=config.capacity,
        max_lease_seconds=config.max_lease_seconds,
        kept=config.kept_episodes,
        private_seed=private_seed,
        graders=config.graders,
    )
    token = secrets.token_urlsafe(32)
    server = grpc.aio.server(interceptors=[_TokenCheck(token)], options=_OPTIONS)
    servicer = GymServicer(episodes, pool, isolation, MAX_MESSAGE_BYTES)
    gym_pb2_grpc.add_GymServiceServicer_to_server(servicer, server)
    healthcheck = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(healthcheck, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = server.add_insecure_port(f"127.0.0.1:{config.port}")
    pool.open()
    reaper = asyncio.create_task(episodes.reap())
    await server.start()
    await healthcheck.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield RunningGym(f"127.0.0.1:{port}", token, episodes, pool)
    finally:
        episodes.draining = True
        await healthcheck.enter_graceful_shutdown()
        await episodes.close()
        await server.stop(grace=1.0)
        reaper.cancel()
        await pool.close()


async def serve(config: ServiceConfig) -> None:
    """Serves episodes in containers until SIGTERM or SIGINT.

    Raises SandboxLost when there is no engine, no image, or no sandbox can be started; OSError when the state
    folder is held by another service.
    """
    state = StateFolder(config.state_folder)
    lock = state.lock()
    if lock is None:
        raise BlockingIOError(f"another service holds {config.state_folder}")
    image = image_reference()
    engine = DockerEngine(image, config.limits, state.owner)
    leftovers = await asyncio.to_thread(engine.remove_leftovers)
    if leftovers:
        logger.info("removed %d containers of an earlier service", leftovers)
    isolation = await _observe(engine, config)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with running_gym(config, engine.start, lambda: isolation, state.grading_seed()) as gym:
        state.publish(Endpoint(gym.address, gym.token, os.getpid(), image))
        logger.info("serving at %s, image %s", gym.address, isolation.image_digest)
        try:
            await stopped.wait()
            gym.episodes.draining = True
            await _drained(gym.episodes)
        finally:
            state.withdraw()
    lock.close()


async def _observe(engine: DockerEngine, config: ServiceConfig) -> pb.Isolation:
    """Starts one throwaway sandbox and reads from inside what really holds."""
    sandbox: DockerSandbox = await engine.start()
    try:
        sandbox.uid = 2_100_000_000
        observed = await sandbox.probe()
    finally:
        await sandbox.close()
    facts = engine.facts
    expected = {"effective_capabilities": "0" * 16, "no_new_privileges": "1", "network_interfaces": "lo"}
    for name, value in expected.items():
        if observed[name] != value:
            raise SandboxLost(f"a sandbox does not hold: {name} is {observed[name]}, not {value}")
    return pb.Isolation(
        runtime=facts.runtime,
        engine_version=facts.engine_version,
        kernel_version=facts.kernel_version,
        image_digest=facts.image_digest,
        limits=wire.limits_to(config.limits),
        observed=observed,
    )


async def _drained(episodes: Episodes) -> None:
    """Lets live episodes finish, for a bounded time."""
    with suppress(TimeoutError):
        await asyncio.wait_for(episodes.idle.wait(), _DRAIN_SECONDS)


class _TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Lets through who brings the token. Health is open: it says nothing but whether the service serves."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if details.method.startswith(f"/{health.SERVICE_NAME}/") or handler is None:
            return handler
        metadata = dict(details.invocation_metadata or ())
        brought = metadata.get("authorization", "")
        if hmac.compare_digest(str(brought).encode(), self._expected):
            return handler
        return _refusing(handler)


def _refusing(handler: Any) -> Any:
    """Gives a handler of the same kind that refuses the call."""
    error = Unauthenticated("the call does not carry the token of this gym", "TOKEN_INVALID")

    async def refuse(_: Any, context: Any) -> None:
        await abort(context, error)

    async def refuse_stream(_: Any, context: Any) -> AsyncIterator[None]:
        await abort(context, error)
        yield

    if handler.response_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        return make(refuse_stream, handler.request_deserializer, handler.response_serializer)
    return grpc.unary_unary_rpc_method_handler(
        refuse, handler.request_deserializer, handler.response_serializer
    )
