"""Which tasks a step plays."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.rows import make_row
from trainer_client.config import RunConfig
from trainer_client.curriculum import choose_groups, draw_weighted, group_size, pass_rates
from trainer_client.metrics import StepRow, TaskCount

NAMES = [f"s/{number}" for number in range(20)]


def rows(*steps: Sequence[tuple[str, int, int]]) -> list[StepRow]:
    """Returns a row for each step, of (task, episodes, passed)."""
    counts = [tuple(TaskCount(*each) for each in step) for step in steps]
    return [replace(make_row(number), tasks=tasks) for number, tasks in enumerate(counts, start=1)]


def test_tasks_are_drawn_from_seed_and_step_alone() -> None:
    """Each at most once in a step, whatever order the gym lists them in."""
    drawn = [group.task_id for group in choose_groups(NAMES, RunConfig(), 7)]

    assert drawn == [group.task_id for group in choose_groups(NAMES[::-1], RunConfig(), 7)]
    assert len(set(drawn)) == 8
    assert drawn != [group.task_id for group in choose_groups(NAMES, RunConfig(), 8)]
    assert drawn != [group.task_id for group in choose_groups(NAMES, RunConfig(seed=1), 7)]


def test_fewer_tasks_than_asked_for_are_all_played() -> None:
    assert len(choose_groups(["s/a", "s/b"], RunConfig(), 1)) == 2


def test_what_replaces_silent_groups_is_of_tasks_that_the_step_has_not_played() -> None:
    first = [group.task_id for group in choose_groups(NAMES, RunConfig(), 7)]

    again = choose_groups(NAMES, RunConfig(), 7, count=5, refill=1, played=first)

    assert len(again) == 5
    assert not {group.task_id for group in again} & set(first)
    assert all(group.group.startswith("train/step-7/refill-1/") for group in again)


def test_a_step_that_has_played_every_task_plays_some_again_under_other_names() -> None:
    """Groups are named apart, so that their episodes have other seeds."""
    config = RunConfig(tasks_per_step=2)
    names = [
        group.group for refill in range(3) for group in choose_groups(NAMES[:2], config, 1, refill=refill)
    ]

    assert len(set(names)) == 6


def test_pass_rates_are_of_the_last_three_groups() -> None:
    """Task a: 0 of 8 is forgotten, then 4, 6 and 8 of 8: (18 + 1) / (24 + 2). Task b: 0 of 2: 1 / 4."""
    earlier = rows([("a", 8, 0), ("b", 2, 0)], [("a", 8, 4)], [("a", 8, 6)], [("a", 8, 8)])

    assert pass_rates(earlier) == {"a": pytest.approx(19 / 26), "b": pytest.approx(1 / 4)}


def test_tasks_that_pass_and_fail_are_drawn_more_often_than_those_that_do_not() -> None:
    """Half passes: weight 1/4; never passes in 24 episodes: 1/26 * 25/26, about a seventh of that."""
    names = ["even", *(f"hopeless-{number}" for number in range(3))]
    earlier = rows(*[[("even", 8, 4), *((name, 8, 0) for name in names[1:])]] * 3)
    config = RunConfig(curriculum="pass_rate", tasks_per_step=1)

    drawn = Counter(choose_groups(names, config, step, earlier)[0].task_id for step in range(2000))

    weights = [0.25, *[25 / 26**2] * 3]
    assert drawn["even"] / 2000 == pytest.approx(weights[0] / sum(weights), abs=0.03)


def test_a_weighted_draw_follows_its_weights_without_repeating() -> None:
    """The first of a draw of two from weights 1, 2 and 3: 1/6, 1/3 and 1/2."""
    random = Random(0)
    draws = [draw_weighted("abc", [1.0, 2.0, 3.0], 2, random) for _ in range(6000)]

    assert all(len(set(draw)) == 2 for draw in draws)
    firsts = Counter(draw[0] for draw in draws)
    assert [firsts[name] / 6000 for name in "abc"] == pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=0.02)


@pytest.mark.parametrize(
    ("rate", "size"),
    [
        (0.5, 5),  # 1 - 2 * 0.5^5 = 0.94; with 4 it is 0.875
        (0.9, 22),  # 1 - 0.9^22 = 0.90; with 21 it is 0.89
        (0.99, 32),
        (0.01, 32),
    ],
)
def test_a_group_grows_until_it_likely_teaches(rate: float, size: int) -> None:
    assert group_size(RunConfig(group_size=2, largest_group=32), rate) == size


def test_groups_are_of_one_size_unless_asked() -> None:
    assert group_size(RunConfig(group_size=8), 0.01) == 8
