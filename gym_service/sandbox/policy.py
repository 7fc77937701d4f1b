"""The hardening of every sandbox, as data. `docker.py` applies it, in one place, and nothing else does."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import sandbox_images
from gym_service.errors import InvalidRequest
from gym_service.sandbox.base import WORKSPACE


@dataclass(frozen=True, slots=True)
class Bounds:
    """From where to where a limit can be set, and what it limits."""

    least: float
    most: float
    what: str

    def fault(self, value: float) -> str:
        """Says what is wrong with a value; empty when nothing is."""
        # Not the other way round: NaN is in no order with anything.
        return (
            ""
            if self.least <= value <= self.most
            else f"must be from {self.least} to {self.most}, not {value}"
        )


# The least is what the warden and one run of pytest live on, with some room. None is 0, which to the kernel means
# no limit. The most of the output lets the results of one turn, 16 at most, fit into one message.
@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one sandbox may use at most. Raises ValueError for what no sandbox can live with."""

    memory_bytes: Annotated[int, Bounds(64 << 20, 1 << 40, "memory, swap and tmpfs included")] = 512 << 20
    pids: Annotated[int, Bounds(8, 1 << 22, "processes and threads")] = 128
    cpus: Annotated[float, Bounds(0.1, os.cpu_count() or 1, "processor time per second, in cores")] = 1.0
    workspace_bytes: Annotated[int, Bounds(1 << 20, 1 << 40, "size of the workspace, and of /tmp")] = 64 << 20
    workspace_inodes: Annotated[int, Bounds(64, 1 << 30, "files in the workspace, in /tmp, in /dev/shm")] = (
        8192
    )
    shared_memory_bytes: Annotated[int, Bounds(64 << 10, 1 << 40, "size of /dev/shm")] = 8 << 20
    file_bytes: Annotated[int, Bounds(1 << 20, 1 << 40, "the largest file a process may write")] = 64 << 20
    open_files: Annotated[int, Bounds(32, 1 << 20, "open descriptors per process")] = 256
    output_bytes: Annotated[int, Bounds(4 << 10, 512 << 10, "output of a command, killed beyond it")] = (
        64 << 10
    )
    command_timeout_seconds: Annotated[float, Bounds(1.0, 3600.0, "wall clock of a command")] = 30.0

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            if fault := bounds.fault(getattr(self, name)):
                raise ValueError(f"--{name.replace('_', '-')} {fault}")

    def share_container(self, other: "SandboxLimits") -> bool:
        """Says whether one container can hold both: output and time are limited call by call."""
        per_call = {name: getattr(other, name) for name in ("output_bytes", "command_timeout_seconds")}
        return replace(self, **per_call) == other

    def tightened(self, asked: Sequence[tuple[str, float]]) -> "SandboxLimits":
        """Gives these limits with some of them, by name, set to what a client asks for. Raises InvalidRequest."""
        for name, value in asked:
            most = getattr(self, name)
            if value > most:
                message = f"limits.{name} asks for {value}; the most that this gym gives is {most}"
                raise InvalidRequest(message, "LIMITS_EXCEEDED")
            if fault := replace(BOUNDS[name], most=most).fault(value):
                raise InvalidRequest(f"limits.{name} {fault}", "LIMITS_INVALID")
        values: dict[str, Any] = dict(asked)
        return replace(self, **values)


BOUNDS: dict[str, Bounds] = {field.name: get_args(field.type)[1] for field in fields(SandboxLimits)}
"""The bounds of each limit, by name."""

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
HOSTNAME = "sandbox"
HEALTHCHECK = {"Test": ["NONE"]}
"""A health command would run beside the warden, under its UID."""

WARDEN_CAPABILITIES = ("KILL", "SETGID", "SETUID", "SETPCAP")
"""What the warden has to start and stop processes under another UID; those processes have none.

SETPCAP it uses once, to empty the bounding set for itself and all its children, and then drops it.
"""

