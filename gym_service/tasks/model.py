"""What a task is, and what one episode gets of it.

A `FunctionTask` is authored and the same for everyone. An episode works on a `FunctionInstance`: the faulty
function under a name drawn from the episode's seed, so that a name says nothing about the fault. The hidden
tests are made apart from it, under a seed that never leaves the service: inputs are drawn, and the expected
values come from running the reference solution here. That is safe because a reference solution is authored
code; nothing that a policy wrote is ever executed in this module.
"""

import copy
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, cast

from gym_service.tasks.comparison import EXACT, Comparison

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Arguments: TypeAlias = tuple[Json, ...]

PLACEHOLDER = "FUNCTION"
"""The name that an authored source gives its one function."""

_WORDS = """
    blen blorp brin cheld crost dalf drav drelm dwim fandle feln flug frell garn glim gorvu grath hask hulm
    imbo jarl jint jorp kell kivo klom krand lomf lurg meltu mirv morb nalt nerk nogi oblen ordu ostel pelk
    plim prax quib quorn relm rovun scrin skev snolf sorb spelg talv treb trong tulm ulvo umbri vask velb
    vosk wexel whorl wumb xeno yalp yorv zaff zelm zorp zunt
"""
FUNCTION_NAMES = tuple(_WORDS.split())
"""Short and meaningless on purpose: no word hints at a fault, and none shadows a module or a builtin."""

MAX_DRAWS_PER_INPUT = 1000
"""How often one hidden input is drawn again before the task counts as having too few inputs."""
_HASHED_DRAWS = 16
_PLACE = ("task_id", "suite", "split")
"""The fields that say where a task stands, not what it is."""


class Split(StrEnum):
    """Which decisions a task may take part in; fixed before anything is trained."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the function and the value that it has to return."""

    arguments: Arguments
    """Positional arguments."""
    expected: Json
    """The value to return."""


@dataclass(frozen=True)
class FunctionTask:
    """One small module with one faulty function."""

    task_id: str
    """Suite, family and variant, with slashes between them."""
    suite: str
    """Name of the suite that the task belongs to."""
    split: Split
    """Training, validation or test."""
    family: str
    """The kind of fault; never shown to a policy."""
    description: str
    """What the function has to do, in one sentence, with `{function}` for its name."""
    faulty_source: str
    """The module that an episode starts from."""
    gold_source: str
    """The module as it should be."""
    gold_operation: str
    """The menu operation that turns the faulty source into the gold source."""
    public_cases: tuple[Case, ...]
    """What the tests in the repository check; at least one fails at the start."""
    boundary_inputs: tuple[Arguments, ...]
    """Inputs that are in every draw of the hidden tests; they alone tell a right repair from a wrong one."""
    draw_input: Callable[[random.Random], Arguments]
    """Draws one further input for the hidden tests."""
    comparison: Comparison = EXACT
    """Which answers count as the expected value, in the public tests and in the hidden ones."""
    deterministic: bool = True
    """Whether what the function returns depends on its arguments alone; otherwise no verdict is kept for later."""

    @cached_property
    def sha256(self) -> str:
        """The hash over everything that the task consists of, in hexadecimal."""
        return self._hash(each.name for each in fields(self))

    @cached_property
    def content_sha256(self) -> str:
        """The same without id, suite and split: a task that is in two suites is the same task twice."""
        return self._hash(each.name for each in fields(self) if each.name not in _PLACE)

    def _hash(self, names: Iterable[str]) -> str:
        rng = random.Random("task")
        parts = {name: getattr(self, name) for name in names}
        # A function has no content to hash: it is represented by what it draws under a fixed seed.
        parts["draw_input"] = [self.draw_input(rng) for _ in range(_HASHED_DRAWS)]
        # Not as JSON, which does not tell a tuple from a list or 1 from 1.0, as grading does.
        return hashlib.sha256(ascii(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FunctionInstance:
    """A task as one episode sees it."""

    task: FunctionTask
    """Where it comes from."""
    function_name: str
    """What the function is called in this episode."""
    files: dict[str, str]
    """The repository at the start: the faulty module and its public tests, by file name."""
    gold_files: dict[str, str]
    """The same repository with the fault repaired."""
    public_cases: tuple[Case, ...]
    """The cases that the public tests check."""

    @property
    def tree(self) -> Mapping[str, bytes]:
        """The repository at the start: content by path."""
        return {path: text.encode() for path, text in self.files.items()}

    @property
    def path(self) -> str:
        """The file of the function."""
        return f"{self.function_name}.py"

    @property
    def request(self) -> str:
        """What the policy is asked to do."""
        what = self.task.description.format(function=self.function_name)
        return f"A test in test_{self.path} fails. Repair {self.path}. {what}"


def instantiate(task: FunctionTask, seed: str) -> FunctionInstance:
    """Builds the repository of one episode; the same seed gives the same repository."""
    return name_function(task, random.Random(seed).choice(FUNCTION_NAMES))


def name_function(task: FunctionTask, name: str) -> FunctionInstance:
    """Builds the repository in which the function has this name, one of FUNCTION_NAMES."""
    tests = {f"test_{name}.py": _render_tests(name, task.public_cases)}
    return FunctionInstance(
        task=task,
        function_name=name,
        files={f"{name}.py": task.faulty_source.replace(PLACEHOLDER, name)} | tests,
        gold_files={f"{name}.py": task.gold_source.replace(PLACEHOLDER, name)} | tests,
        public_cases=task.public_cases,
    )


def hidden_cases(
    task: FunctionTask, private_seed: bytes, episode_seed: str, count: int = 8
) -> tuple[Case, ...]:
    """Draws the hidden tests of one episode: every boundary input and `count` further ones, in random order.

    Episode seeds are known to the client, so the draw is keyed with `private_seed`, which is not.
    """
    message = json.dumps([task.task_id, episode_seed]).encode()
    rng = random.Random(hmac.digest(private_seed, message, "sha256"))

    inputs = list(task.boundary_inputs)
    public = [case.arguments for case in task.public_cases]
    for _ in range(count):
        inputs.append(_draw_new_input(task, rng, known=[*inputs, *public]))
    rng.shuffle(inputs)

    gold = load_function(task.gold_source)
    # Copies, because a function may change its arguments and a case must not change with them.
    return tuple(Case(copy.deepcopy(each), gold(*copy.deepcopy(each))) for each in inputs)


def _draw_new_input(task: FunctionTask, rng: random.Random, known: Sequence[Arguments]) -> Arguments:
    for _ in range(MAX_DRAWS_PER_INPUT):
        drawn = task.draw_input(rng)
        if drawn not in known:
            return drawn
    raise ValueError(f"{task.task_id}: too few different inputs; widen draw_input or ask for fewer cases")


def load_function(source: str) -> Callable[..., Json]:
    """Executes an authored source and gives its function. Never for what a policy wrote."""
    namespace: dict[str, object] = {}
    exec(source, namespace)
    return cast(Callable[..., Json], namespace[PLACEHOLDER])


def _render_tests(name: str, cases: Sequence[Case]) -> str:
    text = f"from {name} import {name}\n"
    for number, case in enumerate(cases, start=1):
        call = f"{name}({', '.join(map(repr, case.arguments))})"
        text += f"\n\ndef test_{name}_{number}():\n    assert {call} == {case.expected!r}\n"
    return text
