"""Grading as a service to the rest: a sandbox of its own, hidden inputs from the private seed, and several tries.

And the accounts of it. A failure of the gym's own is no reward at all, which is worth something to a policy that would
get 0; so it takes the gym's own evidence, is tried again, and is counted for each task: a task with many is named.
"""

import asyncio
import hashlib
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from gym_service.accounts import GRADING_BOUNDS_SECONDS, Latencies
from gym_service.fairness import FairSemaphore
from gym_service.grading import command, completion, oracle, repository
from gym_service.grading.bytecode import Bytecode
from gym_service.grading.cache import VerdictCache
from gym_service.grading.instruments import flags_of
from gym_service.sandbox.base import EnvironmentRefused, Sandbox, SandboxLost
from gym_service.sandbox.pool import Pool
from gym_service.tasks.command import CommandInstance, CommandTask
from gym_service.tasks.completion import CompletionInstance, CompletionTask
from gym_service.tasks.environment import Environment
from gym_service.tasks.model import FunctionTask, hidden_cases
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import Instance, Task, environment_of
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

logger = logging.getLogger(__name__)

_DELAYS_SECONDS = (0.0, 0.0, 0.5, 2.0, 5.0, 10.0)
"""How long each try waits: longer than an engine takes to start again."""
_ALARM_ERRORS = 3
"""One or two are an accident, such as an engine that was away for longer than all tries took."""
_ALARM_SHARE = 0.05
"""An outage hits all tasks alike and passes; one in twenty of one task, after all tries, has a cause in that task."""
_LONG_BYTES = 64 << 10
"""From here on a submission is searched in a thread: two megabytes take a second, in which nobody else is served."""
_KILLS_SANDBOX = "kills_sandbox"
"""The flag of a submission that, by the engine's evidence, ended its sandbox."""


@dataclass(frozen=True, slots=True)
class GraderStatus:
    """What grading came to so far. The keys are statuses, tasks and flags, of which there are only so many."""

    verdicts: dict[str, int]
    """How many, by status."""
    retries: int
    """How often a grading was tried again after a failure of the gym's own."""
    infrastructure_errors: dict[str, int]
    """How many verdicts were none, by task."""
    alarms: tuple[str, ...]
    """The tasks with too many of them, one sentence each."""
    cache_hits: int
    cache_misses: int
    flags: dict[str, int]
    """How many submissions have a flag, by flag."""
    public_only: int
    """How many submissions pass every public test and fail a hidden one."""


def grader_version(task: Task) -> str:
    """The version of what grades a task."""
    if isinstance(task, CompletionTask):
        return completion.GRADER_VERSION
    if isinstance(task, CommandTask):
        return command.GRADER_VERSION
    return oracle.GRADER_VERSION if isinstance(task, FunctionTask) else repository.GRADER_VERSION


