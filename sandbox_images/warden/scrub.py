"""Emptying a sandbox between two episodes, and proof that it is as it was at start."""

import os
import resource

from . import WORKSPACE

_WRITABLE = tuple(filter(os.path.isdir, (WORKSPACE, "/tmp", "/dev/shm", "/dev/mqueue")))
"""A kernel without message queues has no folder for them."""
_IPC_TABLES = ("/proc/sysvipc/msg", "/proc/sysvipc/sem", "/proc/sysvipc/shm")
_LIMITS = ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_STACK")


def empty_folders() -> None:
    """Deletes what the episode wrote; what cannot be deleted shows in the comparison afterwards."""
    for folder in _WRITABLE:
        while _empty_one_level(folder):
            pass


def _empty_one_level(folder: str) -> bool:
    """Deletes entries and moves what lies in sub-folders up, so that no depth is too deep; False if it could not."""
    progress = False
    for entry in list(os.scandir(folder)):
        try:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                progress = True
                continue
            # Its owner is who deletes it, so a folder that was closed can be opened.
            os.chmod(entry.path, 0o700)
            for number, inner in enumerate(list(os.scandir(entry.path))):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                    os.rename(inner.path, f"{folder}/.moved-up-{entry.inode()}-{number}")
                else:
                    os.unlink(inner.path)
                progress = True
            os.rmdir(entry.path)
            progress = True
        except OSError:
            pass
    return progress


def read_state() -> dict[str, object]:
    """Reads everything in which one episode could leave a trace for the next."""
    state: dict[str, object] = {}
    for folder in _WRITABLE:
        usage = os.statvfs(folder)
        status = os.stat(folder)
        state[folder] = {
            "entries": sorted(os.listdir(folder))[:10],
            "mode": status.st_mode,
            "owner": (status.st_uid, status.st_gid),
            "attributes": _attributes(folder),
            "free": (usage.f_bfree, usage.f_ffree),
        }
    for table in _IPC_TABLES:
        try:
            with open(table, encoding="ascii") as file:
                state[table] = len(file.readlines())
        except OSError:
            state[table] = "absent"
    with open("/proc/net/dev", encoding="ascii") as file:
        # Who used the loopback device leaves ports that the next one cannot have for a minute.
        state["network"] = file.read()
    state["scheduling"] = (
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getaffinity(0),
    )
    state["limits"] = {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS}
    return state


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names what differs between two states."""
    return [f"{key}: {before[key]} -> {after[key]}" for key in before if before[key] != after[key]]


def _attributes(folder: str) -> list[str]:
    try:
        return os.listxattr(folder)
    except OSError:
        return []
