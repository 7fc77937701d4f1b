"""What the suites of functions are written with: the forms of a source, and draws of inputs.

Sources are in the form that `ast.unparse` gives, because the repairs of the menu are made on the syntax tree.
"""

import random
from collections.abc import Callable
from typing import TypeAlias

from gym_service.tasks.model import PLACEHOLDER, Arguments

Draw: TypeAlias = Callable[[random.Random], Arguments]

GOLD_OPERATIONS = {
    "minmax": "swap_minmax",
    "compare": "fix_comparison",
    "range": "fix_range",
    "zero": "add_zero_guard",
    "init": "fix_init",
}
"""The operation of the menu that repairs a family's fault, by family."""


def expression(parameters: str, value: str) -> str:
    """A function that returns the value of one expression."""
    return f"def {PLACEHOLDER}({parameters}):\n    return {value}\n"


def guarded(parameters: str, divisor: str, value: str) -> str:
    """The same with 0 where the divisor is 0."""
    head = f"def {PLACEHOLDER}({parameters}):\n    if {divisor} == 0:\n        return 0\n"
    return f"{head}    return {value}\n"


def loop(parameters: str, start: str, over: str, step: str) -> str:
    """A function that assigns to a name, goes on in a loop and returns what the name then has."""
    name = start.split()[0]
    head = f"def {PLACEHOLDER}({parameters}):\n    {start}\n"
    return f"{head}    for {over}:\n        {step}\n    return {name}\n"


def ints(how_many: int, low: int = 0, high: int = 40) -> Draw:
    """Draws whole numbers."""
    return lambda rng: tuple(rng.randint(low, high) for _ in range(how_many))


def list_of_ints(low: int = 0, high: int = 9, shortest: int = 0, longest: int = 6) -> Draw:
    """Draws one list of whole numbers."""
    return lambda rng: ([rng.randint(low, high) for _ in range(rng.randint(shortest, longest))],)
