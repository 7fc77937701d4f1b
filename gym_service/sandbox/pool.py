"""Warm sandboxes: an episode takes one that is ready, and what it leaves is proven clean or thrown away.

Capacity. The pool holds one sandbox for each episode that may live at once and a few more for grading, so that a
verdict never waits for an episode that waits for a verdict.

Starting. Vacant places are filled in the background, one at a time, because a start takes a core from the episodes
that live; a few at a time while somebody waits. An episode with limits of its own gets a container of its own: it
takes a sandbox as everybody does, gives that one up and has another started in its place. So there are never more
containers than places, and nobody waits for more than a place and a start.

Environments. A task that brings an image of its own gets a sandbox of that in the same way: one that was left warm, or
one that is started in the place of another. A place that such a sandbox leaves stays empty until somebody waits.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gym_service.sandbox.base import EnvironmentRefused, Sandbox, SandboxLost
from gym_service.sandbox.isolation import Isolation
from gym_service.sandbox.policy import SandboxLimits
from gym_service.tasks.environment import PLAIN, Environment

logger = logging.getLogger(__name__)

_FIRST_UID = 2_000_000_000
_UIDS = 100_000_000
"""UIDs far from those of people and services; none is used twice until all were used once."""

_STARTS_AT_ONCE = 3
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
_PATIENCE_SECONDS = 2.0
"""How long others may go before who waits for longest: about what a start in the place of another takes."""
_USES_AT_MOST = 500
"""Episodes and gradings after which a container is retired in any case."""

Result = TypeVar("Result")


class PooledSandbox(Sandbox, Protocol):
    """A sandbox that can be used again under another UID."""

    uid: int
    limits: SandboxLimits
    """Those that its container was started with; output and time may be set for each use."""
    observed: dict[str, str]

    @property
    def alive(self) -> bool:
        """Whether it still answers, as far as is known without asking."""


class StartSandbox(Protocol):
    """Starts a sandbox, with the pool's limits unless others are given. Raises SandboxLost."""

    def __call__(self, limits: SandboxLimits = ..., /) -> Awaitable[PooledSandbox]: ...


class Elsewhere(Protocol):
    """Starts sandboxes of the environments that tasks bring, and says what they are of."""

    async def open(self, environment: Environment) -> StartSandbox:
        """Makes sure of an environment, and gives what starts its sandboxes. Raises EnvironmentRefused, SandboxLost."""

    def image_of(self, environment: Environment) -> str:
        """The digest of its image; empty where it is yet to be made. Raises SandboxLost."""

    def isolation_of(self, environment: Environment) -> Isolation | None:
        """What was measured in a sandbox of it; None before the first."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: "asyncio.Future[PooledSandbox]"
    environment: Environment
    since: float


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The sandboxes and how they were used; the counts are since the start."""

    size: int
    warm: int
    lent: int
    hits: int
    """How often a warm sandbox was there at once."""
    misses: int
    """How often one had to be waited for, or started with limits of its own."""
    waited_seconds: float
    """All waits together."""
    started: int
    retired: dict[str, int]
    """How many were thrown away, by reason: it was to serve once (single_use) or often enough (worn), it was not
    clean, its user failed in it (broken), it died, it gave its place to one with other limits (own_limits) or of
    another image (own_image)."""


