"""What was called in an episode, in words: `read > edit fix_range > submit`.

A call that was answered is named by its tool, and by its argument where that is a single plain word, as the operations
of the menu are; nothing is known here about tools or operations. The gym says which tool it was, the argument is read
in what the policy said, in either notation of a call. A call that came back as an error is named by tool and kind of
error, `edit (no_edits_left)`, so that no words of a policy get into a name; a turn without a call is `answer`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from trainer_client.behaviour import is_edit
from trainer_client.trajectory import ToolResult, Trajectory, Turn

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""From the ids of a turn to its text."""

KEPT = 12
"""Sequences that are kept of an evaluation."""
MOST_CALLS = 12
"""Calls of a sequence that are named."""
NO_EDIT = "no edit"

_CALL = re.compile(r"<call>(.*?)</call>|<tool_call>(.*?)</tool_call>", re.DOTALL)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_-]{1,40}")


def frequent_sequences(trajectories: Sequence[Trajectory], decode: Decode) -> dict[str, int]:
    """Returns the most frequent sequences of calls, at most KEPT, with the number of episodes of each."""
    counts = Counter(name_sequence(trajectory, decode) for trajectory in trajectories)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:KEPT])


def first_edits(
    trajectories: Sequence[Trajectory], families: Mapping[str, str], decode: Decode
) -> dict[str, dict[str, int]]:
    """Counts by family of the task what the first edit of each episode was, the most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for trajectory in trajectories:
        edit = next(
            (
                name
                for turn in trajectory.turns
                for result, name in zip(turn.tool_results, _name_calls(turn, decode), strict=True)
                if is_edit(result)
            ),
            NO_EDIT,
        )
        counts.setdefault(families[trajectory.task_id], Counter())[edit] += 1
    return {family: dict(counted.most_common()) for family, counted in sorted(counts.items())}


def name_sequence(trajectory: Trajectory, decode: Decode) -> str:
    """Names the calls of an episode in order, and what cut it off, if something did."""
    calls = [name for turn in trajectory.turns for name in _name_calls(turn, decode) or ["answer"]]
    named = [*calls[:MOST_CALLS], "..."] if len(calls) > MOST_CALLS else calls
    cut = [trajectory.outcome.stop_reason] if trajectory.outcome.truncated else []
    return " > ".join([*named, *cut])


def _name_calls(turn: Turn, decode: Decode) -> list[str]:
    written = [_argument(*call) for call in _CALL.findall(decode(turn.action_ids))]
    if len(written) != len(turn.tool_results):
        # Some of them were no calls, such as one in a thought.
        written = [""] * len(turn.tool_results)
    return [_name(result, argument) for result, argument in zip(turn.tool_results, written, strict=True)]


def _name(result: ToolResult, argument: str) -> str:
    if result.is_error:
        return f"{result.tool} ({result.error_kind})".strip()
    return f"{result.tool} {argument}".strip()


def _argument(short: str, written: str) -> str:
    """Returns the argument of a call where it is a single plain word, else nothing."""
    arguments: list[object]
    if short:
        arguments = list(short.split()[1:])
    else:
        try:
            content = json.loads(written)["arguments"]
            arguments = list((json.loads(content) if isinstance(content, str) else content).values())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return ""
    only = arguments[0] if len(arguments) == 1 else ""
    return only if isinstance(only, str) and _PLAIN_WORD.fullmatch(only) else ""
