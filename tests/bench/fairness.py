"""One caller beside another that floods the service."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections import deque
from dataclasses import dataclass
from itertools import chain

import grpc
import uvloop
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service.callers import TokenBook
from tests.bench.latencies import Latencies
from tests.bench.services import Service

_BATCH = 64
_STREAMS = 4
_FLOODING_STREAMS, _FLOODING_AHEAD = 60, 16
_READ = pb.Action(text="<call> read </call>")


@dataclass(frozen=True)
class Served:
    """What a caller got."""

    steps_per_second: float
    latencies: Latencies
    """Of a message of 64 turns."""


async def beside_flood(service: Service, seconds: float) -> tuple[Served, Served, float]:
    """Serves a caller with 4 messages under way alone, and beside another that has nearly a thousand.

    Gives both, and the first caller's share of all that was served.
    """
    book = TokenBook(service.state.tokens)
    modest = await _Asking.of(service.stub, book.issue("modest", "train", 1))
    alone = await modest.ask(_STREAMS, 1, seconds)
    # In a process of its own: in one event loop it would hold the other caller up itself.
    command = (sys.executable, "-m", "tests.bench.fairness", service.address, str(seconds))
    flood = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert flood.stdin
    assert flood.stdout
    flood.stdin.write(f"{book.issue('greedy', 'train', 1)}\n".encode())
    await flood.stdout.readline()
    beside = await modest.ask(_STREAMS, 1, seconds)
    theirs = float(await flood.stdout.readline())
    await flood.wait()
    return alone, beside, beside.steps_per_second / (beside.steps_per_second + theirs)


@dataclass(frozen=True)
class _Asking:
    """A caller, and the message that it has answered again and again: turns, given from memory after the first time."""

    stub: gym_pb2_grpc.GymServiceStub
    metadata: tuple[tuple[str, str], ...]
    message: pb.RolloutRequest

    @classmethod
    async def of(cls, stub: gym_pb2_grpc.GymServiceStub, token: str) -> "_Asking":
        """Opens the episodes."""
        metadata = (("authorization", f"Bearer {token}"),)
        steps = []
        for index in range(_BATCH):
            request = pb.CreateEpisodeRequest(
                request_id=str(index),
                task_id="bugfix/zero/share",
                toolset="menu",
                seed=pb.EpisodeSeed(index=index),
            )
            created = await stub.CreateEpisode(request, metadata=metadata)
            steps.append(pb.StepEpisodeRequest(episode_id=created.episode_id, turn=0, action=_READ))
        return cls(
            stub, metadata, pb.RolloutRequest(commands=[pb.RolloutCommand(step=step) for step in steps])
        )

    async def ask(self, streams: int, ahead: int, seconds: float) -> Served:
        """Asks for a time, on so many streams and with so many messages under way on each."""
        begin = time.perf_counter()
        took = await asyncio.gather(*(self._ask(ahead, begin + seconds) for _ in range(streams)))
        milliseconds = list(chain.from_iterable(took))
        return Served(len(milliseconds) * _BATCH / (time.perf_counter() - begin), Latencies(milliseconds))

    async def _ask(self, ahead: int, until: float) -> list[float]:
        stream = self.stub.Rollout(metadata=self.metadata)
        sent: deque[float] = deque()
        milliseconds: list[float] = []
        answered = 0
        while time.perf_counter() < until:
            while len(sent) < ahead:
                sent.append(time.perf_counter())
                await stream.write(self.message)
            results = (await stream.read()).results
            assert all(result.HasField("stepped") for result in results), results
            answered += len(results)
            while answered >= _BATCH:
                answered -= _BATCH
                milliseconds.append((time.perf_counter() - sent.popleft()) * 1000)
        stream.cancel()
        return milliseconds


async def _flood(address: str, seconds: float, token: str) -> None:
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        greedy = await _Asking.of(gym_pb2_grpc.GymServiceStub(channel), token)
        print("flooding", flush=True)
        print((await greedy.ask(_FLOODING_STREAMS, _FLOODING_AHEAD, seconds)).steps_per_second)


if __name__ == "__main__":
    uvloop.run(_flood(sys.argv[1], float(sys.argv[2]), sys.stdin.readline().strip()))
