"""What every toolset offers to an episode."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from gym_service.sandbox.base import Sandbox
from gym_service.tasks.suites import Instance, Task
from gym_service.values import Message, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and its schema."""

    name: str
    description: str
    """What it does, as the policy reads it."""
    properties: dict[str, dict[str, object]]
    """The JSON schemas of the arguments, by name."""
    required: tuple[str, ...] = ()

    @property
    def parameters_json(self) -> str:
        """The JSON schema of all arguments."""
        return json.dumps(
            {
                "type": "object",
                "properties": self.properties,
                "required": list(self.required),
                "additionalProperties": False,
            }
        )


@dataclass(slots=True)
class Progress:
    """What a toolset remembers of one episode."""

    edits_left: int | None
    """Successful edits that are still allowed; None for any number."""
    source: str
    """The faulty module as the menu's edits have left it."""
    read_paths: set[str] = field(default_factory=set)
    """The files that the policy has seen in full knowledge of their content."""
    submitted: bool = False


class Toolset(Protocol):
    """A set of tools with its budget and its prompt."""

    name: ClassVar[str]
    tools: ClassVar[tuple[Tool, ...]]
    max_turns: ClassVar[int]
    max_edits: ClassVar[int]
    """Successful edits by default; 0 for any number."""
    answer_ends_episode: ClassVar[bool]
    """Whether a turn without a call is the final answer; otherwise it is a malformed call."""

    def plays(self, task: Task) -> bool:
        """Whether the task can be played with it."""

    def turns_for(self, task: Task) -> int:
        """The turns that an episode of this task may take by default and at most."""

    def opening(self, instance: Instance) -> tuple[Message, ...]:
        """Gives the messages that open the conversation."""

    async def perform(
        self, call: ToolCall, instance: Instance, progress: Progress, sandbox: Sandbox
    ) -> ToolResult:
        """Carries out one call. What the policy does wrong is a result; raises SandboxLost only."""


class Misuse(Exception):
    """A call that cannot be carried out, with what the policy is told."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def check_arguments(tool: Tool, arguments: dict[str, object]) -> None:
    """Checks names, presence and types of arguments against the schema. Raises Misuse (invalid_arguments)."""
    unknown = sorted(set(arguments) - set(tool.properties))
    missing = [name for name in tool.required if name not in arguments]
    if unknown or missing:
        known = ", ".join(tool.properties) or "none"
        problem = f"unknown argument {unknown[0][:80]!r}" if unknown else f"missing argument {missing[0]!r}"
        raise Misuse("invalid_arguments", f"{tool.name}: {problem}; its arguments are: {known}")
    for name, value in arguments.items():
        schema = tool.properties[name]
        if not isinstance(value, _TYPES[str(schema["type"])]) or (
            isinstance(value, bool) and schema["type"] != "boolean"
        ):
            raise Misuse("invalid_arguments", f"{tool.name}: {name} must be of type {schema['type']}")
        allowed = schema.get("enum")
        if isinstance(allowed, Sequence) and value not in allowed:
            options = ", ".join(map(str, allowed))
            raise Misuse("invalid_arguments", f"{tool.name}: {name} must be one of {options}")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}
