"""The server that the contract is tried on: one in this process, or the one that `--target` names."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from tests.conftest import fake_sandbox, gym_over


@dataclass(frozen=True)
class Target:
    """A server and a client of it, which knows nothing but the contract."""

    stub: Any
    metadata: tuple[tuple[str, str], ...]

    def call(self, method: str, request: Any) -> Any:
        """Calls a method and returns its answer."""
        return getattr(self.stub, method)(request, metadata=self.metadata, timeout=60)

    def refused(self, method: str, request: Any, code: grpc.StatusCode, reason: str = "") -> None:
        """Calls a method that has to be refused with this code, and with this reason where one is given."""
        with pytest.raises(grpc.RpcError) as raised:
            self.call(method, request)
        error: Any = raised.value
        told = pb.Error.FromString(dict(error.trailing_metadata())["gym-error-bin"])
        assert error.code() == code
        assert told.reason == reason or not reason
        assert told.message

    @property
    def capacity(self) -> int:
        """The episodes that can be live at once."""
        return int(self.call("GetGymInfo", pb.GetGymInfoRequest()).capacity)


@contextmanager
def connected(address: str, token: str, authority: bytes | None = None) -> Iterator[Target]:
    """Connects to a server, in TLS where it has an authority."""
    with (
        grpc.secure_channel(address, grpc.ssl_channel_credentials(authority))
        if authority
        else grpc.insecure_channel(address)
    ) as channel:
        yield Target(gym_pb2_grpc.GymServiceStub(channel), (("authorization", f"Bearer {token}"),))


@contextmanager
def serving(folder: Path, capacity: int) -> Iterator[Target]:
    """Runs a gym over sandboxes that isolate nothing, in a thread of its own."""
    started, leave = threading.Event(), threading.Event()
    found: list[tuple[str, str]] = []

    async def serve() -> None:
        async with gym_over(fake_sandbox, folder, capacity=capacity) as gym:
            found.append((gym.running.address, gym.running.token))
            started.set()
            await asyncio.to_thread(leave.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    try:
        with connected(*found[0]) as target:
            yield target
    finally:
        leave.set()
        thread.join()
