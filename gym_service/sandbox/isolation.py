"""The isolation of a sandbox as it was found in it: facts read from inside, each beside what it has to be."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gym_service.sandbox.policy import SandboxLimits


@dataclass(frozen=True, slots=True)
class Isolation:
    """What was measured in one sandbox, and what the engine says it applied."""

    runtime: str
    """The OCI runtime; "none" for a sandbox that isolates nothing."""
    runtime_version: str = ""
    engine_version: str = ""
    kernel_version: str = ""
    image_digest: str = ""
    seccomp_sha256: str = ""
    """Of the profile that the engine gives back."""
    limits: SandboxLimits | None = None
    observed: Mapping[str, str] = field(default_factory=dict)
    """The facts read from inside."""


NO_ISOLATION = Isolation(runtime="none", observed={"isolation": "none"})
"""That of a sandbox which is none."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One wall that was tried."""

    name: str
    holds: bool
    observed: str
    remedy: str = ""
    """What to do about it; empty when it holds."""


@dataclass(frozen=True, slots=True)
class RuntimeResult:
    """What came of the self-test of one runtime."""

    runtime: str
    checks: tuple[CheckResult, ...] = ()
    """Empty when it was not tried."""

    @property
    def offered(self) -> bool:
        """Whether every wall was tried and held."""
        return bool(self.checks) and not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The walls that do not hold."""
        return tuple(check for check in self.checks if not check.holds)


@dataclass(frozen=True, slots=True)
class Assurance:
    """All that a gym can say for its sandboxes."""

    isolation: Isolation
    """That of the first of them, from inside; every further start is compared with what the engine was told."""
    self_tests: tuple[RuntimeResult, ...] = ()
    profile: str = "training"
    gaps: tuple[str, ...] = ()
    """What this machine lacks of what the evaluation profile asks for."""


@dataclass(frozen=True, slots=True)
class _Fact:
    name: str
    expected: Callable[[SandboxLimits], str]
    remedy: str


_RIGHTS = "use a runtime that applies the capabilities and flags of the container's configuration (runc)"
CONTROL_GROUP_REMEDY = (
    "use a runtime that puts the container in a control group of its own with the limits set (runc)"
)
RESOURCES_REMEDY = "use a runtime that sets the resource limits of the configuration (runc)"
_MOUNTS = "use a runtime that mounts tmpfs with size, nr_inodes and flags (runc)"

_NO_CAPABILITY = "0" * 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CPU_PERIOD = 100_000
"""The quota of a control group is a whole number of microseconds in so many."""


def _quota(cpus: float) -> int:
    """As the engine makes it of a whole number of billionths."""
    return round(cpus * 1e9) * _CPU_PERIOD // 10**9


def _page_down(size: int) -> str:
    return str(size // _PAGE_BYTES * _PAGE_BYTES)


def _page_up(size: int) -> str:
    return str(-(-size // _PAGE_BYTES) * _PAGE_BYTES)


def _folder_facts(name: str, size: Callable[[SandboxLimits], int], flags: str) -> tuple[_Fact, ...]:
    return (
        _Fact(f"{name}_bytes", lambda limits: _page_up(size(limits)), _MOUNTS),
        _Fact(f"{name}_inodes", lambda limits: str(limits.workspace_inodes), _MOUNTS),
        _Fact(f"{name}_flags", lambda _: flags, _MOUNTS),
    )


FACTS = (
    *(
        _Fact(f"{name}_capabilities", lambda _: _NO_CAPABILITY, _RIGHTS)
        for name in ("effective", "permitted", "inheritable", "bounding", "ambient")
    ),
    _Fact("no_new_privileges", lambda _: "1", _RIGHTS),
    _Fact(
        "seccomp_mode", lambda _: "2", "use a kernel with CONFIG_SECCOMP_FILTER and a runtime that applies it"
    ),
    _Fact(
        "network_interfaces", lambda _: "lo", "use a runtime that gives the container a network of its own"
    ),
    _Fact("root_file_system", lambda _: "read-only", _MOUNTS),
    _Fact("memory_bytes", lambda limits: _page_down(limits.memory_bytes), CONTROL_GROUP_REMEDY),
    _Fact("swap_bytes", lambda _: "0", "turn swap off, or boot with swapaccount=1"),
    _Fact("pids", lambda limits: str(limits.pids), CONTROL_GROUP_REMEDY),
    _Fact("cpus", lambda limits: f"{_quota(limits.cpus) / _CPU_PERIOD:g}", CONTROL_GROUP_REMEDY),
    _Fact("file_bytes", lambda limits: str(limits.file_bytes), RESOURCES_REMEDY),
    _Fact("open_files", lambda limits: str(limits.open_files), RESOURCES_REMEDY),
    _Fact("core_bytes", lambda _: "0", RESOURCES_REMEDY),
    _Fact("locked_memory_bytes", lambda _: str(64 << 10), RESOURCES_REMEDY),
    _Fact("message_queue_bytes", lambda _: "0", RESOURCES_REMEDY),
    *_folder_facts("workspace", lambda limits: limits.workspace_bytes, "nosuid,nodev"),
    *_folder_facts("temporary", lambda limits: limits.workspace_bytes, "nosuid,nodev,noexec"),
    *_folder_facts("shared_memory", lambda limits: limits.shared_memory_bytes, "nosuid,nodev,noexec"),
)


def check_facts(observed: Mapping[str, str], limits: SandboxLimits) -> list[CheckResult]:
    """Compares the facts of a sandbox with what they have to be under `limits`."""
    results = []
    for fact in FACTS:
        seen, expected = observed.get(fact.name, "unknown"), fact.expected(limits)
        if seen == expected:
            results.append(CheckResult(fact.name, True, seen))
        else:
            results.append(CheckResult(fact.name, False, f"{seen}, not {expected}", fact.remedy))
    return results


def measured_limits(observed: Mapping[str, str], limits: SandboxLimits) -> SandboxLimits:
    """Gives the limits that were found inside; output and time, which the warden keeps, are as configured.

    Raises ValueError when one could not be read.
    """
    return replace(
        limits,
        memory_bytes=int(observed["memory_bytes"]),
        pids=int(observed["pids"]),
        cpus=float(observed["cpus"]),
        workspace_bytes=int(observed["workspace_bytes"]),
        workspace_inodes=int(observed["workspace_inodes"]),
        shared_memory_bytes=int(observed["shared_memory_bytes"]),
        file_bytes=int(observed["file_bytes"]),
        open_files=int(observed["open_files"]),
    )
