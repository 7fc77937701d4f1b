"""The environments that tasks bring: the image made, every wall tried in it, and measured, before one of them serves.

That is done when somebody first asks for a sandbox of an environment, once for each image and workspace: a suite can
bring hundreds of them, and a run may need few. Two small sandboxes more than the pool has exist for that long.
"""

import asyncio
from dataclasses import replace
from functools import partial

from gym_service.sandbox import selftest
from gym_service.sandbox.base import EnvironmentRefused, SandboxLost
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.isolation import Isolation
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import PooledSandbox, StartSandbox
from gym_service.tasks.environment import PLAIN, Environment


class Surroundings:
    """See `pool.Elsewhere`."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._engines: dict[Environment, DockerEngine] = {}
        self._isolation: dict[tuple[str, str], Isolation] = {}
        """What was measured, by image and workspace; of the gym's own it is not for this to say."""
        self._opening: dict[Environment, asyncio.Task[None]] = {}
        # A self-test takes a core from the episodes that live.
        self._one_at_a_time = asyncio.Lock()

    async def open(self, environment: Environment) -> StartSandbox:
        if environment not in self._engines:
            opening = self._opening.get(environment)
            if opening is None or opening.done():
                opening = self._opening[environment] = asyncio.create_task(self._try(environment))
            # Whoever gives up waiting leaves it going: who comes next finds it further on.
            await asyncio.shield(opening)
        return partial(self._start, environment)

    def image_of(self, environment: Environment) -> str:
        known = self._engines.get(environment.place)
        return known.facts.image_digest if known else self._engine.image_of(environment)

    def isolation_of(self, environment: Environment) -> Isolation | None:
        return self._isolation.get(_place(environment))

    async def _start(self, environment: Environment, *limits: SandboxLimits) -> PooledSandbox:
        engine = self._engines.get(environment)
        if engine is None:
            engine = await asyncio.to_thread(self._engine.within, environment)
        try:
            return await engine.start(*limits)
        except SandboxLost:
            made = await asyncio.to_thread(self._engine.image_of, environment)
            if made != engine.facts.image_digest:
                # Somebody removed the image: whoever asks next has it made, and tried, anew.
                self._engines = {
                    each: one for each, one in self._engines.items() if each.image != environment.image
                }
                self._isolation.pop(_place(environment), None)
            raise

    async def _try(self, environment: Environment) -> None:
        async with self._one_at_a_time:
            inside = await asyncio.to_thread(self._engine.within, environment)
            if _place(environment) not in (_place(PLAIN), *self._isolation):
                # By the warden's own Python, whatever the image has.
                bare = replace(environment, python="", variables={})
                engine = await asyncio.to_thread(self._engine.within, bare)
                try:
                    _, self._isolation[_place(environment)] = await selftest.require_walls(engine)
                except SandboxLost as error:
                    # Where the gym's own does not start either, it is not the image that is to blame.
                    await (await self._engine.start()).close()
                    image = environment.image or "the gym's own image"
                    raise EnvironmentRefused(f"a sandbox of {image} does not hold: {error}") from error
            self._engines[environment] = inside


def _place(environment: Environment) -> tuple[str, str]:
    return environment.image, environment.workspace
