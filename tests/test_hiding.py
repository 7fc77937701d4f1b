"""Removing tests from a module: they go whole, and every other byte stays."""

import pytest

from gym_service.tasks.hiding import remove_tests

MODULE = '''\
"""Tests."""
import pytest


# about the first
@pytest.mark.parametrize("n", [1, 2])
@other
def test_first(n):
    assert n   # odd   spacing
    # assert n < 3

X = """
# no comment
"""


class TestThings(Base):
    # its comment
    def test_a(self):
        assert "ä"

    async def test_b(self): pass


class TestOne:
    def test_only(self):
        assert 1


try:
    import numpy
except ImportError:
    pass
else:
    def test_numpy():
        assert numpy
'''


def test_decorators_and_comments_go_with_a_test():
    start, end = MODULE.index("# about"), MODULE.index("\nX = ")

    assert remove_tests(MODULE, ["test_first"]) == MODULE[:start] + MODULE[end:]


def test_a_method_goes_and_its_sibling_stays():
    start, end = MODULE.index("    # its"), MODULE.index("\n    async")

    assert remove_tests(MODULE, {"TestThings.test_a"}) == MODULE[:start] + MODULE[end:]


def test_an_emptied_class_gets_a_pass():
    rest = remove_tests(MODULE, ["TestOne.test_only", "TestThings.test_b"])

    assert "class TestOne:\n    pass\n\n\ntry:" in rest


def test_an_emptied_branch_gets_a_pass():
    assert remove_tests(MODULE, ["test_numpy"]).endswith("else:\n    pass\n")


def test_a_module_without_its_last_test_remains_importable():
    everything = ["test_first", "TestThings.test_a", "TestThings.test_b", "TestOne.test_only", "test_numpy"]
    rest = remove_tests(MODULE, everything)

    compile(rest, "test_module.py", "exec")
    assert "def test_" not in rest
    assert remove_tests("def test_a():\n    assert 1\n", ["test_a"]) == "pass\n"


def test_every_definition_of_a_name_goes():
    source = "import a\nif a:\n    def test_a(): pass\nelse:\n    def test_a(): pass\n"

    assert remove_tests(source, ["test_a"]) == "import a\nif a:\n    pass\nelse:\n    pass\n"


def test_text_that_looks_like_a_comment_stays():
    source = 'X = """\n# text"""\ndef test_a():\n    pass\n'

    assert remove_tests(source, ["test_a"]) == 'X = """\n# text"""\n'


def test_line_ends_of_windows_stay_when_a_test_goes():
    source = "class T:\r\n    def test_a(self):\r\n        pass\r\n"

    assert remove_tests(source, ["T.test_a"]) == "class T:\r\n    pass\r\n"


def test_nothing_to_remove_changes_nothing():
    assert remove_tests(MODULE, []) == MODULE


def test_a_test_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match=r"no test TestOne\.test_a, test_b$"):
        remove_tests(MODULE, ["TestOne.test_a", "test_b", "test_first"])


def test_a_test_that_the_rest_uses_is_not_removed():
    with pytest.raises(ValueError, match="uses test_a"):
        remove_tests("def test_a(): pass\n\ndef test_b(): test_a()\n", ["test_a"])
