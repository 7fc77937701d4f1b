"""Where rules that were written down before a run would have stopped it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rows import BEHAVIOUR, make_row
from trainer_client.config import RunConfig
from trainer_client.metrics import Evaluation, History, Seconds, TaskCount
from trainer_client.stopping import (
    STOPPING_HEAD,
    StoppingRules,
    read_rules,
    rules_of,
    stop_in_silence,
    stop_without_gain,
    stopping_line,
    stopping_outcomes,
    stopping_section,
    write_rules,
)


def validation(step: int, *passed: int) -> Evaluation:
    """Returns a validation of five tasks with 16 episodes each."""
    tasks = tuple(TaskCount(f"t{place}", 16, count) for place, count in enumerate(passed))
    return Evaluation(f"validation/step-{step}", step, tasks, BEHAVIOUR, 0, Seconds(evaluation=1.0))


BOOK = (
    validation(0, 1, 2, 2, 2, 3),
    validation(10, 5, 6, 6, 8, 8),
    validation(20, 1, 4, 13, 15, 16),
    validation(30, 2, 9, 16, 16, 16),
    validation(40, 3, 9, 16, 16, 16),
    validation(50, 3, 11, 16, 16, 16),
    validation(60, 12, 12, 14, 16, 16),
)
"""What is known of the book's main run: 0.13 at the start, 0.73 at step 30 and 0.88 [0.78, 0.98] at step 60, rising at
every checkpoint, with intervals of about 0.3 to both sides from step 20 to step 50."""


def test_the_series_is_the_books() -> None:
    figures = [row.pass_at_1 for row in BOOK]
    estimates = [interval.estimate for interval in figures]

    assert estimates == sorted(set(estimates))
    assert [round(estimates[place], 2) for place in (0, 3, 6)] == [0.12, 0.74, 0.88]
    assert all(0.25 < (interval.high - interval.low) / 2 < 0.4 for interval in figures[2:6])
    assert (figures[6].low, figures[6].high) == pytest.approx((0.78, 0.98), abs=0.03)


def test_without_a_gain_for_two_checkpoints_the_books_run_stops_at_step_40() -> None:
    """It rises at every checkpoint, but from 20 on within the interval before."""
    assert stop_without_gain(BOOK, 2) == 40
    assert stop_without_gain(BOOK, 1) == 30
    assert stop_without_gain(BOOK[:4], 2) is None


def test_a_gain_between_makes_the_count_begin_again() -> None:
    rows = [
        validation(0, 1, 1, 1, 1, 1),
        validation(1, 1, 1, 1, 1, 1),
        validation(2, 8, 8, 8, 8, 8),
        validation(3, 8, 8, 8, 8, 8),
        validation(4, 8, 8, 8, 8, 8),
    ]

    assert stop_without_gain(rows[:4], 2) is None
    assert stop_without_gain(rows, 2) == 4


def test_silence_is_a_mean_that_stays_above_its_limit() -> None:
    """Windows of two: 0.5, 0.5, 0.75, 0.75, 0.75; the limit itself is not above it."""
    shares = [0.0, 1.0, 0.0, 1.5, 0.0, 1.5]

    assert stop_in_silence(shares, 0.7, window=2, steps=3) == 6
    assert stop_in_silence(shares, 0.75, window=2, steps=1) is None
    assert stop_in_silence(shares, 0.7, window=2, steps=4) is None
    assert stop_in_silence(shares[:1], 0.0, window=2, steps=1) is None


def _run(validations: Sequence[Evaluation], shares: Sequence[float]) -> History:
    steps = [
        replace(make_row(step), zero_advantage_share=share, seconds=Seconds(sampling=2.0))
        for step, share in enumerate(shares, start=1)
    ]
    return History(steps, list(validations))


RULES = rules_of(RunConfig())


def test_what_a_rule_would_have_saved_and_cost_is_told() -> None:
    """The book's run under rule (a): 20 steps and two validations saved, and the best later checkpoint lost."""
    first, second, third = stopping_outcomes(_run(BOOK, [0.15] * 30 + [0.7] * 30), RULES)

    assert (first.step, first.steps_saved, first.seconds_saved) == (40, 20, 42.0)
    assert first.there == BOOK[4]
    assert first.later == BOOK[6]
    assert first.cost is not None
    assert first.cost.estimate == pytest.approx(0.125)
    # Windows of five are above 0.5 from step 34 on: four of 0.7 and one of 0.15.
    assert (second.step, second.there) == (43, BOOK[4])
    assert (third.step, third.steps_saved, third.later, third.cost) == (60, 0, None, None)


def test_a_run_that_is_not_over_has_not_used_up_its_budget() -> None:
    outcomes = stopping_outcomes(_run(BOOK[:3], [0.1] * 20), RULES)

    assert [outcome.step for outcome in outcomes] == [None, None, None]


def test_the_section_has_a_row_for_each_rule() -> None:
    history = _run(BOOK, [0.15] * 60)

    first, second, third = stopping_section(history, RULES)

    assert len(first) == len(second) == len(third) == len(STOPPING_HEAD)
    assert first[1:3] == ("after step 40", "20 steps, 42 s")
    assert first[4].startswith("step 60: +0.1")
    assert (second[1], third[1]) == ("never", "after step 60")
    assert stopping_line(history, RULES).startswith("(a) after step 40, without +0.1")


def test_without_validations_there_is_no_gain_to_look_for() -> None:
    rules = rules_of(RunConfig(report="last", steps=5))

    assert rules.checkpoints_without_gain == 0
    first, _, third = stopping_section(_run([], [0.1] * 5), rules)
    assert first[:2] == ("(a) nothing is validated on the way", "never")
    assert third[1] == "after step 5"


def test_rules_are_read_as_they_were_written_before_the_run(tmp_path: Path) -> None:
    """Not as a later version has them."""
    rules = StoppingRules(3, 0.75, 4, 6, 50)
    assert read_rules(tmp_path) is None
    write_rules(tmp_path, rules)

    assert read_rules(tmp_path) == rules
