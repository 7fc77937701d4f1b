"""pass@k against hand-worked numbers, and the interval against what must hold of any."""

import math

import pytest

from gym_service.evaluation.statistics import all_pass_at, over_tasks, pass_at_k


@pytest.mark.parametrize(
    ("samples", "passed", "k", "expected"),
    [
        (5, 2, 1, 2 / 5),
        (5, 2, 2, 7 / 10),  # of 10 pairs, the 3 among the three that fail do not pass
        (4, 1, 2, 1 / 2),
        (3, 3, 2, 1.0),
        (3, 0, 3, 0.0),
        (4, 2, 3, 1.0),  # three of four cannot all be among two
    ],
)
def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass(samples, passed, k, expected):
    assert pass_at_k(samples, passed, k) == pytest.approx(expected, abs=1e-12)


def test_the_product_is_the_binomial_formula_also_for_many_samples():
    expected = 1 - math.comb(200 - 3, 100) / math.comb(200, 100)

    assert pass_at_k(200, 3, 100) == pytest.approx(expected, abs=1e-12)


def test_more_attempts_than_samples_are_not_estimated():
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k(2, 1, 3)


def test_every_task_counts_alike_and_k_goes_as_far_as_the_fewest_samples():
    found = all_pass_at([(2, 2), (10, 0), (2, 1)])

    assert found[1].value == pytest.approx((1 + 0 + 0.5) / 3)
    assert found[2].value == pytest.approx((1 + 0 + 1) / 3)
    assert list(found) == [1, 2]
    assert all_pass_at([]) == {}


def test_the_interval_holds_the_rate_and_narrows_with_more_tasks():
    few, many = over_tasks([0.0, 1.0] * 10), over_tasks([0.0, 1.0] * 200)

    assert few.low < few.value == 0.5 < few.high
    # The normal approximation: 1.96 standard errors on each side.
    assert many.high - many.low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(400), rel=0.1)
    assert few == over_tasks([0.0, 1.0] * 10)


def test_where_all_tasks_agree_there_is_nothing_to_draw():
    assert str(over_tasks([1.0] * 5)) == "1.000 [1.000, 1.000]"
