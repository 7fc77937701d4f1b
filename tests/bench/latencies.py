"""How long one waits: for a file, for an episode, for a sandbox. In milliseconds."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import docker

from gym_service.sandbox.docker import DockerEngine, remove_containers
from gym_service.sandbox.policy import SandboxLimits
from sandbox_images.build import image_reference
from tests.bench import baselines
from tests.bench.episodes import Player, function_name
from tests.bench.rates import ROUNDS
from trainer_client.wire import Created

_ENGINE_OWNER = "bench"


@dataclass(frozen=True)
class Latencies:
    """The times of many calls."""

    milliseconds: Sequence[float]

    def percentile(self, percent: int) -> float:
        """Gives the time that so many in a hundred stay below."""
        return statistics.quantiles(self.milliseconds, n=100, method="inclusive")[percent - 1]


async def read_beside_exec(player: Player, at_once: int, seconds: float) -> tuple[Latencies, Latencies]:
    """Reads a file in a few episodes at once, and by `docker exec` in as many containers at once, in turns."""
    ours: list[float] = []
    theirs: list[float] = []
    async with AsyncExitStack() as stack:
        entering = (stack.enter_async_context(baselines.container()) for _ in range(at_once))
        names = await asyncio.gather(*entering)
        write = ("sh", "-c", "cat > zorp.py")
        await asyncio.gather(
            *(baselines.run("docker", "exec", "-i", name, *write, content=baselines.SOURCE) for name in names)
        )
        for _ in range(ROUNDS):
            stop = time.monotonic() + seconds / ROUNDS
            while time.monotonic() < stop:
                ours += await _read_in_episodes(player, at_once)
            stop = time.monotonic() + seconds / ROUNDS
            while time.monotonic() < stop:
                theirs += await asyncio.gather(*map(_read_by_exec, names))
    return Latencies(ours), Latencies(theirs)


async def _read_in_episodes(player: Player, at_once: int) -> list[float]:
    """Reads in all the turns of a few episodes; neither their creation nor their end is measured."""
    latencies: list[float] = []
    episodes = await asyncio.gather(*(player.create("coding") for _ in range(at_once)))

    async def read(episode: Created) -> None:
        for turn in range(episode.max_turns - 1):
            begin = time.perf_counter()
            await _read(player, episode, turn)
            latencies.append((time.perf_counter() - begin) * 1000)

    await asyncio.gather(*map(read, episodes))
    await asyncio.gather(*(player.gym.end(episode.episode_id, "cancelled") for episode in episodes))
    return latencies


async def _read(player: Player, episode: Created, turn: int) -> None:
    answer = await player.call(episode, turn, "Read", file_path=f"{function_name(episode)}.py")
    assert "return total // count" in answer.tool_results[0].text, answer


async def _read_by_exec(name: str) -> float:
    begin = time.perf_counter()
    await baselines.read_by_exec(name)
    return (time.perf_counter() - begin) * 1000


async def warm_starts(player: Player, seconds: float) -> Latencies:
    """From the wish for an episode to its first observation, one after the other."""
    latencies: list[float] = []
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        begin = time.perf_counter()
        episode = await player.create("coding")
        await _read(player, episode, 0)
        latencies.append((time.perf_counter() - begin) * 1000)
        await player.gym.end(episode.episode_id, "cancelled")
    return Latencies(latencies)


async def cold_starts(seconds: float) -> tuple[Latencies, Latencies]:
    """From nothing to a warden that answers, and by `docker run` + `docker exec`, in turns."""
    ours: list[float] = []
    theirs: list[float] = []
    engine = DockerEngine(image_reference(), SandboxLimits(), _ENGINE_OWNER)
    stop = time.monotonic() + seconds
    try:
        while time.monotonic() < stop or len(ours) < 2:
            begin = time.perf_counter()
            sandbox = await engine.start()
            ours.append((time.perf_counter() - begin) * 1000)
            await sandbox.close()
            begin = time.perf_counter()
            async with baselines.container() as name:
                await baselines.run("docker", "exec", name, "true")
                theirs.append((time.perf_counter() - begin) * 1000)
    finally:
        remove_containers(docker.from_env(), _ENGINE_OWNER)
    return Latencies(ours), Latencies(theirs)
