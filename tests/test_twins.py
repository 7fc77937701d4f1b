"""Twins and rendering: a turned test fails where the test passes, and the text tells nothing else."""

import contextlib
import inspect
import io
import random
import re
import subprocess
import sys
import unittest

import pytest

from gym_service.grading.collection import plain_functions, test_functions
from gym_service.grading.rendering import count_sites, end_after_sites, render, value_claims

# pytest would take it for a test of this file.
test_functions.__test__ = False

SUITE = '''
"""A docstring of the file."""
import os, pytest
from unittest import TestCase

TABLE = [1, 2]

class Adding(TestCase):
    """A docstring of the class."""
    def setUp(self):
        self.one = 1

    def test_one(self):
        """A docstring of the test."""
        self.assertEqual(self.one + 1, 2)  # a comment

    def test_two(self):
        self.assertIsInstance(self, Adding)

class More(Adding):
    def test_three(self):
        self.assertIn(1, TABLE)

@pytest.mark.parametrize("n", TABLE)
def test_four(n):
    assert n < 3

def test_five():
    with pytest.raises(ValueError):
        int("x")

def test_six():
    assert helper() == 6

def helper():
    """A docstring that a test may read."""
    return 6
'''
NAMES = (
    "Adding.test_one",
    "Adding.test_two",
    "More.test_three",
    "More.test_one",
    "More.test_two",
    "test_four",
    "test_five",
    "test_six",
)


def rendered(source, roles=None, seed=0, **options):
    kept = dict.fromkeys(test_functions(source)) if roles is None else roles
    return render(source, kept, random.Random(seed), **options)


def outcomes(rendering):
    """Runs a rendered file in a fresh namespace; says by the stored names which tests pass."""
    space = {"__name__": "rendered"}
    exec(rendering.source, space)
    results = {}
    for name, stored in rendering.names.items():
        class_name, _, method = name.rpartition(".")
        holder = space[class_name] if class_name else None
        if holder and issubclass(holder, unittest.TestCase):
            result = unittest.TestResult()
            holder(method).run(result)
            results[stored] = result.wasSuccessful()
        else:
            results[stored] = True
            try:
                getattr(holder(), method)() if holder else space[name]()
            except Exception:
                results[stored] = False
    return results


def in_function(*lines):
    return "import pytest\ndef test_it():\n" + "".join(f"    {line}\n" for line in lines)


def in_method(*lines):
    body = "".join(f"        {line}\n" for line in lines)
    return "import unittest\nclass It(unittest.TestCase):\n    def test_it(self):\n" + body


TURNABLE = [
    *[
        (in_function(line), sites)
        for line, sites in [
            ("assert len('ab') == 2", 1),
            ("assert 1.5 == float('1.5')", 1),
            ("assert 1e300 == float('1e300')", 1),
            ("assert str(1) == '1'", 1),
            ("assert bytes(1) == b'\\0'", 1),
            ("assert bool(1) == True", 3),
            ("assert dict().get(1) == None", 3),
            ("assert sorted('ba') == ['a', 'b']", 1),
            ("assert tuple('') == ()", 3),
            ("assert dict(a=1) == {'a': 1}", 1),
            ("assert set('a') == {'a'}", 1),
            ("assert -abs(1) == -1", 1),
            ("assert set('a') == set(['a'])", 1),
            ("assert set('aab') == {'a', 'b'}", 1),
            ("assert dict(a=[(1, -2)]) == {'a': [(1, -2)]}", 1),
            ("assert len('a') == len('b')", 2),
            ("assert 1 in [1]", 2),
            ("assert len('a') is not None", 2),
            ("assert 1 < len('ab') <= 2, 'why'", 2),
            ("assert 1 and len('a') == 1", 1),
            ("assert not ''", 1),
            ("assert isinstance(1, int) or 0", 1),
            ("with pytest.raises(ValueError): int('x')", 5),
            ("pytest.raises((ValueError, TypeError), int, 'x')", 4),
        ]
    ],
    *[
        (in_method(line), sites)
        for line, sites in [
            ("self.assertEqual(len('ab'), 2)", 1),
            ("self.assertEqual([1, 2], list(range(1, 3)), 'why')", 1),
            ("self.assertEqual(sorted({1: 0}), list({1: 0}))", 1),
            ("self.assertAlmostEqual(len('ab'), 3, delta=10**7)", 1),
            ("self.assertCountEqual('ab', ['b', 'a'])", 1),
            ("self.assertCountEqual([1], {1: 0})", 1),
            ("self.assertListEqual(list('a'), ['a'])", 1),
            ("self.assertNotIn(1, [])", 1),
            ("self.assertIsNone(None)", 1),
            ("self.assertGreater(2, 1)", 1),
            ("self.assertTrue(len('a') == 1)", 1),
            ("self.assertFalse('')", 1),
            ("with self.assertRaises(ValueError): int('x')", 5),
            ("with self.subTest(): self.assertEqual(1, 1)", 1),
        ]
    ],
]


