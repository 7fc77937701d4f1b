"""What a verdict costs, on episodes that are solved already."""

import asyncio
import time

from tests.bench.rates import Rate, busy_seconds
from tests.bench.services import Service


async def grading_rate(service: Service, at_once: int, seconds: float) -> Rate:
    """Ends and grades so many episodes at once; nothing else is measured, and nothing of it is left out."""
    player = service.player
    graded, elapsed, busy = 0, 0.0, 0.0
    while elapsed < seconds:
        episodes = await asyncio.gather(*(player.solve() for _ in range(at_once)))
        begin, busy_before = time.monotonic(), busy_seconds()
        await asyncio.gather(*map(player.hand_in, episodes))
        await service.settle()
        elapsed += time.monotonic() - begin
        busy += busy_seconds() - busy_before
        graded += at_once
    return Rate(graded / elapsed, busy * 1000 / graded)
