"""What each grading used at most: memory and processes by the kernel's count, output by the bytes that came.

A container that serves again keeps the peaks of all its uses. So a use that stays below what was there before has no
figure of its own; the greatest of an evaluation and whose it was are right all the same.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gym_service.sandbox.peaks import Peaks
from gym_service.sandbox.pool import Pool, PooledSandbox
from gym_service.tasks.environment import PLAIN, Environment


@dataclass(slots=True)
class Usage:
    """What one grading used at most, in all its sandboxes; None where nobody could tell."""

    memory_bytes: int | None = None
    pids: int | None = None
    output_bytes: int | None = None
    """Of one run."""

    def add(self, **found: int | None) -> None:
        """Takes a figure in where it is greater."""
        for name, value in found.items():
            if value is not None:
                setattr(self, name, max(value, getattr(self, name) or 0))


_USAGE: ContextVar[Usage] = ContextVar("usage")


def new_usage() -> Usage:
    """Starts counting for the grading that this task begins."""
    usage = Usage()
    _USAGE.set(usage)
    return usage


@runtime_checkable
class _Measured(Protocol):
    most_output_bytes: int

    def peaks(self) -> Peaks: ...


class MeasuredPool(Pool):
    """Counts what is used in the sandboxes that it lends, for the task that borrows them."""

    @asynccontextmanager
    async def lend(self, environment: Environment = PLAIN) -> AsyncIterator[PooledSandbox]:
        """Lends a sandbox for the length of a block. Raises EnvironmentRefused, SandboxLost."""
        async with super().lend(environment) as sandbox:
            usage = _USAGE.get(None)
            if usage is None or not isinstance(sandbox, _Measured):
                yield sandbox
                return
            is_new = self._uses[sandbox] == 1
            before = Peaks(None, None) if is_new else sandbox.peaks()
            sandbox.most_output_bytes = 0
            try:
                yield sandbox
            finally:
                after = sandbox.peaks()
                usage.add(
                    memory_bytes=_raised(before.memory_bytes, after.memory_bytes),
                    pids=_raised(before.pids, after.pids),
                    output_bytes=sandbox.most_output_bytes,
                )


def _raised(before: int | None, after: int | None) -> int | None:
    return after if before is None or (after is not None and after > before) else None
