"""Must-fail twins: where a test can be turned so that whatever passes it has to fail the turned one.

A twin is worth something only if the two contradict each other. If code that is merely wrong could pass both, it
would be taken for tampering. Hence the rules here:

- A constant is changed only where it is a part of the expected value itself (`== [1, 2]`), never inside a call of
  other code (`== f(1)`): a wrong `f` may give the same for any input.
- Statements that wrong code could leave out (the body of a loop over what it returned, a branch, a nested function)
  are turned only in a test that has no statement that always runs.

Not covered: assertions in helpers and expected values that are bound to a name first (there the comparison is turned),
tables of `parametrize`, `warns`. That a twin really fails with correct code, only a run of it shows.
"""

import ast
import random
import string
from collections.abc import Callable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

Turn = Callable[[random.Random, str], None]
"""Turns a test in place; the name is that of an exception class that nobody raises."""

_OPPOSITE_OPERATORS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip

_PAIRS = [
    ("assertEqual", "assertNotEqual"), ("assertIn", "assertNotIn"), ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"), ("assertIsInstance", "assertNotIsInstance"),
    ("assertLess", "assertGreaterEqual"), ("assertGreater", "assertLessEqual"),
    ("assertAlmostEqual", "assertNotAlmostEqual"), ("assertRegex", "assertNotRegex"),
    ("assertTrue", "assertFalse"),
]  # fmt: skip
# Each of them implies what assertNotEqual denies, so the two still contradict each other.
_TYPED = ["assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual", "assertMultiLineEqual"]
_OPPOSITE_METHODS = (
    dict(_PAIRS) | {right: left for left, right in _PAIRS} | dict.fromkeys(_TYPED, "assertNotEqual")
)
# Without assertAlmostEqual: there any change may be too small.
_EQUALITIES = {"assertEqual", "assertCountEqual", "assertSequenceEqual", *_TYPED}
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}

_COPIES = {"set", "frozenset", "list", "tuple", "sorted"}
_ITERATES = {"enumerate", "zip", "reversed", "product", "sorted"}


def turns(function: Function) -> list[Turn]:
    """Gives every way to turn a test, in an order that depends on its source alone."""
    always: list[Turn] = []
    sometimes: list[Turn] = []
    for statement, runs in _statements(function, True):
        for operator in (_constant, _comparison, _negation, _exception):
            turn = operator(statement)
            if turn:
                (always if runs else sometimes).append(turn)
    return always or sometimes


def letters(rng: random.Random, count: int) -> str:
    """Draws a word."""
    return "".join(rng.choices(string.ascii_lowercase, k=count))


def _statements(node: ast.AST, runs: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Walks over the statements inside a node; with each goes whether it runs whatever the tested code does."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child, runs
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(child, runs and _runs_its_body(child))


def _runs_its_body(node: ast.AST) -> bool:
    match node:
        case ast.For():
            return _has_items(node.iter)
        case ast.With() | ast.AsyncWith():
            return not any(_name_called(item.context_expr) in _RAISES | {"suppress"} for item in node.items)
        case _:
            return False


def _has_items(node: ast.expr) -> bool:
    """Says whether something to iterate over is written out, and not empty."""
    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.List(elts=[_, *_]) | ast.Tuple(elts=[_, *_]) | ast.Set(elts=[_, *_]):
            return True
        case ast.Dict(keys=[_, *_]):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Dict() as table, attr="items" | "keys" | "values")):
            return _has_items(table)
        case ast.Call(func=ast.Name(id="range"), args=[_, *_] as bounds):
            values = [bound.value for bound in bounds if isinstance(bound, ast.Constant)]
            numbers = [value for value in values if isinstance(value, int)]
            return len(numbers) == len(bounds) and bool(range(*numbers))
        case ast.Call(args=[_, *_] as sources) if _name_called(node) in _ITERATES:
            return all(map(_has_items, sources))
    return False


def _constant(statement: ast.stmt) -> Turn | None:
    places = list(_parts(_expected(statement)))
    if not places:
        return None

    def turn(rng: random.Random, unraised: str) -> None:
        _change(rng.choice(places), rng)

    return turn


def _comparison(statement: ast.stmt) -> Turn | None:
    method, _ = _method_call(statement)
    if method and method.attr in _OPPOSITE_METHODS.keys() - {"assertTrue", "assertFalse"}:
        return _other_method(method)
    compare = _compare(statement)
    opposite = _OPPOSITE_OPERATORS.get(type(compare.ops[-1])) if compare else None
    if not compare or not opposite:
        return None

    def turn(rng: random.Random, unraised: str) -> None:
        compare.ops[-1] = opposite()

    return turn


