"""What a test file holds: its tests as pytest and unittest would collect them, and which of them need no pytest.

A test that a class inherits from another one in the same file is a test of both, so it is written out in each: then
each can be kept, turned or removed for itself. Tests below an `if` or a `try`, and those in nested classes, are left
alone; so are those that a class inherits from another file.
"""

import ast
import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from gym_service.grading.twins import Function
from gym_service.tasks.parsing import parse

Body = ast.Module | ast.ClassDef

_HOOKS = {
    "pytestmark", "setUpModule", "tearDownModule", "setup_module", "teardown_module", "setup_function",
    "teardown_function", "setup_class", "teardown_class", "setup_method", "teardown_method", "setup", "teardown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TestFile:
    """A test file, and where its tests are; every test is a function of its own."""

    tree: ast.Module
    classes: dict[str, ast.ClassDef]
    """Every class at the top that holds tests or inherits them from this file."""
    ancestors: dict[str, list[str]]
    """For every class at the top those in the same file that it inherits from, the nearest first."""
    tests: dict[str, Function]
    """By qualified name, in the order of the file."""


def read_tests(source: str) -> TestFile:
    """Parses a test file. Raises SyntaxError."""
    tree = parse(source)
    tree.body = [node for node in tree.body if not _is_main_guard(node)]
    _drop_shadowed(tree)
    at_top: dict[str, ast.ClassDef] = {}
    ancestors: dict[str, list[str]] = {}
    unittests: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            _drop_shadowed(node)
            bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in at_top]
            _write_out(node, [at_top[base] for base in bases])
            if any(_last_name(base).endswith("TestCase") for base in node.bases) or unittests & {*bases}:
                unittests.add(node.name)
            at_top[node.name] = node
            ancestors[node.name] = [one for base in bases for one in (base, *ancestors[base])]
    collected = {name for name, node in at_top.items() if name in unittests or _is_collected(node)}
    for name in collected:
        for mixin in set(ancestors[name]) - collected:
            keep(at_top[mixin], {id(one) for one in at_top[mixin].body} - {*map(id, _tests(at_top[mixin]))})
    classes = {name: node for name, node in at_top.items() if name in collected and any(_tests(node))}
    tests: dict[str, Function] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and classes.get(node.name) is node:
            tests |= {f"{node.name}.{test.name}": test for test in _tests(node)}
        elif is_test(node):
            tests[node.name] = node
    return TestFile(tree, classes, ancestors, tests)


def test_functions(source: str) -> tuple[str, ...]:
    """Names the tests of a file in order, as `test_x` or `Class.test_x`."""
    return tuple(read_tests(source).tests)


@functools.lru_cache(maxsize=16)
def plain_functions(source: str) -> frozenset[str]:
    """Names the tests that can be called, or run by unittest, without pytest in the process.

    What other files bring in (an autouse fixture of a conftest, a helper that imports pytest itself) is not seen.
    """
    file = read_tests(source)
    pytest_names = names_from_pytest(file)
    if any(map(_is_automatic, file.tree.body)) or _HOOKS & _defined_names(file.tree.body):
        return frozenset()
    plain_classes = {
        name
        for name, node in file.classes.items()
        if not node.decorator_list and name not in pytest_names and not _HOOKS & _defined_names(node.body)
    }
    plain = set()
    for name, test in file.tests.items():
        class_name, _, _ = name.rpartition(".")
        if (
            isinstance(test, ast.FunctionDef)
            and (not class_name or class_name in plain_classes)
            and not test.decorator_list
            and ast.unparse(test.args) == ("self" if class_name else "")
            and not _needs(test, pytest_names)
            and not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(test))
        ):
            plain.add(name)
    return frozenset(plain)


def names_from_pytest(file: TestFile) -> set[str]:
    """Gives the names at the top of a file that are pytest's, or defined by means of such a name."""
    names: set[str] = set()
    before = -1
    while before < len(names):
        before = len(names)
        for node in file.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name.split(".")[0] for alias in aliases_of_pytest(node)}
            elif needs_pytest(file, node, names):
                names |= _defined_names([node])
    return names


