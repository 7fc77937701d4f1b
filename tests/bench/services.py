"""The services that are measured, each a process of its own, and a client connected to each."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import control
from gym_service.state import StateFolder
from tests.bench.episodes import Player
from trainer_client.endpoint import Endpoint
from trainer_client.gym import GymClient

_FULL_SECONDS = 120.0


@dataclass(frozen=True)
class Service:
    """A service that serves, and a client of it."""

    state: StateFolder
    address: str
    process_id: int
    sandboxes: int
    """What its pool holds."""
    player: Player
    stub: gym_pb2_grpc.GymServiceStub
    metadata: tuple[tuple[str, str], ...]
    """Says who calls by the stub."""

    def open_stream(self) -> Any:
        """Opens a Rollout stream with nothing around it."""
        return self.stub.Rollout(metadata=self.metadata)

    async def settle(self) -> None:
        """Waits until no episode lives and every sandbox of the pool is warm."""
        deadline = time.monotonic() + _FULL_SECONDS
        while True:
            info = await self.stub.GetGymInfo(pb.GetGymInfoRequest(), metadata=self.metadata, timeout=10)
            if info.live_episodes == 0 and info.warm_sandboxes >= self.sandboxes:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{info.warm_sandboxes} of {self.sandboxes} sandboxes are warm")
            await asyncio.sleep(0.02)


@asynccontextmanager
async def real_service(capacity: int, *arguments: str, graders: int = 4) -> AsyncIterator[Service]:
    """Runs a service over containers, as `make gym-up` does, except that every verdict is a run."""
    say(f"starting a service with {capacity} + {graders} sandboxes {' '.join(arguments)}")
    with tempfile.TemporaryDirectory() as folder:
        state = StateFolder(Path(folder) / "state")
        options = (f"--capacity={capacity}", f"--graders={graders}", "--verdict-cache=off", *arguments)
        await asyncio.to_thread(control.up, state.folder, options)
        try:
            async with _connected(state, capacity + graders) as service:
                await service.settle()
                yield service
        finally:
            await asyncio.to_thread(control.down, state.folder)


@asynccontextmanager
async def fake_service(grading_seed: bytes | None = None, capacity: int = 64) -> AsyncIterator[Service]:
    """Runs a service over sandboxes that isolate nothing: what is left is the cost of everything else."""
    with tempfile.TemporaryDirectory() as folder:
        state = StateFolder(Path(folder) / "state")
        if grading_seed is not None:
            (state.folder / "grading.seed").write_bytes(grading_seed)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.fake_service", state.folder, str(capacity), stdout=sys.stderr
        )
        try:
            while state.endpoint() is None:
                if process.returncode is not None:
                    raise RuntimeError("the fake service ended before it served")
                await asyncio.sleep(0.05)
            async with _connected(state, 0) as service:
                yield service
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@asynccontextmanager
async def _connected(state: StateFolder, sandboxes: int) -> AsyncIterator[Service]:
    endpoint = state.endpoint()
    assert endpoint is not None
    where = Endpoint(endpoint.address, endpoint.token)
    metadata = (("authorization", f"Bearer {endpoint.token}"),)
    async with (
        GymClient.connect(where, on_notice=say) as gym,
        grpc.aio.insecure_channel(endpoint.address, options=[("grpc.enable_http_proxy", 0)]) as channel,
    ):
        stub = gym_pb2_grpc.GymServiceStub(channel)
        player = await Player.over(gym)
        yield Service(state, endpoint.address, endpoint.process_id, sandboxes, player, stub, metadata)


def say(text: str) -> None:
    """Tells what goes on, beside the results."""
    print(text, file=sys.stderr, flush=True)


def environment_of(state: StateFolder) -> dict[str, str]:
    """Gives the environment in which a trainer finds this service."""
    return os.environ | {"GYM_STATE_DIR": str(state.folder)}
