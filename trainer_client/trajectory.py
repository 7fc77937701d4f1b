"""The one currency of the trainer: what was said in an episode, token by token, and what came of it."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of one tool call."""

    tool: str
    """The tool; empty when the call could not be parsed."""
    text: str
    is_error: bool
    error_kind: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended."""

    stop_reason: str
    """In lower case without prefix, such as submitted or max_turns."""
    terminated: bool
    truncated: bool
    timed_out: bool
    errored: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What grading found. Components instead of a reward: the trainer composes its own."""

    status: str
    """In lower case without prefix, such as resolved or infrastructure_error."""
    hidden_passed: int
    hidden_total: int
    public_passed: int
    public_total: int
    reason: str

    @property
    def valid(self) -> bool:
        """Whether a reward can come of it: the gym's own failures are worth nothing, not 0."""
        return self.status != "infrastructure_error"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the ids that the policy sampled and the ids that the environment appended."""

    action_ids: tuple[int, ...]
    """Sampled ids, a sampled end-of-turn included."""
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each sampled id, in nats."""
    tool_results: tuple[ToolResult, ...]
    observation_ids: tuple[int, ...]
    """The delta; empty when the episode ended with this turn."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode from prompt to verdict."""

    task_id: str
    group: str
    index: int
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    outcome: Outcome
    verdict: Verdict
    # Not compared: they tell apart what was played twice, and are no part of what was played.
    episode_id: str = field(default="", compare=False)
    record_sha256: str = field(default="", compare=False)
    """The hash that closes the gym's record of the episode."""

    def spans(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Yields the pieces of the sequence in order, each with whether the policy sampled it."""
        yield self.prompt_ids, False
        for turn in self.turns:
            yield turn.action_ids, True
            yield turn.observation_ids, False

    @property
    def token_ids(self) -> list[int]:
        """The whole sequence, T ids."""
        return [token for ids, _ in self.spans() for token in ids]

    @property
    def mask(self) -> list[bool]:
        """For each of the T ids whether the policy sampled it."""
        return [sampled for ids, sampled in self.spans() for _ in ids]

    @property
    def logprobs(self) -> list[float]:
        """The sampler's log-probabilities of the sampled ids, in order."""
        return [value for turn in self.turns for value in turn.logprobs]


def hash_groups(trajectories: Sequence[Trajectory]) -> str:
    """Returns SHA-256, in hex, over which episodes these are: the group and the index of each, in their order."""
    return hashlib.sha256(
        "".join(f"{each.group}/{each.index}\n" for each in trajectories).encode()
    ).hexdigest()


def hash_tokens(trajectories: Sequence[Trajectory]) -> str:
    """Returns SHA-256, in hex, over the ids of all spans of the episodes, in their order."""
    digest = hashlib.sha256()
    for each in trajectories:
        for ids, sampled in each.spans():
            digest.update(f"{len(ids)} {sampled}\n".encode() + array("q", ids).tobytes())
    return digest.hexdigest()
