"""Grading as a service to the rest: a sandbox of its own, hidden inputs from the private seed, and several tries."""

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gym_service.grading import oracle, repository
from gym_service.sandbox.base import Sandbox, SandboxLost
from gym_service.sandbox.pool import Pool
from gym_service.tasks.model import FunctionTask, hidden_cases
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import Instance, Task
from gym_service.values import Submission, Verdict, VerdictStatus

logger = logging.getLogger(__name__)

_DELAYS_SECONDS = (0.0, 0.0, 0.5, 2.0, 5.0, 10.0)
"""How long each try waits: longer than an engine takes to start again."""


def grader_version(task: Task) -> str:
    """The version of what grades a task."""
    return oracle.GRADER_VERSION if isinstance(task, FunctionTask) else repository.GRADER_VERSION


class Grader:
    """Grades submissions in sandboxes of a pool, a few at once."""

    def __init__(self, pool: Pool, private_seed: bytes, at_once: int) -> None:
        """`private_seed` keys the draw of hidden inputs; it never leaves the service."""
        self._pool = pool
        self._private_seed = private_seed
        self._free = asyncio.Semaphore(at_once)

    async def grade(self, instance: Instance, submission: Submission, seed: str) -> Verdict:
        """Grades the submission of an episode with this seed; the same seed gives the same tests in the same order.

        A failure of the gym's own is a verdict too, never an exception.
        """
        try:
            for delay_seconds in _DELAYS_SECONDS:
                await asyncio.sleep(delay_seconds)
                rng = random.Random(hashlib.sha256(self._private_seed + seed.encode()).digest())
                try:
                    return await self._grade_once(instance, submission, seed, rng)
                except SandboxLost as error:
                    logger.warning("grading of %s failed: %s", instance.task.task_id, error)
                    if error.by_policy:
                        reason = "the submission brought the sandbox down"
                        return Verdict(VerdictStatus.UNRESOLVED, reason=reason)
        except Exception:
            logger.exception("grading of %s failed", instance.task.task_id)
        return Verdict(VerdictStatus.INFRASTRUCTURE_ERROR, reason="the gym could not grade")

    async def _grade_once(
        self, instance: Instance, submission: Submission, seed: str, rng: random.Random
    ) -> Verdict:
        if isinstance(instance, RepositoryInstance):
            return await repository.grade(self._lend, instance.task, submission, rng)
        hidden = hidden_cases(instance.task, self._private_seed, seed)
        async with self._lend() as sandbox:
            return await oracle.grade(sandbox, instance, submission, hidden, rng)

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Sandbox]:
        async with self._free, self._pool.lend() as sandbox:
            yield sandbox
