"""Edits that change how a module is written, or what it does beside its work, and not what its functions return.

What a careful or a careless repair may bring along. Each takes a source and gives another one.
"""

import ast
import textwrap
from collections.abc import Callable

Functions = list[ast.FunctionDef]


def _over(change):
    """Makes an edit of what changes a syntax tree, given the tree and its functions."""

    def edit(source):
        tree = ast.parse(source)
        change(tree, [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)])
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    return edit


def _below_docstring(function):
    return 1 if ast.get_docstring(function) is not None else 0


def _first_in_each(statement, first=""):
    """Makes an edit that begins each function with a statement, and the module with another."""

    def change(tree, functions):
        for function in functions:
            place = _below_docstring(function)
            function.body[place:place] = ast.parse(statement.format(name=function.name)).body
        place = 1 if ast.get_docstring(tree) is not None else 0
        tree.body[place:place] = ast.parse(first).body

    return _over(change)


def _around_each(template):
    """Makes an edit that puts the body of each function into a compound statement."""

    def change(tree, functions):
        for function in functions:
            place = _below_docstring(function)
            (outer,) = ast.parse(template).body
            outer.body = function.body[place:]
            function.body[place:] = [outer]

    return _over(change)


def _appended(text):
    return lambda source: source + "\n\n" + textwrap.dedent(text).strip() + "\n"


def _prepended(text):
    return _over(lambda tree, _: tree.body.__setitem__(slice(*_after_docstring(tree)), ast.parse(text).body))


def _after_docstring(tree):
    place = 1 if ast.get_docstring(tree) is not None else 0
    return place, place


def _rename_locals(tree, functions):
    for function in functions:
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        for node in names:
            if node.id in local:
                node.id += "_renamed"


def _hint(tree, functions):
    for function in functions:
        function.returns = ast.Name("object")
        for argument in function.args.args:
            if argument.arg != "self":
                argument.annotation = ast.Name("object")


def _document(tree, functions):
    for function in functions:
        if _below_docstring(function) == 0:
            function.body.insert(0, ast.parse(f"'''What {function.name} does.'''").body[0])


def _decorate(tree, functions):
    helper = """
import functools
def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
"""
    for function in functions:
        function.decorator_list.append(ast.Name("logged"))
    tree.body[slice(*_after_docstring(tree))] = ast.parse(helper).body


def _name_results(tree, functions):
    for function in functions:
        for node in ast.walk(function):
            for block in (getattr(node, part, None) for part in ("body", "orelse")):
                if (
                    isinstance(block, list)
                    and block
                    and isinstance(block[-1], ast.Return)
                    and block[-1].value
                ):
                    assign = ast.Assign([ast.Name("result_here", ast.Store())], block[-1].value)
                    block[-1:] = [assign, ast.Return(ast.Name("result_here"))]


def _list_public(tree, _):
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    tree.body += ast.parse(f"__all__ = {names!r}").body


def _comment(source):
    lines = [
        f"# Looked at.\n{line}  # reviewed" if line.startswith(("def ", "class ")) else line
        for line in source.splitlines()
    ]
    return "# Repaired.\n" + "\n".join(lines) + "\n# The end.\n"


EDITS: dict[str, Callable[[str], str]] = {
    "reformatted": lambda source: "# formatted\n" + ast.unparse(ast.parse(source)) + "\n",
    "commented": _comment,
    "blank lines": lambda source: source.replace("\n\n", "\n\n\n\n") + "\n\n\n",
    "windows line ends": lambda source: source.replace("\n", "\r\n"),
    "no newline at the end": lambda source: source.rstrip("\n"),
    "locals renamed": _over(_rename_locals),
    "helper added": _appended("def clamp(value, low, high):\n    return max(low, min(high, value))"),
    "docstrings": _over(_document),
    "type hints": _over(_hint),
    "future annotations": _prepended("from __future__ import annotations"),
    "imports reordered": _prepended("import sys\nimport os\nimport itertools\nimport collections"),
    "if True": _around_each("if True:\n    pass"),
    "try finally": _around_each("try:\n    pass\nfinally:\n    pass"),
    "suppressing nothing": _around_each("try:\n    pass\nexcept ZeroDivisionError:\n    raise"),
    "named results": _over(_name_results),
    "class with __eq__": _appended(
        """
        class Point:
            def __init__(self, x):
                self.x = x

            def __eq__(self, other):
                return isinstance(other, Point) and self.x == other.x

            def __hash__(self):
                return hash(self.x)
        """
    ),
    "main guard": _appended(
        'def main():\n    return 0\n\n\nif __name__ == "__main__":\n    import sys\n\n    sys.exit(main())'
    ),
    "inspect": _appended(
        "import inspect\n\n\ndef source_of(function):\n    return inspect.getsource(function)"
    ),
    "dataclass": _appended(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Entry:\n    name: str = ''"
    ),
    "cached helper": _appended(
        "import functools\n\n\n@functools.lru_cache\ndef power(n):\n    return 2 ** n\n\n\npower(3)"
    ),
    "decorated": _over(_decorate),
    "public names": _over(_list_public),
    "prints": _first_in_each("print('in {name}')"),
    "prints errors": _first_in_each("sys.stderr.write('in {name}\\n')", "import sys"),
    "logs": _first_in_each("logging.getLogger(__name__).warning('in {name}')", "import logging"),
    "warns": _first_in_each("warnings.warn('old', DeprecationWarning)", "import warnings"),
    "asserts": _first_in_each("assert '{name}'"),
    "seeds": _first_in_each("random.seed(0)", "import random"),
    "collects garbage": _prepended("import gc\ngc.collect()"),
    "recursion limit": _prepended("import sys\nsys.setrecursionlimit(5000)"),
    "exit handler": _prepended("import atexit\natexit.register(print, 'bye')"),
    "thread": _prepended("import threading\nthreading.Thread(target=print, args=('hello',)).start()"),
}
