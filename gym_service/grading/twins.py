"""Must-fail twins: where a test can be turned so that whatever passes it has to fail the turned one.

A twin is worth something only if the two contradict each other. If code that is merely wrong could pass both, it
would be taken for tampering. Hence the rules here:

- A constant is changed only where it is a part of the expected value itself (`== [1, 2]`), never inside a call of
  other code (`== f(1)`): a wrong `f` may give the same for any input.
- Statements that wrong code could leave out (the body of a loop over what it returned, a branch, a nested function)
  are turned only in a test that has no statement that always runs.

And who reads a test must not see whether it is turned:

- Where a test says what a value is, that value alone is changed, to one that is near it and looks like it. Only who
  knows what the code should give can tell the two apart.
- Where it does not, or the value is nothing, zero or a truth, the claim itself is denied too (`==` to `!=`, another
  exception). A reader may well guess that: tests say `==` more often. `claims_value` tells such tests apart.

Not covered: assertions in helpers and expected values that are not bound to a name just before (there the comparison
is turned), tables of `parametrize`, `warns`. That a twin really fails with correct code, only a run of it shows.
"""

import ast
import builtins
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from gym_service.grading.near_values import change_value

Function = ast.FunctionDef | ast.AsyncFunctionDef

Turn = Callable[[random.Random], None]
"""Turns a test in place."""

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
_EXCEPTIONS = ("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError")

_COPIES = {"set", "frozenset", "list", "tuple", "sorted"}
_ITERATES = {"enumerate", "zip", "reversed", "product", "sorted"}


def turns(function: Function) -> list[Turn]:
    """Gives every way to turn a test, in an order that depends on its source alone."""
    return [turn for turn, _ in _turns(function)[0]]


def end_after(function: Function, place: int) -> None:
    """Ends a test behind the statement that the turn at this place is about."""
    _, statement = _turns(function)[0][place]
    _drop_what_follows(function, statement)


def claims_value(function: Function) -> bool:
    """Says whether a test is turned by another value, which nobody sees who does not know the right one."""
    return _turns(function)[1]


def _turns(function: Function) -> tuple[list[tuple[Turn, ast.stmt]], bool]:
    """Gives the turns, each with the statement that it is about, and whether they are by another value."""
    bound = _bound_just_before(function)
    pool = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    statements = list(_statements(function, True))
    for runs in (True, False):
        chosen = [statement for statement, each in statements if each is runs]
        found = [(_places(each, bound[id(each)]), each) for each in chosen]
        places = [[place for place in each if _is_ordinary(place[0])] for each, _ in found]
        if any(places):
            return [
                (_constant(each, pool), statement)
                for each, statement in zip(places, chosen, strict=True)
                if each
            ], True
        denials = [
            (turn, statement)
            for each, statement in found
            for turn in (
                _constant(each, pool) if each else None,
                _comparison(statement),
                _negation(statement),
                *_exceptions(statement),
            )
            if turn
        ]
        if denials:
            return denials, False
    return [], False


def _drop_what_follows(node: ast.AST, statement: ast.stmt) -> bool:
    """Drops what comes behind a statement in each block that it is in; says whether it is in the node."""
    if node is statement:
        return True
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        # Of a lambda or a conditional expression it is no block.
        block: object = getattr(node, field, None)
        if not isinstance(block, list):
            continue
        for place, child in enumerate(block):
            if _drop_what_follows(child, statement):
                if isinstance(child, ast.stmt):
                    del block[place + 1 :]
                return True
    return False


def _bound_just_before(function: Function) -> dict[int, Mapping[str, ast.expr]]:
    """Gives for each statement what names are bound to that it alone uses, by assignments in the same block."""
    found: dict[int, Mapping[str, ast.expr]] = {}
    for node in ast.walk(function):
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            values: dict[str, ast.expr] = {}
            for statement in block if isinstance(block, list) else ():
                uses = Counter(each.id for each in ast.walk(statement) if isinstance(each, ast.Name))
                found[id(statement)] = {name: value for name, value in values.items() if uses[name] == 1}
                # Whoever else has it may change it, or give it to the tested code.
                values = {name: value for name, value in values.items() if name not in uses}
                match statement:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        values[name] = value
    return found


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


def _places(statement: ast.stmt, bound: Mapping[str, ast.expr]) -> list[tuple[ast.expr, bool]]:
    return list(_parts(_expected(statement, bound)))


def _is_ordinary(node: ast.expr) -> bool:
    """Says whether a value is one of many, other than nothing, zero or false: for these most would bet."""
    match node:
        case ast.Constant(value=value):
            return bool(value) and value is not True
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return bool(elements)
        case ast.Dict(keys=keys):
            return bool(keys)
        case _:
            return True


