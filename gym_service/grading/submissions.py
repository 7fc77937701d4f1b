"""What is handed in for a task by who plays no episode, and what is known of a task, as the grader takes it.

What comes from outside goes by the rules that hold for what an episode leaves behind: of a function, or of a file that
is to be completed, that one file; of a repository the difference of its sources to the base tree. Whatever is wrong
with it is the submission's own doing: it is refused with the reason, which is a verdict, and no error.
"""

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gym_service.grading.changes import Refused, changes_of
from gym_service.grading.unified_diff import DiffRefused, apply_diff
from gym_service.tasks.command import CommandInstance
from gym_service.tasks.completion import CompletionInstance
from gym_service.tasks.model import FUNCTION_NAMES, FunctionInstance, FunctionTask, name_function
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import Instance, Task, open_task
from gym_service.values import Submission

MAX_CONTENT_BYTES = 4 << 20
"""What one submission may have, names included; more is refused unread."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files by path: of a function its file, of a repository those that differ from the base tree."""

    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return sum(len(path) + len(content) for path, content in self.files.items())


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff against the repository as an episode starts from it."""

    text: str

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Completion:
    """What continues the prompt of a task of completing a file; of a function, the whole text of its file."""

    text: str

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        return len(self.text)


Content: TypeAlias = Files | Diff | Completion


def known_submissions(instance: Instance) -> tuple[Submission, Submission]:
    """The reference solution, and what is handed in by who does nothing."""
    if isinstance(instance, FunctionInstance):
        path = instance.path
        gold, untouched = (files[path].encode() for files in (instance.gold_files, instance.files))
        return Submission({path: gold}), Submission({path: untouched})
    if isinstance(instance, CompletionInstance):
        return instance.task.complete(instance.task.gold), instance.task.complete(instance.task.stub)
    return Submission(dict(instance.task.gold)), Submission()


def take_submission(task: Task, content: Content, seed: str) -> tuple[Instance, Submission]:
    """Opens a task for what is handed in, and gives what is graded of it."""
    instance = _open(task, content, seed)
    if content.size_bytes > MAX_CONTENT_BYTES:
        return instance, Submission(refusal="too large: more than is graded")
    try:
        return instance, _take(instance, content)
    except DiffRefused as refusal:
        return instance, Submission(refusal=f"the diff: {refusal}")
    except Refused as refusal:
        return instance, Submission(refusal=str(refusal))


def _open(task: Task, content: Content, seed: str) -> Instance:
    """A function has another name in each episode; what is handed in may come from any of them."""
    if isinstance(task, FunctionTask):
        drawn = random.Random(seed).choice(FUNCTION_NAMES)
        return name_function(task, next((name for name in _names(content) if name in FUNCTION_NAMES), drawn))
    return open_task(task, seed)


def _names(content: Content) -> Iterable[str]:
    match content:
        case Files():
            return [path.removesuffix(".py") for path in content.files]
        case Diff():
            return re.findall(r"^\+\+\+ (?:b/)?([a-z]{1,20})\.py", content.text, re.MULTILINE)
        case Completion():
            return re.findall(r"^def ([a-z]{1,20})\b", content.text, re.MULTILINE)


def _take(instance: Instance, content: Content) -> Submission:
    """Raises DiffRefused, Refused."""
    deleted: tuple[str, ...] = ()
    match content:
        case Files():
            files = dict(content.files)
        case Diff():
            files, deleted = apply_diff(instance.tree, content.text)
        case Completion() if isinstance(instance, RepositoryInstance | CommandInstance):
            raise Refused("a repository takes files or a diff, and not a completion")
        case Completion() if isinstance(instance, CompletionInstance):
            return instance.task.complete(content.text)
        case Completion():
            files = {instance.path: _encode(content.text)}
    if isinstance(instance, RepositoryInstance | CommandInstance):
        return changes_of(instance.task, files, deleted)
    ignored = tuple(sorted(ascii(path)[1:-1][:200] for path in files if path != instance.path))
    return Submission({path: files[path] for path in files if path == instance.path}, ignored=ignored[:100])


def _encode(text: str) -> bytes:
    """Gives back the bytes of a file that is no UTF-8, and something of what only JSON can spell."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
