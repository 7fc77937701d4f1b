"""Kills and cuts everything a run of the main job stands on, at random moments: `make chaos`.

A service over containers of a Docker Engine of its own (the engine in use is left alone), a trainer, and a proxy
between the two. The run is made twice with the same seed: once undisturbed, and once while one thing after the other,
sometimes two at once, is killed with SIGKILL and started again a moment later, or the connection is cut, also in
the middle of a message. Moments and kinds are drawn from the seed; what they meet differs from time to time.

What must hold afterwards is in `chaos_claims.py`. Progress goes to stderr, the table to stdout; status 1 where a claim
does not hold.
"""

import argparse
import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from docker.errors import DockerException

from gym_service.callers import TokenBook
from gym_service.state import StateFolder
from tests.bench.chaos_claims import Claim, Kept, claims_of, left_on_engine, left_on_machine
from tests.bench.private_engine import PrivateEngine
from tests.bench.proxy import Proxy, running_proxy
from tests.bench.services import say

KINDS = ("service", "engine", "warden", "trainer", "connection")
_LONGEST_CALM_SECONDS = 30.0
"""After which the next fault comes in any case: also what recovers is disturbed."""
_PAIR_SHARE = 0.2
"""The share of faults that come with another one at the same moment."""
_LONGEST_DOWN_SECONDS = 4.0
_STUCK_SECONDS = 240.0
"""Without a new record for so long a run hangs. Leases of a dead trainer, a minute long, hold capacity."""
_UP_SECONDS = 180.0

SERVICE = ("--capacity=32", "--graders=4", "--records=all", "--verdict-cache=off", "--max-lease-seconds=60")
STEP_EPISODES = 64
_TESTED = 2 * 5 * 8
_VALIDATED = 5 * 2
_VALIDATE_EVERY = 2


def settings_for(episodes: int, seed: int) -> dict[str, object]:
    """Gives the settings of a run that plays as many episodes, or a few more."""
    steps = max(
        1, math.ceil((episodes - _TESTED - _VALIDATED) / (STEP_EPISODES + _VALIDATED / _VALIDATE_EVERY))
    )
    return {
        "seed": seed,
        "steps": steps,
        "tasks-per-step": 8,
        "group-size": 8,
        "cohort-size": 8,
        "validate-every": _VALIDATE_EVERY,
        "validation-episodes": 2,
        "test-episodes": 8,
    }


@dataclass
class Storm:
    """What was done to a run."""

    faults: Counter[str] = field(default_factory=Counter)
    deaths: list[str] = field(default_factory=list)
    """How the trainer ended where nobody had killed it, the end of its output each time."""
    starts_without_a_gym: int = 0
    """How often the trainer was started at a moment in which no gym answered, said so, and ended."""
    seconds: float = 0.0


