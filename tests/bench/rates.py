"""How fast something is done, and how fast others do it, measured beside each other."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

ROUNDS = 3


async def _nothing() -> None:
    """What needs no settling."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work."""

    play: Callable[[], Awaitable[None]]
    """Does it once."""
    at_once: int
    settle: Callable[[], Awaitable[None]] = _nothing
    """Waits until everything is as it was before; its time and its work count."""


@dataclass(frozen=True)
class Rate:
    """How fast it was done."""

    per_second: float
    cpu_ms: float
    """CPU time of the whole machine each time."""


async def measure(contenders: Sequence[Contender], seconds: float) -> list[Rate]:
    """Measures each contender for a time, in turns: what else the machine does meanwhile then hits all of them."""
    for contender in contenders:
        await contender.play()
        await contender.settle()
    played = [0] * len(contenders)
    elapsed = [0.0] * len(contenders)
    busy = [0.0] * len(contenders)
    for _ in range(ROUNDS):
        for number, contender in enumerate(contenders):
            begin, busy_before = time.monotonic(), busy_seconds()
            played[number] += await _play_for(contender, seconds / ROUNDS)
            await contender.settle()
            elapsed[number] += time.monotonic() - begin
            busy[number] += busy_seconds() - busy_before
    return [
        Rate(count / wall, cpu * 1000 / count) for count, wall, cpu in zip(played, elapsed, busy, strict=True)
    ]


async def _play_for(contender: Contender, seconds: float) -> int:
    played = 0
    stop = time.monotonic() + seconds

    async def worker() -> None:
        nonlocal played
        while time.monotonic() < stop:
            await contender.play()
            played += 1

    async with asyncio.TaskGroup() as workers:
        for _ in range(contender.at_once):
            workers.create_task(worker())
    return played


def busy_seconds() -> float:
    """Reads how long the processors have worked since boot."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / 100
