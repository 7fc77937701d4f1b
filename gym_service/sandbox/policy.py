"""The hardening of every sandbox, as data. `docker.py` applies it, in one place, and nothing else does."""

from dataclasses import dataclass
from typing import Any

from gym_service.sandbox.base import WORKSPACE


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one sandbox may use at most."""

    memory_bytes: int = 512 << 20
    """Memory, swap and tmpfs included."""
    pids: int = 128
    """Processes and threads."""
    cpus: float = 1.0
    """Processor time per second of wall clock, in cores."""
    workspace_bytes: int = 64 << 20
    """The size of /workspace; /tmp has the same."""
    workspace_inodes: int = 8192
    """Files and folders in /workspace; /tmp has the same."""
    shared_memory_bytes: int = 8 << 20
    """The size of /dev/shm; it takes as many files as /workspace."""
    file_bytes: int = 64 << 20
    """The largest file that a process may write."""
    open_files: int = 256
    """Open descriptors per process."""
    output_bytes: int = 64 << 10
    """The output of one command; the command is killed beyond it."""
    command_timeout_seconds: float = 30.0
    """The wall clock of one command."""


ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
HOSTNAME = "sandbox"
WARDEN_CAPABILITIES = ("KILL", "SETGID", "SETUID")
"""What the warden keeps to start and stop processes under another UID; those processes keep none."""


def host_config(limits: SandboxLimits) -> dict[str, Any]:
    """Gives the HostConfig of the Engine API for one sandbox."""
    temporary = f"rw,nosuid,nodev,nr_inodes={limits.workspace_inodes}"
    files = f"{temporary},size={limits.workspace_bytes},uid=990,gid=990"
    return {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(WARDEN_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        # Owned by the warden: an episode can fill them but not change what they are.
        "Tmpfs": {
            WORKSPACE: f"{files},exec",
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
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
