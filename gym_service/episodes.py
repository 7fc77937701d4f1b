"""The registry of episodes: create, step, end, grade, each exactly once; leases, capacity and the reaper.

Exactly once. Whatever changes an episode is kept under its key, as a future: (episode, turn) for a step, the request id
for a creation, the episode for its end and its verdict. A repeat waits for the same future, or gets what it returned.
A client that goes away in the middle cancels nothing: creations, ends and verdicts are tasks of the registry, and who
plays a turn has to be a task that goes on without its client (see `servicer` and `rollout`). A task of its own for each
turn would cost a quarter of what a turn costs the service.

Ownership of failures. What a policy does wrong is an observation or a verdict worth 0. When a sandbox is lost, the
sandbox says by its own evidence whose doing it was: the policy's ends the episode as SANDBOX_DEAD, ours as
INFRASTRUCTURE, which no reward can come of.
"""

import asyncio
import hashlib
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gym_service.accounts import Accounts
from gym_service.admission import check_creation
from gym_service.callers import CALLER, Caller
from gym_service.ended import EndedEpisodes
from gym_service.episode import Creation, Episode, Step, StepResult
from gym_service.errors import AtCapacity, Conflict, InvalidRequest, NotDue, NotFound, Unavailable
from gym_service.fairness import FairSemaphore, Places
from gym_service.grading.cache import VerdictCache
from gym_service.grading.certificate import Signer
from gym_service.grading.changes import take_changes
from gym_service.grading.check import TaskCheck, check_task
from gym_service.grading.grader import Grader, GraderStatus, grader_version
from gym_service.play import act, extend
from gym_service.record import make_record
from gym_service.record_folder import RecordFolder
from gym_service.sandbox.base import FileRefused, SandboxLost
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import Pool, PooledSandbox
from gym_service.tasks.command import CommandInstance
from gym_service.tasks.model import FunctionInstance
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import Catalogue, Instance, Task, environment_of, open_task
from gym_service.tokens import MAX_SEQUENCE_IDS, ChatTokenizer
from gym_service.tokens.registry import TokenizerRegistry
from gym_service.toolsets.base import Progress, Toolset
from gym_service.values import (
    Action,
    Observation,
    StopReason,
    Submission,
    Verdict,
)

logger = logging.getLogger(__name__)

CLIENT_STOP_REASONS = (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW, StopReason.CANCELLED)
"""The reasons that a client may end an episode for."""

_CAPACITY_RETRY_SECONDS = 0.25
_OUTAGE_RETRY_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 30.0
"""How long a creation waits for a sandbox: longer than a cold pool needs, shorter than a client waits."""
_CHECKS_AT_ONCE = 2
"""Tasks that are checked at a time: the graders are there for episodes in the first place."""
_MOST_CHECKS = 256
"""Of one caller, those that wait included."""
_REAPER_SECONDS = 1.0
_CLOSING_SECONDS = 5.0

Result = TypeVar("Result")


