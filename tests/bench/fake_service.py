"""A whole service over FakeSandbox, until it is terminated: `python -m tests.bench.fake_service FOLDER CAPACITY`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from gym_service.config import ServiceConfig
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.isolation import NO_ISOLATION, Assurance
from gym_service.sandbox.policy import SandboxLimits
from gym_service.server import look_for_garbage_rarely, running_gym
from gym_service.state import Endpoint, StateFolder
from gym_service.tasks.suites import built_in


async def serve(folder: Path, capacity: int) -> None:
    """Serves so many episodes at once until SIGTERM."""
    state = StateFolder(folder)
    assert state.lock()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def start(limits: SandboxLimits | None = None) -> FakeSandbox:
        return FakeSandbox()

    look_for_garbage_rarely()
    config = ServiceConfig(state_folder=folder, capacity=capacity, verdict_cache=False)
    seed = state.grading_seed()
    async with running_gym(config, start, Assurance(NO_ISOLATION), built_in(), seed) as gym:
        state.publish(Endpoint(gym.address, gym.token, os.getpid(), image=""))
        await stopped.wait()
        state.withdraw()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