class Ground:
    """The engine, the service and the proxy, and the folder in which runs of the trainer are made."""

    def __init__(self, folder: Path, engine: PrivateEngine, state: StateFolder) -> None:
        self.folder = folder
        self.engine = engine
        self.state = state
        self.kept = Kept(state.folder / "records")
        self.proxy: Proxy | None = None
        self.trainer: subprocess.Popen[bytes] | None = None
        self._killed_trainer = False
        self._log_bytes = 0
        """What the log of the run holds of earlier lives of the trainer."""

    async def start_service(self) -> None:
        """Starts the service as an operator would: again and again as long as there is no engine."""
        command = [sys.executable, "-m", "gym_service", "up", *SERVICE]
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            done = await asyncio.create_subprocess_exec(
                *command,
                env=self.engine.environment,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, problem = await done.communicate()
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the service does not start: {problem.decode()}")
            await asyncio.sleep(0.5)

    async def stop_service(self) -> None:
        """Stops the service in order."""
        command = [sys.executable, "-m", "gym_service", "down"]
        done = await asyncio.create_subprocess_exec(
            *command, env=self.engine.environment, stdout=asyncio.subprocess.DEVNULL
        )
        await done.wait()

    # The faults; each returns when what it took away is there again.

    async def fail(self, kind: str, random: Random) -> bool:
        """Brings one fault about; returns whether there was anything to bring down."""
        match kind:
            case "service":
                holder = self.state.holder()
                if holder is not None:
                    os.kill(holder, signal.SIGKILL)
                await asyncio.sleep(random.uniform(0, _LONGEST_DOWN_SECONDS))
                await self.start_service()
                return holder is not None
            case "engine":
                self.engine.kill()
                await asyncio.sleep(random.uniform(0, _LONGEST_DOWN_SECONDS))
                await asyncio.to_thread(self.engine.start)
                return True
            case "warden":
                # Where the engine was killed at the same moment there is nobody to ask.
                with suppress(OSError, DockerException):
                    pids = await asyncio.to_thread(self.engine.pids_of_wardens)
                    if pids:
                        os.kill(random.choice(pids), signal.SIGKILL)
                        return True
                return False
            case "trainer":
                if self.trainer is None or self.trainer.poll() is not None:
                    return False
                self._killed_trainer = True
                self.trainer.kill()
                return True
            case _:
                assert self.proxy is not None
                return await self.proxy.cut()

    async def train(self, name: str, settings: Mapping[str, object], storm: Storm | None = None) -> Storm:
        """Makes a run to its end, and starts the trainer again each time that it ended without one."""
        calm = storm is None
        storm = storm or Storm()
        began = time.monotonic()
        try:
            while True:
                self._start_trainer(name, settings)
                assert self.trainer is not None
                status = await self._watch(name)
                if status == 0:
                    return storm
                if self._killed_trainer:
                    continue
                if self._found_no_gym(name) and not calm:
                    storm.starts_without_a_gym += 1
                else:
                    storm.deaths.append(f"status {status}: {_tail(self.folder / f'{name}.log')}")
                    say(f"the trainer ended with {storm.deaths[-1]}")
                    if calm or len(storm.deaths) > 5:
                        return storm
        finally:
            self._end_trainer()
            storm.seconds = time.monotonic() - began

    def _start_trainer(self, name: str, settings: Mapping[str, object]) -> None:
        begun = (self.folder / "runs" / name / "config.json").exists()
        flags = ["--resume"] if begun else [f"--{key}={value}" for key, value in settings.items()]
        assert self.proxy is not None
        environment = self.engine.environment | {
            "GYM_ADDRESS": self.proxy.address,
            "GYM_TOKEN_FILE": str(self.folder / "token"),
            "OMP_NUM_THREADS": "1",
        }
        self._killed_trainer = False
        with (self.folder / f"{name}.log").open("ab") as log:
            self._log_bytes = log.tell()
            self.trainer = subprocess.Popen(
                [sys.executable, "-m", "trainer_client.run", "--name", name, *flags],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _watch(self, name: str) -> int:
        """Waits for the trainer's end, and tells how far it has got. Raises TimeoutError where it gets no further."""
        assert self.trainer is not None
        graded, since, told = self.kept.look(), time.monotonic(), 0.0
        while (status := self.trainer.poll()) is None:
            await asyncio.sleep(0.2)
            now = self.kept.look()
            if now > graded:
                graded, since = now, time.monotonic()
            elif time.monotonic() - since > _STUCK_SECONDS:
                raise TimeoutError(f"nothing was graded for {_STUCK_SECONDS:g} s; see {self.folder}")
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"{name}: {graded} episodes graded")
        self.kept.look()
        return status

    def _found_no_gym(self, name: str) -> bool:
        """Whether the last word of the trainer, and its only one, is that there is no gym to begin with."""
        with (self.folder / f"{name}.log").open() as log:
            log.seek(self._log_bytes)
            return log.read().startswith("No gym ")

    def _end_trainer(self) -> None:
        if self.trainer is not None and self.trainer.poll() is None:
            self.trainer.kill()
            self.trainer.wait()


@asynccontextmanager
async def ground_in(folder: Path, random: Random) -> AsyncIterator[Ground]:
    """Starts everything but a trainer, and stops it again."""
    state = StateFolder(folder / "state")
    temporary = folder / "tmp"
    temporary.mkdir()
    engine = PrivateEngine(folder, state.folder)
    # So that what is left over there can be told from what others leave.
    engine.environment["TMPDIR"] = str(temporary)
    await asyncio.to_thread(engine.start)
    try:
        await asyncio.to_thread(engine.copy_image)
        token = TokenBook(state.tokens).issue("chaos", "evaluate", 1)
        token_file = folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        ground = Ground(folder, engine, state)

        def address() -> str | None:
            endpoint = state.endpoint()
            return endpoint and endpoint.address

        async with running_proxy(address, random) as ground.proxy:
            try:
                await ground.start_service()
                yield ground
            finally:
                await ground.stop_service()
    finally:
        await asyncio.to_thread(engine.stop)


async def rage(ground: Ground, storm: Storm, random: Random, episodes_per_fault: int, rounds: int) -> None:
    """Brings faults about, in each round every kind once, until the rounds are over or it is cancelled."""
    for _ in range(rounds):
        for kind in random.sample(KINDS, len(KINDS)):
            await _calm(ground, random, episodes_per_fault)
            kinds = sorted({kind, random.choice(KINDS)} if random.random() < _PAIR_SHARE else {kind})
            say(f"killing: {' and '.join(kinds)}")
            faults = asyncio.gather(*(ground.fail(each, random) for each in kinds))
            try:
                await asyncio.shield(faults)
            finally:
                # Also where this is cancelled, what was brought down is there again.
                happened = await faults
                storm.faults.update(each for each, did in zip(kinds, happened, strict=True) if did)


async def _calm(ground: Ground, random: Random, episodes_per_fault: int) -> None:
    """Waits until a random number of further episodes is graded, and a random moment, or long enough."""
    until = ground.kept.look() + random.uniform(0.2, 1.8) * episodes_per_fault
    deadline = time.monotonic() + random.uniform(0.2, 1.0) * _LONGEST_CALM_SECONDS
    while ground.kept.look() < until and time.monotonic() < deadline:  # noqa: ASYNC110  # a folder tells of nothing
        await asyncio.sleep(0.1)
    await asyncio.sleep(random.uniform(0, 0.3))


async def chaos(
    folder: Path,
    settings: Mapping[str, object],
    seed: int,
    *,
    episodes_per_fault: int = 60,
    rounds: int = sys.maxsize,
) -> tuple[Storm, list[Claim]]:
    """Makes the run twice in a folder, and gives what was done to the second one, and what holds of it."""
    task = asyncio.current_task()
    assert task is not None
    # So that no engine and no container is left behind where this is stopped, either.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    random = Random(f"chaos/{seed}")
    async with ground_in(folder, random) as ground:
        say("the undisturbed run")
        calm = await ground.train("calm", settings)
        if calm.deaths:
            raise RuntimeError(f"the undisturbed run failed: {calm.deaths[0]}")
        before = ground.kept.episodes
        say("the disturbed run")
        storm = Storm()
        async with asyncio.TaskGroup() as tasks:
            raging = tasks.create_task(rage(ground, storm, random, episodes_per_fault, rounds))
            await ground.train("stormy", settings, storm)
            raging.cancel()
        claims = claims_of(folder, ground.kept, before, ground.state)
        await ground.stop_service()
        left = left_on_engine(ground.engine)
    left += left_on_machine(folder)
    claims.append(
        Claim(
            "no container, network, volume, process, mount, socket or temporary file is left",
            not left,
            "; ".join(left),
        )
    )
    ended = "; ".join(storm.deaths) or f"{storm.starts_without_a_gym} starts found no gym"
    return storm, [Claim("the trainer ends only where it is killed", not storm.deaths, ended), *claims]


def show(storm: Storm, claims: list[Claim]) -> None:
    """Prints the table."""
    faults = ", ".join(f"{kind} {storm.faults[kind]}" for kind in KINDS)
    print(f"faults      {storm.faults.total()} ({faults})")
    print(f"disturbed   {storm.seconds:.0f} s")
    for claim in claims:
        print(
            f"{'holds' if claim.holds else 'FAILS':10}  {claim.sentence}{f': {claim.detail}' if claim.detail else ''}"
        )


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-1500:]


def main() -> int:
    """Parses the command line, runs and tells."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000, help="how many a run plays, about")
    parser.add_argument("--seed", type=int, default=0, help="of the run and of the faults")
    parser.add_argument(
        "--folder", type=Path, help="an empty folder that is kept; by default one that is removed"
    )
    options = parser.parse_args()
    if lacks := PrivateEngine.lacks():
        parser.error(lacks)
    settings = settings_for(options.episodes, options.seed)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        storm, claims = asyncio.run(chaos(folder.resolve(), settings, options.seed))
    show(storm, claims)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