class Pool:
    """Keeps sandboxes warm, lends each to one user at a time, and takes none back that is not as it was."""

    def __init__(
        self,
        start: StartSandbox,
        limits: SandboxLimits,
        *,
        size: int,
        reuse: bool,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`size` counts all sandboxes, lent ones included. Without `reuse` each serves once.

        `elsewhere` is what has the sandboxes of tasks that bring an environment.
        """
        self._start = start
        self._elsewhere = elsewhere
        self.limits = limits
        """What holds for who asks for nothing else."""
        self._size = size
        self._reuse = reuse
        self._warm: deque[PooledSandbox] = deque()
        self._uses: dict[PooledSandbox, int] = {}
        self._environments: dict[PooledSandbox, Environment] = {}
        """Of each sandbox that there is."""
        self._waiting: deque[_Waiter] = deque()
        # From anywhere in the range, so that two services on one engine do not meet.
        first = secrets.randbelow(_UIDS)
        self._uids = (_FIRST_UID + (first + number) % _UIDS for number in itertools.count())
        self._vacant = size
        self._spare = 0
        """The places that stay empty until somebody waits."""
        self._filling: list[Environment] = []
        """What is being started, for whoever waits or will."""
        self._failures = 0
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._lent = self._hits = self._misses = self._started = 0
        self._waited_seconds = 0.0
        self.last_failure = ""
        """Why the latest start failed; empty when it did not."""
        self.retired: dict[str, int] = {}
        """How many sandboxes were thrown away, by reason."""

    @property
    def warm(self) -> int:
        """The sandboxes that wait for a user."""
        return len(self._warm)

    @property
    def status(self) -> PoolStatus:
        """What there is now, and what has been."""
        return PoolStatus(
            size=self._size,
            warm=self.warm,
            lent=self._lent,
            hits=self._hits,
            misses=self._misses,
            waited_seconds=self._waited_seconds,
            started=self._started,
            retired=dict(self.retired),
        )

    def reuses(self, limits: SandboxLimits) -> bool:
        """Says whether a sandbox that was lent with these limits serves again."""
        return self._reuse and limits.share_container(self.limits)

    def open(self) -> None:
        """Starts filling the pool in the background."""
        self._fill_vacant()

    async def close(self) -> None:
        """Removes every sandbox, lent ones included."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._uses)))
        for waiter in self._waiting:
            if not waiter.future.done():
                waiter.future.set_exception(SandboxLost("the gym stops"))

    def image_of(self, environment: Environment) -> str:
        """The digest of the image of an environment; empty for the gym's own. Raises SandboxLost."""
        return self._elsewhere.image_of(environment) if self._elsewhere and environment.image else ""

    def isolation_of(self, environment: Environment) -> Isolation | None:
        """What was measured in a sandbox of an environment; None for the plain one, or where there was none yet."""
        is_plain = environment.place == PLAIN
        return None if is_plain or not self._elsewhere else self._elsewhere.isolation_of(environment)

    async def acquire(
        self, limits: SandboxLimits | None = None, environment: Environment = PLAIN
    ) -> PooledSandbox:
        """Lends a sandbox under a fresh UID; waits while none is ready. Raises EnvironmentRefused, SandboxLost."""
        limits, environment = limits or self.limits, environment.place
        began = time.monotonic()
        if environment != PLAIN:
            # Before a place is taken: the first time this takes a while.
            await self._open(environment)
        hit, sandbox = await self._take(environment)
        is_elsewhere = self._environments[sandbox] != environment
        if is_elsewhere or not limits.share_container(self.limits):
            reason = "own_image" if is_elsewhere else "own_limits"
            hit, sandbox = False, await self._exchange(sandbox, limits, environment, reason)
        if hit:
            self._hits += 1
        else:
            self._misses += 1
            self._waited_seconds += time.monotonic() - began
        self._lent += 1
        self._uses[sandbox] += 1
        sandbox.uid = next(self._uids)
        sandbox.limits = limits
        return sandbox

    async def release(self, sandbox: PooledSandbox, *, broken: bool = False) -> None:
        """Takes a sandbox back. It is scrubbed in the background, or replaced."""
        self._lent -= 1
        if not self._closed:
            self._spawn(self._recycle(sandbox, broken=broken))

    @asynccontextmanager
    async def lend(self, environment: Environment = PLAIN) -> AsyncIterator[PooledSandbox]:
        """Lends a sandbox for the length of a block. Raises EnvironmentRefused, SandboxLost."""
        sandbox = await self.acquire(environment=environment)
        broken = True
        try:
            yield sandbox
            broken = False
        finally:
            # A block that was cut short may have left a job running in there.
            await asyncio.shield(self.release(sandbox, broken=broken))

    async def _take(self, environment: Environment) -> tuple[bool, PooledSandbox]:
        """Gives a sandbox that is ready, if need be of another environment; says whether it was so at once."""
        hit = True
        while not self._closed:
            if found := self._warm_one(environment):
                sandbox = found
            else:
                hit, sandbox = False, await self._wait(environment)
            if sandbox not in self._uses:
                continue
            if sandbox.alive:
                return hit, sandbox
            # It died while nobody used it, so it is nobody's doing.
            self._spawn(self._retire(sandbox, "died"))
        raise SandboxLost("the gym stops")

    def _warm_one(self, environment: Environment) -> PooledSandbox | None:
        """Takes a sandbox of the environment; else, where no place is empty, one that is to give up its own."""
        # The latest to come back: its memory is still in the caches, and its zygote more likely there.
        for position in reversed(range(len(self._warm))):
            if self._environments.get(self._warm[position], environment) == environment:
                sandbox = self._warm[position]
                del self._warm[position]
                return sandbox
        return self._warm.popleft() if self._warm and not self._vacant and not self._spare else None

    async def _wait(self, environment: Environment) -> PooledSandbox:
        if self.last_failure:
            raise SandboxLost(self.last_failure)
        future: asyncio.Future[PooledSandbox] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(future, environment, time.monotonic())
        self._waiting.append(waiter)
        self._fill_vacant()
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(waiter)
            # Handed over at the very moment in which the waiter gave up: it goes to the next one.
            if future.done() and not future.cancelled() and not future.exception():
                self._offer(future.result())
            raise

    async def _exchange(
        self, sandbox: PooledSandbox, limits: SandboxLimits, environment: Environment, reason: str
    ) -> PooledSandbox:
        """Gives a sandbox up for one with other limits or of another environment."""
        replacing = self._spawn(self._replace(sandbox, limits, environment, reason))
        try:
            return await asyncio.shield(replacing)
        except asyncio.CancelledError:
            if replacing.cancelled():
                raise SandboxLost("the gym stops") from None
            # Who asked has given up, which does not stop an engine; what it starts is of use to nobody else.
            self._spawn(self._drop(replacing, reason))
            raise

    async def _replace(
        self, sandbox: PooledSandbox, limits: SandboxLimits, environment: Environment, reason: str
    ) -> PooledSandbox:
        """The place stays taken all the time."""
        own = () if limits.share_container(self.limits) else (limits,)
        try:
            await self._discard(sandbox, reason)
            return await self._start_one(environment, *own)
        except Exception as error:
            self._vacate(environment)
            logger.warning("a sandbox in the place of another (%s) could not be started: %s", reason, error)
            raise SandboxLost(str(error) or type(error).__name__) from error

    async def _drop(self, replacing: asyncio.Task[PooledSandbox], reason: str) -> None:
        with suppress(SandboxLost):
            await self._retire(await replacing, reason)

    async def _recycle(self, sandbox: PooledSandbox, *, broken: bool) -> None:
        reason = "broken" if broken else "" if self.reuses(sandbox.limits) else "single_use"
        if not reason and self._uses[sandbox] >= _USES_AT_MOST:
            reason = "worn"
        if not reason:
            try:
                if difference := await sandbox.scrub():
                    reason = "not_clean"
            except SandboxLost as error:
                reason, difference = "died", str(error)
            except Exception as error:
                # Whatever it was, the place in the pool must not go with the sandbox.
                reason, difference = "broken", str(error) or type(error).__name__
            if reason:
                logger.info("a sandbox is not used again after its episode (%s): %s", reason, difference)
        if reason:
            await self._retire(sandbox, reason)
        else:
            self._offer(sandbox)

    async def _retire(self, sandbox: PooledSandbox, reason: str) -> None:
        environment = self._environments[sandbox]
        try:
            await self._discard(sandbox, reason)
        finally:
            self._vacate(environment)

    async def _discard(self, sandbox: PooledSandbox, reason: str) -> None:
        """Throws a sandbox away; its place stays taken."""
        self.retired[reason] = self.retired.get(reason, 0) + 1
        del self._uses[sandbox], self._environments[sandbox]
        await sandbox.close()

    def _vacate(self, environment: Environment) -> None:
        if environment == PLAIN:
            self._vacant += 1
        else:
            self._spare += 1
        self._fill_vacant()

    def _offer(self, sandbox: PooledSandbox, started_for: Environment | None = None) -> None:
        """Gives a sandbox to who waits for longest; of those that it was `started_for`, if it was for some.

        Who wants it as it is comes first for a while: everybody else would have it replaced.
        """
        waiters = [each for each in self._waiting if not each.future.done()]
        of_kind = [each for each in waiters if each.environment == started_for]
        overdue = waiters[:1] if waiters and time.monotonic() - waiters[0].since > _PATIENCE_SECONDS else []
        as_it_is = [each for each in waiters if each.environment == self._environments.get(sandbox)]
        for waiter in (of_kind or overdue or as_it_is or waiters)[:1]:
            self._waiting.remove(waiter)
            waiter.future.set_result(sandbox)
            return
        self._warm.append(sandbox)

    def _fill_vacant(self) -> None:
        """Has vacant places filled: one at a time, or as many as wait and may start at once."""
        at_once = min(_STARTS_AT_ONCE, max(1, len(self._waiting)))
        while len(self._filling) < at_once and not self._closed:
            wanted = self._wanted()
            if self._spare and wanted is not None:
                self._spare -= 1
            elif self._vacant:
                self._vacant -= 1
            else:
                return
            self._filling.append(wanted or PLAIN)
            self._spawn(self._fill_one(wanted or PLAIN))

    def _wanted(self) -> Environment | None:
        """The environment for which somebody waits and nothing is being started yet."""
        started = list(self._filling)
        for waiter in self._waiting:
            if waiter.environment not in started:
                return waiter.environment
            started.remove(waiter.environment)
        return None

    async def _fill_one(self, environment: Environment) -> None:
        """Fills a place; an engine that fails is asked less and less often."""
        try:
            sandbox = await self._start_one(environment)
        except Exception as error:
            # A defect must not end the filling for good either.
            message = str(error) or type(error).__name__
            if environment != PLAIN:
                self._spare += 1
                self._fail_waiters(environment, message)
                return
            self._vacant += 1
            self._fail_waiting(message)
            failures = self._failures
            await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
            self._failures = failures + 1
        else:
            self._failures, self.last_failure = 0, ""
            self._offer(sandbox, started_for=environment)
        finally:
            self._filling.remove(environment)
            self._fill_vacant()

    async def _start_one(self, environment: Environment, *limits: SandboxLimits) -> PooledSandbox:
        start = self._start if environment == PLAIN else await self._open(environment)
        async with self._starts:
            sandbox = await start(*limits)
        self._started += 1
        self._uses[sandbox] = 0
        self._environments[sandbox] = environment
        return sandbox

    async def _open(self, environment: Environment) -> StartSandbox:
        if self._elsewhere is None:
            raise EnvironmentRefused("nothing here has sandboxes of other environments than the gym's own")
        return await self._elsewhere.open(environment)

    def _fail_waiting(self, message: str) -> None:
        if not self._uses:
            self.last_failure = message
        logger.warning("a sandbox could not be started: %s", message)
        while not self._uses and self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(SandboxLost(message))

    def _fail_waiters(self, environment: Environment, message: str) -> None:
        """Tells those who wait for an environment of a task: with the gym's own, nothing may be wrong."""
        logger.warning("a sandbox of a task's own environment could not be started: %s", message)
        for waiter in [each for each in self._waiting if each.environment == environment]:
            self._waiting.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(SandboxLost(message))

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
