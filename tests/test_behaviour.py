"""What a policy did, counted from its trajectories."""

import pytest

from tests.trajectories import make_trajectory, make_verdict
from trainer_client.behaviour import Behaviour, observe
from trainer_client.trajectory import ToolResult


def _answered(tool: str) -> ToolResult:
    return ToolResult(tool, "", is_error=False, error_kind="")


def _failed(tool: str) -> ToolResult:
    return ToolResult(tool, "", is_error=True, error_kind="bad")


def _turns(count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [((3,), ())] * count


def test_calls_are_counted_per_episode() -> None:
    """Calls that failed were not answered, and a call without a tool could not be read."""
    results = (_answered("read"), _failed("edit"), _answered("edit"), _failed(""), _answered("submit"))
    first = make_trajectory(turns=_turns(5), results=results)
    second = make_trajectory(turns=_turns(2), results=(_answered("read"), _answered("test")))

    seen = observe([first, second])

    assert seen == Behaviour(
        reads=1.0,
        tests=0.5,
        edits=0.5,
        failed=1.0,
        malformed=0.5,
        turns=3.5,
        public_only=0.0,
        failures={"bad": 1.0},
        edited=0.5,
        first_edit=1.0,
    )


def test_the_tools_of_both_toolsets_count_alike() -> None:
    """Read, Edit, Write and Bash are a read, two edits and a test."""
    results = [_answered(tool) for tool in ("Read", "Edit", "Write", "Bash")]

    seen = observe([make_trajectory(turns=_turns(4), results=results)])

    assert (seen.reads, seen.edits, seen.tests) == (1.0, 2.0, 1.0)


def test_a_call_of_an_unknown_tool_could_be_read() -> None:
    """It failed, and is not malformed; the kinds of failure are kept apart, the most frequent first."""
    kinds = ("malformed_call", "unknown_tool", "unknown_tool")
    results = [ToolResult("", "", is_error=True, error_kind=kind) for kind in kinds]

    seen = observe([make_trajectory(turns=_turns(3), results=results)])

    assert (seen.failed, seen.malformed) == (3.0, 1.0)
    assert list(seen.failures.items()) == [("unknown_tool", 2.0), ("malformed_call", 1.0)]


def test_the_first_edit_was_right_where_it_was_the_only_one_and_passes() -> None:
    """One edit and passed; two edits and passed; one edit, after a failed one, and not passed; none and passed."""
    wrong = make_verdict(passed=False)
    episodes = [
        make_trajectory(turns=_turns(1), results=[_answered("edit")]),
        make_trajectory(turns=_turns(2), results=[_answered("Edit"), _answered("Write")]),
        make_trajectory(turns=_turns(2), results=[_failed("edit"), _answered("edit")], verdict=wrong),
        make_trajectory(turns=_turns(1), results=[_answered("read")]),
    ]

    seen = observe(episodes)

    assert seen.edited == 0.75
    assert seen.first_edit == pytest.approx(1 / 3)


def test_without_an_edit_there_is_no_accuracy() -> None:
    """It is not known, rather than 0."""
    assert observe([make_trajectory(turns=_turns(1), results=[_answered("read")])]).first_edit is None


@pytest.mark.parametrize(
    ("status", "public", "expected"), [("unresolved", 2, 1.0), ("unresolved", 1, 0.0), ("resolved", 2, 0.0)]
)
def test_serving_only_the_public_tests_shows(status: str, public: int, expected: float) -> None:
    """All public tests pass and some hidden one fails, by whatever edit."""
    verdict = make_verdict(status=status, hidden=0, public=public)

    assert observe([make_trajectory(verdict=verdict)]).public_only == expected


def test_no_episodes_are_no_error() -> None:
    """Nothing was done."""
    assert observe([]).reads == 0.0
