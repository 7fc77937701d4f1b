"""The moment in which a forked process of the warden's becomes the episode's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from . import jobs, privileges
from .graded import RESULT_DESCRIPTOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def become_child(
    job: bytes, uid: int, output: int, kinds: Mapping[str, Callable[..., int]] = jobs.KINDS
) -> NoReturn:
    """Drops every right, then carries out the job with what it prints going to `output`.

    Nothing of the repository is read before the rights are gone.
    """
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        if jobs.wants_result_channel(job):
            os.dup2(output, RESULT_DESCRIPTOR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.closerange(RESULT_DESCRIPTOR + 1, 1024)
        else:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, 1024)
        privileges.become_episode(uid)
        os._exit(jobs.perform(job, kinds))
    finally:
        os._exit(jobs.EXIT_WARDEN_FAILED)
