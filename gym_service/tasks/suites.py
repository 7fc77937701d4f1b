"""What a gym has to offer: suites by name, and the way from a task's id to the task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from gym_service.errors import NotFound
from gym_service.tasks import bugfix, bugfix_large
from gym_service.tasks.command import CommandInstance, CommandTask
from gym_service.tasks.completion import CompletionInstance, CompletionTask
from gym_service.tasks.environment import PLAIN, Environment
from gym_service.tasks.model import FunctionInstance, FunctionTask, instantiate
from gym_service.tasks.repository import RepositoryInstance, RepositoryTask

Task: TypeAlias = FunctionTask | RepositoryTask | CompletionTask | CommandTask
Instance: TypeAlias = FunctionInstance | RepositoryInstance | CompletionInstance | CommandInstance


def open_task(task: Task, seed: str) -> Instance:
    """The task as one episode sees it; the same seed gives the same."""
    if isinstance(task, CompletionTask):
        return CompletionInstance(task)
    if isinstance(task, CommandTask):
        return CommandInstance(task)
    return instantiate(task, seed) if isinstance(task, FunctionTask) else RepositoryInstance(task)


def environment_of(task: Task) -> Environment:
    """What the sandboxes of a task are of."""
    return task.environment if isinstance(task, RepositoryTask | CommandTask) else PLAIN


_MAX_LISTED = 30
"""Tasks that the answer to an unknown id lists."""


class Catalogue:
    """The suites of one gym, each with its tasks in the suite's own order."""

    def __init__(
        self,
        suites: Mapping[str, Sequence[Task]],
        unproven: Mapping[str, int] | None = None,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self.unproven = dict(unproven or {})
        """How many tasks of a suite are left out because they are not proven."""
        self.absent = dict(absent or {})
        """Suites that this machine could have, with how."""
        self.suites = {name: tuple(tasks) for name, tasks in suites.items()}
        self._tasks = {task.task_id: task for tasks in self.suites.values() for task in tasks}

    def suite(self, name: str) -> tuple[Task, ...]:
        """All tasks of a suite.

        Raises:
            NotFound: There is no suite of that name, or none of its tasks is proven.
        """
        if name in self.absent:
            raise NotFound(self.absent[name], "SUITE_NOT_FOUND")
        if name not in self.suites:
            raise NotFound(f"no suite {name!r}; there is {_listed(self.suites)}", "SUITE_NOT_FOUND")
        if not self.suites[name] and self.unproven.get(name):
            raise NotFound(
                f"no task of {name} is proven, and what is not proven is not served: run "
                f"`python -m gym_service tasks check {name}`, then start the gym again",
                "SUITE_NOT_PROVEN",
            )
        return self.suites[name]

    def task(self, task_id: str) -> Task:
        """The task with this id.

        Raises:
            NotFound: There is no such suite, or no such task in it.
        """
        if task_id not in self._tasks:
            known = [task.task_id for task in self.suite(task_id.split("/")[0])]
            there_is = _listed(known) if len(known) <= _MAX_LISTED else f"a list of {len(known)}"
            raise NotFound(f"no task {task_id!r}; there is {there_is}", "TASK_NOT_FOUND")
        return self._tasks[task_id]


def built_in() -> Catalogue:
    """The suites that ship with the service."""
    return Catalogue(
        {
            "bugfix": bugfix.TASKS,
            "bugfix_large": bugfix_large.TASKS,
            "bugfix_families": bugfix_large.FAMILY_TASKS,
        }
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
