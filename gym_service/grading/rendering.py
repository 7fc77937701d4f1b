"""A test file as it is stored for one grading: some tests turned, the names drawn, nothing that tells which is which.

The text is generated anew from the syntax tree, so comments and layout are gone; the docstrings of the file, of its
test classes and of its tests go too. Helpers keep theirs: they may be what a test is about.

What refers to a test or to its class within the file follows the new name. A name that occurs in a string, or is bound
again anywhere, cannot be followed and stays. A test that others refer to is never turned, since they would fail with
it; where it is not listed it stays as a function that nothing collects.

Only files that came with the task are rendered, never a text that a policy wrote.
"""

import ast
import functools
import pickle
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gym_service.grading import twins
from gym_service.grading.collection import (
    Body,
    TestFile,
    aliases_of_pytest,
    is_test,
    keep,
    names_bound_by,
    names_from_pytest,
    needs_pytest,
    plain_functions,
    read_tests,
)

Role = int | None
"""Where a test is turned; None is the test as it is."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered test file."""

    source: str
    names: dict[str, str]
    """From the qualified name in the rendered file to that in the stored one."""


def count_sites(source: str, function: str) -> int:
    """Says at how many places a test can be turned. Raises KeyError for what is no test of the file."""
    return _counts(source)[function]


@functools.lru_cache(maxsize=16)
def _counts(source: str) -> dict[str, int]:
    file = read_tests(source)
    referred = set(map(_referred, ast.walk(file.tree)))
    return {name: len(_turns(file, name, referred)) for name in file.tests}


def end_after_sites(source: str, sites: Mapping[str, int]) -> str:
    """Gives a file in which each of these tests ends behind what is turned at a place."""
    file = read_tests(source)
    for name, place in sites.items():
        twins.end_after(file.tests[name], place)
    return ast.unparse(file.tree) + "\n"


@functools.lru_cache(maxsize=16)
def value_claims(source: str) -> frozenset[str]:
    """Names the tests that are turned by another value."""
    file = read_tests(source)
    return frozenset(name for name, test in file.tests.items() if twins.claims_value(test))


def render(
    source: str, roles: Mapping[str, Role], rng: random.Random, *, without_pytest: bool = False
) -> Rendered:
    """Renders the listed tests and removes the others.

    Raises KeyError for a test that is not in the file, IndexError for a place that a test does not have, and
    ValueError if it is to do without pytest and does not.
    """
    file = _fresh(source)
    unknown = roles.keys() - file.tests.keys()
    if unknown:
        raise KeyError(f"not in the file: {', '.join(sorted(unknown))}")
    if without_pytest and not roles.keys() <= plain_functions(source):
        raise ValueError("only tests that plain_functions() names can be rendered without pytest")

    nodes = list(ast.walk(file.tree))
    referred = set(map(_referred, nodes))
    listed = [name for name in file.tests if name in roles]
    for name in listed:
        place = roles[name]
        if place is not None:
            _turns(file, name, referred)[place](rng)
    new_names = _draw_names(file, nodes, listed, rng)
    _remove_unlisted(file, listed, referred, new_names)
    names = _rename(file, nodes, listed, new_names)
    _shuffle(file.tree, rng)
    for holder in file.classes.values():
        _shuffle(holder, rng)
    if without_pytest:
        _drop_pytest(file)
    return Rendered(ast.unparse(file.tree) + "\n", names)


def _fresh(source: str) -> TestFile:
    """A parsed file without docstrings that may be changed. Its pickled form is read in a third of the time."""
    file: TestFile = pickle.loads(_parsed(source))
    return file


@functools.lru_cache(maxsize=256)
def _parsed(source: str) -> bytes:
    file = read_tests(source)
    for node in (file.tree, *file.classes.values(), *file.tests.values()):
        _drop_docstring(node)
    return pickle.dumps(file)


def _turns(file: TestFile, name: str, referred: set[str]) -> list[twins.Turn]:
    test = file.tests[name]
    return [] if test.name in referred else twins.turns(test)