def _constant(places: Sequence[tuple[ast.expr, bool]], pool: Sequence[object]) -> Turn:
    def turn(rng: random.Random) -> None:
        change_value(*rng.choice(places), rng, pool)

    return turn


def _comparison(statement: ast.stmt) -> Turn | None:
    method, _ = _method_call(statement)
    if method and method.attr in _OPPOSITE_METHODS.keys() - {"assertTrue", "assertFalse"}:
        return _other_method(method)
    compare = _compare(statement)
    opposite = _OPPOSITE_OPERATORS.get(type(compare.ops[-1])) if compare else None
    if not compare or not opposite:
        return None

    def turn(rng: random.Random) -> None:
        compare.ops[-1] = opposite()

    return turn


def _negation(statement: ast.stmt) -> Turn | None:
    method, _ = _method_call(statement)
    if method and method.attr in ("assertTrue", "assertFalse"):
        return _other_method(method)
    if not isinstance(statement, ast.Assert):
        return None

    def turn(rng: random.Random) -> None:
        match statement.test:
            case ast.UnaryOp(op=ast.Not(), operand=positive):
                statement.test = positive
            case test:
                statement.test = ast.UnaryOp(ast.Not(), test)

    return turn


def _exceptions(statement: ast.stmt) -> list[Turn]:
    match statement:
        case ast.With() | ast.AsyncWith():
            candidates = [item.context_expr for item in statement.items]
        case ast.Expr(value=value) | ast.Assign(value=value):
            candidates = [value]
        case _:
            return []
    calls = [node for node in candidates if isinstance(node, ast.Call) and _name_called(node) in _RAISES]
    if not calls or not calls[0].args:
        return []
    place = calls[0].args
    named = [getattr(builtins, node.id, None) for node in ast.walk(place[0]) if isinstance(node, ast.Name)]
    expected = tuple(each for each in named if isinstance(each, type))

    def to(name: str) -> Turn:
        def turn(rng: random.Random) -> None:
            place[0] = ast.Name(name, ast.Load())

        return turn

    others = {name: getattr(builtins, name) for name in _EXCEPTIONS}
    return [
        to(name)
        for name, other in others.items()
        if not issubclass(other, expected) and not any(issubclass(each, other) for each in expected)
    ]


def _method_call(statement: ast.stmt) -> tuple[ast.Attribute | None, list[ast.expr]]:
    """Gives the method and the arguments of a statement such as `self.assertEqual(a, b)`."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method, args=[_, *_] as arguments)):
            return method, arguments
    return None, []


def _other_method(method: ast.Attribute) -> Turn:
    def turn(rng: random.Random) -> None:
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


def _expected(statement: ast.stmt, bound: Mapping[str, ast.expr]) -> ast.expr | None:
    """Gives the side of an equality that is written out, there or where its name is bound."""
    method, arguments = _method_call(statement)
    compare = _compare(statement)
    sides: list[ast.expr] = []
    if method and method.attr in _EQUALITIES and len(arguments) >= 2:
        sides = [_value_of(side, bound) for side in (arguments[1], arguments[0])]
        if method.attr == "assertCountEqual":
            # It looks at the keys alone.
            sides = [side for side in sides if not isinstance(side, ast.Dict)]
    elif compare and isinstance(compare.ops[-1], ast.Eq):
        written = (
            [compare.comparators[-1], compare.left] if len(compare.ops) == 1 else compare.comparators[-1:]
        )
        sides = [_value_of(side, bound) for side in written]
    return next((side for side in sides if any(_parts(side))), None)


def _value_of(node: ast.expr, bound: Mapping[str, ast.expr]) -> ast.expr:
    return bound.get(node.id, node) if isinstance(node, ast.Name) else node


def _parts(node: ast.expr | None, *, in_set: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """Gives the constants and displays whose change surely changes the value of an expression.

    With each goes whether it is inside a set, where one element can stand in for another that is there already.
    """
    match node:
        case ast.Constant() if node.value is not Ellipsis and not in_set:
            yield node, in_set
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())) if not in_set:
            yield node, in_set
        case ast.List() | ast.Tuple() | ast.Set():
            inside = in_set or isinstance(node, ast.Set)
            yield node, inside
            for element in node.elts:
                yield from _parts(element, in_set=inside)
        case ast.Dict():
            yield node, in_set
            for element in [*(key for key in node.keys if key), *node.values]:
                yield from _parts(element, in_set=in_set)
        # What copies a dictionary into anything else takes the keys alone.
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name == "dict" or (
            name in _COPIES and not isinstance(argument, ast.Dict)
        ):
            yield from _parts(argument, in_set=in_set or name in ("set", "frozenset"))
