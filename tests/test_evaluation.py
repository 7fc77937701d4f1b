"""Evaluating a frozen policy."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.trajectories import make_trajectory, make_verdict
from trainer_client import distributed as module
from trainer_client.distributed import ALONE
from trainer_client.errors import GymUnavailable
from trainer_client.evaluation import count_tasks, evaluate
from trainer_client.metrics import TaskCount
from trainer_client.rollout import GroupSpec, Played, Timing
from trainer_client.trajectory import ToolResult, Trajectory
from trainer_client.wire import Task

ANYTHING: Any = None
TASKS = [Task("s/a", "s", "test", "odd")]


def _decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def _play(monkeypatch: pytest.MonkeyPatch, trajectories: list[Trajectory]) -> list[GroupSpec]:
    """Lets every evaluation see these trajectories; returns the list in which it leaves what it asked for."""
    asked: list[GroupSpec] = []

    async def play_groups(gym: object, policy: object, groups: list[GroupSpec], settings: object) -> Played:
        asked.extend(groups)
        return Played(trajectories, 0, 0, Timing(1.0, 1.0))

    monkeypatch.setattr(module, "play_groups", play_groups)
    return asked


def test_tasks_are_counted_apart_and_sorted() -> None:
    passed, failed = make_verdict(), make_verdict(passed=False)
    trajectories = [
        make_trajectory(task, verdict=verdict)
        for task, verdict in zip("bab", [passed, failed, failed], strict=True)
    ]

    assert count_tasks(trajectories) == (TaskCount("a", 1, 0), TaskCount("b", 2, 1))


async def test_an_evaluation_has_seeds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is named by the stream, not by the step of training."""
    asked = _play(monkeypatch, [make_trajectory("s/a")] * 4)

    row = await evaluate(
        ALONE,
        ANYTHING,
        ANYTHING,
        ANYTHING,
        TASKS,
        _decode,
        label="test/start",
        step=7,
        episodes=4,
        stream="test",
    )

    assert asked == [GroupSpec("s/a", "test/s/a", 4)]
    assert (row.label, row.step, row.tasks, row.lost) == ("test/start", 7, (TaskCount("s/a", 4, 4),), 0)


async def test_what_the_gym_lost_counts_neither_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four episodes is missing and one has no verdict: two are left, and they passed."""
    broken = make_trajectory("s/a", verdict=make_verdict(status="infrastructure_error"))
    _play(monkeypatch, [make_trajectory("s/a"), make_trajectory("s/a"), broken])

    row = await evaluate(
        ALONE, ANYTHING, ANYTHING, ANYTHING, TASKS, _decode, label="x", step=0, episodes=4, stream="x"
    )

    assert row.tasks == (TaskCount("s/a", 2, 2),)
    assert row.lost == 2


async def test_an_evaluation_of_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure can come of it, and it must not be taken for 0."""
    _play(monkeypatch, [])

    with pytest.raises(GymUnavailable, match="every one of the 4 episodes"):
        await evaluate(
            ALONE, ANYTHING, ANYTHING, ANYTHING, TASKS, _decode, label="x", step=0, episodes=4, stream="x"
        )


async def test_calls_and_first_edits_are_part_of_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the task's family, as the gym calls it, and by the words of the call."""
    said = "<call> edit turn_round </call>"
    turns = [(tuple(map(ord, said)), ())]
    edit = ToolResult("edit", "", is_error=False, error_kind="")
    edited = make_trajectory("s/a", turns=turns, results=[edit])
    _play(monkeypatch, [edited, edited, make_trajectory("s/a")])

    row = await evaluate(
        ALONE, ANYTHING, ANYTHING, ANYTHING, TASKS, _decode, label="x", step=0, episodes=3, stream="x"
    )

    assert row.sequences == {"edit turn_round": 2, "answer": 1}
    assert row.first_edits == {"odd": {"edit turn_round": 2, "no edit": 1}}
