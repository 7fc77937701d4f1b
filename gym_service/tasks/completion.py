"""Tasks of completing a file: a policy continues a prompt, and a check decides about the function that comes of it.

So HumanEval asks, and what is made like it. The check is somebody else's code and runs nowhere but in a sandbox. Where
it says no more than what calls return, it is not run at all: its calls are the hidden tests of the task (`claims`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from gym_service.tasks.claims import literal_cases
from gym_service.tasks.model import Case, Split
from gym_service.values import Submission

PATH = "solution.py"
"""The file that a policy completes."""
EMPTY_BODY = "    pass\n"
_REQUEST = f"Write the function {{function}} in {PATH}, as the text in that file says. Hidden tests call it."


@dataclass(frozen=True)
class CompletionTask:
    """One prompt and the check of what it is continued to."""

    task_id: str
    """The suite, a slash, and what the task is called there."""
    suite: str
    """Name of the suite that the task belongs to."""
    split: Split
    """Training, validation or test."""
    prompt: str
    """What the file begins with."""
    entry_point: str
    """The function that is checked."""
    gold: str
    """The completion that is right."""
    check: str
    """A source that defines `check`, a function of the function that is checked; it raises if that one is wrong."""
    stub: str = EMPTY_BODY
    """The completion that an episode starts with."""
    request: str = _REQUEST
    """What the policy is asked to do, with `{function}` for the entry point."""
    source: str = ""
    """Where the task comes from."""
    family: str = "completion"
    deterministic: bool = True
    """Whether the same file always gets the same verdict."""

    @cached_property
    def cases(self) -> tuple[Case, ...] | None:
        """The calls of the check with the values that they have to have; None if it has to be run."""
        return literal_cases(self.check, self.entry_point)

    @property
    def test_count(self) -> int:
        """How many hidden tests there are; a check that has to be run is one."""
        return 1 if self.cases is None else len(self.cases)

    @property
    def reference(self) -> str:
        """The whole file as it should be."""
        return self.prompt + self.gold

    @cached_property
    def sha256(self) -> str:
        """The hash over everything that the task consists of, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """The task as plain data."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def complete(self, completion: str) -> Submission:
        """The submission that continues the prompt with a text."""
        return Submission({PATH: (self.prompt + completion).encode(errors="surrogatepass")})


@dataclass(frozen=True, slots=True)
class CompletionInstance:
    """A task of completing a file as one episode sees it."""

    task: CompletionTask

    @property
    def path(self) -> str:
        """The file that is completed."""
        return PATH

    @property
    def tree(self) -> Mapping[str, bytes]:
        """The repository at the start: content by path."""
        return self.task.complete(self.task.stub).files

    @property
    def request(self) -> str:
        """What the policy is asked to do."""
        return self.task.request.format(function=self.task.entry_point)
