"""The currency of the service: plain values, free of proto and gRPC, that the floors hand to each other."""

import hashlib
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as a chat template takes it."""

    role: str
    """One of system, user, assistant, tool."""
    content: str
    tool: str = ""
    """The tool that a message of role tool comes from."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as the policy wrote it."""

    tool: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of one call."""

    tool: str
    """The tool; empty when the call could not be parsed."""
    text: str
    error_kind: str = ""
    """The kind of failure; empty without one."""
    output_truncated: bool = False
    exit_status: int | None = None

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return bool(self.error_kind)


@dataclass(frozen=True, slots=True)
class Delta:
    """Token ids that the environment appends to a sequence."""

    token_ids: tuple[int, ...]
    position: int
    """The number of ids before them."""


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of the policy, in one of three forms."""

    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment answers."""

    tool_results: tuple[ToolResult, ...] = ()
    delta: Delta | None = None
    """Absent without a tokenizer, and when the episode has ended."""


class StopReason(Enum):
    """How an episode ended, with its flags: terminated, truncated, timed out, errored."""

    SUBMITTED = (1, True, False, False, False)
    NO_TOOL_CALL = (2, True, False, False, False)
    MAX_TURNS = (3, False, True, False, False)
    MAX_TOKENS = (4, False, True, False, False)
    CONTEXT_OVERFLOW = (5, False, True, False, False)
    CANCELLED = (6, False, True, False, False)
    LEASE_EXPIRED = (7, False, True, True, False)
    SANDBOX_DEAD = (8, True, False, False, False)
    INFRASTRUCTURE = (9, False, False, False, True)

    def __init__(
        self, number: int, terminated: bool, truncated: bool, timed_out: bool, errored: bool
    ) -> None:
        self.number = number
        self.terminated = terminated
        self.truncated = truncated
        self.timed_out = timed_out
        self.errored = errored


class VerdictStatus(Enum):
    """What came of grading; the values are the contract's numbers."""

    RESOLVED = 1
    UNRESOLVED = 2
    REFUSED = 3
    TAMPER_SUSPECTED = 4
    TIMEOUT = 5
    OUT_OF_MEMORY = 6
    INFRASTRUCTURE_ERROR = 7


@dataclass(frozen=True, slots=True)
class TestCount:
    """How many of a set of tests passed."""

    __test__ = False

    passed: int
    total: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a verdict is about beside the submission, by hashes in hexadecimal, and the gym's signature over it."""

    task_sha256: str
    image_digest: str
    """Of the image in which the submission ran, as the engine names it."""
    seccomp_sha256: str
    grader_version: str
    seed_sha256: str
    """Names what was drawn, without giving it away: a hash keyed with the private seed."""
    content_sha256: str
    """Over all that a client is told of the verdict; `grading.certificate` says how."""
    signature: str
    """Of content_sha256."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of grading, in components."""

    status: VerdictStatus
    hidden: TestCount | None = None
    public: TestCount | None = None
    reason: str = ""
    """Why, without giving a hidden test away."""
    submission_sha256: str = ""
    flags: tuple[str, ...] = ()
    """What stands out in the submission; decides nothing."""
    evidence: tuple[str, ...] = ()
    """What the grader saw, hidden tests included: for the record that the service keeps, never for a client."""
    certificate: Certificate | None = None
    """Absent until the verdict is signed."""
    from_cache: bool = False
    """Whether it was reached before, for the same task, files, image and seed."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The files that an episode leaves behind, read once when it ends."""

    files: dict[str, bytes] = field(default_factory=dict)
    """The file of a function; of a repository what was changed or added, as far as it is graded."""
    deleted: tuple[str, ...] = ()
    """The files of the repository that are gone, as far as it is graded; sorted."""
    ignored: tuple[str, ...] = ()
    """What else differs from the repository at the start and does not count: tests, configuration, scratch files."""
    refusal: str = ""
    """Why there is nothing to grade; empty when there is."""

    @property
    def sha256(self) -> str:
        """The hash over what is graded, in hexadecimal."""
        digest = hashlib.sha256()
        parts = [part for path, content in sorted(self.files.items()) for part in (_bytes(path), content)]
        for part in [b"%d" % len(parts), *parts, *map(_bytes, self.deleted)]:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()


def _bytes(path: str) -> bytes:
    # The name of a file need not be UTF-8; what is not comes as surrogates.
    return path.encode(errors="surrogatepass")
