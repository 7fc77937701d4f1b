"""Verdicts that are on record: the same task, files, image, profile, grader and seed give the same verdict again.

Only what the submission alone decides is kept. What depends on the machine as well (time, memory, a failure of the
gym's own) is found anew each time, and so is everything about a task that is not deterministic.
"""

import hashlib
import json
from collections import OrderedDict
from dataclasses import replace

from gym_service.tasks.suites import Task
from gym_service.values import Submission, Verdict, VerdictStatus

_MOST_VERDICTS = 65_536
_KEPT = (VerdictStatus.RESOLVED, VerdictStatus.UNRESOLVED, VerdictStatus.REFUSED)


class VerdictCache:
    """The verdicts that were used last."""

    def __init__(self, image_digest: str, seccomp_sha256: str, most: int = _MOST_VERDICTS) -> None:
        self._environment = image_digest, seccomp_sha256
        self._most = most
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self.hits = 0
        """The verdicts that were on record."""
        self.misses = 0
        """Those that were looked for and were not."""

    def key(
        self, task: Task, grader_version: str, submission: Submission, seed: str, image_digest: str = ""
    ) -> str:
        """Names what decides about a verdict. The seed is the episode's: it draws the hidden inputs.

        `image_digest` is the image's if it is not the gym's own.
        """
        parts = (
            *(task.sha256, submission.sha256, submission.refusal),
            *self._environment,
            *(grader_version, seed, image_digest),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def find(self, key: str) -> Verdict | None:
        """Gives a verdict that is on record, marked as such."""
        verdict = self._verdicts.get(key)
        if verdict is None:
            self.misses += 1
            return None
        self.hits += 1
        self._verdicts.move_to_end(key)
        return replace(verdict, from_cache=True)

    def keep(self, key: str, verdict: Verdict) -> None:
        """Keeps a verdict if it may be kept, and drops the one that was not used for longest if there are too many."""
        if verdict.status not in _KEPT:
            return
        # Evidence is long, and where the verdict was reached it is on record.
        self._verdicts[key] = replace(verdict, evidence=())
        if len(self._verdicts) > self._most:
            self._verdicts.popitem(last=False)