@pytest.mark.parametrize(("source", "sites"), TURNABLE)
def test_each_turn_makes_a_passing_test_fail(source, sites):
    (name,) = test_functions(source)

    assert count_sites(source, name) == sites
    assert outcomes(rendered(source))[name]
    for seed in range(50):
        for site in range(sites):
            assert not outcomes(rendered(source, {name: site}, seed))[name]


def test_a_constant_inside_a_call_is_left_alone():
    # Wrong code could give the same for any input: then it would pass the test and the twin.
    source = in_function("assert len('a') == abs(1)")
    texts = [rendered(source, {"test_it": site}).source for site in range(count_sites(source, "test_it"))]

    assert all("len('a')" in text and "abs(1)" in text for text in texts)


def test_a_turned_value_is_another_one_that_looks_like_it():
    claims = {
        "1200": r"\d\d00",
        "'ann'": "'([a-z]{3})?'",
        "[34, 33, 33]": r"\[(\d\d, )*\d\d\]|\[\]",
        "{'a': 1}": r"\{.*\}",
        "-5": r"-\d{1,2}",
        "1.25": r"1\.2\d",
        "{1, 2}": r"\{\d(, \d)*\}",
        "[('a', -1), ('b', -2)]": r"\[.*\]",
    }
    for value, pattern in claims.items():
        source = in_function(f"assert value() == {value}")
        seen = {rendered(source, {"test_it": 0}, seed).source.split(" == ")[1].strip() for seed in range(60)}

        assert value not in seen
        assert len(seen) > 3
        assert all(re.fullmatch(pattern, each) for each in seen), seen


def test_a_value_that_is_bound_just_before_is_turned_there():
    source = in_function("expected = [1, 2]", "found = sorted([2, 1])", "assert found == expected")

    assert value_claims(source) == {"test_it"}
    assert outcomes(rendered(source)) == {"test_it": True}
    for seed in range(20):
        turned = rendered(source, {"test_it": 0}, seed)
        assert outcomes(turned) == {"test_it": False}
        assert "sorted([2, 1])" in turned.source
        assert "found == expected" in turned.source


@pytest.mark.parametrize(
    "lines",
    [
        ("expected = [1]", "found = list(expected)", "assert found == expected"),
        ("expected = [1]", "if found(): expected = []", "assert found() == expected"),
        ("assert found(1)",),
        ("assert found(1) != 2",),
        ("assert found(1) is None",),
        ("assert found([]) == []",),
        ("assert found(1) == False",),
        ("with pytest.raises(ValueError): found(1)",),
    ],
)
def test_where_no_value_of_its_own_is_claimed_a_twin_can_be_told_by_reading(lines):
    source = in_function(*lines)

    assert value_claims(source) == frozenset()
    assert count_sites(source, "test_it") > 0


def test_nothing_else_is_turned_in_a_test_that_claims_a_value():
    source = in_function("assert 1 in [1]", "assert 'a' + 'b' == 'ab'", "assert [] == []")
    texts = [rendered(source, {"test_it": 0}, seed).source for seed in range(10)]

    assert count_sites(source, "test_it") == 1
    assert all("assert 1 in [1]" in text and "assert [] == []" in text for text in texts)


def test_a_turned_exception_is_a_real_one_that_is_no_kin():
    source = in_function("with pytest.raises(LookupError): {}['x']")
    seen = {rendered(source, {"test_it": site}).source.split("raises(")[1].split(")")[0] for site in range(4)}

    assert seen == {"ValueError", "TypeError", "AttributeError", "ZeroDivisionError"}
    assert count_sites(source, "test_it") == 4


def test_what_may_never_run_is_turned_only_where_nothing_else_is_there():
    loop = "for n in list(''): assert n == 1"

    assert count_sites(in_function(loop), "test_it") == 1
    assert count_sites(in_function(loop, "assert 1 in [1]"), "test_it") == 2
    assert count_sites(in_function("for n in [1]: assert 1 in [n]", "assert 1 in [1]"), "test_it") == 4
    assert count_sites(in_function("with pytest.raises(ValueError): int('x'); assert 1 < 2"), "test_it") == 5
    body = ["with self.subTest(): self.assertIn(1, [1])", "self.assertIsNone(None)"]
    assert count_sites(in_method(*body), "It.test_it") == 2


