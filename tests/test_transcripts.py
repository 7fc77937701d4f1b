"""Failed episodes, told apart and kept."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trajectories import make_trajectory, make_verdict
from trainer_client.trajectory import ToolResult, Trajectory
from trainer_client.transcripts import (
    MOST_CHARACTERS,
    keep_transcripts,
    kind_of_failure,
    read_transcripts,
    transcribe_failures,
)

WRONG = make_verdict(passed=False, public=0)
EDIT = ToolResult("edit", "done", is_error=False, error_kind="")
FAILED = ToolResult("read", "x" * (MOST_CHARACTERS + 7), is_error=True, error_kind="not_found")


def _decode(ids: Sequence[int]) -> str:
    return f"<b>{list(ids)}"


def _episode(*results: ToolResult, verdict: object = WRONG) -> Trajectory:
    return replace(make_trajectory(turns=[((3,), ())] * 2, results=results), verdict=verdict)


@pytest.mark.parametrize(
    ("episode", "kind"),
    [
        (_episode(EDIT, verdict=make_verdict()), ""),
        (_episode(EDIT, verdict=make_verdict(status="timeout")), "verdict timeout"),
        (_episode(EDIT, verdict=make_verdict(passed=False)), "public tests pass, hidden ones do not"),
        (_episode(EDIT), "wrong edit"),
        (_episode(FAILED, EDIT), "wrong edit, and a failed call: not_found"),
        (_episode(FAILED), "handed in without an edit"),
    ],
)
def test_kinds_of_failure_are_told_apart_without_knowing_the_task(episode: Trajectory, kind: str) -> None:
    assert kind_of_failure(episode) == kind


def test_an_episode_that_a_limit_ended_is_a_kind_of_its_own() -> None:
    episode = _episode(EDIT)
    cut = replace(episode, outcome=replace(episode.outcome, stop_reason="max_turns", truncated=True))

    assert kind_of_failure(cut) == "cut off: max_turns"


def test_one_of_each_kind_is_kept_the_most_frequent_first(tmp_path: Path) -> None:
    """With the text of its turns, bounded; an episode that the gym failed is none of the policy's failures."""
    path = tmp_path / "transcripts.json"
    broken = _episode(EDIT, verdict=make_verdict(status="infrastructure_error"))
    episodes = [
        _episode(FAILED, EDIT),
        replace(_episode(EDIT), index=1),
        replace(_episode(EDIT), index=2),
        broken,
    ]

    keep_transcripts(path, "test/x", transcribe_failures("test/x", episodes, _decode))

    first, second = read_transcripts(path)
    assert (first.kind, first.episodes, first.index) == ("wrong edit", 2, 1)
    assert (second.kind, second.episodes) == ("wrong edit, and a failed call: not_found", 1)
    assert second.turns[0].said == "<b>[3]"
    assert second.turns[0].answers[0].text == "x" * MOST_CHARACTERS + " ... 7 more characters"
    assert second.turns[0].answers[0].error_kind == "not_found"


def test_what_is_played_again_takes_the_place_of_what_was(tmp_path: Path) -> None:
    """A test that was broken off and repeated leaves one set of transcripts; other evaluations keep theirs."""
    path = tmp_path / "transcripts.json"
    for label in ("test/start", "test/chosen", "test/chosen"):
        keep_transcripts(path, label, transcribe_failures(label, [_episode(EDIT)], _decode))

    assert [each.label for each in read_transcripts(path)] == ["test/start", "test/chosen"]
