import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_SUBMITTED: _ClassVar[StopReason]
    STOP_REASON_NO_TOOL_CALL: _ClassVar[StopReason]
    STOP_REASON_MAX_TURNS: _ClassVar[StopReason]
    STOP_REASON_MAX_TOKENS: _ClassVar[StopReason]
    STOP_REASON_CONTEXT_OVERFLOW: _ClassVar[StopReason]
    STOP_REASON_CANCELLED: _ClassVar[StopReason]
    STOP_REASON_LEASE_EXPIRED: _ClassVar[StopReason]
    STOP_REASON_SANDBOX_DEAD: _ClassVar[StopReason]
    STOP_REASON_INFRASTRUCTURE: _ClassVar[StopReason]

class VerdictStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_STATUS_UNSPECIFIED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_RESOLVED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_UNRESOLVED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_REFUSED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_TAMPER_SUSPECTED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_TIMEOUT: _ClassVar[VerdictStatus]
    VERDICT_STATUS_OUT_OF_MEMORY: _ClassVar[VerdictStatus]
    VERDICT_STATUS_INFRASTRUCTURE_ERROR: _ClassVar[VerdictStatus]

class SandboxReuse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SANDBOX_REUSE_UNSPECIFIED: _ClassVar[SandboxReuse]
    SANDBOX_REUSE_SINGLE_USE: _ClassVar[SandboxReuse]
    SANDBOX_REUSE_REUSE: _ClassVar[SandboxReuse]