def _negation(statement: ast.stmt) -> Turn | None:
    method, _ = _method_call(statement)
    if method and method.attr in ("assertTrue", "assertFalse"):
        return _other_method(method)
    if not isinstance(statement, ast.Assert):
        return None

    def turn(rng: random.Random, unraised: str) -> None:
        match statement.test:
            case ast.UnaryOp(op=ast.Not(), operand=positive):
                statement.test = positive
            case test:
                statement.test = ast.UnaryOp(ast.Not(), test)

    return turn


def _exception(statement: ast.stmt) -> Turn | None:
    match statement:
        case ast.With() | ast.AsyncWith():
            candidates = [item.context_expr for item in statement.items]
        case ast.Expr(value=value) | ast.Assign(value=value):
            candidates = [value]
        case _:
            return None
    calls = [node for node in candidates if isinstance(node, ast.Call) and _name_called(node) in _RAISES]
    if not calls or not calls[0].args:
        return None

    def turn(rng: random.Random, unraised: str) -> None:
        calls[0].args[0] = ast.Name(unraised, ast.Load())

    return turn


def _method_call(statement: ast.stmt) -> tuple[ast.Attribute | None, list[ast.expr]]:
    """Gives the method and the arguments of a statement such as `self.assertEqual(a, b)`."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method, args=[_, *_] as arguments)):
            return method, arguments
    return None, []


def _other_method(method: ast.Attribute) -> Turn:
    def turn(rng: random.Random, unraised: str) -> None:
        method.attr = _OPPOSITE_METHODS[method.attr]

    return turn


def _name_called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def _compare(statement: ast.stmt) -> ast.Compare | None:
    """Gives the comparison that has to hold for an assertion to pass."""
    method, arguments = _method_call(statement)
    if isinstance(statement, ast.Assert):
        test = statement.test
    elif method and method.attr == "assertTrue":
        test = arguments[0]
    else:
        return None
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return next((part for part in parts if isinstance(part, ast.Compare)), None)


def _expected(statement: ast.stmt) -> ast.expr | None:
    """Gives the side of an equality that is written out."""
    method, arguments = _method_call(statement)
    compare = _compare(statement)
    sides: list[ast.expr] = []
    if method and method.attr in _EQUALITIES and len(arguments) >= 2:
        sides = [arguments[1], arguments[0]]
        if method.attr == "assertCountEqual":
            # It looks at the keys alone.
            sides = [side for side in sides if not isinstance(side, ast.Dict)]
    elif compare and isinstance(compare.ops[-1], ast.Eq):
        sides = [compare.comparators[-1], compare.left] if len(compare.ops) == 1 else compare.comparators[-1:]
    return next((side for side in sides if any(_parts(side))), None)


def _parts(node: ast.expr | None) -> Iterator[ast.expr]:
    """Gives the constants and displays whose change surely changes the value of an expression."""
    match node:
        case ast.Constant() if node.value is not Ellipsis:
            yield node
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as number):
            yield number
        case ast.List() | ast.Tuple() | ast.Set():
            yield node
            for element in node.elts:
                yield from _parts(element)
        case ast.Dict():
            yield node
            for element in [*(key for key in node.keys if key), *node.values]:
                yield from _parts(element)
        # What copies a dictionary into anything else takes the keys alone.
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name == "dict" or (
            name in _COPIES and not isinstance(argument, ast.Dict)
        ):
            yield from _parts(argument)


def _change(node: ast.expr, rng: random.Random) -> None:
    far = rng.randint(10**3, 10**6)
    match node:
        case ast.List() | ast.Tuple() | ast.Set():
            node.elts.append(ast.Constant(far))
        case ast.Dict():
            node.keys.append(ast.Constant(letters(rng, 8)))
            node.values.append(ast.Constant(far))
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=str() as value):
            node.value = value + letters(rng, 8)
        case ast.Constant(value=bytes() as value):
            node.value = value + letters(rng, 8).encode()
        case ast.Constant(value=float() as value):
            # Beside a very large number the addend would be lost.
            node.value = value + far if abs(value) < 10**9 else float(far)
        case ast.Constant(value=(int() | complex()) as value):
            node.value = value + far
        case ast.Constant():
            node.value = far