def needs_pytest(file: TestFile, node: ast.stmt, pytest_names: set[str]) -> bool:
    """Says whether a statement at the top uses pytest; for a class of tests, apart from these."""
    if isinstance(node, ast.ClassDef) and file.classes.get(node.name) is node:
        return any(
            _needs(part, pytest_names)
            for part in (*node.bases, *node.keywords, *node.decorator_list, *node.body)
            if not is_test(part)
        )
    return _needs(node, pytest_names)


def aliases_of_pytest(node: ast.AST) -> list[ast.alias]:
    """Gives what an import statement takes from pytest."""
    match node:
        case ast.Import(names=aliases):
            return [alias for alias in aliases if _is_pytest(alias.name)]
        case ast.ImportFrom(module=str() as module, names=aliases, level=0) if _is_pytest(module):
            return aliases
    return []


def keep(body: Body, kept: set[int]) -> None:
    """Removes from a module or class what is not kept; the statements are given by identity."""
    body.body = [node for node in body.body if id(node) in kept]
    if not body.body and isinstance(body, ast.ClassDef):
        body.body = [ast.Pass()]


def is_test(node: ast.AST) -> TypeGuard[Function]:
    """Says whether a node is a function that would be collected as a test, where it stands right."""
    return isinstance(node, Function) and node.name.startswith("test") and not _is_fixture(node)


def names_bound_by(node: ast.AST) -> list[str]:
    """Gives the names that a node binds, without those below it; an argument is bound too."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.alias(name=name, asname=asname):
            return [asname or name.split(".")[0]]
        case ast.ExceptHandler(name=str() as name):
            return [name]
    return []


def _last_name(node: ast.expr) -> str:
    """Gives the `c` of `a.b.c`."""
    return ast.unparse(node).rpartition(".")[2]


def _tests(body: Body) -> list[Function]:
    return [node for node in body.body if is_test(node)]


def _is_fixture(node: ast.AST) -> TypeGuard[Function]:
    return isinstance(node, Function) and any(
        _last_name(one.func if isinstance(one, ast.Call) else one) == "fixture" for one in node.decorator_list
    )


def _is_automatic(node: ast.AST) -> bool:
    return _is_fixture(node) and any("autouse" in ast.unparse(one) for one in node.decorator_list)


def _is_pytest(module: str) -> bool:
    """Says whether a module is a part of pytest, or a plugin by its name."""
    return module.split(".")[0].lstrip("_").split("_")[0] == "pytest"


def _defined_names(statements: list[ast.stmt]) -> set[str]:
    """Gives the names that statements bind in their own scope."""
    names = set()
    for node in statements:
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        else:
            names |= {name for part in ast.walk(node) for name in names_bound_by(part)}
    return names


def _is_collected(node: ast.ClassDef) -> bool:
    return node.name.startswith("Test") and "__init__" not in {getattr(one, "name", "") for one in node.body}


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" and not node.orelse


def _drop_shadowed(body: Body) -> None:
    """Drops a test that another one of the same name follows: nothing collects it."""
    last = {test.name: test for test in _tests(body)}
    shadowed = {id(test) for test in _tests(body) if last[test.name] is not test}
    keep(body, {id(node) for node in body.body} - shadowed)


def _write_out(node: ast.ClassDef, bases: list[ast.ClassDef]) -> None:
    own = _defined_names(node.body)
    for base in bases:
        for test in _tests(base):
            if test.name not in own:
                own.add(test.name)
                node.body.append(copy.deepcopy(test))


def _needs(node: ast.AST, pytest_names: set[str]) -> bool:
    return any(
        (isinstance(part, ast.Name) and part.id in pytest_names) or aliases_of_pytest(part)
        for part in ast.walk(node)
    )


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walks over a function without the functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda):
            yield child
            yield from _own_nodes(child)
