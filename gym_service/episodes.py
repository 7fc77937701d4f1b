"""The registry of episodes: create, step, end, grade, each exactly once; leases, capacity and the reaper.

Exactly once. Whatever changes an episode runs as a task of the registry, kept under its key: (episode, turn) for
a step, the request id for a creation, the episode for its end and its verdict. A repeat waits for the same task, or
gets what it returned. A client that goes away in the middle cancels nothing.

Ownership of failures. What a policy does wrong is an observation or a verdict worth 0. When a sandbox is lost, the
sandbox says by its own evidence whose doing it was: the policy's ends the episode as SANDBOX_DEAD, ours as
INFRASTRUCTURE, which no reward can come of.
"""

import asyncio
import hashlib
import itertools
import logging
import random
import secrets
from collections import OrderedDict
from collections.abc import Sequence

from gym_service.episode import Creation, Episode, Step, StepResult
from gym_service.errors import AtCapacity, Conflict, InvalidRequest, NotDue, NotFound, Unavailable
from gym_service.grading import oracle
from gym_service.play import act, extend
from gym_service.sandbox.base import FileRefused, SandboxLost
from gym_service.sandbox.pool import Pool, PooledSandbox
from gym_service.tasks.model import FunctionInstance, FunctionTask, hidden_cases, instantiate
from gym_service.tasks.suites import find_task
from gym_service.tokens import ChatTokenizer
from gym_service.toolsets.base import Progress, Toolset
from gym_service.toolsets.coding import Coding
from gym_service.toolsets.menu import Menu
from gym_service.values import Action, Observation, StopReason, Submission, Verdict, VerdictStatus

logger = logging.getLogger(__name__)

TOOLSETS: dict[str, Toolset] = {toolset.name: toolset for toolset in (Menu(), Coding())}

CLIENT_STOP_REASONS = (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW, StopReason.CANCELLED)
"""The reasons that a client may end an episode for."""

_CAPACITY_RETRY_SECONDS = 0.25
_OUTAGE_RETRY_SECONDS = 2.0
_REAPER_SECONDS = 1.0
_GRADING_TRIES = 3


