"""A gym to talk to: in this process over FakeSandbox, or over the engine's containers (marker docker)."""

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service.config import ServiceConfig
from gym_service.proof import open_grounds
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.isolation import NO_ISOLATION, Assurance
from gym_service.sandbox.policy import SandboxLimits
from gym_service.server import RunningGym, running_gym
from gym_service.tasks.suites import Catalogue, built_in
from sandbox_images.build import image_reference
from tests import ledger


def pytest_collection_modifyitems(items):
    """Has each file in one process, and all that needs the engine in another: pytest -n 2 --dist loadgroup."""
    for item in items:
        group = "engine" if item.get_closest_marker("docker") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


DOCKER_LIMITS = SandboxLimits(memory_bytes=256 << 20, pids=64)


@dataclass
class Gym:
    """A running gym and a client of it."""

    running: RunningGym
    channel: grpc.aio.Channel
    stub: gym_pb2_grpc.GymServiceStub
    metadata: tuple[tuple[str, str], ...]

    async def create(self, request_id="r1", task_id="bugfix/zero/share", toolset="menu", **fields):
        seed = fields.pop("seed", pb.EpisodeSeed(run_seed=1, group="g", index=0))
        request = pb.CreateEpisodeRequest(
            request_id=request_id, task_id=task_id, toolset=toolset, seed=seed, **fields
        )
        return await self.stub.CreateEpisode(request, metadata=self.metadata)

    async def step(self, episode_id, turn, action):
        if isinstance(action, str):
            action = pb.Action(text=action)
        request = pb.StepEpisodeRequest(episode_id=episode_id, turn=turn, action=action)
        return await self.stub.StepEpisode(request, metadata=self.metadata)

    async def end(self, episode_id, stop_reason=pb.STOP_REASON_CANCELLED):
        request = pb.EndEpisodeRequest(episode_id=episode_id, stop_reason=stop_reason)
        return await self.stub.EndEpisode(request, metadata=self.metadata)

    async def grade(self, episode_id):
        request = pb.GradeEpisodeRequest(episode_id=episode_id)
        return await self.stub.GradeEpisode(request, metadata=self.metadata)

    async def info(self):
        return await self.stub.GetGymInfo(pb.GetGymInfoRequest(), metadata=self.metadata)


@asynccontextmanager
async def gym_over(start_sandbox, tmp_path, catalogue=None, elsewhere=None, **settings):
    """Runs a gym over sandboxes that `start_sandbox` makes; with the built-in suites, if not with others."""
    catalogue = catalogue or built_in()
    config = ServiceConfig(state_folder=tmp_path, **{"capacity": 4, "graders": 2} | settings)
    assurance = Assurance(NO_ISOLATION)
    async with (
        running_gym(config, start_sandbox, assurance, catalogue, b"private seed", elsewhere) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        metadata = (("authorization", f"Bearer {running.token}"),)
        yield Gym(running, channel, gym_pb2_grpc.GymServiceStub(channel), metadata)


async def fake_sandbox(limits=None):
    """Starts a sandbox that isolates nothing."""
    return FakeSandbox()


@pytest.fixture
async def gym(tmp_path):
    async with gym_over(fake_sandbox, tmp_path) as gym:
        yield gym


@pytest.fixture(scope="session")
def engine():
    """The Docker Engine; everything that a test leaves on it goes with the session."""
    engine = DockerEngine(image_reference(), DOCKER_LIMITS, f"tests-{os.getpid()}")
    yield engine
    engine.remove_leftovers()


@pytest.fixture
async def sandbox(engine):
    """One container, under an episode's UID."""
    sandbox = await engine.start()
    sandbox.uid = 2_050_000_000
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def docker_gym(engine, tmp_path):
    async with gym_over(engine.start, tmp_path, limits=DOCKER_LIMITS) as gym:
        yield gym


@pytest.fixture(scope="session")
def ledger_tasks(engine):
    """Repository-level tasks made of the ledger package, proven on the engine."""

    async def make():
        async with open_grounds(engine) as grounds:
            return await ledger.make_tasks(
                ledger.REQUIREMENT, ledger.archive(), 5, grounds, lambda line: None
            )

    return asyncio.run(make())


@pytest.fixture
async def grounds(engine):
    """Where tasks are proven."""
    async with open_grounds(engine) as grounds:
        yield grounds


@pytest.fixture
async def repository_gym(engine, ledger_tasks, tmp_path):
    """A gym over containers that serves the ledger suite."""
    catalogue = Catalogue({"ledger": ledger_tasks})
    async with gym_over(engine.start, tmp_path, limits=DOCKER_LIMITS, catalogue=catalogue) as gym:
        yield gym
