"""What is left without containers: the floor of the RPCs, and a training run beside which the tax is measured."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.episodes import Player
from tests.bench.rates import Rate, busy_seconds
from tests.bench.services import Service, environment_of
from trainer_client.models.base import make_rl_base

STEPS = 10
_REPEATS = 2


async def step_rate(player: Player, batch: int, seconds: float) -> Rate:
    """Plays turns of so many episodes at once, each time in one message; only the turns are measured."""
    gym = player.gym
    played, elapsed, busy = 0, 0.0, 0.0
    while elapsed < seconds:
        episodes = await asyncio.gather(
            *(
                gym.create("bugfix/zero/share", "menu", run_seed=0, group="floor", index=index)
                for index in range(batch)
            )
        )
        begin, busy_before = time.perf_counter(), busy_seconds()
        turns = range(episodes[0].max_turns - 1)
        for turn in turns:
            await asyncio.gather(
                *(gym.step_text(each.episode_id, turn, "<call> read </call>") for each in episodes)
            )
        elapsed += time.perf_counter() - begin
        busy += busy_seconds() - busy_before
        played += batch * len(turns)
        await asyncio.gather(*(gym.end(each.episode_id, "cancelled") for each in episodes))
    return Rate(played / elapsed, busy * 1000 / played)


async def run_beside(services: Sequence[Service]) -> list[tuple[float, str]]:
    """Trains a few steps over each service, in turns; gives the shortest time in seconds and the weights' hash."""
    base = await make_rl_base(services[0].player.gym)
    seconds: list[list[float]] = [[] for _ in services]
    weights = [""] * len(services)
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(_REPEATS):
            for number, service in enumerate(services):
                name = f"run-{number}-{repeat}"
                begin = time.monotonic()
                await _train(service, Path(folder), name, base)
                seconds[number].append(time.monotonic() - begin)
                result = json.loads((Path(folder) / "runs" / name / "result.json").read_text())
                weights[number] = result["weights_sha256"]
    return [(min(each), sha256) for each, sha256 in zip(seconds, weights, strict=True)]


async def _train(service: Service, folder: Path, name: str, base: Path) -> None:
    flags = (f"--name={name}", f"--steps={STEPS}", f"--model={base}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trainer_client.run", *flags),
        cwd=folder,
        env=environment_of(service.state),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the run failed:\n{output.decode()}")