class Episodes:
    """All episodes of one service."""

    def __init__(
        self,
        pool: Pool,
        *,
        capacity: int,
        max_lease_seconds: float,
        kept: int,
        private_seed: bytes,
        graders: int,
    ) -> None:
        """`private_seed` keys the draw of hidden inputs; it never leaves the service."""
        self._pool = pool
        self.capacity = capacity
        self.max_lease_seconds = max_lease_seconds
        self._kept = kept
        self._private_seed = private_seed
        self._graders = asyncio.Semaphore(graders)
        self._by_id: OrderedDict[str, Episode] = OrderedDict()
        self._creations: dict[str, tuple[bytes, asyncio.Task[Episode]]] = {}
        self._live = 0
        self.idle = asyncio.Event()
        """Set while no episode holds a sandbox."""
        self.idle.set()
        self._numbers = itertools.count(1)
        # An id of an earlier life of the service must not name an episode of this one.
        self._prefix = secrets.token_hex(6)
        self.tokenizers: dict[str, ChatTokenizer] = {}
        """The registered tokenizers by fingerprint."""
        self.draining = False
        """Whether new episodes are refused because the service is about to stop."""

    @property
    def live(self) -> int:
        """The episodes that hold a sandbox."""
        return self._live

    def register(self, tokenizer: ChatTokenizer) -> None:
        """Makes a tokenizer known. Raises InvalidRequest when there are too many."""
        if len(self.tokenizers) >= 32 and tokenizer.facts.fingerprint not in self.tokenizers:
            raise InvalidRequest("32 tokenizers are registered, the most there can be", "TOO_MANY_TOKENIZERS")
        self.tokenizers[tokenizer.facts.fingerprint] = tokenizer

    async def create(self, creation: Creation) -> Episode:
        """Opens an episode, or returns the one that this request id has opened.

        Raises NotFound, InvalidRequest, Conflict, AtCapacity, Unavailable.
        """
        digest = hashlib.sha256(repr(creation).encode()).digest()
        known = self._creations.get(creation.request_id)
        if known is not None:
            if known[0] != digest:
                raise Conflict("this request_id was used for another episode", "REQUEST_ID_REUSED")
            return await asyncio.shield(known[1])
        task = find_task(creation.task_id)
        toolset, tokenizer = self._check(creation)
        if self.draining:
            raise Unavailable("the gym is about to stop", "DRAINING", _OUTAGE_RETRY_SECONDS)
        if self._live >= self.capacity:
            message = f"{self.capacity} episodes are live, the most there can be"
            raise AtCapacity(message, "CAPACITY_REACHED", _CAPACITY_RETRY_SECONDS)
        self._count(1)
        opening = asyncio.create_task(self._open(creation, task, toolset, tokenizer))
        self._creations[creation.request_id] = digest, opening
        try:
            return await asyncio.shield(opening)
        except SandboxLost as error:
            raise Unavailable(str(error), "NO_SANDBOX", _OUTAGE_RETRY_SECONDS) from error

    async def step(
        self, episode_id: str, turn: int, action: Action, digest: bytes, kept: object
    ) -> StepResult:
        """Plays a turn. `digest` tells actions apart, `kept` goes into the record.

        Raises NotFound, NotDue, Conflict, InvalidRequest.
        """
        episode = self._find(episode_id)
        self._renew(episode)
        if 0 <= turn < len(episode.steps):
            step = episode.steps[turn]
            if step.digest != digest:
                if turn == len(episode.steps) - 1:
                    raise Conflict(f"turn {turn} was played with other content", "TURN_CONTENT_DIFFERS")
                raise NotDue(f"turn {turn} is over; turn {len(episode.steps)} is due", "TURN_NOT_DUE")
            return await asyncio.shield(step.task)
        if episode.ending is not None:
            raise NotDue("the episode has ended", "EPISODE_ENDED")
        if turn != len(episode.steps):
            raise NotDue(f"turn {len(episode.steps)} is due, not {turn}", "TURN_NOT_DUE")
        if episode.steps and not episode.steps[-1].task.done():
            raise NotDue(f"turn {turn - 1} is not answered yet", "TURN_NOT_DUE")
        self._check_action(episode, action)
        playing = asyncio.create_task(self._play(episode, turn, action))
        episode.steps.append(Step(digest, kept, playing))
        return await asyncio.shield(playing)

    async def end(self, episode_id: str, stop_reason: StopReason) -> StopReason:
        """Ends an episode; returns the reason that stands. Raises NotFound."""
        episode = self._find(episode_id)
        await self._finish(episode, stop_reason)
        return _reason(episode)

    async def grade(self, episode_id: str) -> tuple[Verdict, StopReason]:
        """Grades an ended episode. Raises NotFound, NotDue."""
        episode = self._find(episode_id)
        if episode.ending is None:
            raise NotDue("the episode is active; end it first", "EPISODE_ACTIVE")
        if episode.grading is None:
            episode.grading = asyncio.create_task(self._grade(episode))
        return await asyncio.shield(episode.grading), _reason(episode)

    def get(self, episode_id: str) -> Episode:
        """Finds an episode without renewing its lease. Raises NotFound."""
        return self._find(episode_id)

    def renew(self, episode_ids: Sequence[str]) -> list[str]:
        """Renews leases; returns the episodes that are active."""
        active = [self._by_id[name] for name in episode_ids if name in self._by_id]
        active = [episode for episode in active if episode.ending is None]
        for episode in active:
            self._renew(episode)
        return [episode.episode_id for episode in active]

    async def reap(self) -> None:
        """Ends episodes whose lease has run out, for ever."""
        while True:
            await asyncio.sleep(_REAPER_SECONDS)
            now = asyncio.get_running_loop().time()
            expired = [e for e in self._by_id.values() if e.ending is None and e.expires_at < now]
            for episode in expired:
                logger.info("the lease of episode %s has run out", episode.episode_id)
            await asyncio.gather(*(self._finish(episode, StopReason.LEASE_EXPIRED) for episode in expired))
            self._forget(now)

    def _check(self, creation: Creation) -> tuple[Toolset, ChatTokenizer | None]:
        if not creation.request_id or len(creation.request_id) > 128:
            raise InvalidRequest("request_id must have 1 to 128 characters", "REQUEST_ID_INVALID")
        toolset = TOOLSETS.get(creation.toolset)
        if toolset is None:
            known = ", ".join(sorted(TOOLSETS))
            raise InvalidRequest(f"no toolset {creation.toolset[:40]!r}; there is {known}", "TOOLSET_UNKNOWN")
        if not 0 <= creation.max_turns <= toolset.max_turns:
            raise InvalidRequest(f"max_turns must be from 0 to {toolset.max_turns}", "MAX_TURNS_INVALID")
        if creation.max_edits < -1:
            raise InvalidRequest("max_edits must be at least -1", "MAX_EDITS_INVALID")
        if not 0 <= creation.lease_seconds <= self.max_lease_seconds:
            raise InvalidRequest(f"lease must be from 0 to {self.max_lease_seconds:g} s", "LEASE_INVALID")
        if not creation.tokenizer_fingerprint:
            return toolset, None
        tokenizer = self.tokenizers.get(creation.tokenizer_fingerprint)
        if tokenizer is None:
            raise InvalidRequest(
                "no tokenizer of this fingerprint; register it first (again after a restart of the gym)",
                "TOKENIZER_UNKNOWN",
            )
        return toolset, tokenizer

    async def _open(
        self, creation: Creation, task: FunctionTask, toolset: Toolset, tokenizer: ChatTokenizer | None
    ) -> Episode:
        try:
            instance = instantiate(task, creation.seed.text(task.task_id))
            messages = toolset.opening(instance)
            prompt = tokenizer.prompt(messages) if tokenizer else None
            sandbox = await self._prepare_sandbox(instance)
        except BaseException:
            # The same request may come again and must then be tried again.
            del self._creations[creation.request_id]
            self._count(-1)
            raise
        edits = creation.max_edits or toolset.max_edits or -1
        lease_seconds = creation.lease_seconds or self.max_lease_seconds
        episode = Episode(
            episode_id=f"{self._prefix}-{next(self._numbers)}",
            creation=creation,
            task=task,
            instance=instance,
            toolset=toolset,
            progress=Progress(
                edits_left=None if edits == -1 else edits,
                source=instance.files[f"{instance.function_name}.py"],
            ),
            tokenizer=tokenizer,
            sandbox=sandbox,
            messages=messages,
            prompt=prompt,
            max_turns=creation.max_turns or toolset.max_turns,
            lease_seconds=lease_seconds,
            expires_at=asyncio.get_running_loop().time() + lease_seconds,
            length=len(prompt.token_ids) if prompt else 0,
        )
        self._by_id[episode.episode_id] = episode
        return episode

    async def _prepare_sandbox(self, instance: FunctionInstance) -> PooledSandbox:
        sandbox = await self._pool.acquire()
        try:
            for path, content in instance.files.items():
                await sandbox.write_file(path, content.encode())
        except FileRefused as error:
            await self._pool.release(sandbox, broken=True)
            raise SandboxLost(f"a fresh sandbox refuses a file: {error.kind}") from None
        except BaseException:
            await self._pool.release(sandbox, broken=True)
            raise
        return sandbox

    def _check_action(self, episode: Episode, action: Action) -> None:
        if action.token_ids is None:
            return
        if episode.tokenizer is None:
            raise InvalidRequest("token ids need an episode with a tokenizer", "NO_TOKENIZER")
        episode.tokenizer.check_ids(action.token_ids)

    async def _play(self, episode: Episode, turn: int, action: Action) -> StepResult:
        try:
            results, stop_reason = await act(episode, action)
        except SandboxLost as error:
            logger.warning("episode %s lost its sandbox: %s", episode.episode_id, error)
            lost = StopReason.SANDBOX_DEAD if error.by_policy else StopReason.INFRASTRUCTURE
            await self._finish(episode, lost)
            return StepResult(Observation(), _reason(episode))
        if stop_reason is None and turn + 1 >= episode.max_turns:
            stop_reason = StopReason.MAX_TURNS
        if stop_reason is not None:
            await self._finish(episode, stop_reason)
        if episode.ending is not None:
            await asyncio.shield(episode.ending)
            return StepResult(Observation(results), _reason(episode))
        return StepResult(Observation(results, extend(episode, action, results)), None)

    async def _finish(self, episode: Episode, stop_reason: StopReason) -> None:
        """Ends an episode once: takes the submission, then gives the sandbox back."""
        if episode.ending is not None:
            await asyncio.shield(episode.ending)
            return
        episode.ending = asyncio.get_running_loop().create_future()
        episode.stop_reason = stop_reason
        # A turn that is being played still uses the sandbox; its container is not worth keeping then.
        playing = episode.steps[-1].task if episode.steps else None
        interrupted = playing is not None and not playing.done() and playing is not asyncio.current_task()
        broken = interrupted or stop_reason in (StopReason.SANDBOX_DEAD, StopReason.INFRASTRUCTURE)
        try:
            if broken:
                episode.submission = Submission(refusal="the episode was cut off")
            else:
                episode.submission = await self._take_submission(episode)
        except SandboxLost as error:
            logger.warning("episode %s lost its sandbox at its end: %s", episode.episode_id, error)
            episode.stop_reason = StopReason.SANDBOX_DEAD if error.by_policy else StopReason.INFRASTRUCTURE
            episode.submission = Submission(refusal="the sandbox is gone")
            broken = True
        finally:
            await self._pool.release(episode.sandbox, broken=broken)
            self._count(-1)
            episode.ending.set_result(None)

    async def _take_submission(self, episode: Episode) -> Submission:
        path = f"{episode.instance.function_name}.py"
        try:
            return Submission({path: await episode.sandbox.read_file(path)})
        except FileRefused as error:
            return Submission(refusal=f"{path}: {error.kind.replace('_', ' ')}")

    async def _grade(self, episode: Episode) -> Verdict:
        assert episode.ending is not None
        await episode.ending
        if _reason(episode).errored:
            return Verdict(VerdictStatus.INFRASTRUCTURE_ERROR, reason="the gym lost the episode")
        assert episode.submission is not None
        seed = episode.creation.seed.text(episode.task.task_id)
        hidden = hidden_cases(episode.task, self._private_seed, seed)
        rng = random.Random(hashlib.sha256(self._private_seed + seed.encode()).digest())
        verdict = Verdict(VerdictStatus.INFRASTRUCTURE_ERROR, reason="no sandbox for grading")
        for _ in range(_GRADING_TRIES):
            try:
                async with self._graders, self._pool.lend() as sandbox:
                    return await oracle.grade(sandbox, episode.instance, episode.submission, hidden, rng)
            except SandboxLost as error:
                logger.warning("grading of episode %s failed: %s", episode.episode_id, error)
                if error.by_policy:
                    return Verdict(VerdictStatus.UNRESOLVED, reason="the submission brought the sandbox down")
        return verdict

    def _count(self, change: int) -> None:
        self._live += change
        if self._live:
            self.idle.clear()
        else:
            self.idle.set()

    def _find(self, episode_id: str) -> Episode:
        episode = self._by_id.get(episode_id)
        if episode is None:
            raise NotFound("no such episode (any more)", "EPISODE_NOT_FOUND")
        return episode

    def _renew(self, episode: Episode) -> None:
        episode.expires_at = asyncio.get_running_loop().time() + episode.lease_seconds

    def _forget(self, now: float) -> None:
        """Drops the oldest records beyond the number that is kept, and those of nobody."""
        over = len(self._by_id) - self._live - self._kept
        for episode in [e for e in self._by_id.values() if e.ending is not None][: max(0, over)]:
            del self._by_id[episode.episode_id]
            self._creations.pop(episode.creation.request_id, None)

    async def close(self) -> None:
        """Waits for what is under way, bounded; the pool's sandboxes go with the pool."""
        steps = [step for episode in self._by_id.values() for step in episode.steps if not step.task.done()]
        if steps:
            await asyncio.wait([step.task for step in steps], timeout=5)


def _reason(episode: Episode) -> StopReason:
    assert episode.stop_reason is not None
    return episode.stop_reason
