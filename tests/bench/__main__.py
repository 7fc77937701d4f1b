"""Prints one JSON object per line: name, value, unit, and for comparisons baseline, baseline_value, ratio."""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import control
from gym_service.state import StateFolder
from tests.bench import baselines
from tests.bench.episodes import Client, Rate, measure, play_coding, play_menu


def show(name: str, value: float, unit: str, **more: object) -> None:
    """Prints one result."""
    print(json.dumps({"name": name, "value": round(value, 3), "unit": unit, **more}), flush=True)


def compare(name: str, ours: Rate, baseline: str, theirs: Rate) -> None:
    """Prints a rate beside its baseline."""
    show(
        name,
        ours.per_second,
        "episodes/s",
        baseline=baseline,
        baseline_value=round(theirs.per_second, 3),
        ratio=round(ours.per_second / theirs.per_second, 2),
        cpu_ms=round(ours.cpu_ms, 1),
        baseline_cpu_ms=round(theirs.cpu_ms, 1),
    )


@asynccontextmanager
async def service(*arguments: str) -> AsyncIterator[Client]:
    """Runs a service of its own in the background and talks to it."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        await asyncio.to_thread(control.up, state, arguments)
        try:
            endpoint = StateFolder(state).endpoint()
            assert endpoint
            async with grpc.aio.insecure_channel(endpoint.address) as channel:
                metadata = (("authorization", f"Bearer {endpoint.token}"),)
                yield Client(gym_pb2_grpc.GymServiceStub(channel), metadata)
        finally:
            await asyncio.to_thread(control.down, state)


async def read_latencies(client: Client, at_once: int, seconds: float) -> list[float]:
    """Reads a file in a few episodes at once; gives the time of each call in milliseconds."""
    latencies: list[float] = []
    stop = time.monotonic() + seconds

    async def reader() -> None:
        while time.monotonic() < stop:
            episode = await client.create("coding")
            name = episode.messages[1].content.split("test_")[1].split(".py")[0]
            call = pb.ToolCall(tool="Read", arguments_json=json.dumps({"file_path": f"{name}.py"}))
            for turn in range(episode.max_turns - 1):
                begin = time.perf_counter()
                action = pb.Action(tool_calls=pb.ToolCalls(calls=[call]))
                await client.step(episode.episode_id, turn, action)
                latencies.append((time.perf_counter() - begin) * 1000)
            end = pb.EndEpisodeRequest(episode_id=episode.episode_id, stop_reason=pb.STOP_REASON_CANCELLED)
            await client.stub.EndEpisode(end, metadata=client.metadata, timeout=60)

    await asyncio.gather(*(reader() for _ in range(at_once)))
    return latencies


async def bench(seconds: float) -> None:
    """Runs all measurements."""
    processes = await measure(baselines.play_processes, seconds=seconds, at_once=2)
    docker_exec = await measure(baselines.play_docker_exec, seconds=seconds, at_once=4)
    async with service("--capacity", "8") as client:
        coding = await measure(lambda: play_coding(client), seconds=seconds, at_once=8)
        compare("coding_episode_rate.reuse", coding, "plain_processes", processes)
        compare("coding_episode_rate.reuse", coding, "docker_exec", docker_exec)
        menu = await measure(lambda: play_menu(client), seconds=seconds, at_once=8)
        show("menu_episode_rate", menu.per_second, "episodes/s", cpu_ms=round(menu.cpu_ms, 1))
        for at_once in (1, 8):
            latencies = await read_latencies(client, at_once, seconds / 2)
            points = statistics.quantiles(latencies, n=100)
            show(f"tool_call_latency.p50.{at_once}", points[49], "ms")
            show(f"tool_call_latency.p99.{at_once}", points[98], "ms")
    async with service("--capacity", "4", "--single-use") as client:
        single = await measure(lambda: play_coding(client), seconds=seconds, at_once=4)
        compare("coding_episode_rate.single_use", single, "docker_exec", docker_exec)


def main() -> int:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each measurement takes")
    asyncio.run(bench(parser.parse_args().seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
