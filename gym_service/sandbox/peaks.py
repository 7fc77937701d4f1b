"""The most that a container has used so far, by the kernel's own count: what its control group says from outside."""

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class Peaks:
    """What was used at most; None where this machine does not tell."""

    memory_bytes: int | None
    """Page cache and tmpfs included, as the limit counts it."""
    pids: int | None
    """Processes and threads; told from Linux 6.11 on."""


def read_peaks(process_id: int, container_id: str) -> Peaks:
    """Reads the peaks of the container that a process is in. Both are None when it is gone."""
    try:
        lines = (_PROCESSES / str(process_id) / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    groups: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # The number may be another process's by now.
        if container_id in path:
            groups |= dict.fromkeys(controllers.split(","), path)
    return Peaks(
        _first(
            [
                (groups.get("memory"), "memory", "memory.max_usage_in_bytes"),
                (groups.get(""), "", "memory.peak"),
            ]
        ),
        _first([(groups.get("pids"), "pids", "pids.peak"), (groups.get(""), "", "pids.peak")]),
    )


def _first(places: list[tuple[str | None, str, str]]) -> int | None:
    for path, controller, name in places:
        if path is not None:
            try:
                return int((_ROOT / controller / path.lstrip("/") / name).read_text())
            except (OSError, ValueError):
                continue
    return None
