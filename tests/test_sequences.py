"""Naming what was called in an episode."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.trajectories import make_trajectory
from trainer_client.sequences import NO_EDIT, first_edits, frequent_sequences, name_sequence
from trainer_client.trajectory import ToolResult, Trajectory, Turn


def _decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def _answered(tool: str) -> ToolResult:
    return ToolResult(tool, "", is_error=False, error_kind="")


def _episode(*turns: tuple[str, Sequence[ToolResult]]) -> Trajectory:
    made = tuple(
        Turn(tuple(map(ord, said)), (0.0,) * len(said), tuple(results), ()) for said, results in turns
    )
    return replace(make_trajectory(), turns=made)


@pytest.mark.parametrize(
    ("said", "tool", "named"),
    [
        ("<call> edit turn_round </call><end>", "edit", "edit turn_round"),
        ("well <call>  edit   turn_round</call>", "edit", "edit turn_round"),
        (
            '<tool_call>{"name": "edit", "arguments": {"o": "turn_round"}}</tool_call>',
            "edit",
            "edit turn_round",
        ),
        (
            '<tool_call>{"name": "edit", "arguments": "{\\"o\\": \\"turn_round\\"}"}</tool_call>',
            "edit",
            "edit turn_round",
        ),
        ("<call> read </call>", "read", "read"),
        ('<tool_call>{"name": "Read", "arguments": {"file_path": "a.py"}}</tool_call>', "Read", "Read"),
        ('<tool_call>{"name": "Edit", "arguments": {"a": "x", "b": "y"}}</tool_call>', "Edit", "Edit"),
        ("<call> edit <script> </call>", "edit", "edit"),
        ("<think><call> read </call></think><call> submit now </call>", "submit", "submit"),
        ("no call at all", "edit", "edit"),
        ("<tool_call>{broken</tool_call>", "edit", "edit"),
        ('<tool_call>{"arguments": ' + "[" * 100_000 + "</tool_call>", "edit", "edit"),
    ],
)
def test_a_call_is_named_by_its_tool_and_a_plain_word(said: str, tool: str, named: str) -> None:
    """The tool is the gym's word, the argument the policy's, in either notation."""
    assert name_sequence(_episode((said, [_answered(tool)])), _decode) == named


def test_an_error_is_named_by_its_kind_and_never_by_what_was_said() -> None:
    failed = [ToolResult("edit", "", is_error=True, error_kind="no_edits_left")]
    unread = [ToolResult("", "", is_error=True, error_kind="malformed_call")]

    named = name_sequence(_episode(("<call> edit evil </call>", failed), ("<call>", unread)), _decode)

    assert named == "edit (no_edits_left) > (malformed_call)"


def test_an_answer_and_what_cut_an_episode_off_are_part_of_its_sequence() -> None:
    episode = _episode(("<call> read </call>", [_answered("read")]), ("done", []))
    outcome = replace(episode.outcome, stop_reason="max_turns", truncated=True)

    assert name_sequence(episode, _decode) == "read > answer"
    assert name_sequence(replace(episode, outcome=outcome), _decode) == "read > answer > max_turns"


def test_a_long_sequence_is_cut() -> None:
    episode = _episode(*[("<call> read </call>", [_answered("read")])] * 40)

    assert name_sequence(episode, _decode).endswith("read > ...")
    assert len(name_sequence(episode, _decode)) < 120


def test_the_most_frequent_sequences_come_first() -> None:
    one, two = _episode(("x", [_answered("read")])), _episode(("x", [_answered("submit")]))

    assert list(frequent_sequences([one, two, two], _decode).items()) == [("submit", 2), ("read", 1)]


def test_the_first_edit_that_was_made_counts_by_family() -> None:
    """A failed one was not made; an episode without any is counted as such."""
    failed = [ToolResult("edit", "", is_error=True, error_kind="bad")]
    episode = _episode(
        ("<call> edit a </call>", failed),
        ("<call> edit b </call>", [_answered("edit")]),
        ("<call> edit c </call>", [_answered("edit")]),
    )
    families = {"s/f/a": "compare"}

    counted = first_edits([episode, episode, _episode(("x", []))], families, _decode)

    assert counted == {"compare": {"edit b": 2, NO_EDIT: 1}}
