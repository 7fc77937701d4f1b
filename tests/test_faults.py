"""Fault injection: small changes of the text, each of which compiles and means something else."""

import ast

import pytest

from gym_service.tasks import hiding
from gym_service.tasks.faults import faults_of


def faulty(body: str, operator: str | None = None) -> list[str]:
    """What the faults of a function's body make of the body."""
    head = "def function(a, b, c):\n    "
    return [
        fault.faulty_source.removeprefix(head)
        for fault in faults_of("module.py", head + body)
        if operator in (None, fault.operator)
    ]


@pytest.mark.parametrize(
    ("body", "operator", "expected"),
    [
        ("return a == b", "comparison", ["return a != b"]),
        ("return a is not b", "comparison", ["return a is b"]),
        ("return a not   in b", "comparison", ["return a in b"]),
        ("return a is None", "comparison", ["return a is not None"]),
        ("return a < b", "boundary", ["return a <= b"]),
        ("return a >= b > c", "boundary", ["return a > b > c", "return a >= b >= c"]),
        ("return a + b * c", "operator", ["return a - b * c", "return a + b // c"]),
        ("return a and b and c", "operator", ["return a or b and c", "return a and b or c"]),
        ("a //= b", "operator", ["a *= b"]),
        ("return '%s' % a, [b] + c", "operator", []),
        ("return a[1]", "constant", ["return a[0]", "return a[2]"]),
        ("return a or False", "constant", ["return a or True"]),
        ('return a or ""', "constant", ['return a or "x"']),
        ("return a or b'x'", "constant", ['return a or b""']),
        ("return f(a, b, c)", "swapped arguments", ["return f(b, a, c)", "return f(a, c, b)"]),
        ("return f(*a, b)", "swapped arguments", ["return f(b, *a)"]),
    ],
)
def test_each_operator_makes_these_changes(body, operator, expected):
    assert faulty(body, operator) == expected


def test_a_dropped_branch_takes_its_lines_with_it():
    body = "if a:\n        return 1\n    elif b:\n        return 2\n    return 3\n"

    assert faulty(body, "dropped branch") == ["if a:\n        return 1\n    return 3\n"]


def test_a_branch_that_is_alone_in_its_block_leaves_a_pass():
    body = "for a in b:\n        if a:\n            break\n    return a\n"

    assert faulty(body, "dropped branch") == ["for a in b:\n        pass\n    return a\n"]


def test_comments_parentheses_and_letters_of_many_bytes_stay_where_they_are():
    body = "return ('ä',  # a < b\n        ('ö' + a)   <  # <\n        (b))"

    assert faulty(body, "boundary") == [body.replace(")   <  #", ")   <=  #")]


def test_line_ends_of_windows_stay():
    source = "def f(a):\r\n    if a < 1:\r\n        a = 2\r\n"
    sources = [fault.faulty_source for fault in faults_of("m.py", source)]

    assert "def f(a):\r\n    pass\r\n" in sources
    assert all(each.count("\n") == each.count("\r\n") for each in sources)


def test_a_page_break_ends_no_line():
    source = "def f(a):\n    return '\x0c\x1c', a < 1\n"

    assert source.replace("<", "<=") in [fault.faulty_source for fault in faults_of("m.py", source)]


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 1 + 2\n",
        "class C:\n    limit = 1\n",
        "def f(a=1, *, b: 'x' = 2) -> 'int': 'Gives a < b.'\n",
        "@cached(1, 2)\ndef f(): ...\n",
        "class C:\n    def __repr__(self):\n        return 'C' if self.a == 1 else 'D'\n",
        "def f(a):\n    if TYPE_CHECKING:\n        a = 1\n",
        "def f(a):\n    raise ValueError('too ' + a, 1)\n",
        "def f(a):\n    b: 'int'\n    return f'{a + 1}'\n",
        "def f(a):\n    return g(a, a)\n",
        "def f(a: print 1\n",
    ],
)
def test_what_is_to_stay_has_no_faults(source):
    assert faults_of("module.py", source) == []


def test_a_fault_knows_its_function_and_line():
    source = "class C:\n    def m(self):\n        def inner(a):\n            return a < self.a\n"
    (fault,) = faults_of("package/module.py", source)

    assert (fault.path, fault.function, fault.line) == ("package/module.py", "C.m.inner", 4)


def test_every_fault_of_a_real_module_compiles_and_means_something_else():
    with open(hiding.__file__, encoding="utf-8") as file:
        source = file.read()
    meaning = ast.dump(ast.parse(source))
    found = faults_of("hiding.py", source)

    assert len(found) > 50
    assert len({fault.faulty_source for fault in found}) == len(found)
    for fault in found:
        compile(fault.faulty_source, "hiding.py", "exec")
        assert ast.dump(ast.parse(fault.faulty_source)) != meaning


def test_faults_come_in_the_order_of_the_text():
    source = "def f(a):\n    return a < 1\n\n\ndef g(a):\n    return a + 2 if a == 3 else h(a, 4)\n"
    found = faults_of("m.py", source)

    assert [fault.start for fault in found] == sorted(fault.start for fault in found)
    assert found == faults_of("m.py", source)
