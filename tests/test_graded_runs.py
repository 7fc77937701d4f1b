"""Graded runs and the list of files, in containers: what a repository can say in them, and what it cannot."""

import json
import os

import pytest

from gym_service.sandbox.base import FileEntry, FileRefused, RunChecks, RunPytest, RunPython, RunTests
from gym_service.sandbox.docker import DockerEngine
from sandbox_images.build import image_reference
from tests.conftest import DOCKER_LIMITS

pytestmark = pytest.mark.docker

KINDS = """
import unittest
import pytest

def test_passes(): pass
def test_fails(): assert 0
def test_exits(): raise SystemExit(0)
def test_skips(): pytest.skip("no")

@pytest.mark.xfail
def test_expected(): assert 0

@pytest.mark.xfail
def test_unexpected(): pass

@pytest.mark.xfail(strict=True)
def test_unexpected_strictly(): pass

@pytest.fixture
def broken(): 1 / 0
def test_set_up(broken): pass

@pytest.fixture
def breaks_later():
    yield
    1 / 0
def test_torn_down(breaks_later): pass

@pytest.mark.parametrize("word", ["a b", "ö::[x]", "\\n/"])
def test_words(word): pass

class TestClass:
    def test_own(self): pass

class Case(unittest.TestCase):
    def test_case(self): self.skipTest("no")
"""

PASSES = "def test_a(): pass\n"


@pytest.fixture(scope="module")
def engine_of_reuse():
    """An engine whose sandboxes load pytest while their workspace is empty."""
    engine = DockerEngine(image_reference(), DOCKER_LIMITS, f"tests-graded-{os.getpid()}", reuse=True)
    yield engine
    engine.remove_leftovers()


async def write(sandbox, files):
    for path, content in files.items():
        await sandbox.write_file(path, content.encode())


async def records(sandbox, files, *paths, roots=("",), functions=(), seconds_each=10.0):
    await write(sandbox, files)
    done = await sandbox.run(RunTests(paths or tuple(files), roots, functions, seconds_each), 20)
    return parse(done)


async def checks(sandbox, files, *names, roots=("",), seconds_each=10.0):
    """Runs what is named of the last file."""
    await write(sandbox, files)
    functions = tuple(f"{list(files)[-1]}::{name.replace('.', '::')}" for name in names)
    done = await sandbox.run(RunChecks(functions, roots, seconds_each), 20)
    return parse(done)


def parse(done):
    lines = [json.loads(line) for line in done.output.decode().splitlines()]
    return [(line["id"], line["outcome"]) if "id" in line else line["end"] for line in lines]


@pytest.mark.parametrize("loaded", ["at_start", "when_needed"])
async def test_each_test_has_one_record_of_its_three_phases(request, engine, loaded):
    chosen = request.getfixturevalue("engine_of_reuse") if loaded == "at_start" else engine
    sandbox = await chosen.start()
    sandbox.uid = 2_050_000_000
    try:
        found = await records(sandbox, {"tests/test_k.py": KINDS})
    finally:
        await sandbox.close()

    outcomes = {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_exits": "failed",
        "test_skips": "skipped",
        "test_expected": "xfailed",
        "test_unexpected": "xpassed",
        "test_unexpected_strictly": "failed",
        "test_set_up": "error",
        "test_torn_down": "error",
        "test_words[a b]": "passed",
        "test_words[\\xf6::[x]]": "passed",
        "test_words[\\n/]": "passed",
        "TestClass::test_own": "passed",
        "Case::test_case": "skipped",
    }
    assert found == [(f"tests/test_k.py::{name}", outcome) for name, outcome in outcomes.items()] + [1]


async def test_a_file_that_cannot_be_imported_costs_no_other_its_run(sandbox):
    found = await records(sandbox, {"test_a.py": "1 / 0", "test_b.py": PASSES, "test_c.py": "exit(0)"})

    assert found == [("test_b.py::test_a", "passed"), 1]


