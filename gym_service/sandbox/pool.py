"""Warm sandboxes: an episode takes one that is ready, and what it leaves is proven clean or thrown away.

Capacity. The pool holds one sandbox for each episode that may live at once and a few more for grading, so that a
verdict never waits for an episode that waits for a verdict.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from gym_service.sandbox.base import Sandbox, SandboxLost

logger = logging.getLogger(__name__)

_FIRST_UID = 2_000_000_000
_UIDS = 100_000_000
"""UIDs far from those of people and services; none is used twice until all were used once."""

_STARTS_AT_ONCE = 3
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
_USES_AT_MOST = 500
"""Episodes and gradings after which a container is retired in any case."""


class PooledSandbox(Sandbox, Protocol):
    """A sandbox that can be used again under another UID."""

    uid: int
    observed: dict[str, str]

    @property
    def alive(self) -> bool:
        """Whether it still answers, as far as is known without asking."""


class Pool:
    """Keeps sandboxes warm, lends each to one user at a time, and takes none back that is not as it was."""

    def __init__(self, start: Callable[[], Awaitable[PooledSandbox]], *, size: int, reuse: bool) -> None:
        """`size` counts all sandboxes, lent ones included. Without `reuse` each serves once."""
        self._start = start
        self.reuse = reuse
        self._warm: deque[PooledSandbox] = deque()
        self._uses: dict[PooledSandbox, int] = {}
        self._waiting: deque[asyncio.Future[PooledSandbox]] = deque()
        self._uids = itertools.cycle(range(_FIRST_UID, _FIRST_UID + _UIDS))
        self._vacant = asyncio.Semaphore(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.last_failure = ""
        """Why the latest start failed; empty when it did not."""
        self.retired: dict[str, int] = {}
        """How many sandboxes were thrown away, by reason."""

    @property
    def warm(self) -> int:
        """The sandboxes that wait for a user."""
        return len(self._warm)

    def open(self) -> None:
        """Starts filling the pool in the background."""
        for _ in range(_STARTS_AT_ONCE):
            self._spawn(self._fill())

    async def close(self) -> None:
        """Removes every sandbox, lent ones included."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._uses)))
        for future in self._waiting:
            if not future.done():
                future.set_exception(SandboxLost("the gym stops"))

    async def acquire(self) -> PooledSandbox:
        """Lends a sandbox under a fresh UID; waits while none is ready. Raises SandboxLost."""
        while not self._closed:
            sandbox = self._warm.popleft() if self._warm else await self._wait()
            if sandbox not in self._uses:
                continue
            if not sandbox.alive:
                # It died while nobody used it, so it is nobody's doing.
                self._spawn(self._retire(sandbox, "died"))
                continue
            self._uses[sandbox] += 1
            sandbox.uid = next(self._uids)
            return sandbox
        raise SandboxLost("the gym stops")

    async def release(self, sandbox: PooledSandbox, *, broken: bool = False) -> None:
        """Takes a sandbox back. It is scrubbed in the background, or replaced."""
        if not self._closed:
            self._spawn(self._recycle(sandbox, broken=broken))

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[PooledSandbox]:
        """Lends a sandbox for the length of a block. Raises SandboxLost."""
        sandbox = await self.acquire()
        broken = True
        try:
            yield sandbox
            broken = False
        finally:
            # A block that was cut short may have left a job running in there.
            await asyncio.shield(self.release(sandbox, broken=broken))

    async def _wait(self) -> PooledSandbox:
        if self.last_failure:
            raise SandboxLost(self.last_failure)
        future: asyncio.Future[PooledSandbox] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            # Handed over at the very moment in which the waiter gave up: it goes to the next one.
            if future.done() and not future.cancelled() and not future.exception():
                self._offer(future.result())
            raise

    async def _recycle(self, sandbox: PooledSandbox, *, broken: bool) -> None:
        reason = "broken" if broken else "" if self.reuse else "single_use"
        if not reason and self._uses[sandbox] >= _USES_AT_MOST:
            reason = "worn"
        if not reason:
            try:
                difference = await sandbox.scrub()
            except Exception as error:
                # Whatever it was, the place in the pool must not go with the sandbox.
                difference = str(error) or type(error).__name__
            if difference:
                logger.info("a sandbox was not clean after its episode: %s", difference)
                reason = "not_clean"
        if reason:
            await self._retire(sandbox, reason)
        else:
            self._offer(sandbox)

    async def _retire(self, sandbox: PooledSandbox, reason: str) -> None:
        self.retired[reason] = self.retired.get(reason, 0) + 1
        del self._uses[sandbox]
        try:
            await sandbox.close()
        finally:
            self._vacant.release()

    def _offer(self, sandbox: PooledSandbox) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(sandbox)
                return
        self._warm.append(sandbox)

    async def _fill(self) -> None:
        """Starts a sandbox for every vacant place, for ever; a failing engine is asked less and less often."""
        failures = 0
        while True:
            await self._vacant.acquire()
            try:
                sandbox = await self._start()
            except Exception as error:
                # A defect must not end the filling for good either.
                self._vacant.release()
                self._fail_waiting(str(error) or type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1
                continue
            failures, self.last_failure = 0, ""
            self._uses[sandbox] = 0
            self._offer(sandbox)

    def _fail_waiting(self, message: str) -> None:
        if not self._uses:
            self.last_failure = message
        logger.warning("a sandbox could not be started: %s", message)
        while not self._uses and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(SandboxLost(message))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
