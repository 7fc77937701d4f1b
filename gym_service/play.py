"""Playing a turn: from what the policy says to calls, results, and the ids that answer it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gym_service.episode import Episode
from gym_service.sandbox.base import FileRefused
from gym_service.toolsets.base import Misuse, check_arguments
from gym_service.toolsets.calls import parse_calls
from gym_service.values import Action, Delta, Message, StopReason, ToolCall, ToolResult

_LONG_TEXT_CHARACTERS = 20_000
"""From here on the ids of an observation are made in a thread: a long one would hold everybody up."""

_MAX_OBSERVATION_CHARACTERS = 1_000_000
"""All results of a turn together: with their ids, more would not fit into a message of the contract."""


async def act(episode: Episode, action: Action) -> tuple[tuple[ToolResult, ...], StopReason | None]:
    """Carries out the calls of a turn; says whether the policy ended the episode with it."""
    tools = {tool.name: tool for tool in episode.toolset.tools}
    try:
        calls = action.tool_calls
        if calls is None:
            text, in_thought = action.text, False
            if text is None:
                assert episode.tokenizer is not None
                assert action.token_ids is not None
                text = episode.tokenizer.text_of(action.token_ids)
            if episode.tokenizer is not None:
                in_thought = episode.tokenizer.opens_thought
            calls = parse_calls(text, tools, in_thought=in_thought)
        if not calls:
            if episode.toolset.answer_ends_episode:
                return (), StopReason.NO_TOOL_CALL
            raise Misuse("malformed_call", f"malformed call: expected one of {', '.join(tools)}")
    except Misuse as error:
        return (ToolResult("", error.message, error.kind),), None
    results: list[ToolResult] = []
    for call in calls:
        result = await _call(episode, call)
        left = _MAX_OBSERVATION_CHARACTERS - sum(len(each.text) for each in results)
        results.append(result if len(result.text) <= left else _cut(result, max(0, left)))
        if episode.progress.submitted:
            return tuple(results), StopReason.SUBMITTED
    return tuple(results), None


async def _call(episode: Episode, call: ToolCall) -> ToolResult:
    tool = next((tool for tool in episode.toolset.tools if tool.name == call.tool), None)
    try:
        if tool is None:
            known = ", ".join(tool.name for tool in episode.toolset.tools)
            raise Misuse("unknown_tool", f"unknown tool; there is {known}")
        check_arguments(tool, call.arguments)
        return await episode.toolset.perform(call, episode.instance, episode.progress, episode.sandbox)
    except Misuse as error:
        return ToolResult(tool.name if tool else "", error.message, error.kind)
    except FileRefused as error:
        return ToolResult(call.tool, f"error: {error.kind.replace('_', ' ')}", error.kind)


def _cut(result: ToolResult, characters: int) -> ToolResult:
    text = f"{result.text[:characters]}\n[output cut: the limit of a turn is reached]"
    return replace(result, text=text, output_truncated=True)


async def extend(episode: Episode, action: Action, results: Sequence[ToolResult]) -> Delta | None:
    """Appends a turn and its results to the sequence; gives the delta, None without a tokenizer."""
    characters = len(action.text or "") + sum(len(result.text) for result in results)
    characters += sum(len(str(call.arguments)) for call in action.tool_calls or ())
    if characters < _LONG_TEXT_CHARACTERS:
        return _append(episode, action, results)
    return await asyncio.to_thread(_append, episode, action, results)


def _append(episode: Episode, action: Action, results: Sequence[ToolResult]) -> Delta | None:
    if episode.tokenizer is None:
        return None
    if action.tool_calls is not None:
        text = episode.toolset.write(action.tool_calls)
        # In the thought that the template has opened, a call would be none.
        action = Action(text=f"\n</think>\n\n{text}" if episode.tokenizer.opens_thought else text)
    spoken = episode.tokenizer.ids_of(action)
    messages = [Message("tool", result.text, result.tool) for result in results]
    delta = episode.tokenizer.delta(episode.length + len(spoken), spoken, messages)
    episode.length = delta.position + len(delta.token_ids)
    return delta
