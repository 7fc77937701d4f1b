"""Whether a task is graded as it should be, now: the proof's first claims, with the grader that serves.

What is graded never leaves the service; who asks is told statuses, counts and reasons.
"""

import asyncio
import json
from dataclasses import dataclass

from gym_service.grading.grader import Grader
from gym_service.grading.submissions import known_submissions
from gym_service.tasks.suites import Task, open_task
from gym_service.values import Verdict


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """What the grader says of what is known."""

    gold: Verdict
    """Of the reference solution."""
    untouched: Verdict
    """Of the repository as an episode finds it."""
    gold_again: Verdict


async def check_task(task: Task, grader: Grader) -> TaskCheck:
    """Grades the three. Raises SandboxLost when the gym fails to."""
    # No episode has it: theirs is a list that starts with a number.
    seed = json.dumps(["check", task.task_id])
    instance = open_task(task, seed)
    gold, untouched = known_submissions(instance)
    return TaskCheck(
        *await asyncio.gather(*(grader.try_out(instance, each, seed) for each in (gold, untouched, gold)))
    )
