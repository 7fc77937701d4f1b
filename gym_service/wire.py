"""Between the contract's messages and the service's values. Pure: nothing here waits, keeps or decides."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from gym_contract.v1 import gym_pb2 as pb

from gym_service.episode import Creation, Episode, EpisodeSeed, StepResult
from gym_service.episodes import CLIENT_STOP_REASONS
from gym_service.errors import GymError, InvalidRequest
from gym_service.evaluation.evaluator import Evaluated
from gym_service.grading.check import TaskCheck
from gym_service.grading.grader import GraderStatus
from gym_service.grading.submissions import MAX_CONTENT_BYTES, Completion, Content, Diff, Files
from gym_service.sandbox.isolation import Isolation, RuntimeResult
from gym_service.sandbox.policy import BOUNDS, SandboxLimits
from gym_service.sandbox.pool import PoolStatus
from gym_service.tasks.model import Split
from gym_service.tasks.suites import Task
from gym_service.tokens import TokenizerFacts
from gym_service.toolsets.base import Misuse, Tool, Toolset
from gym_service.toolsets.calls import MAX_CALLS_PER_TURN, parse_arguments
from gym_service.values import (
    Action,
    Delta,
    Message,
    Observation,
    StopReason,
    TestCount,
    ToolCall,
    ToolResult,
    Verdict,
    VerdictStatus,
)

MAX_TEXT_CHARACTERS = 1_000_000
"""The longest turn that is taken as text; no policy says so much."""
_MAX_CALLS_CHARACTERS = 4_000_000
"""The most that the calls of a turn have together: a few large files."""
_MAX_NAME_CHARACTERS = 256

_SPLITS: dict[int, Split] = {
    pb.SPLIT_TRAIN: Split.TRAIN,
    pb.SPLIT_VALIDATION: Split.VALIDATION,
    pb.SPLIT_TEST: Split.TEST,
}
_SPLIT_NUMBERS = {split: pb.Split.Name(number) for number, split in _SPLITS.items()}
_CLIENT_STOP_REASONS = {reason.number: reason for reason in CLIENT_STOP_REASONS}


# --- from the wire ---


def creation_from(request: pb.CreateEpisodeRequest) -> Creation:
    """Reads a request to open an episode."""
    seed = request.seed
    return Creation(
        request_id=request.request_id,
        task_id=request.task_id,
        toolset=request.toolset,
        seed=EpisodeSeed(seed.run_seed, seed.group, seed.index),
        tokenizer_fingerprint=request.tokenizer_fingerprint,
        # Not ToTimedelta: what a stranger sends may be more than it can hold.
        lease_seconds=request.lease.seconds + request.lease.nanos / 1e9,
        max_turns=request.max_turns,
        max_edits=request.max_edits,
        limits=_limits_from(request.limits),
    )


def _limits_from(message: pb.SandboxLimits) -> tuple[tuple[str, float], ...]:
    timeout = message.command_timeout
    asked = {name: getattr(message, name) for name in BOUNDS if name != "command_timeout_seconds"}
    asked["command_timeout_seconds"] = timeout.seconds + timeout.nanos / 1e9
    return tuple((name, value) for name, value in asked.items() if value)


def action_from(action: pb.Action) -> Action:
    """Reads what the policy does. Raises InvalidRequest."""
    if len(action.policy_version) > _MAX_NAME_CHARACTERS:
        message = f"policy_version must have at most {_MAX_NAME_CHARACTERS} characters"
        raise InvalidRequest(message, "POLICY_VERSION_INVALID")
    if action.logprobs and len(action.logprobs) != len(action.token_ids.ids):
        message = f"{len(action.logprobs)} logprobs for {len(action.token_ids.ids)} token ids"
        raise InvalidRequest(message, "LOGPROBS_MISMATCH")
    match action.WhichOneof("content"):
        case "token_ids":
            return Action(token_ids=tuple(action.token_ids.ids))
        case "text":
            _check_length(len(action.text), MAX_TEXT_CHARACTERS)
            return Action(text=action.text)
        case "tool_calls":
            if len(action.tool_calls.calls) > MAX_CALLS_PER_TURN:
                raise InvalidRequest(f"more than {MAX_CALLS_PER_TURN} calls in one turn", "ACTION_TOO_LONG")
            characters = sum(len(c.tool) + len(c.arguments_json) for c in action.tool_calls.calls)
            _check_length(characters, _MAX_CALLS_CHARACTERS)
            try:
                calls = [ToolCall(c.tool, parse_arguments(c.arguments_json)) for c in action.tool_calls.calls]
            except Misuse as error:
                raise InvalidRequest(error.message, "ARGUMENTS_INVALID") from None
            return Action(tool_calls=tuple(calls))
    raise InvalidRequest("the action is empty; set token_ids, text or tool_calls", "ACTION_EMPTY")


def _check_length(characters: int, most: int) -> None:
    if characters > most:
        raise InvalidRequest(f"the turn has more than {most} characters", "ACTION_TOO_LONG")


def stop_reason_from(number: int) -> StopReason:
    """Reads a reason to end an episode. Raises InvalidRequest."""
    reason = _CLIENT_STOP_REASONS.get(number)
    if reason is None:
        known = ", ".join(reason.name for reason in CLIENT_STOP_REASONS)
        raise InvalidRequest(f"stop_reason must be one of {known}", "STOP_REASON_INVALID")
    return reason


def content_from(request: pb.EvaluateSubmissionsRequest) -> Content:
    """Reads what is handed in. Raises InvalidRequest."""
    if request.sample_index < 0:
        raise InvalidRequest("sample_index must not be negative", "SAMPLE_INDEX_INVALID")
    if request.ByteSize() > MAX_CONTENT_BYTES:
        # Not a verdict: it would have to be kept until a grader is free.
        raise InvalidRequest(f"a submission has at most {MAX_CONTENT_BYTES} bytes", "SUBMISSION_TOO_LARGE")
    match request.WhichOneof("content"):
        case "files":
            return Files(dict(request.files.files))
        case "completion":
            return Completion(request.completion)
        case "diff":
            return Diff(request.diff)
    raise InvalidRequest("the submission is empty; set files, completion or diff", "SUBMISSION_EMPTY")


def split_from(number: int) -> Split | None:
    """Reads a split; None for any. Raises InvalidRequest."""
    if number == pb.SPLIT_UNSPECIFIED:
        return None
    split = _SPLITS.get(number)
    if split is None:
        raise InvalidRequest(f"no split has the number {number}", "SPLIT_UNKNOWN")
    return split


# --- to the wire ---


def error_to(error: GymError) -> pb.Error:
    """Writes an error."""
    message = pb.Error(code=error.code, reason=error.reason, message=error.message)
    if error.retry_delay_seconds is not None:
        message.retry_delay.FromTimedelta(timedelta(seconds=error.retry_delay_seconds))
    return message


def task_to(task: Task) -> pb.Task:
    """Writes what may be known of a task."""
    return pb.Task(
        task_id=task.task_id, suite=task.suite, split=_SPLIT_NUMBERS[task.split], family=task.family
    )


def toolset_to(toolset: Toolset) -> pb.Toolset:
    """Writes a toolset."""
    return pb.Toolset(
        name=toolset.name,
        tools=_tools_to(toolset.tools),
        max_turns=toolset.max_turns,
        max_edits=toolset.max_edits,
    )


def tokenizer_to(facts: TokenizerFacts) -> pb.Tokenizer:
    """Writes what may be known of a tokenizer."""
    return pb.Tokenizer(
        fingerprint=facts.fingerprint,
        vocabulary_size=facts.vocabulary_size,
        stop_token_ids=facts.stop_token_ids,
        append_only=facts.append_only,
        append_only_differences=facts.differences,
        renders_tools=facts.renders_tools,
    )


def limits_to(limits: SandboxLimits) -> pb.SandboxLimits:
    """Writes the limits of a sandbox."""
    fields = asdict(limits)
    timeout = timedelta(seconds=fields.pop("command_timeout_seconds"))
    message = pb.SandboxLimits(**fields)
    message.command_timeout.FromTimedelta(timeout)
    return message


def pool_to(status: PoolStatus) -> pb.PoolStatus:
    """Writes how the sandboxes were used."""
    fields = asdict(status)
    waited = timedelta(seconds=fields.pop("waited_seconds"))
    message = pb.PoolStatus(**fields)
    message.waited.FromTimedelta(waited)
    return message


def grading_to(status: GraderStatus) -> pb.GradingStatus:
    """Writes what grading came to."""
    return pb.GradingStatus(**asdict(status))


def isolation_to(isolation: Isolation) -> pb.Isolation:
    """Writes what was measured of a sandbox."""
    return pb.Isolation(
        runtime=isolation.runtime,
        runtime_version=isolation.runtime_version,
        engine_version=isolation.engine_version,
        kernel_version=isolation.kernel_version,
        image_digest=isolation.image_digest,
        seccomp_sha256=isolation.seccomp_sha256,
        limits=limits_to(isolation.limits) if isolation.limits else None,
        observed=isolation.observed,
    )


def self_test_to(result: RuntimeResult) -> pb.RuntimeSelfTest:
    """Writes the self-test of a runtime."""
    checks = [
        pb.SelfTestCheck(name=check.name, holds=check.holds, observed=check.observed, remedy=check.remedy)
        for check in result.checks
    ]
    return pb.RuntimeSelfTest(runtime=result.runtime, offered=result.offered, checks=checks)


def created_to(episode: Episode, *, reuse: bool) -> pb.CreateEpisodeResponse:
    """Writes an episode that is open."""
    return pb.CreateEpisodeResponse(
        episode_id=episode.episode_id,
        messages=map(_message_to, episode.messages),
        prompt=_delta_to(episode, episode.prompt),
        max_turns=episode.max_turns,
        expire_time=_timestamp(episode.expire_time),
        sandbox_reuse=pb.SANDBOX_REUSE_REUSE if reuse else pb.SANDBOX_REUSE_SINGLE_USE,
        limits=limits_to(episode.limits),
        tools=_tools_to(episode.toolset.tools_for(episode.task)) if episode.native_tools else (),
    )


def stepped_to(episode: Episode, result: StepResult) -> pb.StepEpisodeResponse:
    """Writes what came of a turn."""
    return pb.StepEpisodeResponse(
        observation=_observation_to(episode, result.observation),
        outcome=outcome_to(result.stop_reason) if result.stop_reason else None,
        expire_time=_timestamp(episode.expire_time),
    )


def outcome_to(reason: StopReason) -> pb.Outcome:
    """Writes how an episode ended."""
    return pb.Outcome(
        stop_reason=f"STOP_REASON_{reason.name}",
        terminated=reason.terminated,
        truncated=reason.truncated,
        timed_out=reason.timed_out,
        errored=reason.errored,
    )


def graded_to(verdict: Verdict, episode: Episode, isolation: pb.Isolation) -> pb.GradeEpisodeResponse:
    """Writes an episode that is graded."""
    assert episode.stop_reason is not None
    return pb.GradeEpisodeResponse(
        verdict=verdict_to(verdict, isolation),
        outcome=outcome_to(episode.stop_reason),
        record_sha256=episode.record_sha256,
    )


def verdict_to(verdict: Verdict, isolation: pb.Isolation) -> pb.Verdict:
    """Writes a signed verdict that was reached under `isolation`; its evidence stays here."""
    failed = verdict.status is VerdictStatus.INFRASTRUCTURE_ERROR
    assert verdict.certificate is not None
    return pb.Verdict(
        status=f"VERDICT_STATUS_{verdict.status.name}",
        hidden=_count_to(verdict.hidden),
        public=_count_to(verdict.public),
        reason=verdict.reason,
        submission_sha256=verdict.submission_sha256,
        flags=verdict.flags,
        isolation=None if failed else isolation,
        from_cache=verdict.from_cache,
        **asdict(verdict.certificate),
    )


def checked_to(check: TaskCheck) -> pb.CheckTaskResponse:
    """Writes what came of what is known. No hash: one of the reference solution would tell who guesses right."""

    def told(verdict: Verdict) -> pb.Verdict:
        return pb.Verdict(
            status=f"VERDICT_STATUS_{verdict.status.name}",
            hidden=_count_to(verdict.hidden),
            public=_count_to(verdict.public),
            reason=verdict.reason,
        )

    return pb.CheckTaskResponse(
        gold=told(check.gold), untouched=told(check.untouched), gold_again=told(check.gold_again)
    )


def evaluated_to(
    request: pb.EvaluateSubmissionsRequest, evaluated: Evaluated, isolation: pb.Isolation
) -> pb.EvaluateSubmissionsResponse:
    """Writes what came of a submission."""
    return pb.EvaluateSubmissionsResponse(
        task_id=request.task_id,
        sample_index=request.sample_index,
        verdict=verdict_to(evaluated.verdict, isolation),
        evidence=evaluated.evidence,
    )


def record_to(episode: Episode, isolation: pb.Isolation) -> pb.GetEpisodeResponse:
    """Writes the record of an episode as far as it has come."""
    seed = episode.creation.seed
    record = pb.GetEpisodeResponse(
        task=task_to(episode.task),
        toolset=episode.toolset.name,
        seed=pb.EpisodeSeed(run_seed=seed.run_seed, group=seed.group, index=seed.index),
        messages=map(_message_to, episode.messages),
    )
    for step in episode.steps:
        turn = record.turns.add(action=pb.Action.FromString(step.sent))
        if step.played.done() and not step.played.cancelled():
            turn.observation.CopyFrom(_observation_to(episode, step.played.result().observation))
    if episode.stop_reason:
        record.outcome.CopyFrom(outcome_to(episode.stop_reason))
    if episode.grading and episode.grading.done():
        record.verdict.CopyFrom(verdict_to(episode.grading.result(), isolation))
        record.record_sha256 = episode.record_sha256
    return record


def _tools_to(tools: Iterable[Tool]) -> list[pb.Tool]:
    return [
        pb.Tool(name=tool.name, description=tool.description, parameters_json=tool.parameters_json)
        for tool in tools
    ]


def _message_to(message: Message) -> pb.Message:
    return pb.Message(role=message.role, content=message.content, tool=message.tool)


def _observation_to(episode: Episode, observation: Observation) -> pb.Observation:
    return pb.Observation(
        tool_results=map(_result_to, observation.tool_results), delta=_delta_to(episode, observation.delta)
    )


def _result_to(result: ToolResult) -> pb.ToolResult:
    return pb.ToolResult(
        tool=result.tool,
        text=result.text,
        is_error=result.is_error,
        error_kind=result.error_kind,
        output_truncated=result.output_truncated,
        exit_status=result.exit_status,
    )


def _delta_to(episode: Episode, delta: Delta | None) -> pb.TokenDelta | None:
    if delta is None or episode.tokenizer is None:
        return None
    return pb.TokenDelta(
        token_ids=delta.token_ids,
        position=delta.position,
        tokenizer_fingerprint=episode.tokenizer.facts.fingerprint,
    )


def _count_to(count: TestCount | None) -> pb.TestCount | None:
    return pb.TestCount(passed=count.passed, total=count.total) if count else None


def _timestamp(seconds: float) -> Timestamp:
    milliseconds = round(seconds * 1000)
    return Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)
