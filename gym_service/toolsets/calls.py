"""From the words of a policy to tool calls, and back.

Two notations are understood, whatever the toolset: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as
Qwen and others write it, and the short one for small models, `<call> edit swap_minmax </call>`: the name of the
tool and then its required arguments in order. A turn may hold several calls, with any text around them.

What is tolerated is what can be meant in one way only: white space around the JSON; `arguments` left out, for none;
`arguments` as a string that holds the object in JSON, which is how OpenAI's interface writes a call, so that models
learn it. Anything else that was opened and is not right makes the whole turn malformed, and the policy is told what and
where: broken JSON, a name given twice, another key, a tag without its partner. Guessing what was meant would reward
sloppiness.

A `<think>` block is no part of what the policy says: a call in there is a thought, not a call. A block that was not
finished makes the turn malformed, because the policy had not come to say anything.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence

from gym_service.toolsets.base import Misuse, Tool, json_type
from gym_service.toolsets.paths import shown
from gym_service.values import ToolCall

_MARK = re.compile(r"<(?:think|tool_call|call)>|</(?:tool_call|call)>")
_OPENING = re.compile(r"<(?:tool_call|call)>")
_MAX_TEXT_CHARACTERS = 1_000_000
_EXCERPT_CHARACTERS = 20
"""Of what stands on either side of a mistake."""
_MAX_DIGITS = 300
MAX_CALLS_PER_TURN = 16


def parse_calls(text: str, tools: Mapping[str, Tool], *, in_thought: bool = False) -> tuple[ToolCall, ...]:
    """Finds the calls in one turn; none when it is plain text. Raises Misuse (malformed_call, too_long).

    `in_thought` says that the turn starts inside a <think> block that the template has opened.
    """
    if len(text) > _MAX_TEXT_CHARACTERS:
        raise Misuse("too_long", f"the turn is longer than {_MAX_TEXT_CHARACTERS} characters")
    calls: list[ToolCall] = []
    position = _end_of_thought(text, 0) if in_thought else 0
    while mark := _MARK.search(text, position):
        try:
            match mark[0]:
                case "<think>":
                    position = _end_of_thought(text, mark.end())
                    continue
                case "<tool_call>":
                    call, position = _parse_json(text, mark.end())
                case "<call>":
                    call, position = _parse_short(text, mark.end(), tools)
                case _:
                    raise _Malformed(f"{mark[0]} without {mark[0].replace('/', '')}")
        except _Malformed as problem:
            # Of several calls it has to be said which one.
            number = f" {len(calls) + 1}" if calls or _OPENING.search(text, mark.end()) else ""
            raise Misuse("malformed_call", f"malformed call{number}: {problem}") from None
        calls.append(call)
        if len(calls) > MAX_CALLS_PER_TURN:
            raise Misuse("too_many_calls", f"more than {MAX_CALLS_PER_TURN} calls in one turn")
    return tuple(calls)


def parse_arguments(text: str) -> dict[str, object]:
    """Parses the arguments of a call. Raises Misuse (malformed_call)."""
    try:
        return _arguments(text)
    except _Malformed as problem:
        raise Misuse("malformed_call", f"malformed call: {problem}") from None


def write_calls(calls: Sequence[ToolCall]) -> str:
    """Writes calls as a policy writes them, in the form in which Qwen's template renders its calls."""
    return "\n".join(_write_call(call) for call in calls)


def write_short_calls(calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> str:
    """Writes calls in the short notation, as far as it can say them."""
    return " ".join(_write_short(call, tools) for call in calls)


class _Malformed(Exception):
    """What is wrong with a call, in words."""


def _end_of_thought(text: str, start: int) -> int:
    end = text.find("</think>", start)
    if end < 0:
        raise Misuse("malformed_call", "malformed turn: </think> is missing, and a thought is no call")
    return end + len("</think>")


def _parse_json(text: str, start: int) -> tuple[ToolCall, int]:
    closing = "</tool_call>"
    if text.find(closing, start) < 0:
        raise _Malformed(f"{closing} is missing")
    # Not up to the next closing tag: one may stand in a string, as in the text of a file.
    body = text[start:]
    value, end = _decode(body, "inside <tool_call>")
    rest = body[end:].lstrip()
    if not rest.startswith(closing):
        found = shown(rest[: 2 * _EXCERPT_CHARACTERS])
        raise _Malformed(f"after the JSON object comes {closing}, not: {found}")
    if not isinstance(value, dict):
        raise _Malformed(f'expected {{"name": ..., "arguments": {{...}}}}, not {json_type(value)}')
    if "name" not in value:
        raise _Malformed("name is missing")
    name, arguments = value["name"], value.get("arguments", {})
    if not isinstance(name, str):
        raise _Malformed(f"name must be a string, not {json_type(name)}")
    if unknown := sorted(set(value) - {"name", "arguments"}):
        raise _Malformed(f"a call has name and arguments, not {shown(unknown[0])}")
    if isinstance(arguments, str):
        arguments = _arguments(arguments)
    if not isinstance(arguments, dict):
        raise _Malformed(f"arguments must be an object, not {json_type(arguments)}")
    return ToolCall(name, arguments), start + len(body) - len(rest) + len(closing)


def _arguments(text: str) -> dict[str, object]:
    value, end = _decode(text, "in the arguments")
    if text[end:].strip():
        raise _Malformed("the arguments are followed by something after their JSON object")
    if not isinstance(value, dict):
        raise _Malformed(f"the arguments must be a JSON object, not {json_type(value)}")
    return value


def _decode(text: str, where: str) -> tuple[object, int]:
    """Reads the JSON value that a text begins with, and says where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _EXCERPT_CHARACTERS) : error.pos + _EXCERPT_CHARACTERS]
        problem = f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}, near: {shown(near)}"
        if error.msg.startswith("Invalid control character"):
            problem += r" (a line break in a string is written \n)"
        raise _Malformed(f"no valid JSON {where}: {problem}") from None
    except RecursionError:
        raise _Malformed(f"no valid JSON {where}: it is nested too deeply") from None
    except ValueError as error:
        raise _Malformed(f"no valid JSON {where}: {error}") from None
    return value, end


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} is given twice")
        found[name] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number in JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{shown(number)} is too large a number")
    return value


def _whole(number: str) -> int:
    if len(number) > _MAX_DIGITS:
        raise ValueError(f"a number has more than {_MAX_DIGITS} digits")
    return int(number)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_each_once, parse_float=_finite, parse_int=_whole, parse_constant=_no_constant
)


def _parse_short(text: str, start: int, tools: Mapping[str, Tool]) -> tuple[ToolCall, int]:
    closing = "</call>"
    end = text.find(closing, start)
    if end < 0:
        raise _Malformed(f"{closing} is missing")
    name, *values = text[start:end].split() or [""]
    required = tools[name].required if name in tools else ()
    if len(values) > len(required):
        raise _Malformed(f"{shown(name[:40])} takes {len(required)} arguments")
    return ToolCall(name, dict(zip(required, values, strict=False))), end + len(closing)


def _write_call(call: ToolCall) -> str:
    body = json.dumps({"name": call.tool, "arguments": call.arguments}, ensure_ascii=False)
    # Half of a surrogate pair is no text that could be encoded.
    return f"<tool_call>\n{body.encode(errors='replace').decode()}\n</tool_call>"


def _write_short(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    words = [call.tool, *map(str, call.arguments.values())]
    text = f"<call> {' '.join(words)} </call>"
    try:
        return text if parse_calls(text, tools) == (call,) else _write_call(call)
    except Misuse:
        return _write_call(call)
