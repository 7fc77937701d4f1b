"""The rules by which an answer counts as right; a task declares one, and grading applies it outside the sandbox.

An answer is plain data that `grading.records` rebuilt: None, bool, int, float, str, lists, tuples, sets and dicts of
exactly these types, bounded in size and depth. Whatever it holds, no rule fails because of it.
"""

import copy
import inspect
import logging
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger(__name__)


class Comparison(Protocol):
    """Decides about one answer. `repr` of a rule names it, for the hash of a task."""

    def accepts(self, arguments: tuple[object, ...], answer: object, expected: object) -> bool:
        """Says whether the answer to a call with these arguments is right."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The expected value, by exact type: True is not 1, 1.0 is not 1, and nothing equals NaN; -0.0 equals 0.0."""

    def accepts(self, arguments: tuple[object, ...], answer: object, expected: object) -> bool:
        return same(answer, expected)


EXACT = Exact()
"""The rule of a task that declares none."""


@dataclass(frozen=True, slots=True)
class Equal:
    """What Python's `==` says: True is 1 and so is 1.0, but a tuple is no list. For checks that are written with it."""

    def accepts(self, arguments: tuple[object, ...], answer: object, expected: object) -> bool:
        return answer == expected


EQUAL = Equal()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The expected value, where an expected float may be missed by the larger of two amounts, and met by an int.

    Everything else is exact, an expected int and the keys of a dict included. Inf is met by the same inf alone, and
    NaN by nothing; a bool is no number.
    """

    relative: float = 1e-9
    """The part of the expected float."""
    absolute: float = 0.0
    """The amount."""

    def __post_init__(self) -> None:
        if not (0 <= self.relative < 1 and 0 <= self.absolute < math.inf):
            raise ValueError("relative must be at least 0 and less than 1, absolute at least 0 and finite")

    def accepts(self, arguments: tuple[object, ...], answer: object, expected: object) -> bool:
        return same(answer, expected, self._close)

    def _close(self, answer: float, expected: float) -> bool:
        if not (math.isfinite(expected) and abs(answer) <= sys.float_info.max):
            return answer == expected
        return abs(answer - expected) <= max(self.absolute, self.relative * abs(expected))


@dataclass(frozen=True, slots=True)
class Unordered:
    """The items of the expected list or tuple in any order, each as often, by exact type."""

    def accepts(self, arguments: tuple[object, ...], answer: object, expected: object) -> bool:
        if type(answer) is not type(expected) or not isinstance(expected, list | tuple):
            return same(answer, expected)
        assert isinstance(answer, list | tuple)
        if len(answer) != len(expected) or not same(answer, answer):
            return False  # What does not even equal itself holds NaN.
        # By their texts: items need not be hashable, and no choice of ints makes texts collide.
        return sorted(map(_text, answer)) == sorted(map(_text, expected))


@dataclass(frozen=True, slots=True, repr=False)
class Checker:
    """What an authored function of (arguments, answer) says is right; for tasks with more than one right answer.

    The function has to be pure. It gets copies. Where an answer makes it fail, whose fault that is shows in whether
    the reference solution's answer does too: then the checker is broken, which is the gym's fault, and the exception
    goes on. Otherwise the answer is not one that the checker takes, which is wrong: or else a policy could get any
    episode out of the count by an answer that is odd enough.
    """

    function: Callable[[tuple[object, ...], object], bool]

    def accepts(self, arguments: tuple[object, ...], answer: object, expected: object) -> bool:
        try:
            return self._ask(arguments, answer)
        except Exception as error:
            self._ask(arguments, expected)
            logger.warning("%s does not take an answer: %r", self.function.__qualname__, error)
            return False

    def _ask(self, arguments: tuple[object, ...], answer: object) -> bool:
        return self.function(copy.deepcopy(arguments), copy.deepcopy(answer)) is True

    def __repr__(self) -> str:
        return f"Checker({inspect.getsource(self.function)!r})"


def same(answer: object, expected: object, close: Callable[[float, float], bool] | None = None) -> bool:
    """Compares by value and exact type; `close`, where it is given, decides about a number for an expected float.

    Keys of dicts are compared by value and exact type in any case.
    """
    if close is not None and type(expected) is float and type(answer) in (int, float):
        assert isinstance(answer, int | float)
        return close(answer, expected)
    if type(answer) is not type(expected):
        return False
    if isinstance(answer, list | tuple) and isinstance(expected, list | tuple):
        pairs = zip(answer, expected, strict=False)
        return len(answer) == len(expected) and all(same(*pair, close) for pair in pairs)
    if isinstance(answer, dict) and isinstance(expected, dict):
        if answer.keys() != expected.keys():
            return False
        # Keys that are equal can differ in type, and which of them a dict holds shows.
        keys = {key: key for key in expected}
        return all(
            same(key, keys[key]) and same(value, expected[key], close) for key, value in answer.items()
        )
    return answer == expected


def _text(value: object) -> str:
    """Writes plain data so that equal values of equal types, and only those, have one text."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(item)}' for key, item in value.items()))}}}"
    if isinstance(value, float):
        return repr(value + 0.0)  # -0.0 equals 0.0.
    # Of an int that a reference solution gave, repr may refuse to write all digits.
    return hex(value) if type(value) is int else repr(value)