class Split(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPLIT_UNSPECIFIED: _ClassVar[Split]
    SPLIT_TRAIN: _ClassVar[Split]
    SPLIT_VALIDATION: _ClassVar[Split]
    SPLIT_TEST: _ClassVar[Split]
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_SUBMITTED: StopReason
STOP_REASON_NO_TOOL_CALL: StopReason
STOP_REASON_MAX_TURNS: StopReason
STOP_REASON_MAX_TOKENS: StopReason
STOP_REASON_CONTEXT_OVERFLOW: StopReason
STOP_REASON_CANCELLED: StopReason
STOP_REASON_LEASE_EXPIRED: StopReason
STOP_REASON_SANDBOX_DEAD: StopReason
STOP_REASON_INFRASTRUCTURE: StopReason
VERDICT_STATUS_UNSPECIFIED: VerdictStatus
VERDICT_STATUS_RESOLVED: VerdictStatus
VERDICT_STATUS_UNRESOLVED: VerdictStatus
VERDICT_STATUS_REFUSED: VerdictStatus
VERDICT_STATUS_TAMPER_SUSPECTED: VerdictStatus
VERDICT_STATUS_TIMEOUT: VerdictStatus
VERDICT_STATUS_OUT_OF_MEMORY: VerdictStatus
VERDICT_STATUS_INFRASTRUCTURE_ERROR: VerdictStatus
SANDBOX_REUSE_UNSPECIFIED: SandboxReuse
SANDBOX_REUSE_SINGLE_USE: SandboxReuse
SANDBOX_REUSE_REUSE: SandboxReuse
SPLIT_UNSPECIFIED: Split
SPLIT_TRAIN: Split
SPLIT_VALIDATION: Split
SPLIT_TEST: Split

class Error(_message.Message):
    __slots__ = ("code", "reason", "message", "retry_delay")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    retry_delay: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "tool")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class Toolset(_message.Message):
    __slots__ = ("name", "tools", "max_turns", "max_edits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    MAX_EDITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    max_turns: int
    max_edits: int
    def __init__(self, name: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., max_turns: _Optional[int] = ..., max_edits: _Optional[int] = ...) -> None: ...

class Suite(_message.Message):
    __slots__ = ("name", "task_count", "toolsets", "unproven_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOOLSETS_FIELD_NUMBER: _ClassVar[int]
    UNPROVEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    task_count: int
    toolsets: _containers.RepeatedScalarFieldContainer[str]
    unproven_count: int
    def __init__(self, name: _Optional[str] = ..., task_count: _Optional[int] = ..., toolsets: _Optional[_Iterable[str]] = ..., unproven_count: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "suite", "split", "family")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    suite: str
    split: Split
    family: str
    def __init__(self, task_id: _Optional[str] = ..., suite: _Optional[str] = ..., split: _Optional[_Union[Split, str]] = ..., family: _Optional[str] = ...) -> None: ...

class SandboxLimits(_message.Message):
    __slots__ = ("memory_bytes", "pids", "cpus", "workspace_bytes", "workspace_inodes", "output_bytes", "command_timeout", "file_bytes", "open_files", "shared_memory_bytes")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_INODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    pids: int
    cpus: float
    workspace_bytes: int
    workspace_inodes: int
    output_bytes: int
    command_timeout: _duration_pb2.Duration
    file_bytes: int
    open_files: int
    shared_memory_bytes: int
    def __init__(self, memory_bytes: _Optional[int] = ..., pids: _Optional[int] = ..., cpus: _Optional[float] = ..., workspace_bytes: _Optional[int] = ..., workspace_inodes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., command_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., file_bytes: _Optional[int] = ..., open_files: _Optional[int] = ..., shared_memory_bytes: _Optional[int] = ...) -> None: ...

class Isolation(_message.Message):
    __slots__ = ("runtime", "engine_version", "kernel_version", "image_digest", "seccomp_sha256", "limits", "observed", "runtime_version")
    class ObservedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    KERNEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_SHA256_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    runtime: str
    engine_version: str
    kernel_version: str
    image_digest: str
    seccomp_sha256: str
    limits: SandboxLimits
    observed: _containers.ScalarMap[str, str]
    runtime_version: str
    def __init__(self, runtime: _Optional[str] = ..., engine_version: _Optional[str] = ..., kernel_version: _Optional[str] = ..., image_digest: _Optional[str] = ..., seccomp_sha256: _Optional[str] = ..., limits: _Optional[_Union[SandboxLimits, _Mapping]] = ..., observed: _Optional[_Mapping[str, str]] = ..., runtime_version: _Optional[str] = ...) -> None: ...

class SelfTestCheck(_message.Message):
    __slots__ = ("name", "holds", "observed", "remedy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    name: str
    holds: bool
    observed: str
    remedy: str
    def __init__(self, name: _Optional[str] = ..., holds: _Optional[bool] = ..., observed: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class RuntimeSelfTest(_message.Message):
    __slots__ = ("runtime", "offered", "checks")
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    runtime: str
    offered: bool
    checks: _containers.RepeatedCompositeFieldContainer[SelfTestCheck]
    def __init__(self, runtime: _Optional[str] = ..., offered: _Optional[bool] = ..., checks: _Optional[_Iterable[_Union[SelfTestCheck, _Mapping]]] = ...) -> None: ...

class PoolStatus(_message.Message):
    __slots__ = ("size", "warm", "lent", "hits", "misses", "waited", "started", "retired")
    class RetiredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SIZE_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    size: int
    warm: int
    lent: int
    hits: int
    misses: int
    waited: _duration_pb2.Duration
    started: int
    retired: _containers.ScalarMap[str, int]
    def __init__(self, size: _Optional[int] = ..., warm: _Optional[int] = ..., lent: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., waited: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., started: _Optional[int] = ..., retired: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Tokenizer(_message.Message):
    __slots__ = ("fingerprint", "vocabulary_size", "stop_token_ids", "append_only", "append_only_differences", "renders_tools")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_ONLY_FIELD_NUMBER: _ClassVar[int]
    APPEND_ONLY_DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    RENDERS_TOOLS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    vocabulary_size: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    append_only: bool
    append_only_differences: _containers.RepeatedScalarFieldContainer[str]
    renders_tools: bool
    def __init__(self, fingerprint: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., append_only: _Optional[bool] = ..., append_only_differences: _Optional[_Iterable[str]] = ..., renders_tools: _Optional[bool] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("token_ids", "position", "tokenizer_fingerprint")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    position: int
    tokenizer_fingerprint: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., position: _Optional[int] = ..., tokenizer_fingerprint: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("tool", "arguments_json")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    tool: str
    arguments_json: str
    def __init__(self, tool: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class ToolCalls(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("token_ids", "text", "tool_calls", "logprobs", "policy_version", "sampling")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    token_ids: TokenIds
    text: str
    tool_calls: ToolCalls
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    policy_version: str
    sampling: Sampling
    def __init__(self, token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., tool_calls: _Optional[_Union[ToolCalls, _Mapping]] = ..., logprobs: _Optional[_Iterable[float]] = ..., policy_version: _Optional[str] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("tool", "text", "is_error", "error_kind", "output_truncated", "exit_status")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_KIND_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    tool: str
    text: str
    is_error: bool
    error_kind: str
    output_truncated: bool
    exit_status: int
    def __init__(self, tool: _Optional[str] = ..., text: _Optional[str] = ..., is_error: _Optional[bool] = ..., error_kind: _Optional[str] = ..., output_truncated: _Optional[bool] = ..., exit_status: _Optional[int] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("tool_results", "delta")
    TOOL_RESULTS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    tool_results: _containers.RepeatedCompositeFieldContainer[ToolResult]
    delta: TokenDelta
    def __init__(self, tool_results: _Optional[_Iterable[_Union[ToolResult, _Mapping]]] = ..., delta: _Optional[_Union[TokenDelta, _Mapping]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("stop_reason", "terminated", "truncated", "timed_out", "errored")
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    ERRORED_FIELD_NUMBER: _ClassVar[int]
    stop_reason: StopReason
    terminated: bool
    truncated: bool
    timed_out: bool
    errored: bool
    def __init__(self, stop_reason: _Optional[_Union[StopReason, str]] = ..., terminated: _Optional[bool] = ..., truncated: _Optional[bool] = ..., timed_out: _Optional[bool] = ..., errored: _Optional[bool] = ...) -> None: ...

class TestCount(_message.Message):
    __slots__ = ("passed", "total")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    passed: int
    total: int
    def __init__(self, passed: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("status", "hidden", "public", "reason", "grader_version", "submission_sha256", "image_digest", "isolation", "task_sha256", "seccomp_sha256", "seed_sha256", "content_sha256", "signature", "flags", "from_cache")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRADER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_SHA256_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_SHA256_FIELD_NUMBER: _ClassVar[int]
    SEED_SHA256_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    FROM_CACHE_FIELD_NUMBER: _ClassVar[int]
    status: VerdictStatus
    hidden: TestCount
    public: TestCount
    reason: str
    grader_version: str
    submission_sha256: str
    image_digest: str
    isolation: Isolation
    task_sha256: str
    seccomp_sha256: str
    seed_sha256: str
    content_sha256: str
    signature: str
    flags: _containers.RepeatedScalarFieldContainer[str]
    from_cache: bool
    def __init__(self, status: _Optional[_Union[VerdictStatus, str]] = ..., hidden: _Optional[_Union[TestCount, _Mapping]] = ..., public: _Optional[_Union[TestCount, _Mapping]] = ..., reason: _Optional[str] = ..., grader_version: _Optional[str] = ..., submission_sha256: _Optional[str] = ..., image_digest: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, _Mapping]] = ..., task_sha256: _Optional[str] = ..., seccomp_sha256: _Optional[str] = ..., seed_sha256: _Optional[str] = ..., content_sha256: _Optional[str] = ..., signature: _Optional[str] = ..., flags: _Optional[_Iterable[str]] = ..., from_cache: _Optional[bool] = ...) -> None: ...

class EpisodeSeed(_message.Message):
    __slots__ = ("run_seed", "group", "index")
    RUN_SEED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    run_seed: int
    group: str
    index: int
    def __init__(self, run_seed: _Optional[int] = ..., group: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class GetGymInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetGymInfoResponse(_message.Message):
    __slots__ = ("service_version", "toolsets", "suites", "tokenizers", "isolation", "capacity", "live_episodes", "max_lease", "max_message_bytes", "warm_sandboxes", "self_tests", "pool", "profile", "gaps", "grading")
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLSETS_FIELD_NUMBER: _ClassVar[int]
    SUITES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZERS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LIVE_EPISODES_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WARM_SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    SELF_TESTS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    GRADING_FIELD_NUMBER: _ClassVar[int]
    service_version: str
    toolsets: _containers.RepeatedCompositeFieldContainer[Toolset]
    suites: _containers.RepeatedCompositeFieldContainer[Suite]
    tokenizers: _containers.RepeatedCompositeFieldContainer[Tokenizer]
    isolation: Isolation
    capacity: int
    live_episodes: int
    max_lease: _duration_pb2.Duration
    max_message_bytes: int
    warm_sandboxes: int
    self_tests: _containers.RepeatedCompositeFieldContainer[RuntimeSelfTest]
    pool: PoolStatus
    profile: str
    gaps: _containers.RepeatedScalarFieldContainer[str]
    grading: GradingStatus
    def __init__(self, service_version: _Optional[str] = ..., toolsets: _Optional[_Iterable[_Union[Toolset, _Mapping]]] = ..., suites: _Optional[_Iterable[_Union[Suite, _Mapping]]] = ..., tokenizers: _Optional[_Iterable[_Union[Tokenizer, _Mapping]]] = ..., isolation: _Optional[_Union[Isolation, _Mapping]] = ..., capacity: _Optional[int] = ..., live_episodes: _Optional[int] = ..., max_lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., warm_sandboxes: _Optional[int] = ..., self_tests: _Optional[_Iterable[_Union[RuntimeSelfTest, _Mapping]]] = ..., pool: _Optional[_Union[PoolStatus, _Mapping]] = ..., profile: _Optional[str] = ..., gaps: _Optional[_Iterable[str]] = ..., grading: _Optional[_Union[GradingStatus, _Mapping]] = ...) -> None: ...

class GradingStatus(_message.Message):
    __slots__ = ("verdicts", "retries", "infrastructure_errors", "alarms", "cache_hits", "cache_misses", "flags", "public_only")
    class VerdictsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class InfrastructureErrorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FlagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    INFRASTRUCTURE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISSES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_ONLY_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.ScalarMap[str, int]
    retries: int
    infrastructure_errors: _containers.ScalarMap[str, int]
    alarms: _containers.RepeatedScalarFieldContainer[str]
    cache_hits: int
    cache_misses: int
    flags: _containers.ScalarMap[str, int]
    public_only: int
    def __init__(self, verdicts: _Optional[_Mapping[str, int]] = ..., retries: _Optional[int] = ..., infrastructure_errors: _Optional[_Mapping[str, int]] = ..., alarms: _Optional[_Iterable[str]] = ..., cache_hits: _Optional[int] = ..., cache_misses: _Optional[int] = ..., flags: _Optional[_Mapping[str, int]] = ..., public_only: _Optional[int] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("suite", "split", "page_size", "page_token")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    suite: str
    split: Split
    page_size: int
    page_token: str
    def __init__(self, suite: _Optional[str] = ..., split: _Optional[_Union[Split, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RegisterTokenizerRequest(_message.Message):
    __slots__ = ("tokenizer_json", "chat_template", "end_of_turn", "template_arguments_json", "stop_token_ids")
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    END_OF_TURN_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    tokenizer_json: bytes
    chat_template: str
    end_of_turn: str
    template_arguments_json: str
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokenizer_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., end_of_turn: _Optional[str] = ..., template_arguments_json: _Optional[str] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RegisterTokenizerResponse(_message.Message):
    __slots__ = ("tokenizer",)
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    tokenizer: Tokenizer
    def __init__(self, tokenizer: _Optional[_Union[Tokenizer, _Mapping]] = ...) -> None: ...

class CreateEpisodeRequest(_message.Message):
    __slots__ = ("request_id", "task_id", "toolset", "seed", "tokenizer_fingerprint", "lease", "max_turns", "max_edits", "limits")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOOLSET_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    MAX_EDITS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    task_id: str
    toolset: str
    seed: EpisodeSeed
    tokenizer_fingerprint: str
    lease: _duration_pb2.Duration
    max_turns: int
    max_edits: int
    limits: SandboxLimits
    def __init__(self, request_id: _Optional[str] = ..., task_id: _Optional[str] = ..., toolset: _Optional[str] = ..., seed: _Optional[_Union[EpisodeSeed, _Mapping]] = ..., tokenizer_fingerprint: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_turns: _Optional[int] = ..., max_edits: _Optional[int] = ..., limits: _Optional[_Union[SandboxLimits, _Mapping]] = ...) -> None: ...

class CreateEpisodeResponse(_message.Message):
    __slots__ = ("episode_id", "messages", "prompt", "max_turns", "expire_time", "sandbox_reuse", "limits", "tools")
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_REUSE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    prompt: TokenDelta
    max_turns: int
    expire_time: _timestamp_pb2.Timestamp
    sandbox_reuse: SandboxReuse
    limits: SandboxLimits
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    def __init__(self, episode_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., prompt: _Optional[_Union[TokenDelta, _Mapping]] = ..., max_turns: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sandbox_reuse: _Optional[_Union[SandboxReuse, str]] = ..., limits: _Optional[_Union[SandboxLimits, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ...) -> None: ...

class StepEpisodeRequest(_message.Message):
    __slots__ = ("episode_id", "turn", "action")
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    turn: int
    action: Action
    def __init__(self, episode_id: _Optional[str] = ..., turn: _Optional[int] = ..., action: _Optional[_Union[Action, _Mapping]] = ...) -> None: ...

class StepEpisodeResponse(_message.Message):
    __slots__ = ("observation", "outcome", "expire_time")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    observation: Observation
    outcome: Outcome
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, observation: _Optional[_Union[Observation, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class EndEpisodeRequest(_message.Message):
    __slots__ = ("episode_id", "stop_reason")
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    stop_reason: StopReason
    def __init__(self, episode_id: _Optional[str] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ...) -> None: ...

class EndEpisodeResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class GradeEpisodeRequest(_message.Message):
    __slots__ = ("episode_id",)
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    def __init__(self, episode_id: _Optional[str] = ...) -> None: ...

class GradeEpisodeResponse(_message.Message):
    __slots__ = ("verdict", "outcome", "record_sha256")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RECORD_SHA256_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    outcome: Outcome
    record_sha256: str
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., record_sha256: _Optional[str] = ...) -> None: ...

class GetEpisodeRequest(_message.Message):
    __slots__ = ("episode_id",)
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    def __init__(self, episode_id: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("action", "observation")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    action: Action
    observation: Observation
    def __init__(self, action: _Optional[_Union[Action, _Mapping]] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ...) -> None: ...

class GetEpisodeResponse(_message.Message):
    __slots__ = ("task", "toolset", "seed", "messages", "turns", "outcome", "verdict", "record_sha256")
    TASK_FIELD_NUMBER: _ClassVar[int]
    TOOLSET_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RECORD_SHA256_FIELD_NUMBER: _ClassVar[int]
    task: Task
    toolset: str
    seed: EpisodeSeed
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    outcome: Outcome
    verdict: Verdict
    record_sha256: str
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., toolset: _Optional[str] = ..., seed: _Optional[_Union[EpisodeSeed, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., record_sha256: _Optional[str] = ...) -> None: ...

class CheckTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class CheckTaskResponse(_message.Message):
    __slots__ = ("gold", "untouched", "gold_again")
    GOLD_FIELD_NUMBER: _ClassVar[int]
    UNTOUCHED_FIELD_NUMBER: _ClassVar[int]
    GOLD_AGAIN_FIELD_NUMBER: _ClassVar[int]
    gold: Verdict
    untouched: Verdict
    gold_again: Verdict
    def __init__(self, gold: _Optional[_Union[Verdict, _Mapping]] = ..., untouched: _Optional[_Union[Verdict, _Mapping]] = ..., gold_again: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...

class RenewLeasesRequest(_message.Message):
    __slots__ = ("episode_ids",)
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RenewLeasesResponse(_message.Message):
    __slots__ = ("episode_ids",)
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RolloutCommand(_message.Message):
    __slots__ = ("command_id", "create", "step", "end", "grade", "renew")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    create: CreateEpisodeRequest
    step: StepEpisodeRequest
    end: EndEpisodeRequest
    grade: GradeEpisodeRequest
    renew: RenewLeasesRequest
    def __init__(self, command_id: _Optional[str] = ..., create: _Optional[_Union[CreateEpisodeRequest, _Mapping]] = ..., step: _Optional[_Union[StepEpisodeRequest, _Mapping]] = ..., end: _Optional[_Union[EndEpisodeRequest, _Mapping]] = ..., grade: _Optional[_Union[GradeEpisodeRequest, _Mapping]] = ..., renew: _Optional[_Union[RenewLeasesRequest, _Mapping]] = ...) -> None: ...

class RolloutResult(_message.Message):
    __slots__ = ("command_id", "created", "stepped", "ended", "graded", "renewed", "error")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    STEPPED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    GRADED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    created: CreateEpisodeResponse
    stepped: StepEpisodeResponse
    ended: EndEpisodeResponse
    graded: GradeEpisodeResponse
    renewed: RenewLeasesResponse
    error: Error
    def __init__(self, command_id: _Optional[str] = ..., created: _Optional[_Union[CreateEpisodeResponse, _Mapping]] = ..., stepped: _Optional[_Union[StepEpisodeResponse, _Mapping]] = ..., ended: _Optional[_Union[EndEpisodeResponse, _Mapping]] = ..., graded: _Optional[_Union[GradeEpisodeResponse, _Mapping]] = ..., renewed: _Optional[_Union[RenewLeasesResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class RolloutRequest(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[RolloutCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[RolloutCommand, _Mapping]]] = ...) -> None: ...

class RolloutResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RolloutResult]
    def __init__(self, results: _Optional[_Iterable[_Union[RolloutResult, _Mapping]]] = ...) -> None: ...

class SubmittedFiles(_message.Message):
    __slots__ = ("files",)
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.ScalarMap[str, bytes]
    def __init__(self, files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class EvaluateSubmissionsRequest(_message.Message):
    __slots__ = ("task_id", "sample_index", "files", "completion", "diff")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    sample_index: int
    files: SubmittedFiles
    completion: str
    diff: str
    def __init__(self, task_id: _Optional[str] = ..., sample_index: _Optional[int] = ..., files: _Optional[_Union[SubmittedFiles, _Mapping]] = ..., completion: _Optional[str] = ..., diff: _Optional[str] = ...) -> None: ...

class EvaluateSubmissionsResponse(_message.Message):
    __slots__ = ("task_id", "sample_index", "verdict", "error", "evidence")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    sample_index: int
    verdict: Verdict
    error: Error
    evidence: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_id: _Optional[str] = ..., sample_index: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., evidence: _Optional[_Iterable[str]] = ...) -> None: ...