class Grader:
    """Grades submissions in sandboxes of a pool, a few at once."""

    def __init__(
        self, pool: Pool, private_seed: bytes, at_once: int, cache: VerdictCache | None = None
    ) -> None:
        """`private_seed` keys the draw of hidden inputs; it never leaves the service."""
        self._pool = pool
        self._private_seed = private_seed
        self._free = FairSemaphore(at_once)
        self._cache = cache
        self._bytecode = Bytecode()
        self._verdicts: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._gradings: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self.latencies = Latencies(GRADING_BOUNDS_SECONDS)
        """From the call to the verdict, waiting for a grader included; also where nothing was run."""
        self._retries = 0
        self._alarmed: set[str] = set()

    @property
    def status(self) -> GraderStatus:
        """What grading came to so far."""
        return GraderStatus(
            verdicts=dict(self._verdicts),
            retries=self._retries,
            infrastructure_errors=dict(self._errors),
            alarms=tuple(map(self._alarm, sorted(filter(self._is_alarming, self._alarmed)))),
            cache_hits=self._cache.hits if self._cache else 0,
            cache_misses=self._cache.misses if self._cache else 0,
            flags=dict(self._flags),
            public_only=self._flags["public_only"],
        )

    async def grade(self, instance: Instance, submission: Submission, seed: str) -> Verdict:
        """Grades the submission of an episode with this seed; the same seed gives the same tests in the same order.

        A failure of the gym's own is a verdict too, never an exception.
        """
        task = instance.task
        began_at = time.monotonic()
        try:
            verdict = await self._find_or_run(instance, submission, seed)
            verdict = replace(verdict, flags=await _flags(submission, instance, verdict))
        except Exception:
            logger.exception("grading of %s failed", task.task_id)
            return self.give_up(task, "the gym could not grade")
        finally:
            self.latencies.add(time.monotonic() - began_at)
        return self._count(task, verdict)

    async def try_out(self, instance: Instance, submission: Submission, seed: str) -> Verdict:
        """Grades what is of no episode, as if it were: no verdict on record is used, and none is kept or counted.

        Raises SandboxLost, and BrokenTask for a completion that nobody can grade.
        """
        return await self._run(instance, submission, seed)

    def give_up(self, task: Task, reason: str) -> Verdict:
        """Gives the verdict on an episode that the gym failed, and counts it."""
        return self._count(task, Verdict(VerdictStatus.INFRASTRUCTURE_ERROR, reason=reason))

    async def _find_or_run(self, instance: Instance, submission: Submission, seed: str) -> Verdict:
        if self._cache is None or not instance.task.deterministic:
            return await self._run(instance, submission, seed)
        task = instance.task
        image = self._pool.image_of(environment_of(task))
        key = self._cache.key(task, grader_version(task), submission, seed, image)
        if (known := self._cache.find(key)) is not None:
            return known
        began = asyncio.get_running_loop().time()
        verdict = await self._run(instance, submission, seed)
        seconds = asyncio.get_running_loop().time() - began
        # A test that is out of time fails like any other: nobody says that it was the clock.
        by_clock = verdict.status is VerdictStatus.UNRESOLVED and seconds >= repository.SECONDS_PER_TEST
        if not by_clock and _KILLS_SANDBOX not in verdict.flags:  # Which another machine might have survived.
            self._cache.keep(key, verdict)
        return verdict

    async def _run(self, instance: Instance, submission: Submission, seed: str) -> Verdict:
        """Grades in a sandbox, and again in another one for as long as the gym fails. Raises SandboxLost."""
        failure = SandboxLost("never tried")
        for number, delay_seconds in enumerate(_DELAYS_SECONDS):
            self._retries += number > 0
            await asyncio.sleep(delay_seconds)
            rng = random.Random(hashlib.sha256(self._private_seed + seed.encode()).digest())
            try:
                return await self._run_once(instance, submission, seed, rng)
            except SandboxLost as error:
                logger.warning("grading of %s failed: %s", instance.task.task_id, error)
                if isinstance(error, EnvironmentRefused):
                    raise  # Nothing about it will have changed.
                if error.by_policy:
                    reason = "the submission brought the sandbox down"
                    return Verdict(
                        VerdictStatus.UNRESOLVED,
                        *self._none_passed(instance, seed),
                        reason=reason,
                        submission_sha256=submission.sha256,
                        flags=(_KILLS_SANDBOX,),
                        evidence=(str(error),),
                    )
                failure = error
        raise failure

    async def _run_once(
        self, instance: Instance, submission: Submission, seed: str, rng: random.Random
    ) -> Verdict:
        lend = partial(self._lend, environment_of(instance.task))
        if isinstance(instance, RepositoryInstance):
            return await repository.grade(lend, instance.task, submission, rng, self._bytecode)
        if isinstance(instance, CompletionInstance):
            return await completion.grade(lend, instance.task, submission, rng)
        if isinstance(instance, CommandInstance):
            return await command.grade(lend, instance.task, submission, rng)
        hidden = hidden_cases(instance.task, self._private_seed, seed)
        async with lend() as sandbox:
            return await oracle.grade(sandbox, instance, submission, hidden, rng)

    @asynccontextmanager
    async def _lend(self, environment: Environment) -> AsyncIterator[Sandbox]:
        async with self._free, self._pool.lend(environment) as sandbox:
            yield sandbox

    def _none_passed(self, instance: Instance, seed: str) -> tuple[TestCount, TestCount]:
        """The counts of hidden and public tests, of which none passed."""
        if isinstance(instance, RepositoryInstance | CommandInstance):
            task = instance.task
            return TestCount(0, len(task.fail_to_pass)), TestCount(0, len(task.pass_to_pass))
        if isinstance(instance, CompletionInstance):
            return TestCount(0, instance.task.test_count), TestCount(0, 0)
        hidden = hidden_cases(instance.task, self._private_seed, seed)
        return TestCount(0, len(hidden)), TestCount(0, len(instance.public_cases))

    def _count(self, task: Task, verdict: Verdict) -> Verdict:
        self._gradings[task.task_id] += 1
        self._verdicts[verdict.status.name] += 1
        self._flags.update(verdict.flags)
        if verdict.status is VerdictStatus.INFRASTRUCTURE_ERROR:
            self._errors[task.task_id] += 1
            if task.task_id not in self._alarmed and self._is_alarming(task.task_id):
                self._alarmed.add(task.task_id)
                logger.error("%s", self._alarm(task.task_id))
        return verdict

    def _is_alarming(self, task_id: str) -> bool:
        errors = self._errors[task_id]
        return errors >= _ALARM_ERRORS and errors >= _ALARM_SHARE * self._gradings[task_id]

    def _alarm(self, task_id: str) -> str:
        errors, gradings = self._errors[task_id], self._gradings[task_id]
        return f"{task_id}: {errors} of {gradings} gradings failed by no act of the policy; the log says how"


async def _flags(submission: Submission, instance: Instance, verdict: Verdict) -> tuple[str, ...]:
    if sum(map(len, submission.files.values())) < _LONG_BYTES:
        return flags_of(submission, instance.tree, verdict)
    return await asyncio.to_thread(flags_of, submission, instance.tree, verdict)
