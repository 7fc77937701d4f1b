"""The work that is measured: whole episodes, played by a scripted policy over gRPC."""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

TASK = "bugfix/zero/share"
FAULTY_LINE = "    return total // count"
REPAIRED_LINES = "    if count == 0:\n        return 0\n    return total // count"
_requests = itertools.count()


@dataclass(frozen=True)
class Client:
    """A stub with its credential."""

    stub: gym_pb2_grpc.GymServiceStub
    metadata: tuple[tuple[str, str], ...]

    async def create(self, toolset):
        number = next(_requests)
        request = pb.CreateEpisodeRequest(
            request_id=f"bench-{number}",
            task_id=TASK,
            toolset=toolset,
            seed=pb.EpisodeSeed(run_seed=0, group="bench", index=number),
        )
        return await self.stub.CreateEpisode(request, metadata=self.metadata, timeout=60)

    async def step(self, episode_id, turn, action):
        request = pb.StepEpisodeRequest(episode_id=episode_id, turn=turn, action=action)
        return await self.stub.StepEpisode(request, metadata=self.metadata, timeout=60)

    async def finish(self, episode_id):
        request = pb.GradeEpisodeRequest(episode_id=episode_id)
        graded = await self.stub.GradeEpisode(request, metadata=self.metadata, timeout=60)
        assert graded.verdict.status == pb.VERDICT_STATUS_RESOLVED, graded.verdict


async def play_menu(client):
    """Read, edit, test, submit, hidden grading."""
    episode = await client.create("menu")
    for turn, call in enumerate(("read", "edit add_zero_guard", "test", "submit")):
        await client.step(episode.episode_id, turn, pb.Action(text=f"<call> {call} </call>"))
    await client.finish(episode.episode_id)


async def play_coding(client):
    """Read, Edit, pytest by Bash, answer, hidden grading."""
    episode = await client.create("coding")
    name = episode.messages[1].content.split("test_")[1].split(".py")[0]
    calls = (
        ("Read", {"file_path": f"{name}.py"}),
        ("Edit", {"file_path": f"{name}.py", "old_string": FAULTY_LINE, "new_string": REPAIRED_LINES}),
        ("Bash", {"command": "pytest"}),
    )
    for turn, (tool, arguments) in enumerate(calls):
        call = pb.ToolCall(tool=tool, arguments_json=json.dumps(arguments))
        await client.step(episode.episode_id, turn, pb.Action(tool_calls=pb.ToolCalls(calls=[call])))
    await client.step(episode.episode_id, 3, pb.Action(text="Done."))
    await client.finish(episode.episode_id)


@dataclass(frozen=True)
class Rate:
    """How fast episodes were played."""

    per_second: float
    cpu_ms: float
    """CPU time of the whole machine per episode."""


async def measure(play: Callable[[], Awaitable[None]], *, seconds: float, at_once: int) -> Rate:
    """Plays episodes side by side for a time."""
    await asyncio.gather(*(play() for _ in range(at_once)))
    played = 0
    begin, busy = time.monotonic(), busy_seconds()

    async def worker() -> None:
        nonlocal played
        while time.monotonic() - begin < seconds:
            await play()
            played += 1

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return Rate(played / (time.monotonic() - begin), (busy_seconds() - busy) * 1000 / played)


def busy_seconds() -> float:
    """Reads how long the processors have worked since boot."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / 100