class Episodes:
    """All episodes of one service."""

    def __init__(
        self,
        pool: Pool,
        catalogue: Catalogue,
        *,
        capacity: int,
        max_lease_seconds: float,
        kept: int,
        private_seed: bytes,
        graders: int,
        signer: Signer,
        records: RecordFolder,
        cache: VerdictCache | None = None,
    ) -> None:
        """`private_seed` keys the draw of hidden inputs; it never leaves the service."""
        self._pool = pool
        self.catalogue = catalogue
        self._signer = signer
        self._records = records
        self.capacity = capacity
        self.max_lease_seconds = max_lease_seconds
        self.grader = Grader(pool, private_seed, graders, cache)
        """Grades episodes, and what no episode made."""
        self.accounts = Accounts()
        self._by_id: dict[str, Episode] = {}
        self._creations: dict[tuple[str, str], tuple[bytes, asyncio.Task[Episode]]] = {}
        self._ended = EndedEpisodes(kept)
        self._work: set[asyncio.Future[Any]] = set()
        """What is under way, whoever waits for it."""
        self._checking = FairSemaphore(_CHECKS_AT_ONCE)
        self._checks: Counter[str] = Counter()
        """The checks of tasks that are under way or wait, by their callers."""
        self._places = Places(capacity)
        """What the live episodes hold."""
        self.idle = asyncio.Event()
        """Set while no episode holds a sandbox."""
        self.idle.set()
        self._numbers = itertools.count(1)
        # An id of an earlier life of the service must not name an episode of this one.
        self._prefix = secrets.token_hex(6)
        self.tokenizers = TokenizerRegistry()
        self.draining = False
        """Whether new episodes are refused because the service is about to stop."""

    @property
    def live(self) -> int:
        """The episodes that hold a sandbox."""
        return self._places.held

    @property
    def kept(self) -> int:
        """The ended episodes whose records can still be asked for."""
        return len(self._ended)

    def capacity_of(self, caller: Caller) -> int:
        """The episodes that a caller can have live at once. Who plans with more would wait for places of its own."""
        return min(self.capacity, caller.quota or self.capacity)

    @property
    def grading(self) -> GraderStatus:
        """What grading came to so far."""
        return self.grader.status

    async def create(self, creation: Creation) -> Episode:
        """Opens an episode, or returns the one that this request id has opened.

        Raises NotFound, Forbidden, InvalidRequest, Conflict, AtCapacity, Unavailable.
        """
        digest = hashlib.sha256(repr(creation).encode()).digest()
        key = CALLER.get().name, creation.request_id
        known = self._creations.get(key)
        if known is None:
            known = self._creations[key] = digest, self._admit(creation)
        if known[0] != digest:
            raise Conflict("this request_id was used for another episode", "REQUEST_ID_REUSED")
        episode = await asyncio.shield(known[1])
        self._renew(episode)
        return episode

    async def step(
        self, episode_id: str, turn: int, action: Action, sent: bytes
    ) -> tuple[Episode, StepResult]:
        """Plays a turn. `sent` is the action as it came: tells it from others, and goes into the record.

        Must not be cancelled: the turn would be lost. Raises NotFound, NotDue, Conflict, InvalidRequest.
        """
        episode = self.get(episode_id)
        self._renew(episode)
        if 0 <= turn < len(episode.steps):
            step = episode.steps[turn]
            if step.sent != sent:
                if turn == len(episode.steps) - 1:
                    raise Conflict(f"turn {turn} was played with other content", "TURN_CONTENT_DIFFERS")
                raise NotDue(f"turn {turn} is over; turn {len(episode.steps)} is due", "TURN_NOT_DUE")
            return episode, await asyncio.shield(step.played)
        if episode.ending is not None:
            raise NotDue("the episode has ended", "EPISODE_ENDED")
        if turn != len(episode.steps):
            raise NotDue(f"turn {len(episode.steps)} is due, not {turn}", "TURN_NOT_DUE")
        if episode.playing:
            raise NotDue(f"turn {turn - 1} is not answered yet", "TURN_NOT_DUE")
        self._check_action(episode, action)
        episode.record_bytes += len(sent)
        played: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._watch(played)
        step = Step(sent, played, time.monotonic())
        episode.steps.append(step)
        try:
            result = await self._play(episode, turn, action)
            step.seconds = seconds = time.monotonic() - step.began_at
            self.accounts.turns.add(seconds)
            if seconds > episode.slowest_seconds:
                episode.slowest_seconds = seconds
            played.set_result(result)
            return episode, result
        finally:
            # Only where the service itself is being ended.
            played.cancel()

    async def end(self, episode_id: str, stop_reason: StopReason) -> StopReason:
        """Ends an episode; returns the reason that stands. Raises NotFound."""
        return await asyncio.shield(self._finish(self.get(episode_id), stop_reason))

    async def grade(self, episode_id: str) -> tuple[Verdict, Episode]:
        """Grades an ended episode. Raises NotFound, NotDue."""
        episode = self.get(episode_id)
        if episode.ending is None:
            raise NotDue("the episode is active; end it first", "EPISODE_ACTIVE")
        if episode.grading is None:
            episode.grading = self._run(self._grade(episode))
        return await asyncio.shield(episode.grading), episode

    async def check(self, task_id: str) -> TaskCheck:
        """Grades what is known of a task. Raises NotFound, Forbidden, AtCapacity, Unavailable."""
        task = self.catalogue.task(task_id)
        CALLER.get().check_split(task.split)
        if self.draining:
            raise Unavailable("the gym is about to stop", "DRAINING", _OUTAGE_RETRY_SECONDS)
        caller = CALLER.get()
        if self._checks[caller.name] >= _MOST_CHECKS:
            message = f"{_MOST_CHECKS} checks of tasks wait, the most of one caller"
            raise AtCapacity(message, "CHECKS_REACHED", _CAPACITY_RETRY_SECONDS)
        self._checks[caller.name] += 1
        try:
            # To its end, even if nobody waits for it any more: so there are never more than are counted.
            return await asyncio.shield(self._run(self._check(task)))
        except SandboxLost:
            message = "the gym could not grade; its log says why"
            raise Unavailable(message, "NOT_GRADED", _OUTAGE_RETRY_SECONDS) from None

    def get(self, episode_id: str) -> Episode:
        """Finds an episode of the caller without renewing its lease. Raises NotFound."""
        return self._found(episode_id, CALLER.get().sees)

    def read(self, episode_id: str) -> Episode:
        """Finds an episode that the caller may read. Raises NotFound."""
        return self._found(episode_id, CALLER.get().reads)

    def readable(self) -> list[Episode]:
        """Gives all episodes that the caller may read, the latest first."""
        reads = CALLER.get().reads
        return [episode for episode in reversed(self._by_id.values()) if reads(episode.owner)]

    def _found(self, episode_id: str, exists: Callable[[str], bool]) -> Episode:
        episode = self._by_id.get(episode_id)
        if episode is None or not exists(episode.owner):
            raise NotFound("no such episode (any more)", "EPISODE_NOT_FOUND")
        return episode

    def renew(self, episode_ids: Sequence[str]) -> list[str]:
        """Renews leases; returns the episodes that are active."""
        known = [self._by_id[name] for name in episode_ids if name in self._by_id]
        sees = CALLER.get().sees
        active = [episode for episode in known if episode.ending is None and sees(episode.owner)]
        for episode in active:
            self._renew(episode)
        return [episode.episode_id for episode in active]

    async def reap(self) -> None:
        """Ends episodes whose lease has run out, for ever."""
        while True:
            await asyncio.sleep(_REAPER_SECONDS)
            try:
                self._end_expired()
            except Exception:
                # Without a reaper the sandboxes of dead clients would never come back.
                logger.exception("leases could not be checked")

    async def close(self) -> None:
        """Waits for what is under way, bounded; the pool's sandboxes go with the pool."""
        if self._work:
            await asyncio.wait(self._work, timeout=_CLOSING_SECONDS)

    def _run(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Runs work to its end, even if nobody waits for it any more."""
        task = asyncio.create_task(work)
        self._watch(task)
        return task

    def _watch(self, work: asyncio.Future[Any]) -> None:
        self._work.add(work)
        work.add_done_callback(self._settle)

    def _settle(self, work: asyncio.Future[Any]) -> None:
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # Who waits is told; that nobody does is no error.

    def _admit(self, creation: Creation) -> asyncio.Task[Episode]:
        task = self.catalogue.task(creation.task_id)
        CALLER.get().check_split(task.split)
        toolset = check_creation(creation, task, self.max_lease_seconds)
        fingerprint = creation.tokenizer_fingerprint
        tokenizer = self.tokenizers.find(fingerprint) if fingerprint else None
        limits = self._pool.limits.tightened(creation.limits)
        if self.draining:
            raise Unavailable("the gym is about to stop", "DRAINING", _OUTAGE_RETRY_SECONDS)
        caller = CALLER.get()
        if caller.quota and self._places.held_by(caller) >= caller.quota:
            message = f"{caller.quota} episodes of {caller.name} are live, the most that its token allows"
            raise AtCapacity(message, "QUOTA_REACHED", _CAPACITY_RETRY_SECONDS)
        if not self._places.take(caller):
            message = (
                f"{self.capacity} episodes are live, the most there can be"
                if self.live >= self.capacity
                else "the places that are free are for callers that have fewer"
            )
            raise AtCapacity(message, "CAPACITY_REACHED", _CAPACITY_RETRY_SECONDS)
        self.idle.clear()
        return self._run(self._open(creation, task, toolset, tokenizer, limits))

    async def _open(
        self,
        creation: Creation,
        task: Task,
        toolset: Toolset,
        tokenizer: ChatTokenizer | None,
        limits: SandboxLimits,
    ) -> Episode:
        try:
            instance = open_task(task, creation.seed.text(task.task_id))
            native = toolset.native_tools and tokenizer is not None and tokenizer.facts.renders_tools
            messages = toolset.opening(instance, native=native)
            schemas = [tool.schema for tool in toolset.tools_for(task)] if native else []
            prompt = tokenizer.prompt(messages, schemas) if tokenizer else None
            sandbox = await self._prepare_sandbox(instance, limits)
        except BaseException:
            # The same request may come again and must then be tried again.
            del self._creations[CALLER.get().name, creation.request_id]
            self._give_back(CALLER.get().name)
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
                source=instance.files[instance.path] if isinstance(instance, FunctionInstance) else "",
            ),
            tokenizer=tokenizer,
            sandbox=sandbox,
            limits=limits,
            messages=messages,
            prompt=prompt,
            max_turns=creation.max_turns or toolset.turns_for(task),
            lease_seconds=lease_seconds,
            expires_at=asyncio.get_running_loop().time() + lease_seconds,
            length=len(prompt.token_ids) if prompt else 0,
            native_tools=native,
            owner=CALLER.get().name,
            created_at=time.monotonic(),
        )
        self._by_id[episode.episode_id] = episode
        self.accounts.count_created(episode.owner)
        return episode

    async def _prepare_sandbox(self, instance: Instance, limits: SandboxLimits) -> PooledSandbox:
        # What the engine says is for the log alone: it names paths and images.
        failure = Unavailable(
            "the gym has no sandbox now; its log says why", "NO_SANDBOX", _OUTAGE_RETRY_SECONDS
        )
        try:
            async with asyncio.timeout(_LONGEST_WAIT_SECONDS):
                sandbox = await self._pool.acquire(limits, environment_of(instance.task))
        except SandboxLost as error:
            logger.warning("there is no sandbox for %s: %s", instance.task.task_id, error)
            raise failure from None
        except TimeoutError:
            logger.warning("no sandbox was ready within %g s", _LONGEST_WAIT_SECONDS)
            raise failure from None
        try:
            writes = (sandbox.write_file(path, content) for path, content in instance.tree.items())
            await asyncio.gather(*writes)
        except (SandboxLost, FileRefused) as error:
            logger.warning("a sandbox that was ready does not take an episode: %s", error)
            await self._pool.release(sandbox, broken=True)
            raise failure from None
        except BaseException:
            await self._pool.release(sandbox, broken=True)
            raise
        return sandbox

    def _check_action(self, episode: Episode, action: Action) -> None:
        if action.token_ids is None:
            return
        if episode.tokenizer is None:
            raise InvalidRequest("token ids need an episode with a tokenizer", "NO_TOKENIZER")
        if episode.length + len(action.token_ids) > MAX_SEQUENCE_IDS:
            raise InvalidRequest(f"the sequence has more than {MAX_SEQUENCE_IDS} ids", "ACTION_TOO_LONG")
        episode.tokenizer.check_ids(action.token_ids)

    async def _play(self, episode: Episode, turn: int, action: Action) -> StepResult:
        try:
            results, stop_reason = await act(episode, action)
            episode.record_bytes += sum(len(result.text) for result in results)
            if stop_reason is None and turn + 1 >= episode.max_turns:
                stop_reason = StopReason.MAX_TURNS
            if stop_reason is None and episode.ending is None:
                delta = await extend(episode, action, results)
                self._renew(episode)
                return StepResult(Observation(results, delta), None)
        except SandboxLost as error:
            logger.warning("episode %s lost its sandbox: %s", episode.episode_id, error)
            results, stop_reason = (), _loss(error)
        except Exception:
            logger.exception("turn %d of episode %s failed", turn, episode.episode_id)
            results, stop_reason = (), StopReason.INFRASTRUCTURE
        # Somebody may have ended the episode meanwhile; then that reason stands.
        ending = self._finish(episode, stop_reason or StopReason.CANCELLED, of_turn=True)
        return StepResult(Observation(results), await asyncio.shield(ending))

    def _finish(
        self, episode: Episode, stop_reason: StopReason, *, of_turn: bool = False
    ) -> asyncio.Task[StopReason]:
        """Ends an episode once. Gives the task that does it, and holds the reason that stands.

        `of_turn` says that it is the turn being played that ends it.
        """
        if episode.ending is None:
            # Another turn that is being played still uses the sandbox; its container is not worth keeping then.
            cut_off = episode.playing and not of_turn
            episode.ending = self._run(self._conclude(episode, stop_reason, cut_off=cut_off))
        return episode.ending

    async def _conclude(self, episode: Episode, stop_reason: StopReason, *, cut_off: bool) -> StopReason:
        """Takes the submission, then gives the sandbox back. Returns the reason that stands."""
        broken = cut_off or stop_reason in (StopReason.SANDBOX_DEAD, StopReason.INFRASTRUCTURE)
        try:
            if not broken:
                episode.submission = await self._take_submission(episode)
        except SandboxLost as error:
            logger.warning("episode %s lost its sandbox at its end: %s", episode.episode_id, error)
            stop_reason, broken = _loss(error), True
        except Exception:
            logger.exception("the end of episode %s failed", episode.episode_id)
            stop_reason, broken = StopReason.INFRASTRUCTURE, True
        finally:
            await self._pool.release(episode.sandbox, broken=broken)
            self._give_back(episode.owner)
            episode.ended_at = time.monotonic()
            self.accounts.ended[stop_reason.name] += 1
            self._keep(episode)
        return stop_reason

    async def _take_submission(self, episode: Episode) -> Submission:
        instance = episode.instance
        if isinstance(instance, RepositoryInstance | CommandInstance):
            return await take_changes(episode.sandbox, instance.task)
        path = instance.path
        try:
            return Submission({path: await episode.sandbox.read_file(path)})
        except FileRefused as error:
            return Submission(refusal=f"{path}: {error.kind.replace('_', ' ')}")

    async def _grade(self, episode: Episode) -> Verdict:
        """Gives the verdict, signed, and closes the record with it."""
        assert episode.ending is not None
        began_at = time.monotonic()
        seed = episode.creation.seed.text(episode.task.task_id)
        if (await episode.ending).errored:
            verdict = self.grader.give_up(episode.task, "the gym lost the episode")
        else:
            verdict = await self.grader.grade(episode.instance, episode.submission, seed)
            # Also a verdict that was reached without looking into the submission says which it is about.
            verdict = replace(verdict, submission_sha256=episode.submission.sha256)
        task = episode.task
        image = self._pool.image_of(environment_of(task))
        certificate = self._signer.sign(verdict, task.sha256, seed, grader_version(task), image)
        verdict = replace(verdict, certificate=certificate)
        episode.grading_seconds = time.monotonic() - began_at
        await self._record(episode, verdict)
        return verdict

    async def _check(self, task: Task) -> TaskCheck:
        try:
            async with self._checking:
                return await check_task(task, self.grader)
        finally:
            self._checks[CALLER.get().name] -= 1

    async def _record(self, episode: Episode, verdict: Verdict) -> None:
        try:
            record = await make_record(episode, verdict, self._records.gym)
            episode.record_sha256 = record[-1].sha256
            await self._records.keep(episode.episode_id, verdict, record)
        except Exception:
            # What an episode is worth does not depend on what is written about it.
            logger.exception("the record of episode %s could not be made", episode.episode_id)

    def _give_back(self, owner: str) -> None:
        self._places.give_back(owner)
        if not self.live:
            self.idle.set()

    def _renew(self, episode: Episode) -> None:
        episode.expires_at = asyncio.get_running_loop().time() + episode.lease_seconds

    def _end_expired(self) -> None:
        """Ends what nobody has asked for in time. A turn that is being played holds the lease."""
        now = asyncio.get_running_loop().time()
        for episode in list(self._by_id.values()):
            if episode.ending is None and not episode.playing and episode.expires_at < now:
                logger.info("the lease of episode %s has run out", episode.episode_id)
                self._finish(episode, StopReason.LEASE_EXPIRED)

    def _keep(self, episode: Episode) -> None:
        """Keeps the record of an ended episode, and forgets those that are dropped for it."""
        for dropped in self._ended.add(episode):
            del self._by_id[dropped.episode_id]
            self._creations.pop((dropped.owner, dropped.creation.request_id), None)


def _loss(error: SandboxLost) -> StopReason:
    """Says how an episode ends that lost its sandbox."""
    return StopReason.SANDBOX_DEAD if error.by_policy else StopReason.INFRASTRUCTURE
