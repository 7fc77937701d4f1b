"""The suites that ship with the service, by name, and the way from a task's id to the task."""

from collections.abc import Iterable

from gym_service.errors import NotFound
from gym_service.tasks import bugfix
from gym_service.tasks.model import FunctionTask

SUITES: dict[str, tuple[FunctionTask, ...]] = {"bugfix": bugfix.TASKS}


def load_suite(name: str) -> tuple[FunctionTask, ...]:
    """All tasks of a suite, in the suite's own order.

    Raises:
        NotFound: There is no suite of that name.
    """
    if name not in SUITES:
        raise NotFound(f"no suite {name!r}; there is {_listed(SUITES)}", "SUITE_NOT_FOUND")
    return SUITES[name]


def find_task(task_id: str) -> FunctionTask:
    """The task with this id.

    Raises:
        NotFound: There is no such suite, or no such task in it.
    """
    suite = load_suite(task_id.split("/")[0])
    for task in suite:
        if task.task_id == task_id:
            return task
    known = _listed(task.task_id for task in suite)
    raise NotFound(f"no task {task_id!r}; there is {known}", "TASK_NOT_FOUND")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