SECCOMP_PROFILE = Path(sandbox_images.__file__).with_name("seccomp.json").read_text(encoding="ascii")
"""The calls that a sandbox may make; every other is refused with EPERM, those of foreign architectures with death."""
SECCOMP_SHA256 = hashlib.sha256(SECCOMP_PROFILE.encode()).hexdigest()

_MASKED_BY_ENGINES = """
    /proc/acpi /proc/asound /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/sched_debug /proc/scsi
    /proc/timer_list /proc/timer_stats /sys/devices/virtual/powercap /sys/firmware
"""
"""The lists of old engines and new ones together."""
_TELLING = """
    /proc/buddyinfo /proc/cmdline /proc/config.gz /proc/crypto /proc/diskstats /proc/driver /proc/kallsyms
    /proc/key-users /proc/loadavg /proc/locks /proc/mdstat /proc/modules /proc/partitions /proc/pressure
    /proc/schedstat /proc/softirqs /proc/stat /proc/swaps /proc/sys/kernel/random/boot_id /proc/version /proc/vmstat
    /proc/zoneinfo /sys/block /sys/class /sys/kernel /sys/module
"""
"""What tells of the machine and of what the neighbors do."""
MASKED_PATHS = tuple((_MASKED_BY_ENGINES + _TELLING).split())
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


_NO_WORKSPACES = "/proc", "/sys", "/dev", "/tmp", "/opt/gym"
_PATH = re.compile("(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")


def workspace_fault(path: str) -> str:
    """Says why a folder cannot be a workspace; empty when it can."""
    if not _PATH.fullmatch(path):
        return f"the workspace {path!a} is no absolute path of letters, digits, dots, dashes and underscores"
    for taken in _NO_WORKSPACES:
        if f"{path}/".startswith(f"{taken}/") or taken.startswith(f"{path}/"):
            return f"the workspace {path} and {taken}, which is the sandbox's own, lie in each other: choose another"
    return ""


def host_config(limits: SandboxLimits, workspace: str = WORKSPACE) -> dict[str, Any]:
    """Gives the HostConfig of the Engine API for one sandbox."""
    temporary = f"rw,nosuid,nodev,nr_inodes={limits.workspace_inodes}"
    files = f"{temporary},size={limits.workspace_bytes},uid=990,gid=990"
    return {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(WARDEN_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges", f"seccomp={SECCOMP_PROFILE}"],
        "MaskedPaths": list(MASKED_PATHS),
        "ReadonlyPaths": list(READONLY_PATHS),
        "Privileged": False,
        "Devices": [],
        "DeviceRequests": [],
        "Binds": [],
        "GroupAdd": [],
        # None of the engine's or the host's namespaces, and no way out of a remapping of users.
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        # The warden is PID 1, whatever the engine's own setting.
        "Init": False,
        "ReadonlyRootfs": True,
        # Owned by the warden: an episode can fill them but not change what they are.
        "Tmpfs": {
            workspace: f"{files},exec",
            "/tmp": f"{files},noexec",
            # The engine's own has no limit on inodes, and those are memory that outlives a process.
            "/dev/shm": f"{temporary},size={limits.shared_memory_bytes},noexec,mode=1777",
        },
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "MemorySwappiness": 0,
        "OomKillDisable": False,
        "OomScoreAdj": 500,
        "PidsLimit": limits.pids,
        "NanoCpus": round(limits.cpus * 1e9),
        # Not nproc: it counts per UID over all containers of the host.
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in (
                ("core", 0),
                ("fsize", limits.file_bytes),
                ("nofile", limits.open_files),
                ("memlock", 64 << 10),
                ("msgqueue", 0),
            )
        ],
        "IpcMode": "private",
        # No System V memory, semaphores or queues: they outlive their process, and the memory counts as nobody's.
        "Sysctls": {"kernel.shmmni": "0", "kernel.sem": "0 0 0 0", "kernel.msgmni": "0"},
        "CgroupnsMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
    }
