"""From the words of a policy to tool calls.

Two notations are understood, whatever the toolset: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as
Qwen and others write it, and the short one for small models, `<call> edit swap_minmax </call>`: the name of the
tool and then its required arguments in order. A turn may hold several calls. A notation that was opened but is
not right makes the whole turn malformed: guessing what was meant would reward sloppiness.
"""

import json
import re
from collections.abc import Mapping

from gym_service.toolsets.base import Misuse, Tool
from gym_service.values import ToolCall

_OPENING = re.compile(r"<(tool_call|call)>")
_MAX_TEXT_CHARACTERS = 1_000_000
MAX_CALLS_PER_TURN = 16


def parse_calls(text: str, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
    """Finds the calls in one turn; none when it is plain text. Raises Misuse (malformed_call, too_long)."""
    if len(text) > _MAX_TEXT_CHARACTERS:
        raise Misuse("too_long", f"the turn is longer than {_MAX_TEXT_CHARACTERS} characters")
    calls: list[ToolCall] = []
    position = 0
    while opening := _OPENING.search(text, position):
        closing = f"</{opening[1]}>"
        end = text.find(closing, opening.end())
        if end < 0:
            raise Misuse("malformed_call", f"malformed call: {closing} is missing")
        body = text[opening.end() : end]
        calls.append(_parse_json(body) if opening[1] == "tool_call" else _parse_short(body, tools))
        position = end + len(closing)
        if len(calls) > MAX_CALLS_PER_TURN:
            raise Misuse("too_many_calls", f"more than {MAX_CALLS_PER_TURN} calls in one turn")
    return tuple(calls)


def parse_arguments(text: str) -> dict[str, object]:
    """Parses the arguments of a call. Raises Misuse (malformed_call)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Misuse("malformed_call", "malformed call: the arguments are no valid JSON") from None
    if not isinstance(value, dict):
        raise Misuse("malformed_call", "malformed call: the arguments are no JSON object")
    return value


def _parse_json(body: str) -> ToolCall:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Misuse("malformed_call", "malformed call: no valid JSON inside <tool_call>") from None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise Misuse("malformed_call", 'malformed call: expected {"name": ..., "arguments": {...}}')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Misuse("malformed_call", "malformed call: arguments must be an object")
    return ToolCall(value["name"], arguments)


def _parse_short(body: str, tools: Mapping[str, Tool]) -> ToolCall:
    name, *values = body.split() or [""]
    required = tools[name].required if name in tools else ()
    if len(values) > len(required):
        raise Misuse("malformed_call", f"malformed call: {name[:40]} takes {len(required)} arguments")
    return ToolCall(name, dict(zip(required, values, strict=False)))
