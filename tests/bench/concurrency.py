"""Many live episodes at once: what the service itself can carry, by clients that do nothing but write and read."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path

from gym_contract.v1 import gym_pb2 as pb

from tests.bench.latencies import Latencies
from tests.bench.services import Service

BATCH = 64
"""Turns that a client sends in one message, or as many as there are episodes."""
_STREAMS = 4
"""Messages that are under way at a time, each on a stream of its own; what comes of more is waiting."""
_OPENED_AT_ONCE = 256
_READ = pb.Action(text="<call> read </call>")


@dataclass(frozen=True)
class Load:
    """What so many live episodes came to."""

    steps_per_second: float
    latencies: Latencies
    """Of a message, which is what the last of its steps waits."""
    kib_per_episode: float
    """What the service grew by, for each episode that it holds."""


async def carry(service: Service, live: int, seconds: float) -> Load:
    """Opens so many episodes, plays turns in all of them in turn, and ends them, for a time.

    Opening and ending are not what is measured.
    """
    before = _resident_kib(service.process_id)
    grown, steps, took = 0, 0, 0.0
    milliseconds: list[float] = []
    while took < seconds:
        episodes, max_turns = await _open(service, live)
        grown = grown or _resident_kib(service.process_id) - before
        batches = [episodes[start : start + BATCH] for start in range(0, live, BATCH)]
        # Another turn would end them.
        turns = range(max_turns - 1)
        begin = time.perf_counter()
        milliseconds += chain.from_iterable(
            await asyncio.gather(*(_play(service, batches[i::_STREAMS], turns) for i in range(_STREAMS)))
        )
        took += time.perf_counter() - begin
        steps += live * len(turns)
        await asyncio.gather(*(service.player.gym.end(each, "cancelled") for each in episodes))
    return Load(steps / took, Latencies(milliseconds), grown / live)


async def _open(service: Service, live: int) -> tuple[list[str], int]:
    """Opens episodes; gives their ids, and the turns that each has."""
    gym, opened = service.player.gym, []
    for start in range(0, live, _OPENED_AT_ONCE):
        indices = range(start, min(start + _OPENED_AT_ONCE, live))
        opened += await asyncio.gather(
            *(gym.create("bugfix/zero/share", "menu", run_seed=0, group="load", index=i) for i in indices)
        )
    return [created.episode_id for created in opened], opened[0].max_turns


def _message(episodes: Sequence[str], turn: int) -> pb.RolloutRequest:
    steps = [pb.StepEpisodeRequest(episode_id=each, turn=turn, action=_READ) for each in episodes]
    return pb.RolloutRequest(commands=[pb.RolloutCommand(step=step) for step in steps])


async def _play(service: Service, batches: Sequence[Sequence[str]], turns: Iterable[int]) -> list[float]:
    """Plays turns of all these episodes over one stream; gives how long each message took, in milliseconds."""
    stream = service.open_stream()
    milliseconds: list[float] = []
    for turn, batch in product(turns, batches):
        begin = time.perf_counter()
        await stream.write(_message(batch, turn))
        answered = 0
        while answered < len(batch):
            results = (await stream.read()).results
            assert all(result.HasField("stepped") for result in results), results
            answered += len(results)
        milliseconds.append((time.perf_counter() - begin) * 1000)
    await stream.done_writing()
    return milliseconds


def _resident_kib(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