def test_a_test_without_assertions_cannot_be_turned():
    assert count_sites(in_function("print()", "assert_all()"), "test_it") == 0


def test_a_place_that_a_test_does_not_have_is_refused():
    with pytest.raises(IndexError):
        rendered(SUITE, {"test_six": 99})
    with pytest.raises(KeyError, match="test_seven"):
        rendered(SUITE, {"test_seven": None})


def test_tests_are_listed_as_they_are_collected():
    assert test_functions(SUITE) == NAMES


def test_what_is_no_test_is_not_listed():
    source = (
        "import pytest\nif 1:\n    def test_a(): pass\n"
        "@pytest.fixture\ndef test_b(): pass\n"
        "class Plain:\n    def test_c(self): pass\n"
        "class TestMade:\n    def __init__(self): pass\n    def test_d(self): pass\n"
    )

    assert test_functions(source) == ()


def test_a_test_that_another_one_of_its_name_follows_is_gone():
    rendering = rendered("def test_it(): assert 1 > 2\ndef test_it(): assert 1 < 2\n")

    assert rendering.source.count("def ") == 1
    assert outcomes(rendering) == {"test_it": True}


def test_the_names_lead_back_to_the_stored_tests():
    rendering = rendered(SUITE)

    assert sorted(rendering.names.values()) == sorted(NAMES)
    assert sorted(test_functions(rendering.source)) == sorted(rendering.names)
    assert not set(rendering.names) & set(NAMES)
    assert "Adding" not in rendering.source


def test_a_rendered_file_passes_under_pytest_as_the_stored_one_does(tmp_path):
    rendering = rendered(SUITE)
    (tmp_path / "test_it.py").write_text(rendering.source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-v",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    passed = {
        line.split("::", 1)[1].split(" ")[0].split("[")[0].replace("::", ".")
        for line in done.stdout.splitlines()
        if "PASSED" in line
    }

    assert passed == set(rendering.names), done.stdout


def test_comments_and_docstrings_are_gone_but_those_of_helpers():
    text = rendered(SUITE).source

    assert "comment" not in text
    assert text.count("docstring") == 1


def test_what_is_not_listed_is_gone():
    rendering = rendered(SUITE, {"More.test_one": None, "test_six": None})

    assert sorted(test_functions(rendering.source)) == sorted(rendering.names)
    assert sorted(rendering.names.values()) == ["More.test_one", "test_six"]
    assert outcomes(rendering) == {"More.test_one": True, "test_six": True}


def test_a_class_does_not_inherit_a_test_that_is_not_listed_for_it():
    rendering = rendered(SUITE, {"Adding.test_one": None, "More.test_three": None})
    space = {}
    exec(rendering.source, space)
    (more,) = [name.split(".")[0] for name, stored in rendering.names.items() if stored == "More.test_three"]

    assert len(unittest.TestLoader().getTestCaseNames(space[more])) == 1


def test_an_inherited_test_is_turned_for_one_class_alone():
    rendering = rendered(SUITE, {"Adding.test_one": None, "More.test_one": 0})

    assert outcomes(rendering) == {"Adding.test_one": True, "More.test_one": False}


def test_tests_of_a_mixin_are_those_of_the_classes_that_have_it():
    source = (
        "from unittest import TestCase\n"
        "class Mixin:\n    def test_a(self): self.assertEqual(self.n, self.n)\n"
        "class One(Mixin, TestCase):\n    n = 1\n"
        "class Two(Mixin, TestCase):\n    n = 2\n"
    )
    rendering = rendered(source, {"One.test_a": 0, "Two.test_a": None})

    assert test_functions(source) == ("One.test_a", "Two.test_a")
    assert sorted(test_functions(rendering.source)) == sorted(rendering.names)
    assert outcomes(rendering) == {"One.test_a": False, "Two.test_a": True}
    assert rendered(source, {"One.test_a": None}).source.count("def test") == 1


def test_a_test_that_another_one_calls_is_never_turned_and_never_missing():
    source = "def test_a(n=1):\n    assert n == 1\ndef test_b():\n    test_a(1)\n"
    alone = rendered(source, {"test_b": None})

    assert count_sites(source, "test_a") == 0
    assert outcomes(rendered(source)) == {"test_a": True, "test_b": True}
    assert outcomes(alone) == {"test_b": True}
    assert test_functions(alone.source) == tuple(alone.names)