def _referred(node: ast.AST) -> str:
    """Gives the name by which a node may refer to a test: `test_x`, `self.test_x` or `super().test_x`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            return name
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
            return name
    return ""


def _draw_names(
    file: TestFile, nodes: list[ast.AST], listed: list[str], rng: random.Random
) -> dict[str, str]:
    """Draws a new name for every old one that can be followed.

    Tests of one name in several classes get one new name: a class may override what another has.
    """
    uses = Counter(name for node in nodes for name in names_bound_by(node))
    uses.subtract([*(test.name for test in file.tests.values()), *file.classes])
    fixed = {name for name, count in uses.items() if count > 0} | set(_words(nodes))
    kept = {file.tests[name].name for name in listed}
    drawn: dict[str, str] = {}
    for test in file.tests.values():
        if test.name not in drawn and test.name not in fixed:
            prefix = "test_" if test.name in kept else "the_"
            drawn[test.name] = prefix + twins.letters(rng, 10)
    for name in file.classes:
        if name not in fixed:
            drawn[name] = "Test" + twins.letters(rng, 10).capitalize()
    return drawn


def _words(nodes: list[ast.AST]) -> Iterator[str]:
    """Gives the words that occur in strings and in attributes with a mangled name."""
    for node in nodes:
        match node:
            case ast.Constant(value=str() as text):
                yield from re.findall(r"\w+", text)
            case ast.Attribute(attr=name) if re.fullmatch(r"_\w+?__\w+", name):
                yield name[1:].split("__")[0]


def _remove_unlisted(
    file: TestFile, listed: list[str], referred: set[str], new_names: dict[str, str]
) -> None:
    kept = {file.tests[name].name for name in listed}
    removed = {
        id(test)
        for name, test in file.tests.items()
        if name not in listed
        and (test.name in kept or test.name not in referred or test.name not in new_names)
    }
    for class_name, node in file.classes.items():
        inherited = {
            file.tests[name].name for name in listed if name.rpartition(".")[0] in file.ancestors[class_name]
        }
        own = [test for test in node.body if is_test(test) and id(test) in removed]
        keep(node, {id(member) for member in node.body} - removed)
        for test in own:
            if test.name in inherited:
                # Without this the class would have the test that it inherits.
                name = ast.Name(new_names.get(test.name, test.name), ast.Store())
                node.body.append(ast.Assign([name], ast.Constant(None), lineno=0))
    keep(file.tree, {id(node) for node in file.tree.body} - removed)


def _rename(
    file: TestFile, nodes: list[ast.AST], listed: list[str], new_names: dict[str, str]
) -> dict[str, str]:
    names = {}
    for name in listed:
        class_name, _, _ = name.rpartition(".")
        bare = file.tests[name].name
        new_class = new_names.get(class_name, class_name)
        names[f"{new_class}.".lstrip(".") + new_names.get(bare, bare)] = name
    for definition in [*file.tests.values(), *file.classes.values()]:
        definition.name = new_names.get(definition.name, definition.name)
    for node in nodes:
        name = _referred(node)
        match node:
            case ast.Name() if name in new_names:
                node.id = new_names[name]
            case ast.Attribute() if name in new_names:
                node.attr = new_names[name]
    return names


def _shuffle(body: Body, rng: random.Random) -> None:
    """Swaps tests whose definition evaluates nothing, so that it may stand anywhere."""
    places = [place for place, node in enumerate(body.body) if is_test(node) and not _evaluates(node)]
    moved = [body.body[place] for place in places]
    rng.shuffle(moved)
    for place, node in zip(places, moved, strict=True):
        body.body[place] = node


def _evaluates(function: twins.Function) -> bool:
    arguments = function.args
    annotated = any(isinstance(node, ast.arg) and node.annotation for node in ast.walk(arguments))
    return bool(
        function.decorator_list
        or arguments.defaults
        or arguments.kw_defaults
        or function.returns
        or annotated
    )


def _drop_docstring(body: Body | twins.Function) -> None:
    match body.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()))]:
            del body.body[0]
    if not body.body and not isinstance(body, ast.Module):
        body.body = [ast.Pass()]


def _drop_pytest(file: TestFile) -> None:
    pytest_names = names_from_pytest(file)
    kept = set()
    for node in file.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            pytests = aliases_of_pytest(node)
            node.names = [alias for alias in node.names if alias not in pytests]
            if node.names:
                kept.add(id(node))
        elif not needs_pytest(file, node, pytest_names):
            kept.add(id(node))
    keep(file.tree, kept)
