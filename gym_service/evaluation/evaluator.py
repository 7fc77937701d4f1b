"""Grades one submission that no episode made, and signs the verdict. Keeps nothing: a repeat grades again.

All submissions of a task are graded with the same draw, so that they are compared by the same tests and a repeat gets
the same verdict. The draw is no episode's.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from gym_service.evaluation.signs import Sign, SignReader
from gym_service.evaluation.tampering import shown_evidence
from gym_service.grading.certificate import Signer
from gym_service.grading.grader import Grader, grader_version
from gym_service.grading.submissions import Content, take_submission
from gym_service.tasks.environment import Environment
from gym_service.tasks.suites import Task, environment_of
from gym_service.values import Verdict


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What came of a submission."""

    verdict: Verdict
    """Signed."""
    evidence: tuple[str, ...]
    """What may be shown of why it stands out; empty where it does not."""
    signs: tuple[Sign, ...] = ()
    """What it tried, where somebody looks for it."""


def draw_of(task: Task) -> str:
    """The seed of the draw with which the submissions of a task are graded."""
    # No episode has it: theirs is a list that starts with a number.
    return json.dumps(["evaluate", task.task_id])


class Evaluator:
    """Grades submissions with the grader of a service."""

    def __init__(
        self,
        grader: Grader,
        signer: Signer,
        image_of: Callable[[Environment], str],
        reader: SignReader | None = None,
    ) -> None:
        """`image_of` gives the digest of an environment's image; an empty text for the gym's own.

        With a `reader`, what submissions tried is told, too.
        """
        self._grader = grader
        self._signer = signer
        self._image_of = image_of
        self._reader = reader

    async def evaluate(self, task: Task, content: Content) -> Evaluated:
        """Grades what is handed in for a task. A failure of the gym's own is a verdict too, never an exception."""
        seed = draw_of(task)
        # In a thread: a long diff takes a while, and others wait for the loop.
        instance, submission = await asyncio.to_thread(take_submission, task, content, seed)
        verdict = await self._grader.grade(instance, submission, seed)
        verdict = replace(verdict, submission_sha256=submission.sha256)
        image = self._image_of(environment_of(task))
        certificate = self._signer.sign(verdict, task.sha256, seed, grader_version(task), image)
        evidence = await asyncio.to_thread(shown_evidence, instance, submission, verdict)
        signs = await self._reader.signs_of(instance, submission, verdict) if self._reader else ()
        return Evaluated(replace(verdict, certificate=certificate), evidence, signs)
