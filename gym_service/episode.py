"""One episode: what it was asked for, what it works on, and how far it has come."""

import asyncio
import json
import time
from dataclasses import dataclass, field

from gym_service.callers import OWNER
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import PooledSandbox
from gym_service.tasks.suites import Instance, Task
from gym_service.tokens import ChatTokenizer
from gym_service.toolsets.base import Progress, Toolset
from gym_service.values import Delta, Message, Observation, StopReason, Submission, Verdict

_CUT_OFF = Submission(refusal="the episode was cut off")


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """What the randomness of an episode comes from."""

    run_seed: int
    group: str
    index: int

    def text(self, task_id: str) -> str:
        """The seed as one text without ambiguity."""
        return json.dumps([self.run_seed, task_id, self.group, self.index])


@dataclass(frozen=True, slots=True)
class Creation:
    """A request to open an episode."""

    request_id: str
    task_id: str
    toolset: str
    seed: EpisodeSeed
    tokenizer_fingerprint: str
    lease_seconds: float
    """0 for the longest that is given."""
    max_turns: int
    """0 for the toolset's own."""
    max_edits: int
    """0 for the toolset's own, -1 for any number."""
    limits: tuple[tuple[str, float], ...] = ()
    """The limits of the sandbox that are asked for, by name; the gym's own for the others."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a turn."""

    observation: Observation
    stop_reason: StopReason | None
    """Absent while the episode goes on."""


@dataclass(slots=True, eq=False)
class Step:
    """A turn that was begun."""

    sent: bytes
    """The action as the client sent it: tells it from others, and goes into the record."""
    played: "asyncio.Future[StepResult]"
    """Has the result when it is played; cancelled where the service ended first."""
    began_at: float = 0.0
    """In seconds of the monotonic clock. That of uvloop counts milliseconds, and a turn takes less."""
    seconds: float = 0.0
    """How long it took; 0 until it is played."""


@dataclass(slots=True, eq=False)
class Episode:
    """One attempt at one task."""

    episode_id: str
    creation: Creation
    task: Task
    instance: Instance
    toolset: Toolset
    progress: Progress
    tokenizer: ChatTokenizer | None
    sandbox: PooledSandbox
    limits: SandboxLimits
    """What holds for the sandbox as long as it is the episode's."""
    messages: tuple[Message, ...]
    prompt: Delta | None
    max_turns: int
    lease_seconds: float
    expires_at: float
    """When the lease runs out, in seconds of the event loop's clock."""
    length: int = 0
    """The ids of the sequence so far."""
    steps: list[Step] = field(default_factory=list)
    record_bytes: int = 0
    """What actions and results take so far, ids not counted."""
    ending: "asyncio.Task[StopReason] | None" = None
    """Exists from the moment that somebody ends the episode; done when the sandbox is given back."""
    submission: Submission = _CUT_OFF
    """What is graded; taken when the episode ends."""
    grading: "asyncio.Task[Verdict] | None" = None
    native_tools: bool = False
    """Whether the chat template told the policy of the tools."""
    owner: str = OWNER.name
    """The caller that opened it; for others it does not exist."""
    record_sha256: str = ""
    """The head of the record; made when the episode is graded."""
    created_at: float = 0.0
    """In seconds of the monotonic clock, as the next one."""
    ended_at: float = 0.0
    slowest_seconds: float = 0.0
    """What the slowest of its turns took."""
    grading_seconds: float = 0.0
    """From the call to the verdict, waiting for a grader included; 0 until it is graded."""

    @property
    def playing(self) -> bool:
        """Whether a turn is under way."""
        return bool(self.steps) and not self.steps[-1].played.done()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the episode ended; None until it has."""
        return self.ending.result() if self.ending is not None and self.ending.done() else None

    @property
    def expire_time(self) -> float:
        """When the lease runs out, in seconds since the epoch."""
        return time.time() + self.expires_at - asyncio.get_running_loop().time()
