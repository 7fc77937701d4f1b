"""What the check of a task says about its function, read off the source: calls with plain arguments and their values.

Nothing is executed: a check comes from somebody else. One that says more than `candidate(...) == value`, statement by
statement, is not read at all; then it has to be run.
"""

import ast
import builtins
import math
import operator

from gym_service.tasks.model import Case
from gym_service.tasks.parsing import parse

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
_MOST = 1_000_000
"""Up to here numbers are worked out, so that nothing a file says takes long."""


def literal_cases(check: str, entry_point: str) -> tuple[Case, ...] | None:
    """Gives the calls that a check makes, in its order, with their values; None if it does anything else.

    `check` defines a function of that name with one parameter, which stands for the function under test.
    """
    try:
        return tuple(_read(check, entry_point))
    except (ValueError, SyntaxError, RecursionError, MemoryError, ArithmeticError, TypeError):
        return None


def _read(check: str, entry_point: str) -> list[Case]:
    body = parse(check).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    for node in body:
        if node not in functions and not _does_nothing(node):
            raise ValueError("code around the check")
    if len(functions) != 1 or functions[0].name != "check" or functions[0].decorator_list:
        raise ValueError("no check alone")
    names = {functions[0].args.args[0].arg, entry_point} if functions[0].args.args else set()
    cases = [_case(node, names) for node in functions[0].body if not _does_nothing(node)]
    if not cases:
        raise ValueError("nothing is checked")
    return cases


def _does_nothing(node: ast.stmt) -> bool:
    """Whether a statement has no part in the check: a text, a constant that is kept, a claim about no call."""
    match node:
        case ast.Expr(ast.Constant()) | ast.Pass():
            return True
        case ast.Expr(ast.Name(name)):
            return hasattr(builtins, name)
        case ast.Assign([ast.Name(name)], value) if name.isupper():
            _value(value)
            return True
        case ast.Assert(ast.Constant(value)):
            return bool(value)
    return False


def _case(node: ast.stmt, names: set[str]) -> Case:
    match node:
        case ast.Assert(ast.Compare(ast.Call(ast.Name(name), arguments, []), [ast.Eq()], [expected])) if (
            name in names
        ):
            # A case is typed as JSON, which has no tuples and sets; all that handles it goes by what it is.
            return Case(tuple(map(_value, arguments)), _value(expected))  # type: ignore[arg-type]
    raise ValueError("another statement")


def _value(node: ast.expr | None) -> object:
    """The plain data that an expression is. Raises ValueError."""
    match node:
        case ast.Constant(None | bool() | int() | float() | str() as value):
            return value
        case ast.List(items):
            return [*map(_value, items)]
        case ast.Tuple(items):
            return tuple(map(_value, items))
        case ast.Set(items):
            return set(map(_value, items))
        case ast.Dict(keys, values):
            return dict(zip(map(_value, keys), map(_value, values), strict=True))
        case ast.UnaryOp(ast.USub(), operand):
            return -_number(operand, math.inf)
        case ast.BinOp(ast.Constant(str(left)), ast.Add(), ast.Constant(str(right))):
            return left + right
        case ast.BinOp(ast.BinOp() as left, ast.Add(), ast.Constant(str(right))):
            joined = _value(left)
            if isinstance(joined, str):
                return joined + right
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
            most = 16.0 if isinstance(operation, ast.Pow) else _MOST
            result = _OPERATORS[type(operation)](_number(left, _MOST), _number(right, most))
            if isinstance(result, int | float):  # A power can be complex.
                return result
    raise ValueError("no plain data")


def _number(node: ast.expr, most: float) -> int | float:
    value = _value(node)
    if isinstance(value, int | float) and abs(value) <= most:
        return value
    raise ValueError("no number, or one too large")
