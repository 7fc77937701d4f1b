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
    brief: str = ""
    """What has to be known of it, in a few words, for a policy that reads of its tools in plain text."""

    @property
    def parameters(self) -> dict[str, object]:
        """The JSON schema of all arguments."""
        return {
            "type": "object",
            "properties": self.properties,
            "required": list(self.required),
            "additionalProperties": False,
        }

    @property
    def parameters_json(self) -> str:
        """The JSON schema of all arguments, in JSON."""
        return json.dumps(self.parameters)

    @property
    def schema(self) -> dict[str, object]:
        """The tool as a chat template takes it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def line(self) -> str:
        """The tool in one line of plain text."""
        names = (name if name in self.required else f"{name}?" for name in self.properties)
        return f"{self.name}({', '.join(names)}) {self.brief}"


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
    native_tools: ClassVar[bool]
    """Whether the chat template tells the policy of the tools, where it can; otherwise the opening does."""

    def plays(self, task: Task) -> bool:
        """Whether the task can be played with it."""

    def tools_for(self, task: Task) -> tuple[Tool, ...]:
        """The tools as they are described for this task; their names and arguments are those of `tools`."""

    def turns_for(self, task: Task) -> int:
        """The turns that an episode of this task may take by default and at most."""

    def opening(self, instance: Instance, *, native: bool = False) -> tuple[Message, ...]:
        """Gives the messages that open the conversation; `native` where the template tells of the tools."""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Gives calls that a client parsed itself as the text that a policy would have written."""

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
            expected = f"must be of type {schema['type']}, not {json_type(value)}"
            raise Misuse("invalid_arguments", f"{tool.name}: {name} {expected}")
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


def json_type(value: object) -> str:
    """Names the type of a value that came out of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
