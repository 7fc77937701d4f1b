"""What the evaluation profile asks of the machine, and what this one lacks of it. Data, with the reason for each."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

PROFILES = ("training", "evaluation")
"""Training serves on a machine with gaps and says which; evaluation refuses it."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is known of the machine on which the sandboxes run."""

    engine_version: str
    runtime: str
    runtime_version: str
    kernel_version: str
    cgroup_version: str
    swap_bytes: int
    core_pattern: str
    address_randomization: str
    socket_mode: int
    """The permission bits of the engine's socket."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that evaluation asks for."""

    holds: Callable[[MachineFacts], bool]
    found: Callable[[MachineFacts], str]
    remedy: str
    reason: str


_OLDEST_ENGINE = Version("29.5.1")
_OLDEST_RUNC: dict[tuple[int, ...], Version] = {(1, 2): Version("1.2.8"), (1, 3): Version("1.3.3")}
"""By line of releases; older lines are not mended, later ones are from their first release on."""
_OLDEST_KERNEL = Version("6.1")

REQUIREMENTS = (
    Requirement(
        lambda facts: _version(facts.engine_version) >= _OLDEST_ENGINE,
        lambda facts: f"the engine is {facts.engine_version}",
        "install Docker Engine 29.5.1 or later",
        "CVE-2026-41567, -41568 and -42306: files of a container reached the host through the archive calls",
    ),
    Requirement(
        lambda facts: facts.runtime == "runc" and _is_mended_runc(facts.runtime_version),
        lambda facts: f"the runtime is {facts.runtime} {facts.runtime_version}",
        "install runc 1.2.8, 1.3.3, 1.4.0 or later and serve with it",
        "CVE-2025-31133, -52565 and -52881: masked paths and /proc writes could be redirected; "
        "for other runtimes no version is pinned",
    ),
    Requirement(
        lambda facts: _version(facts.kernel_version) >= _OLDEST_KERNEL,
        lambda facts: f"the kernel is {facts.kernel_version}",
        "run Linux 6.1 or later, with the security updates of its line",
        "older lines get no security updates for much longer, and the kernel is the wall",
    ),
    Requirement(
        lambda facts: facts.cgroup_version == "2",
        lambda facts: f"control groups are of version {facts.cgroup_version}",
        "boot with systemd.unified_cgroup_hierarchy=1",
        "version 1 limits memory, pids and CPU in separate trees and is no longer developed",
    ),
    Requirement(
        lambda facts: facts.swap_bytes == 0,
        lambda facts: f"there are {facts.swap_bytes >> 20} MiB of swap",
        "turn it off with `swapoff -a` and in /etc/fstab",
        "what one sandbox makes the kernel swap slows the others, and memory of an episode ends on a disk",
    ),
    Requirement(
        lambda facts: not facts.core_pattern.startswith("|"),
        lambda facts: f"core dumps go to the program {facts.core_pattern[1:].split(' ')[0]!r}",
        "set it to a name with `sysctl kernel.core_pattern=core`",
        "a crash inside a sandbox would start a program as root outside",
    ),
    Requirement(
        lambda facts: facts.address_randomization == "2",
        lambda facts: f"kernel.randomize_va_space is {facts.address_randomization}",
        "set it with `sysctl kernel.randomize_va_space=2`",
        "known addresses make every exploit easier",
    ),
    Requirement(
        lambda facts: not facts.socket_mode & 0o007,
        lambda facts: f"the engine's socket has the mode {facts.socket_mode:04o}",
        "take the rights of others from it, `chmod o= SOCKET`",
        "who can open it is root on this machine",
    ),
)


def gaps(facts: MachineFacts) -> list[str]:
    """Says what this machine lacks of what evaluation asks for, one sentence each."""
    return [
        f"{requirement.found(facts)}; {requirement.remedy} ({requirement.reason})"
        for requirement in REQUIREMENTS
        if not requirement.holds(facts)
    ]


def read_machine(
    *, engine_version: str, runtime: str, runtime_version: str, kernel_version: str, socket_path: str
) -> MachineFacts:
    """Reads the rest from this machine, which is the engine's own: the service takes local engines only."""
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return MachineFacts(
        engine_version=engine_version,
        runtime=runtime,
        runtime_version=runtime_version,
        kernel_version=kernel_version,
        cgroup_version="2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1",
        swap_bytes=int(memory["SwapTotal"].split()[0]) << 10,
        core_pattern=Path("/proc/sys/kernel/core_pattern").read_text().strip(),
        address_randomization=Path("/proc/sys/kernel/randomize_va_space").read_text().strip(),
        socket_mode=os.stat(socket_path).st_mode & 0o777,
    )


def _is_mended_runc(text: str) -> bool:
    version = _version(text)
    return version >= _OLDEST_RUNC.get(version.release[:2], Version("1.4"))


def _version(text: str) -> Version:
    """Reads a version, or else the numbers at its start; one without any is older than everything."""
    try:
        return Version(text)
    except InvalidVersion:
        found = re.match(r"\D{0,8}?(\d+(?:\.\d+)*)", text)
        return Version(found[1] if found else "0")
