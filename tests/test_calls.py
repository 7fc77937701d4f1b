"""From a policy's words to calls: what is right is found, what is half right is malformed."""

import pytest

from gym_service.toolsets.base import Misuse
from gym_service.toolsets.calls import MAX_CALLS_PER_TURN, parse_calls
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
    ],
)  # fmt: skip
def test_calls_are_found_in_order(text, calls):
    assert parse_calls(text, TOOLS) == calls


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
