"""What is read off a check without running it, and what is left to be run."""

import pytest

from gym_service.tasks.claims import literal_cases
from gym_service.tasks.model import Case


def cases(*statements, before=""):
    body = "".join(f"    {each}\n" for each in statements)
    return literal_cases(f"{before}\n\ndef check(candidate):\n{body}", "double")


def test_calls_and_values_are_read_in_their_order():
    assert cases(
        "assert candidate(1, 'a') == 2",
        "",
        "# a comment",
        "assert double([-1.5, None]) == (True, {'a': {1}}), 'why ' + str(candidate(3))",
        before='METADATA = {"author": "jt"}',
    ) == (Case((1, "a"), 2), Case(([-1.5, None],), (True, {"a": {1}})))


@pytest.mark.parametrize(
    ("written", "value"),
    [("3 * 19", 57), ("3 + 5 + 7", 15), ("2 - 3 ** 2", -7), ("'a' + 'b' + 'c'", "abc"), ("-(2 + 3)", -5)],
)
def test_plain_arithmetic_is_worked_out(written, value):
    assert cases(f"assert candidate({written}) == 0") == (Case((value,), 0),)


@pytest.mark.parametrize("nothing", ["print", "pass", "assert True, 'fine'", "'a text'"])
def test_what_checks_nothing_is_passed_over(nothing):
    assert cases(nothing, "assert candidate(1) == 2") == (Case((1,), 2),)


@pytest.mark.parametrize(
    "statement",
    [
        "assert candidate(1)", "assert not candidate(1)", "assert candidate(1) is True", "assert candidate(1) != 2",
        "assert abs(candidate(1) - 2) < 1e-6", "assert tuple(candidate(1)) == (2,)", "assert 2 == candidate(1)",
        "assert candidate(n=1) == 2", "assert candidate(*[1]) == 2", "assert candidate(x) == 2",
        "assert candidate(1) == 2 == 3", "assert other(1) == 2", "candidate(1)", "import math", "x = 1",
        "for x in range(3): assert candidate(x) == x", "assert candidate(b'a') == 2", "assert candidate(1j) == 2",
        "assert candidate(2 ** 10000) == 2", "assert candidate(9 ** 9 ** 9 ** 9) == 2",
        "assert candidate(0 ** -1) == 2", "assert candidate((-8) ** 0.5) == 2", "assert candidate(1) == (-8) ** 0.5",
        "assert candidate('a' * 9) == 2",
        "assert candidate({[1]: 2}) == 2", "assert candidate(-'a') == 2", "assert candidate({**{}}) == 1", "unknown",
        "assert False", "assert 0",
    ],
)  # fmt: skip
def test_any_other_statement_leaves_the_whole_check_to_be_run(statement):
    assert cases("assert candidate(1) == 2", statement) is None


@pytest.mark.parametrize(
    "check",
    [
        "", "def check(candidate:", "x = 1", "def check(candidate): pass",
        "def test(candidate): assert candidate(1) == 2",
        "def check(): assert candidate(1) == 2", "@wrap\ndef check(candidate): assert candidate(1) == 2",
        "import os\ndef check(candidate): assert candidate(1) == 2", "\0", "x = " + "[" * 10_000,
        "def check(candidate): assert candidate(1) == 2\ncheck(double)",
        "def check(candidate): assert candidate(1) == 2\ndef check(candidate): assert candidate(1) == 3",
    ],
)  # fmt: skip
def test_a_source_with_more_or_less_than_one_plain_check_is_left_to_be_run(check):
    assert literal_cases(check, "double") is None
