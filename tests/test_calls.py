"""From a policy's words to calls: what is right is found, what is half right is malformed."""

import pytest

from gym_service.toolsets.base import Misuse
from gym_service.toolsets.calls import (
    MAX_CALLS_PER_TURN,
    parse_arguments,
    parse_calls,
    write_calls,
    write_short_calls,
)
from gym_service.toolsets.menu import Menu
from gym_service.values import ToolCall

TOOLS = {tool.name: tool for tool in Menu.tools}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("plain words", ()),
        ("<call> read </call>", (ToolCall("read", {}),)),
        ("<call>edit fix_init</call>", (ToolCall("edit", {"operation": "fix_init"}),)),
        ("<call> edit </call>", (ToolCall("edit", {}),)),
        ("<call> </call>", (ToolCall("", {}),)),
        ("I read. <call> read </call><call> test </call> so", (ToolCall("read", {}), ToolCall("test", {}))),
        (
            '<tool_call>\n{"name": "edit", "arguments": {"operation": "x"}}\n</tool_call>',
            (ToolCall("edit", {"operation": "x"}),),
        ),
        ('<tool_call>{"name": "read"}</tool_call>', (ToolCall("read", {}),)),
        (
            r'<tool_call>{"name": "edit", "arguments": "{\"operation\": \"x\"}"}</tool_call>',
            (ToolCall("edit", {"operation": "x"}),),
        ),
        (
            '<tool_call>{"name": "edit", "arguments": {"operation": "</tool_call><think>"}}</tool_call>',
            (ToolCall("edit", {"operation": "</tool_call><think>"}),),
        ),
        (
            '<think>\n<tool_call>{"name": "test"}</tool_call>\n</think>\n\n<tool_call>{"name": "read"}</tool_call>',
            (ToolCall("read", {}),),
        ),
        ("<think> <call> test </call> </think> done", ()),
        ("so </think> done", ()),
    ],
)  # fmt: skip
def test_calls_are_found_in_order(text, calls):
    assert parse_calls(text, TOOLS) == calls


@pytest.mark.parametrize(
    "text", ["<think> <call> test </call>", "<call> read </call> <think> <call> test </call>"]
)
def test_no_call_is_carried_out_beside_a_thought_that_was_not_finished(text):
    assert told(text) == "malformed turn: </think> is missing, and a thought is no call"


def test_a_turn_that_starts_in_a_thought_speaks_after_it():
    text = "<call> test </call> </think> <call> read </call>"

    assert parse_calls(text, TOOLS, in_thought=True) == (ToolCall("read", {}),)


def told(text):
    """What a policy is told of a turn that is malformed."""
    with pytest.raises(Misuse) as refused:
        parse_calls(text, TOOLS)
    assert refused.value.kind == "malformed_call"
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<call> read", "malformed call: </call> is missing"),
        ('<tool_call>{"name": "read"}', "malformed call: </tool_call> is missing"),
        ('{"name": "read"}</tool_call>', "malformed call: </tool_call> without <tool_call>"),
        ("read </call>", "malformed call: </call> without <call>"),
        ("<call> \x1b[2J now </call>", r"malformed call: \x1b[2J takes 0 arguments"),
        ("<tool_call>{}</tool_call>", "malformed call: name is missing"),
        ('<tool_call>{"name": 1}</tool_call>', "malformed call: name must be a string, not integer"),
        (
            '<tool_call>{"name": "read", "parameters": {}}</tool_call>',
            "malformed call: a call has name and arguments, not parameters",
        ),
        (
            '<tool_call>{"name": "read", "arguments": null}</tool_call>',
            "malformed call: arguments must be an object, not null",
        ),
        (
            '<tool_call>{"name": "read", "arguments": "[]"}</tool_call>',
            "malformed call: the arguments must be a JSON object, not array",
        ),
        ("<tool_call>[1]</tool_call>", 'malformed call: expected {"name": ..., "arguments": {...}}, not array'),
        (
            '<tool_call>\n{"name": "read",\n "arguments": {"a": 1]}\n</tool_call>',
            "malformed call: no valid JSON inside <tool_call>: Expecting ',' delimiter at line 3 column 22, "
            r'near: "arguments": {"a": 1]}\n</tool_call>',
        ),
        (
            '<tool_call>{"name": "re\nad"}</tool_call>',
            "malformed call: no valid JSON inside <tool_call>: Invalid control character at line 1 column 13, "
            r'near: {"name": "re\nad"}</tool_call> (a line break in a string is written \n)',
        ),
        (
            '<tool_call>{"name": "read", "name": "test"}</tool_call>',
            "malformed call: no valid JSON inside <tool_call>: name is given twice",
        ),
        (
            '<tool_call>{"name": "read"}</tool_call><tool_call>{"name": "test"} and</tool_call>',
            "malformed call 2: after the JSON object comes </tool_call>, not: and</tool_call>",
        ),
        ("<call> read now </call><call> test </call>", "malformed call 1: read takes 0 arguments"),
    ],
)  # fmt: skip
def test_a_malformed_call_says_what_is_wrong_and_where(text, message):
    assert told(text) == message


def test_what_is_told_of_a_call_is_short_whatever_it_is():
    long = "x" * 100_000
    for text in (
        f"<tool_call>{long}</tool_call>",
        f'<tool_call>{{"{long}": 1, "name": "read"}}</tool_call>',
        f'<tool_call>{{"name": "read"}} {long}</tool_call>',
        f"<call>{long} 1 2</call>",
    ):
        assert len(told(text)) < 400


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"a": 1} b', '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "1" * 5000 + "}", '{"a": 1, "a": 2}'],
)
def test_arguments_that_a_client_brings_are_read_as_strictly(text):
    with pytest.raises(Misuse):
        parse_arguments(text)


CALLS = (
    ToolCall("read", {}),
    ToolCall("edit", {"operation": "fix_init"}),
    ToolCall("edit", {"operation": "two words"}),
    ToolCall("edit", {"operation": "</call>"}),
    ToolCall("edit", {"operation": '日本 </tool_call> " \n'}),
    ToolCall("edit", {"other": 1}),
    ToolCall("no such tool", {}),
)


def test_calls_that_are_written_are_read_as_the_same_calls():
    assert parse_calls(write_calls(CALLS), TOOLS) == CALLS
    assert parse_calls(write_short_calls(CALLS, TOOLS), TOOLS) == CALLS
    assert write_short_calls(CALLS[:2], TOOLS) == "<call> read </call> <call> edit fix_init </call>"


def test_half_of_a_surrogate_pair_can_be_written():
    write_calls([ToolCall("Write", {"content": "\ud800"})]).encode()


@pytest.mark.parametrize(
    "text",
    [
        "<call> read",
        "<tool_call>{}</tool_call>",
        "<tool_call>read</tool_call>",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "read", "arguments": []}</tool_call>',
        '<tool_call>{"name": "read"}',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "<call> read now </call>",
        "<call> read </call> <call> test",
    ],
)
def test_a_call_that_is_not_right_makes_the_turn_malformed(text):
    with pytest.raises(Misuse) as refused:
        parse_calls(text, TOOLS)

    assert refused.value.kind == "malformed_call"


def test_the_number_of_calls_in_a_turn_is_limited():
    with pytest.raises(Misuse) as refused:
        parse_calls("<call> read </call>" * (MAX_CALLS_PER_TURN + 1), TOOLS)

    assert refused.value.kind == "too_many_calls"