def test_a_name_that_cannot_be_followed_stays():
    source = (
        "class TestA:\n    def test_x(self):\n        assert 'TestA' in globals()\n"
        "def test_b():\n    assert callable(globals()['test_b'])\n"
        "def test_c():\n    def same(test_d):\n        return test_d\n    assert same(1) == 1\n"
        "def test_d(): pass\n"
    )
    rendering = rendered(source)

    assert {"TestA", "test_b", "test_d"} <= {name.split(".")[0] for name in rendering.names}
    assert all(outcomes(rendering).values())


def test_the_same_draws_give_the_same_file():
    roles = dict.fromkeys(NAMES) | {"Adding.test_one": 0, "test_five": 0}

    assert rendered(SUITE, roles, 1) == rendered(SUITE, roles, 1)
    assert rendered(SUITE, roles, 1) != rendered(SUITE, roles, 2)


def test_tests_are_shuffled_but_those_that_evaluate_something_where_they_stand():
    source = "".join(f"def test_{n}(): pass\n" for n in range(9)) + "def test_last(n=9): pass\n"
    orders = [
        [rendering.names[name] for name in test_functions(rendering.source)]
        for rendering in (rendered(source, seed=seed) for seed in range(5))
    ]

    assert len({tuple(order) for order in orders}) > 1
    assert {order[-1] for order in orders} == {"test_last"}


def test_coroutines_and_generators_are_rendered_too():
    source = "async def test_a():\n    assert 1 == 1\ndef test_b():\n    yield\n    assert 1 == 1\n"
    rendering = rendered(source, {"test_a": 0, "test_b": 0})
    space = {}
    exec(rendering.source, space)
    stored = {stored: space[name] for name, stored in rendering.names.items()}

    assert inspect.iscoroutinefunction(stored["test_a"])
    assert inspect.isgeneratorfunction(stored["test_b"])


def test_plain_tests_run_where_there_is_no_pytest():
    plain = plain_functions(SUITE)
    rendering = rendered(SUITE, dict.fromkeys(plain), without_pytest=True)

    assert plain == set(NAMES) - {"test_four", "test_five"}
    assert "pytest" not in rendering.source
    assert "import os" in rendering.source
    assert all(outcomes(rendering).values())


def test_what_needs_pytest_is_not_rendered_without_it():
    with pytest.raises(ValueError, match="plain_functions"):
        rendered(SUITE, {"test_five": None}, without_pytest=True)


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(fixture): pass",
        "@decorated\ndef test_it(): pass",
        "@decorated\nclass TestIt:\n    def test_it(self): pass",
        "async def test_it(): pass",
        "def test_it():\n    yield",
        "def test_it():\n    import pytest",
        "from pytest import raises as fails\ndef test_it(): fails(ValueError, int, 'x')",
        "import pytest\nskip = pytest.skip\ndef helper(): skip()\ndef test_it(): helper()",
        "import pytest\npytestmark = []\ndef test_it(): pass",
        "import pytest\n@pytest.fixture(autouse=True)\ndef before(): pass\ndef test_it(): pass",
        "def setup_function(): pass\ndef test_it(): pass",
        "class TestIt:\n    def setup_method(self): pass\n    def test_it(self): pass",
        "import pytest\nclass TestIt:\n    @pytest.fixture\n    def a(self): pass\n    def test_it(self): pass",
    ],
)
def test_what_leans_on_pytest_is_not_plain(source):
    assert len(test_functions(source)) == 1
    assert plain_functions(source) == frozenset()


def test_a_main_block_is_not_run_by_a_plain_script():
    source = "def test_it(): pass\nif __name__ == '__main__':\n    print('main')\n"
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(rendered(source).source, {"__name__": "__main__"})

    assert shown.getvalue() == ""


MANY = """
def test_many():
    first = f(1)
    assert first == 2
    for number in [2, 3]:
        with guard():
            assert f(number) == 30
            assert g(number) == 31
        assert h(number) == 32
    assert f(4) == 5

def test_other():
    assert f(6) == 7
"""


@pytest.mark.parametrize(
    ("place", "left"), [(0, "first == 2"), (1, "f(number) == 30"), (3, "h(number) == 32"), (4, "f(4) == 5")]
)
def test_a_test_ends_behind_a_place_and_keeps_what_came_before(place, left):
    cut = end_after_sites(MANY, {"test_many": place})

    text, _, other = cut.partition("def test_other")
    assert text.strip().endswith(f"assert {left}")
    assert "first = f(1)" in text
    assert "f(6) == 7" in other
    assert text.count("assert") == place + 1