@pytest.mark.parametrize("name", ["pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "tests/pytest.ini"])
async def test_what_a_repository_configures_in_files_has_no_effect(sandbox, name):
    options = "-p evil --collect-only --deselect tests"
    section = {"setup.cfg": "tool:pytest", "pyproject.toml": "tool.pytest.ini_options"}.get(name, "pytest")
    value = f'"{options}"' if name.endswith("toml") else options
    files = {
        "tests/test_a.py": PASSES,
        name: f"[{section}]\naddopts = {value}\n",
        "evil.py": "import os; os._exit(0)",
    }

    assert await records(sandbox, files, "tests/test_a.py") == [("tests/test_a.py::test_a", "passed"), 0]


@pytest.mark.parametrize("name", ["json", "pytest", "_pytest", "pluggy", "os", "queue", "graded", "unittest"])
async def test_no_file_stands_in_for_the_library_or_for_pytest(sandbox, name):
    files = {f"{name}.py": "import os; os._exit(0)", f"tests/{name}.py": "import os; os._exit(0)"}
    files["tests/test_a.py"] = "import json, pytest, queue, unittest\n" + PASSES
    expected = [("tests/test_a.py::test_a", "passed"), 0]

    assert await records(sandbox, files, "tests/test_a.py") == expected
    files["tests/test_a.py"] = "import json, queue, unittest\n" + PASSES
    assert await checks(sandbox, files, "test_a") == expected


async def test_the_sources_go_before_a_package_that_the_image_has(sandbox):
    test = "import more_itertools\ndef test_a(): assert more_itertools.__file__.startswith('/workspace/src')"
    files = {"src/more_itertools/__init__.py": "", "tests/test_a.py": test}
    expected = [("tests/test_a.py::test_a", "passed"), 0]

    assert await records(sandbox, files, "tests/test_a.py", roots=("src",)) == expected
    assert await checks(sandbox, files, "test_a", roots=("src",)) == expected


async def test_conftest_files_have_their_effect(sandbox):
    files = {
        "conftest.py": "import pytest\n@pytest.fixture\ndef word(): return 'a'\n",
        "tests/__init__.py": "",
        "tests/conftest.py": "import pytest\n@pytest.fixture\ndef words(word): return word * 2\n",
        "tests/test_a.py": "def test_a(words): assert words == 'aa'\n",
    }

    assert await records(sandbox, files, "tests/test_a.py") == [("tests/test_a.py::test_a", "passed"), 0]


async def test_relative_imports_reach_the_package_of_the_tests(sandbox):
    files = {
        "pack/__init__.py": "",
        "pack/tests/__init__.py": "",
        "pack/tests/helper.py": "value = 7",
        "pack/tests/test_a.py": "from .helper import value\nfrom .. import tests\ndef test_a(): assert value == 7\n",
    }
    expected = [("pack/tests/test_a.py::test_a", "passed"), 0]

    assert await records(sandbox, files, "pack/tests/test_a.py") == expected
    assert await checks(sandbox, files, "test_a") == expected


async def test_a_test_without_end_costs_itself_alone(sandbox):
    files = {"test_a.py": "def test_h():\n    while True: pass\n" + PASSES}
    expected = [("test_a.py::test_h", "failed"), ("test_a.py::test_a", "passed")]

    assert await records(sandbox, files, seconds_each=0.2) == [*expected, 1]
    assert await checks(sandbox, files, "test_h", "test_a", seconds_each=0.2) == [*expected, 0]


async def test_who_leaves_at_import_leaves_no_end(sandbox):
    files = {"test_a.py": "import os; os._exit(0)\n" + PASSES}

    assert await records(sandbox, files) == []
    assert await checks(sandbox, files, "test_a") == []


async def test_records_can_be_written_by_the_code_that_is_graded(sandbox):
    forged = '{"id": "test_a.py::test_z", "outcome": "passed"}'
    files = {"test_a.py": f"import os\ndef test_a():\n    os.write(3, b'{forged}\\n')\n    print('out')\n"}
    expected = [("test_a.py::test_z", "passed"), ("test_a.py::test_a", "passed"), 0]

    assert await records(sandbox, files) == expected
    assert await checks(sandbox, files, "test_a") == expected


async def test_a_thousand_tests_have_their_records(sandbox):
    source = f"import pytest\n@pytest.mark.parametrize('n', range(1000))\ndef test_{'a' * 200}(n): pass\n"

    assert len(await records(sandbox, {"test_a.py": source})) == 1001


async def test_no_pytest_is_about_where_names_are_called(sandbox):
    assert await records(sandbox, {"test_a.py": PASSES}) == [("test_a.py::test_a", "passed"), 0]
    source = """
import os, sys
def test_a():
    assert not {"pytest", "_pytest", "pluggy", "unittest"} & set(sys.modules)
    assert not [word for word in ("test", "check", "grad") if word in " ".join(sys.argv + sys.orig_argv).lower()]
    assert "PYTEST_CURRENT_TEST" not in os.environ
"""

    assert await checks(sandbox, {"test_b.py": source}, "test_a") == [("test_b.py::test_a", "passed"), 0]


async def test_functions_methods_and_cases_are_called_by_name(sandbox):
    source = """
import unittest

def test_fails(): assert 0
def test_exits(): raise SystemExit(0)
def test_skips(): raise unittest.SkipTest("no")
async def test_never_ran(): pass

class TestPlain:
    def setup_method(self): self.value = [1]
    def teardown_method(self, method): assert method.__name__ != "test_late"
    def test_own(self): assert self.value == [1]
    def test_late(self): pass

class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.shared = 3
    def setUp(self): self.value = 4
    def test_both(self): self.assertEqual((self.shared, self.value), (3, 4))
    def test_fails(self): self.fail()
    def test_subs(self):
        for n in range(2):
            with self.subTest(n): self.assertEqual(n, 0)
    @unittest.skip("no")
    def test_skips(self): pass
"""
    outcomes = {
        "test_fails": "failed",
        "test_exits": "failed",
        "test_skips": "skipped",
        "test_never_ran": "failed",
        "test_missing": "failed",
        "TestPlain.test_own": "passed",
        "TestPlain.test_late": "failed",
        "Case.test_both": "passed",
        "Case.test_fails": "failed",
        "Case.test_subs": "failed",
        "Case.test_skips": "skipped",
    }
    found = await checks(sandbox, {"tests/test_a.py": source}, *outcomes)

    assert found == [
        (f"tests/test_a.py::{name.replace('.', '::')}", outcome) for name, outcome in outcomes.items()
    ] + [0]


@pytest.mark.parametrize("source", ["1 / 0", "import none_of_this_name", "def f(:", "raise SystemExit(0)"])
async def test_a_file_that_cannot_be_imported_has_an_end_alone(sandbox, source):
    assert await checks(sandbox, {"test_a.py": source}, "test_a") == [1]


async def test_a_module_of_the_same_name_elsewhere_is_not_taken_for_the_file(sandbox):
    files = {"test_a.py": PASSES, "tests/test_a.py": PASSES}

    assert await checks(sandbox, files, "test_a") == [1]


async def test_graded_runs_leave_a_sandbox_as_it_was(sandbox):
    await records(sandbox, {"test_a.py": PASSES})
    await checks(sandbox, {"test_a.py": PASSES}, "test_a")
    done = await sandbox.run(RunPytest(("-q",)), 20)

    assert b"1 passed" in done.output
    assert await sandbox.scrub() == ""


# --- the list of files ---


async def do(sandbox, source):
    await sandbox.write_file("do.py", source.encode())
    done = await sandbox.run(RunPython(("do.py",)), 20)
    assert done.output == b""
    return [entry for entry in await sandbox.list_files() if entry.path != "do.py"]


async def test_links_and_what_is_no_file_are_listed_as_what_they_are(sandbox):
    source = """
import os, socket
os.mkdir("below"); open("below/inside", "w").close()
os.symlink("/etc", "etc"); os.symlink("below", "link"); os.symlink("nowhere", "broken")
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
open(b"\\xff", "w").write("odd")
"""
    found = {entry.path: entry.kind for entry in await do(sandbox, source)}

    assert await sandbox.read_file("\udcff") == b"odd"

    assert found == {
        "below": "folder",
        "below/inside": "file",
        "broken": "symlink",
        "etc": "symlink",
        "fifo": "other",
        "link": "symlink",
        "socket": "other",
        "\udcff": "file",
    }


async def test_modes_and_sizes_are_listed(sandbox):
    source = """
import os
for name, mode in (("a", 0o600), ("b", 0o755), ("c", 0)):
    open(name, "w").write("123"); os.chmod(name, mode)
"""
    assert await do(sandbox, source) == [
        FileEntry("a", "file", 0o600, 3),
        FileEntry("b", "file", 0o755, 3),
        FileEntry("c", "file", 0, 3),
    ]


@pytest.mark.parametrize("mode", [0, 0o100, 0o400])
async def test_a_folder_that_cannot_be_looked_into_is_no_folder(sandbox, mode):
    source = f"import os\nos.mkdir('a'); open('a/b', 'w').close(); os.chmod('a', {mode})"

    assert await do(sandbox, source) == [FileEntry("a", "other", mode, 0)]


async def test_a_folder_may_be_as_deep_as_a_file_can_be_written(sandbox):
    deepest = "a/" * 63 + "b"
    await sandbox.write_file(deepest, b"")

    assert (await sandbox.list_files())[-1] == FileEntry(deepest, "file", 0o644, 0)
    with pytest.raises(FileRefused, match="too_large"):
        await do(
            sandbox,
            f"open('{'a/' * 63}c', 'w').close(); import os; os.mkdir('{'a/' * 63}d'); os.mkdir('{'a/' * 63}d/e')",
        )


async def test_a_tree_of_any_depth_is_refused(sandbox):
    with pytest.raises(FileRefused, match="too_large"):
        await do(sandbox, "import os\nfor n in range(5000): os.mkdir('a'); os.chdir('a')")
    assert await sandbox.scrub() == ""


async def test_more_names_than_an_answer_holds_are_refused(sandbox):
    source = """
import os
for n in range(6): os.mkdir("a" * 200); os.chdir("a" * 200)
for n in range(4000): open(f"{n:b>200}", "w").close()
"""
    with pytest.raises(FileRefused, match="too_large"):
        await do(sandbox, source)
    await sandbox.scrub()
    assert await sandbox.list_files() == ()
