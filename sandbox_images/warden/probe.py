"""What a process of the episode sees of its own rights and limits, each fact as the kernel tells it."""

import json
import os
import resource
from collections.abc import Callable

from . import WORKSPACE

_CAPABILITY_SETS = {
    "effective_capabilities": "CapEff",
    "permitted_capabilities": "CapPrm",
    "inheritable_capabilities": "CapInh",
    "bounding_capabilities": "CapBnd",
    "ambient_capabilities": "CapAmb",
}
_RESOURCES = {
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "core_bytes": resource.RLIMIT_CORE,
    "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
    "message_queue_bytes": resource.RLIMIT_MSGQUEUE,
}
_FOLDERS = {"workspace": WORKSPACE, "temporary": "/tmp", "shared_memory": "/dev/shm"}
_FLAGS = {os.ST_NOSUID: "nosuid", os.ST_NODEV: "nodev", os.ST_NOEXEC: "noexec"}
_CGROUPS = "/sys/fs/cgroup"


def observe() -> int:
    """Prints the facts as one JSON object of texts; what cannot be read is "unknown"."""
    print(json.dumps(_rights() | _control_group() | _resources() | _folders()))
    return 0


def _rights() -> dict[str, str]:
    with open("/proc/self/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/net/dev", encoding="utf-8") as file:
        interfaces = sorted(line.split(":")[0].strip() for line in file if ":" in line)
    return {name: status.get(key, "unknown") for name, key in _CAPABILITY_SETS.items()} | {
        "no_new_privileges": status.get("NoNewPrivs", "unknown"),
        "seccomp_mode": status.get("Seccomp", "unknown"),
        "network_interfaces": ",".join(interfaces),
        "root_file_system": "read-only" if os.statvfs("/").f_flag & os.ST_RDONLY else "writable",
    }


def _control_group() -> dict[str, str]:
    """Reads the limits where the kernel keeps them, in the control group of the container."""
    facts: dict[str, Callable[[], str]]
    if os.path.exists(f"{_CGROUPS}/cgroup.controllers"):
        facts = {
            "cgroup_version": lambda: "2",
            "memory_bytes": lambda: _read("memory.max"),
            "swap_bytes": lambda: _read("memory.swap.max"),
            "pids": lambda: _read("pids.max"),
            "cpus": lambda: _cores(*_read("cpu.max").split()),
        }
    else:
        facts = {
            "cgroup_version": lambda: "1",
            "memory_bytes": lambda: _read("memory/memory.limit_in_bytes"),
            "swap_bytes": lambda: str(
                int(_read("memory/memory.memsw.limit_in_bytes")) - int(_read("memory/memory.limit_in_bytes"))
            ),
            "pids": lambda: _read("pids/pids.max"),
            "cpus": lambda: _cores(_read("cpu/cpu.cfs_quota_us"), _read("cpu/cpu.cfs_period_us")),
        }
    return {name: _or_unknown(read) for name, read in facts.items()}


def _resources() -> dict[str, str]:
    return {name: str(resource.getrlimit(number)[1]) for name, number in _RESOURCES.items()}


def _folders() -> dict[str, str]:
    facts = {}
    for name, path in _FOLDERS.items():
        seen = os.statvfs(path)
        facts[f"{name}_bytes"] = str(seen.f_blocks * seen.f_frsize)
        facts[f"{name}_inodes"] = str(seen.f_files)
        facts[f"{name}_flags"] = ",".join(word for flag, word in _FLAGS.items() if seen.f_flag & flag)
    return facts


def _read(name: str) -> str:
    with open(f"{_CGROUPS}/{name}", encoding="ascii") as file:
        return file.read().strip()


def _cores(quota: str, period: str) -> str:
    return f"{int(quota) / int(period):g}"


def _or_unknown(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, ValueError):
        return "unknown"
