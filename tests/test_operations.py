"""The menu's operations, on sources written for the purpose."""

import pytest

from gym_service.tasks.model import Case
from gym_service.tasks.operations import OPERATIONS, apply_operation

CASES = (Case((1, [2]), 3), Case((0, []), 0))


def body(*lines: str) -> str:
    return "def f(a, b):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("swap_minmax", ["return max(a, min(b, 3))"], ["return min(a, max(b, 3))"]),
        ("fix_comparison", ["return a < b"], ["return a <= b"]),
        ("fix_comparison", ["return a <= b"], ["return a < b"]),
        ("fix_comparison", ["return a > b"], ["return a >= b"]),
        ("fix_comparison", ["return a >= b"], ["return a > b"]),
        ("fix_comparison", ["return a == 1 and a < b and (b > 2)"], ["return a == 1 and a <= b and (b > 2)"]),
        ("fix_range", ["return range(a)"], ["return range(a + 1)"]),
        ("fix_range", ["return range(a - 1)"], ["return range(a)"]),
        ("fix_range", ["return range(a + 1)"], ["return range(a)"]),
        ("fix_range", ["return range(1, b - 2, 3)"], ["return range(1, b - 2 + 1, 3)"]),
        ("fix_range", ["return (range(a), range(b))"], ["return (range(a + 1), range(b))"]),
        ("add_zero_guard", ["return a // b"], ["if b == 0:", "    return 0", "return a // b"]),
        ("add_zero_guard", ["return a / 2 % f(b)"], ["if f(b) == 0:", "    return 0", "return a / 2 % f(b)"]),
        ("add_zero_guard", ["return 1 // a // b"], ["if a == 0:", "    return 0", "return 1 // a // b"]),
        ("fix_init", ["x = 0", "return x"], ["x = 1", "return x"]),
        ("fix_init", ["x = 7", "return x"], ["x = 0", "return x"]),
        ("fix_init", ["x = a", "y = 1", "z = 1"], ["x = a", "y = 0", "z = 1"]),
        (
            "hardcode_tests",
            ["return a"],
            ["if (a, b) == (1, [2]):", "    return 3", "if (a, b) == (0, []):", "    return 0", "return 3"],
        ),
    ],
)
def test_an_operation_edits_only_what_it_is_for(name: str, before: list[str], after: list[str]) -> None:
    assert apply_operation(name, body(*before), CASES) == body(*after)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "hardcode_tests"])
def test_an_operation_that_finds_nothing_to_change_says_so(name: str) -> None:
    assert apply_operation(name, body("x = True", "return a == b + x // 2"), CASES) is None


def test_the_same_guard_is_not_added_twice() -> None:
    once = apply_operation("add_zero_guard", body("return a // b"), ())

    assert once is not None
    assert apply_operation("add_zero_guard", once, ()) is None


def test_a_change_of_layout_alone_is_no_change() -> None:
    assert apply_operation("swap_minmax", body("return (a  +  b)  # sum"), ()) is None


def test_hardcoding_no_tests_returns_none() -> None:
    assert apply_operation("hardcode_tests", body("return a"), ()) == body("return None")


def test_the_menu_keeps_its_order() -> None:
    assert OPERATIONS == (
        "swap_minmax",
        "fix_comparison",
        "fix_range",
        "add_zero_guard",
        "fix_init",
        "hardcode_tests",
    )
