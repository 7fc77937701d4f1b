"""Who the warden is, and how a child stops being it. Linux system calls that Python does not wrap."""

import ctypes
import os
import signal
import struct

WARDEN_UID = 990
ZYGOTE_UID = 991
"""No code of an episode ever runs under these two."""

_CAP_KILL = 1 << 5
_CAP_SETGID = 1 << 6
_CAP_SETUID = 1 << 7
_WARDEN_CAPABILITIES = _CAP_KILL | _CAP_SETGID | _CAP_SETUID

_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def become_warden() -> None:
    """Leaves UID 0 and keeps three capabilities; afterwards no process of another UID can look inside.

    The bounding set, which every child inherits, is emptied first: no program can give any of them back.
    """
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_KEEPCAPS, 1)
    _become(WARDEN_UID, _WARDEN_CAPABILITIES)
    _prctl(_PR_SET_DUMPABLE, 0)


def become_zygote() -> None:
    """Turns this process of the warden's into one that can only start others."""
    _become(ZYGOTE_UID, _CAP_SETGID | _CAP_SETUID)
    _prctl(_PR_SET_DUMPABLE, 0)


def become_episode(uid: int) -> None:
    """Turns this process into one of the episode, for good."""
    _become(uid, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # The files in /proc of a process that is not dumpable are root's, its own oom_score_adj among them.
    _prctl(_PR_SET_DUMPABLE, 1)


def use_files_as(uid: int) -> None:
    """Makes the kernel judge file access of this process as if `uid` asked for it."""
    for call in (_libc.setfsgid, _libc.setfsuid):
        call(uid)
        # The only way to learn whether it worked is to ask again with an impossible id.
        if call(-1) != uid:
            raise PermissionError(f"the file-system identity cannot be set to {uid}")


def kill_processes_of(uid: int) -> None:
    """Kills all processes of a UID in one sweep, and a child that is not yet one of them; never the zygote.

    For that moment a process of this UID may do to the warden what the kernel allows by the effective UID of a target:
    change its priority or its processors. The seccomp profile refuses both for any but oneself, and scrubbing
    compares both.
    """
    _set_capabilities(_WARDEN_CAPABILITIES, without=_CAP_KILL)
    os.seteuid(uid)
    try:
        os.kill(-1, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.seteuid(WARDEN_UID)
        _set_capabilities(_WARDEN_CAPABILITIES)


def _become(uid: int, capabilities: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Between two UIDs that are not 0 the kernel keeps capabilities, so they are dropped by hand.
    _set_capabilities(capabilities)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _set_capabilities(mask: int, without: int = 0) -> None:
    """Sets what is permitted, and what of it is in effect."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("=IIIIII", mask & ~without, mask, 0, 0, 0, 0)
    if _libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
