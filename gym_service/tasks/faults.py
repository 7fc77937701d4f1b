"""Fault injection: every small change of a source that may turn it wrong.

A fault is found on the syntax tree and made in the text: only the words of one operator, constant, argument or
branch change, and every other byte stays. So the repair of a fault is as small as the fault, and comments and
formatting say nothing about where it is.

Changed are bodies of functions, because a fault in what runs at import breaks everything at once. Left alone are
`__repr__`, decorators, annotations, default arguments, docstrings, `raise` statements (tests seldom read a
message), what only type checkers see, and f-strings (before Python 3.12 the tree does not know where their parts
are). Whether a fault makes a test fail is for a run of the tests to say; many here do not.
"""

import ast
import io
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from gym_service.tasks.parsing import parse

_COMPARISONS = {
    ast.Eq: ("comparison", "!="),
    ast.NotEq: ("comparison", "=="),
    ast.Is: ("comparison", "is not"),
    ast.IsNot: ("comparison", "is"),
    ast.In: ("comparison", "not in"),
    ast.NotIn: ("comparison", "in"),
    ast.Lt: ("boundary", "<="),
    ast.LtE: ("boundary", "<"),
    ast.Gt: ("boundary", ">="),
    ast.GtE: ("boundary", ">"),
}
_OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "//",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "|",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.And: "or",
    ast.Or: "and",
}
_MAX_INT_BITS = 64


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one source that compiles and means something else."""

    operator: str
    """comparison, boundary, operator, constant, dropped branch or swapped arguments."""
    path: str
    """The file, as it was named."""
    function: str
    """The function that it is in, with the classes and functions around it: `Class.method`."""
    line: int
    """Where it begins, in the source before and after."""
    source: str = field(repr=False)
    """The source without the fault."""
    start: int
    """Where the replaced text begins in `source`."""
    end: int
    """Where the replaced text ends in `source`."""
    replacement: str
    """What stands there instead."""

    @property
    def faulty_source(self) -> str:
        """The source with the fault."""
        return self.source[: self.start] + self.replacement + self.source[self.end :]


def faults_of(path: str, source: str) -> list[Fault]:
    """Every fault of a source, from top to bottom; none if Python cannot read it."""
    # tokenize and ast count a lone carriage return differently.
    if "\r" in source.replace("\r\n", ""):
        return []
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = parse(source)
    except (SyntaxError, ValueError):
        return []
    text = _Text(source)
    faults = []
    for statement in tree.body:
        finder = _Finder(path, text)
        finder.visit(statement)
        if not finder.faults:
            continue
        # Statements at the top are whole lines, so that one of them can be judged without the others.
        decorators = getattr(statement, "decorator_list", [])
        first = min(node.lineno for node in [statement, *decorators])
        piece = slice(text.starts[first - 1], text.starts[statement.end_lineno or first])
        before = _meaning(source[piece])
        for candidates in finder.faults:
            kept = next(
                (each for each in candidates if _meaning(_piece(each, piece)) not in (None, before)), None
            )
            if kept is not None:
                faults.append(kept)
    return sorted(faults, key=lambda each: (each.start, each.end, each.operator, each.replacement))


def _piece(fault: Fault, piece: slice) -> str:
    source = fault.source
    return source[piece.start : fault.start] + fault.replacement + source[fault.end : piece.stop]


def _meaning(source: str) -> str | None:
    """The syntax tree as text, or None if the source does not compile."""
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = parse(source)
            compile(tree, "<fault>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None
    return ast.dump(tree)


class _Text:
    """A source, and where in it a node of its tree or a token stands."""

    def __init__(self, source: str) -> None:
        self.source = source
        # Not splitlines, which breaks lines where Python does not.
        self.lines = io.StringIO(source).readlines()
        self.starts = list(accumulate(map(len, self.lines), initial=0))
        # Operators and keywords; parentheses stand between an operator and what it joins.
        self._tokens = [
            (self.starts[token.start[0] - 1] + token.start[1], self.starts[token.end[0] - 1] + token.end[1])
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME) and token.string not in "()"
        ]

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr) -> str:
        return self.source[self.start(node) : self.end(node)]

    def operator_between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """Where the operator between two operands stands; comments and parentheses are no part of it."""
        first = bisect_left(self._tokens, (self.end(left), 0))
        after = bisect_left(self._tokens, (self.start(right), 0))
        return self._tokens[first][0], self._tokens[after - 1][1]

    def _offset(self, line: int, column_bytes: int) -> int:
        before = self.lines[line - 1].encode()[:column_bytes]
        return self.starts[line - 1] + len(before.decode())


class _Finder(ast.NodeVisitor):
    """Collects faults; each comes as a list of which the first that compiles is meant."""

    def __init__(self, path: str, text: _Text) -> None:
        self.faults: list[list[Fault]] = []
        self._path = path
        self._text = text
        self._names: list[str] = []
        self._functions = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__repr__":
            return
        self._functions += 1
        self._visit_named(node)
        self._functions -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_named(node)

    def _visit_named(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        checked = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        if checked == "TYPE_CHECKING":
            for statement in node.orelse:
                self.visit(statement)
            return
        if not node.orelse:
            self._drop(node)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for (left, right), operator in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            kind, replacement = _COMPARISONS[type(operator)]
            self._add(kind, *self._text.operator_between(left, right), replacement)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in pairwise(node.values):
            self._replace_operator(left, node.op, right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # With + and % these are joined or formatted; another operator would fail whatever the values are.
        if not any(_is_literal_sequence(side) for side in (node.left, node.right)):
            self._replace_operator(node.left, node.op, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not _is_literal_sequence(node.value):
            self._replace_operator(node.target, node.op, node.value, suffix="=")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        for replacement in _other_constants(node.value):
            self._add("constant", self._text.start(node), self._text.end(node), replacement)

    def visit_Call(self, node: ast.Call) -> None:
        for left, right in pairwise(node.args):
            start, end = self._text.start(left), self._text.end(right)
            between = self._text.source[self._text.end(left) : self._text.start(right)]
            swapped = self._text.of(right) + between + self._text.of(left)
            self._add("swapped arguments", start, end, swapped)
        self.generic_visit(node)

    def _replace_operator(
        self, left: ast.expr, operator: ast.operator | ast.boolop, right: ast.expr, suffix: str = ""
    ) -> None:
        if replacement := _OPERATORS.get(type(operator)):
            self._add("operator", *self._text.operator_between(left, right), replacement + suffix)

    def _drop(self, node: ast.If) -> None:
        """Takes the lines of a branch away, or has `pass` there if nothing else is in its block."""
        if not self._functions:
            return
        start, end = self._text.starts[node.lineno - 1], self._text.starts[node.end_lineno or node.lineno]
        lines = self._text.source[start:end]
        indentation = lines[: len(lines) - len(lines.lstrip())]
        line_end = lines[len(lines.rstrip("\r\n")) :]
        self.faults.append(
            [
                self._fault("dropped branch", start, end, replacement)
                for replacement in ("", f"{indentation}pass{line_end}")
            ]
        )

    def _add(self, operator: str, start: int, end: int, replacement: str) -> None:
        if self._functions:
            self.faults.append([self._fault(operator, start, end, replacement)])

    def _fault(self, operator: str, start: int, end: int, replacement: str) -> Fault:
        function = ".".join(self._names)
        line = self._text.source.count("\n", 0, start) + 1
        return Fault(operator, self._path, function, line, self._text.source, start, end, replacement)


def _is_literal_sequence(node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def _other_constants(value: object) -> Iterator[str]:
    match value:
        case bool():
            yield str(not value)
        case int() if value.bit_length() <= _MAX_INT_BITS:
            yield str(value + 1)
            yield str(value - 1)
        case str():
            yield '""' if value else '"x"'
        case bytes():
            yield 'b""' if value else 'b"x"'
