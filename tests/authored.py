"""Looking at authored functions: what they answer, and what their sources show."""

import ast
import builtins
import copy
import re
from collections.abc import Callable, Sequence

from gym_service.tasks.model import PLACEHOLDER, Case, FunctionTask, hidden_cases


def load(source: str, name: str = PLACEHOLDER) -> Callable[..., object]:
    namespace: dict[str, Callable[..., object]] = {}
    exec(source, namespace)
    return namespace[name]


def passes(source: str, cases: Sequence[Case]) -> bool:
    """Whether the authored source answers every case, types included."""
    function = load(source)
    try:
        answers = [function(*copy.deepcopy(case.arguments)) for case in cases]
    except ZeroDivisionError:
        return False
    return list(map(repr, answers)) == [repr(case.expected) for case in cases]


def boundary_cases(task: FunctionTask) -> tuple[Case, ...]:
    return hidden_cases(task, b"", "", count=0)


def names_in(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (used | {node.arg for node in nodes if isinstance(node, ast.arg)}) - set(dir(builtins))


def family_by_sight(source: str) -> str:
    """The family by the first feature that the source shows."""
    features = {
        "minmax": r"m(in|ax)\(",
        "compare": "[<>]",
        "range": r"range\(",
        "zero": "//|%",
        "init": "for ",
    }
    return next(family for family, feature in features.items() if re.search(feature, source))
