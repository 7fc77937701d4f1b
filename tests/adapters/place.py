"""A machine with a gym: one that adapters find by themselves, as they would find the gym of this user."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import fake_sandbox, gym_over
from trainer_client import blocking
from trainer_client.blocking import BlockingGym
from trainer_client.endpoint import Endpoint


@asynccontextmanager
async def machine_with_a_gym(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_sandbox: Any = fake_sandbox
) -> AsyncIterator[BlockingGym]:
    """Runs a gym in this process, and connects this process to it until the end of the block."""
    async with gym_over(start_sandbox, tmp_path, capacity=16) as gym:
        connection = BlockingGym.connect(Endpoint(gym.running.address, gym.running.token))
        connected = await asyncio.to_thread(connection.__enter__)
        monkeypatch.setattr(blocking, "_connected", lambda: connected)
        yield connected
        await asyncio.to_thread(connection.__exit__, None, None, None)
