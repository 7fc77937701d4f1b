"""Many live episodes at once over sandboxes that isolate nothing: what the service itself can carry."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.latencies import Latencies
from tests.bench.services import Service
from trainer_client.wire import Created

BATCH = 64
"""Turns that a client sends in one message, or as many as there are episodes."""
_IN_FLIGHT = 4
"""Batches that are under way at a time; what comes of more is waiting."""


@dataclass(frozen=True)
class Load:
    """What so many live episodes came to."""

    steps_per_second: float
    latencies: Latencies
    """Of a batch, which is what a step in it waits."""
    kib_per_episode: float
    """What the service grew by, for each episode that it holds."""


async def carry(service: Service, live: int, seconds: float) -> Load:
    """Opens so many episodes, plays turns in all of them in turn for a time, and ends them."""
    before = _resident_kib(service.process_id)
    episodes = [
        episode
        for start in range(0, live, 256)
        for episode in await asyncio.gather(
            *(_open(service, index) for index in range(start, min(start + 256, live)))
        )
    ]
    grown = _resident_kib(service.process_id) - before
    batches = [episodes[start : start + BATCH] for start in range(0, live, BATCH)]
    milliseconds: list[float] = []
    played, begin = 0, time.perf_counter()
    room = asyncio.Semaphore(_IN_FLIGHT)

    async def play(batch: list[Created], turn: int) -> None:
        async with room:
            started = time.perf_counter()
            await asyncio.gather(
                *(
                    service.player.gym.step_text(each.episode_id, turn, "<call> read </call>")
                    for each in batch
                )
            )
            milliseconds.append((time.perf_counter() - started) * 1000)

    while (elapsed := time.perf_counter() - begin) < seconds or len(milliseconds) < 2:
        for turn in range(episodes[0].max_turns - 1):
            await asyncio.gather(*(play(batch, turn) for batch in batches))
            played += live
        elapsed = time.perf_counter() - begin
        if elapsed < seconds:
            begin_pause = time.perf_counter()
            await _end(service, episodes)
            episodes = await asyncio.gather(*(_open(service, index) for index in range(live)))
            batches = [episodes[start : start + BATCH] for start in range(0, live, BATCH)]
            # Opening and ending are not what is measured.
            begin += time.perf_counter() - begin_pause
    await _end(service, episodes)
    return Load(played / elapsed, Latencies(milliseconds), grown / live)


async def _open(service: Service, index: int) -> Created:
    return await service.player.gym.create("bugfix/zero/share", "menu", run_seed=0, group="load", index=index)


async def _end(service: Service, episodes: list[Created]) -> None:
    await asyncio.gather(*(service.player.gym.end(each.episode_id, "cancelled") for each in episodes))


def _resident_kib(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
