"""Messages of the contract to values of the trainer, pure. Only gym.py and this module know the messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gym_contract.v1 import gym_pb2 as pb

from trainer_client.trajectory import Outcome, ToolResult, Verdict


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Delta:
    """Token ids that the environment appends to an episode's sequence."""

    token_ids: tuple[int, ...]
    position: int
    """The number of ids before them."""
    fingerprint: str
    """Which tokenizer made them."""


@dataclass(frozen=True, slots=True)
class Created:
    """An episode that is open."""

    episode_id: str
    messages: tuple[Message, ...]
    prompt: Delta | None
    """None in an episode without a tokenizer."""
    max_turns: int
    tools: "tuple[Tool, ...]" = ()
    """What the prompt was rendered with; empty where the messages describe the tools."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What came of a turn."""

    tool_results: tuple[ToolResult, ...]
    delta: Delta | None
    """None when the episode has ended or has no tokenizer."""
    outcome: Outcome | None
    """None while the episode goes on."""


@dataclass(frozen=True, slots=True)
class Graded:
    """What grading found."""

    verdict: Verdict
    outcome: Outcome
    record_sha256: str
    """The hash that closes the gym's record of the episode; empty where the gym could not make one."""


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """What the gym's grader says of what the gym knows of a task."""

    gold: Verdict
    """Of the reference solution."""
    untouched: Verdict
    """Of the repository as an episode finds it."""
    gold_again: Verdict


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer that the gym knows."""

    fingerprint: str
    vocabulary_size: int
    stop_token_ids: tuple[int, ...]
    """The ids that end a turn; the first is the one that the gym appends to a turn that was cut."""
    append_only: bool
    """Whether prompt plus deltas always equal the template's rendering of the whole conversation."""
    differences: tuple[str, ...] = ()
    """What the template would render otherwise, one sentence for each kind of conversation."""
    renders_tools: bool = False
    """Whether the template tells the policy of its tools."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task, as far as a trainer may know it."""

    task_id: str
    suite: str
    split: str
    """train, validation or test."""
    family: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a policy may call."""

    name: str
    description: str
    parameters_json: str
    """The JSON schema of the arguments."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """A set of tools and its budget."""

    name: str
    tools: tuple[Tool, ...]
    max_turns: int
    max_edits: int
    """The successful edits of an episode; 0 for any number."""


@dataclass(frozen=True, slots=True)
class GymInfo:
    """What a gym says about itself."""

    service_version: str
    toolsets: tuple[Toolset, ...]
    suites: tuple[str, ...]
    capacity: int
    """The episodes that can be live at once."""
    live_episodes: int
    max_lease_seconds: float
    runtime: str
    """The OCI runtime of the sandboxes; empty until the first one has started, as the next one."""
    image_digest: str


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """What the gym has written down about an episode."""

    task: Task
    toolset: str
    messages: tuple[Message, ...]
    actions: tuple[tuple[int, ...], ...]
    """The sampled ids of each turn; empty for a turn that was played as text or as calls."""
    tool_results: tuple[tuple[ToolResult, ...], ...]
    """The results of each turn."""
    outcome: Outcome | None
    verdict: Verdict | None


def _enum_name(full_name: str, prefix: str) -> str:
    return full_name.removeprefix(prefix).lower()


def decode_delta(message: pb.TokenDelta) -> Delta:
    """Decodes a delta."""
    return Delta(tuple(message.token_ids), message.position, message.tokenizer_fingerprint)


def decode_outcome(message: pb.Outcome) -> Outcome:
    """Decodes an outcome."""
    return Outcome(
        stop_reason=_enum_name(pb.StopReason.Name(message.stop_reason), "STOP_REASON_"),
        terminated=message.terminated,
        truncated=message.truncated,
        timed_out=message.timed_out,
        errored=message.errored,
    )


def decode_verdict(message: pb.Verdict) -> Verdict:
    """Decodes a verdict."""
    return Verdict(
        status=_enum_name(pb.VerdictStatus.Name(message.status), "VERDICT_STATUS_"),
        hidden_passed=message.hidden.passed,
        hidden_total=message.hidden.total,
        public_passed=message.public.passed,
        public_total=message.public.total,
        reason=message.reason,
    )


def decode_created(message: pb.CreateEpisodeResponse) -> Created:
    """Decodes an episode that is open."""
    return Created(
        episode_id=message.episode_id,
        messages=_messages(message.messages),
        prompt=decode_delta(message.prompt) if message.HasField("prompt") else None,
        max_turns=message.max_turns,
        tools=_tools(message.tools),
    )


def decode_stepped(message: pb.StepEpisodeResponse) -> Stepped:
    """Decodes what came of a turn."""
    observation = message.observation
    return Stepped(
        tool_results=_tool_results(observation),
        delta=decode_delta(observation.delta) if observation.HasField("delta") else None,
        outcome=decode_outcome(message.outcome) if message.HasField("outcome") else None,
    )


def decode_graded(message: pb.GradeEpisodeResponse) -> Graded:
    """Decodes what grading found."""
    return Graded(decode_verdict(message.verdict), decode_outcome(message.outcome), message.record_sha256)


def decode_check(message: pb.CheckTaskResponse) -> TaskCheck:
    """Decodes what the grader says of what is known."""
    return TaskCheck(
        decode_verdict(message.gold), decode_verdict(message.untouched), decode_verdict(message.gold_again)
    )


def decode_tokenizer(message: pb.Tokenizer) -> Tokenizer:
    """Decodes a tokenizer."""
    return Tokenizer(
        message.fingerprint,
        message.vocabulary_size,
        tuple(message.stop_token_ids),
        message.append_only,
        tuple(message.append_only_differences),
        message.renders_tools,
    )


def decode_task(message: pb.Task) -> Task:
    """Decodes a task."""
    return Task(
        message.task_id, message.suite, _enum_name(pb.Split.Name(message.split), "SPLIT_"), message.family
    )


def decode_info(message: pb.GetGymInfoResponse) -> GymInfo:
    """Decodes what a gym says about itself."""
    return GymInfo(
        service_version=message.service_version,
        toolsets=tuple(
            Toolset(toolset.name, _tools(toolset.tools), toolset.max_turns, toolset.max_edits)
            for toolset in message.toolsets
        ),
        suites=tuple(suite.name for suite in message.suites),
        capacity=message.capacity,
        live_episodes=message.live_episodes,
        max_lease_seconds=message.max_lease.ToTimedelta().total_seconds(),
        runtime=message.isolation.runtime,
        image_digest=message.isolation.image_digest,
    )


def decode_record(message: pb.GetEpisodeResponse) -> EpisodeRecord:
    """Decodes the record of an episode."""
    return EpisodeRecord(
        task=decode_task(message.task),
        toolset=message.toolset,
        messages=_messages(message.messages),
        actions=tuple(tuple(turn.action.token_ids.ids) for turn in message.turns),
        tool_results=tuple(_tool_results(turn.observation) for turn in message.turns),
        outcome=decode_outcome(message.outcome) if message.HasField("outcome") else None,
        verdict=decode_verdict(message.verdict) if message.HasField("verdict") else None,
    )


def _messages(messages: Iterable[pb.Message]) -> tuple[Message, ...]:
    return tuple(Message(message.role, message.content) for message in messages)


def _tools(tools: Iterable[pb.Tool]) -> tuple[Tool, ...]:
    return tuple(Tool(tool.name, tool.description, tool.parameters_json) for tool in tools)


def _tool_results(observation: pb.Observation) -> tuple[ToolResult, ...]:
    return tuple(
        ToolResult(result.tool, result.text, result.is_error, result.error_kind)
        for result in observation.tool_results
    )


def encode_limits(limits: Mapping[str, float]) -> pb.SandboxLimits:
    """Returns the limits of a sandbox, by their names in the contract; the time of a command is in seconds.

    Raises ValueError for a name that there is not.
    """
    message = pb.SandboxLimits()
    known = [
        field.name if field.message_type is None else f"{field.name}_seconds"
        for field in pb.SandboxLimits.DESCRIPTOR.fields
    ]
    for name, value in limits.items():
        if name not in known:
            raise ValueError(f"there is no limit {name}: choose from {', '.join(known)}")
        if name == "command_timeout_seconds":
            message.command_timeout.FromNanoseconds(int(value * 1e9))
        else:
            setattr(message, name, value if name == "cpus" else int(value))
    return message
