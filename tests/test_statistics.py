"""Statistics over tasks, against numbers worked out by hand."""

import pytest

from trainer_client.statistics import (
    Interval,
    clustered_error,
    mixed_group,
    paired_difference,
    pass_at_k,
    task_interval,
)


@pytest.mark.parametrize(
    ("episodes", "passed", "k", "expected"),
    [
        (4, 2, 1, 0.5),
        (4, 2, 2, 1 - 1 / 6),  # One of the six pairs holds no pass.
        (4, 1, 2, 0.5),  # Three of the six pairs hold the one pass.
        (4, 0, 4, 0.0),
        (4, 3, 2, 1.0),  # Two that fail cannot be drawn.
        (32, 4, 8, 1 - (28 * 27 * 26 * 25 * 24 * 23 * 22 * 21) / (32 * 31 * 30 * 29 * 28 * 27 * 26 * 25)),
    ],
)
def test_pass_at_k_counts_draws_without_replacement(
    episodes: int, passed: int, k: int, expected: float
) -> None:
    """The share of the draws of k episodes that hold a pass."""
    assert pass_at_k(episodes, passed, k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_needs_k_episodes(k: int) -> None:
    """More than was played cannot be estimated without bias."""
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(4, 2, k)


def test_interval_over_tasks_is_that_of_the_exact_bootstrap() -> None:
    """Rates 0 and 1: a resample has mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4, so 2.5% and 97.5% are 0 and 1."""
    assert task_interval([0.0, 1.0]) == Interval(0.5, 0.0, 1.0)


def test_interval_of_a_published_table_is_found_again() -> None:
    """Passes of 32 episodes on five tasks, 29, 31, 31, 4, 5, are reported as 0.625 [0.29, 0.96]."""
    interval = task_interval([29 / 32, 31 / 32, 31 / 32, 4 / 32, 5 / 32])

    assert interval.estimate == pytest.approx(0.625)
    assert interval.low == pytest.approx(0.29, abs=0.02)
    assert interval.high == pytest.approx(0.96, abs=0.02)


def test_interval_is_the_same_every_time() -> None:
    """The resamples come from a fixed seed."""
    rates = [0.1, 0.4, 0.35, 0.8]

    assert task_interval(rates) == task_interval(rates)


def test_equal_tasks_have_an_interval_of_no_width() -> None:
    """Every resample is the sample itself."""
    assert task_interval([0.3, 0.3, 0.3]) == Interval(0.3, 0.3, 0.3)
    assert paired_difference([0.5, 0.5], [0.25, 0.25]) == Interval(0.25, 0.25, 0.25)


def test_one_task_says_nothing_about_others() -> None:
    """Its interval is everything that is possible."""
    assert task_interval([0.3]) == Interval(0.3, 0.0, 1.0)
    assert paired_difference([0.75], [0.25]) == Interval(0.5, -1.0, 1.0)


def test_pairing_takes_the_difficulty_of_tasks_out() -> None:
    """Each task gains 0.1 or 0.2: the interval lies between, however far the tasks are apart."""
    interval = paired_difference([0.1, 0.6, 1.0], [0.0, 0.4, 0.9])

    assert interval.estimate == pytest.approx(0.4 / 3)
    assert 0.1 - 1e-9 <= interval.low <= interval.high <= 0.2 + 1e-9


def test_what_cannot_be_paired_is_refused() -> None:
    """The same tasks on both sides, and at least one."""
    with pytest.raises(ValueError, match="cannot pair"):
        paired_difference([0.1], [0.1, 0.2])
    with pytest.raises(ValueError, match="no tasks"):
        task_interval([])


def test_intervals_are_printed_with_two_decimals() -> None:
    """A difference shows its sign."""
    assert str(Interval(0.625, 0.2912, 0.9549)) == "0.62 [0.29, 0.95]"
    assert Interval(0.47, 0.13, 0.81).signed == "+0.47 [+0.13, +0.81]"


@pytest.mark.parametrize(
    ("clusters", "squared"),
    [
        # Each value half away from the mean: 4/4 / (4 * 3) without clusters, and nothing but that.
        ([[1], [1], [0], [0]], 1 / 12),
        # In each cluster two products of +1/4: 4/4 / 4**2 more.
        ([[1, 1], [0, 0]], 1 / 12 + 1 / 16),
        # In each cluster two products of -1/4: as much less.
        ([[1, 0], [1, 0]], 1 / 12 - 1 / 16),
        # Mean 1/4, distances 3/4 and -1/4: 3/4 / 12; products -3/16 and 1/16, twice each, over 4**2.
        ([[1, 0], [0, 0]], 1 / 16 - 1 / 64),
    ],
)
def test_episodes_of_one_task_are_not_independent(clusters: list[list[float]], squared: float) -> None:
    """The clustered standard error of the mean, worked out by hand."""
    assert clustered_error(clusters) ** 2 == pytest.approx(squared)


def test_one_cluster_has_no_clustered_error() -> None:
    """Its deviations add up to 0, which says nothing."""
    with pytest.raises(ValueError, match="1 clusters say nothing"):
        clustered_error([[1, 0, 1]])


@pytest.mark.parametrize(
    ("episodes", "passed", "size", "expected"),
    [
        (4, 2, 2, 4 / 6),  # Of the six pairs one holds no pass and one no failure.
        (4, 4, 2, 0.0),
        (4, 0, 2, 0.0),
        (8, 1, 8, 1.0),
        (3, 1, 1, 0.0),  # A group of one has nothing to compare with.
    ],
)
def test_a_group_has_a_gradient_where_some_pass_and_some_do_not(
    episodes: int, passed: int, size: int, expected: float
) -> None:
    assert mixed_group(episodes, passed, size) == pytest.approx(expected)
