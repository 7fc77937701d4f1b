"""The rules of comparison, on tables that were worked out by hand."""

import math

import pytest

from gym_service.tasks.comparison import Checker, Equal, Exact, Tolerance, Unordered

NAN, INF = math.nan, math.inf
HUGE = 10**4000


def accepts(rule, answer, expected, arguments=()):
    return rule.accepts(arguments, answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        (1, 1, True), (True, 1, False), (1, True, False), (1.0, 1, False), ((1,), [1], False), ([1], [1], True),
        ([True], [1], False), ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"a": True}, False), ({True: 1}, {1: 1}, False),
        ({(1, 2): 1}, {(1, 2.0): 1}, False), ({(1, 2): 1}, {(1, 2): 1}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ((1,), (True,), False), ((1,), (1,), True), (NAN, NAN, False), ([NAN], [NAN], False), (-0.0, 0.0, True),
        ("a", "a", True), (None, None, True), (None, False, False), (INF, INF, True), (INF, -INF, False),
        ("", [], False),
        ([1, 2], [1], False), ([], [], True), ({}, {"a": 1}, False), (0.1 + 0.2, 0.3, False), ("1", 1, False),
    ],
)  # fmt: skip
def test_exact_compares_by_value_and_type(answer, expected, right):
    assert accepts(Exact(), answer, expected) is right


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        (1, 1.0, True), (True, 1, True), (0.0, -0.0, True), (1, "1", False), ((1,), [1], False), (None, 0, False),
        ([1, (2.0,)], [1.0, (2,)], True), ({1: [True]}, {1.0: [1]}, True), ({1, 2}, frozenset({2, 1}), True),
        ({1}, [1], False), (NAN, NAN, False), (HUGE, INF, False), (0.1 + 0.2, 0.3, False),
    ],
)  # fmt: skip
def test_equal_compares_as_python_does(answer, expected, right):
    assert accepts(Equal(), answer, expected) is right


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        # 0.01 of the expected value, at least 0.5
        (100.9, 100.0, True), (101.0, 100.0, True), (101.1, 100.0, False), (99.0, 100.0, True), (98.9, 100.0, False),
        (10.5, 10.0, True), (10.6, 10.0, False), (0.5, 0.0, True), (0.6, 0.0, False), (-100.0, 100.0, False),
        # A number is a number, a bool is none, and an expected int is met by itself alone.
        (100, 100.0, True), (102, 100.0, False), (True, 1.0, False), (100.0, 100, False), (101, 100, False),
        (100, 100, True),
        (True, 1, False), ("1.0", 1.0, False), (None, 0.0, False), (HUGE, 1.0, False), (HUGE, INF, False),
        # Outside the numbers
        (NAN, NAN, False), (NAN, 1.0, False), (1.0, NAN, False), (INF, INF, True), (-INF, INF, False),
        (INF, 1e308, False),
        (1e308, INF, False), (-1e308, 1e308, False),
        # Inside structures that are equal otherwise
        ([1.0, 2.0], [1.1, 2.1], True), ([1.0, 9.0], [1.1, 2.1], False), ((1.0,), [1.0], False),
        ([1.0], [1.0, 2.0], False),
        ({"a": 1.4}, {"a": 1.0}, True), ({"a": 1.6}, {"a": 1.0}, False), ({1.1: 0}, {1.0: 0}, False),
        ({True: 1.0}, {1: 1.0}, False),
        ([(1, [1.2])], [(1, [1.0])], True), ([(1, [1.2])], [(2, [1.0])], False), (["a"], ["a"], True),
        (["a"], ["b"], False),
    ],
)  # fmt: skip
def test_tolerance_forgives_a_little_of_a_float_and_nothing_else(answer, expected, right):
    assert accepts(Tolerance(relative=0.01, absolute=0.5), answer, expected) is right


@pytest.mark.parametrize(("relative", "absolute"), [(-1, 0), (1, 0), (0, -1), (NAN, 0), (0, INF), (0, NAN)])
def test_a_tolerance_that_makes_no_sense_is_refused(relative, absolute):
    with pytest.raises(ValueError, match="relative"):
        Tolerance(relative, absolute)


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ([1, 2, 3], [3, 1, 2], True), ([1, 1, 2], [1, 2, 2], False), ([1, 1, 2], [2, 1, 1], True),
        ([1], [1, 1], False),
        ([], [], True), ((1, 2), (2, 1), True), ((1, 2), [2, 1], False), ([True, 2], [2, 1], False),
        ([1.0], [1], False),
        ([[1], [2]], [[2], [1]], True), ([[1, 2]], [[2, 1]], False), ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], True),
        ([{1: 0}], [{True: 0}], False), ([None, "a", 1], [1, None, "a"], True), ([(1,), [1]], [[1], (1,)], True),
        ([(1,), (1,)], [[1], (1,)], False), ([NAN], [NAN], False), ([1, NAN], [NAN, 1], False),
        ([INF, 1], [1, INF], True),
        ([-0.0, 1], [1, 0.0], True), (["1, 2"], ["1", "2"], False), (["[1]"], [[1]], False), (5, 5, True),
        (5, 6, False),
        ({1: [1, 2]}, {1: [2, 1]}, False), ([HUGE**2, 1], [1, HUGE**2], True), ("ab", "ba", False),
    ],
)  # fmt: skip
def test_unordered_counts_the_items_of_the_outermost_list(answer, expected, right):
    assert accepts(Unordered(), answer, expected) is right


def test_unordered_takes_no_longer_for_items_that_were_chosen_for_their_hashes():
    items = [number * ((1 << 61) - 1) for number in range(20_000)]

    assert accepts(Unordered(), items, items[::-1])


def divides(arguments, answer):
    return answer > 1 and arguments[0][0] % answer == 0


def test_a_checker_takes_every_right_answer():
    rule = Checker(divides)

    assert [accepts(rule, answer, 2, ([12],)) for answer in (2, 3, 5, 12, 1)] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_checker_works_on_copies():
    arguments, answer = ([12],), [3]

    def empties(given, found):
        given[0].clear()
        found.clear()
        return True

    assert accepts(Checker(empties), answer, [3], arguments)
    assert (arguments, answer) == (([12],), [3])


def test_only_true_of_a_checker_is_yes():
    assert not accepts(Checker(lambda arguments, answer: 1), 5, 5)


@pytest.mark.parametrize("answer", ["text", None, [], 0.0])
def test_an_answer_that_a_checker_does_not_take_is_wrong(answer):
    def strict(arguments, answer):
        return 12 // answer > 0

    assert not accepts(Checker(strict), answer, 3)


def test_a_checker_that_fails_on_the_right_answer_too_is_broken_and_says_so():
    def broken(arguments, answer):
        return arguments[7] == answer

    with pytest.raises(IndexError):
        accepts(Checker(broken), 1, 2, ([12],))


def test_a_rule_is_named_by_what_it_is():
    assert repr(Checker(divides)) == repr(Checker(divides)) != repr(Checker(lambda arguments, answer: True))
    assert len({repr(rule) for rule in (Exact(), Tolerance(), Tolerance(0.1), Unordered())}) == 4
