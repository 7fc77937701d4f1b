"""Taking tests out of a test module, by their lines: every other byte stays as it is.

With a test go its decorators, the comments directly above it and those at its end. What other modules import
from this one is not looked at.
"""

import ast
import io
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence

from gym_service.tasks.parsing import parse

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def remove_tests(source: str, functions: Collection[str]) -> str:
    """The module without the tests named `test_x` or `Class.test_x`.

    Raises:
        ValueError: It holds no such test, or what is left uses one of them.
    """
    lines = io.StringIO(source).readlines()
    comments = _comments(source)
    removed: set[str] = set()
    changes: list[tuple[int, int, str]] = []
    for prefix, block in _blocks(parse(source).body, ""):
        gone = [node for node in block if isinstance(node, _Function) and prefix + node.name in functions]
        removed |= {prefix + node.name for node in gone}
        for node in gone:
            kept = ""
            if len(gone) == len(block) and node is block[0]:
                line = lines[node.lineno - 1]
                kept = line[: node.col_offset] + "pass" + line[len(line.rstrip("\r\n")) :]
            changes.append((*_span(lines, comments, node), kept))
    if missing := sorted(set(functions) - removed):
        raise ValueError(f"the module holds no test {', '.join(missing)}")

    for first, last, kept in sorted(changes, reverse=True):
        lines[first:last] = [kept]
    rest = "".join(lines)
    names = {name.rpartition(".")[2] for name in removed}
    if used := sorted(names & _used_names(parse(rest))):
        raise ValueError(f"what is left of the module uses {', '.join(used)}")
    return rest


def written_tests(source: str) -> frozenset[str]:
    """The functions that can be taken out: those that stand in the module, not what a class inherits."""
    return frozenset(
        prefix + node.name
        for prefix, block in _blocks(parse(source).body, "")
        for node in block
        if isinstance(node, _Function)
    )


def _comments(source: str) -> dict[int, int]:
    """The lines, counted from 0, that hold nothing but a comment, each with the column where it begins."""
    return {
        token.start[0] - 1: token.start[1]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    }


def _blocks(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """Every block of statements outside of functions, with the classes around it."""
    yield prefix, body
    for node in body:
        if isinstance(node, _Function):
            continue
        inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
        for holder in [node, *getattr(node, "handlers", [])]:
            for part in ("body", "orelse", "finalbody"):
                if statements := getattr(holder, part, []):
                    yield from _blocks(statements, inner)


def _span(lines: Sequence[str], comments: Mapping[int, int], node: _Function) -> tuple[int, int]:
    """The lines of a test: the number of the first, from 0, and of the one behind the last."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    last = ahead = node.end_lineno or node.lineno
    while comments.get(first - 1) == node.col_offset:
        first -= 1
    while ahead < len(lines) and (not lines[ahead].strip() or comments.get(ahead, -1) > node.col_offset):
        ahead += 1
        if lines[ahead - 1].strip():
            last = ahead
    return first, last


def _used_names(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
