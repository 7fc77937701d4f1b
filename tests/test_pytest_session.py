"""The zygote's pytest says what `python3 -m pytest` says, whatever the repository."""

import os
import re

import pytest

from gym_service.sandbox.base import Execute, RunPytest
from gym_service.sandbox.docker import DockerEngine
from sandbox_images.build import image_reference
from tests.conftest import DOCKER_LIMITS

pytestmark = pytest.mark.docker

ADDS_AN_OPTION = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--number", default="7")

@pytest.fixture
def number(request):
    return int(request.config.getoption("--number"))

@pytest.fixture(autouse=True)
def noted(record_property):
    record_property("noted", "yes")
"""

REPOSITORIES = {
    "passing": {"test_a.py": "def test_a():\n    assert 1 == 1\n"},
    "failing": {"test_a.py": "def test_a():\n    x = [1, 2]\n    assert x == [1, 3], 'note'\n"},
    "empty": {},
    "broken": {"test_a.py": "def test_a(:\n"},
    "raising": {"test_a.py": "import nothing_of_this_name\n"},
    "conftest": {"conftest.py": ADDS_AN_OPTION, "test_a.py": "def test_a(number):\n    assert number == 8\n"},
    "conftest_below": {
        "sub/conftest.py": "import pytest\n\n@pytest.fixture\ndef word():\n    return 'a'\n",
        "sub/test_b.py": "def test_b(word, tmp_path, monkeypatch):\n    assert word == 'b'\n",
        "test_a.py": "def test_a(word):\n    pass\n",
    },
    "ini": {
        "pytest.ini": "[pytest]\naddopts = -v --strict-markers\nusefixtures = set_up\nmarkers = slow: takes time\n",
        "conftest.py": "import pytest\n\n@pytest.fixture\ndef set_up():\n    print('was set up')\n",
        "test_a.py": "import pytest\n\n@pytest.mark.slow\ndef test_a():\n    assert 0\n",
    },
    "pyproject": {
        "pyproject.toml": "[tool.pytest.ini_options]\npython_files = 'check_*.py'\n",
        "check_a.py": "def test_a():\n    pass\n",
        "test_a.py": "def test_a():\n    assert 0\n",
    },
    "many_kinds": {
        "test_a.py": """
import unittest, warnings
import pytest

@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 2), ("x", "x")])
def test_equal(a, b, capsys):
    print(a)
    assert capsys.readouterr().out == f"{b}\\n"

@pytest.mark.skip(reason="not now")
def test_skipped(): ...

@pytest.mark.xfail
def test_expected(): assert 0

def test_warns(): warnings.warn("look out")

class TestClass:
    @pytest.fixture(autouse=True)
    def own(self): self.value = 3
    def test_own(self): assert self.value == 3

class Case(unittest.TestCase):
    def setUp(self): self.value = 1
    def test_case(self): self.assertEqual(self.value, 2)
"""
    },
    "runs_another": {
        "inner.txt": "def test_inner():\n    assert 1\n",
        "test_a.py": """
import pytest

def test_a(tmp_path):
    (tmp_path / "test_inner.py").write_text(open("inner.txt").read())
    assert pytest.main(["-q", "-p", "no:cacheprovider", str(tmp_path)]) == 0
""",
    },
}


def without_accidents(output):
    """Leaves out what differs between two runs: durations, temporary folders and addresses."""
    text = re.sub(r"in \d+\.\d+s", "in 0.00s", output.decode())
    text = re.sub(r"=+( .* in 0\.00s.* )=+", r"=\1=", text)
    return re.sub(r"pytest-of-\w+/pytest-\d+|0x[0-9a-f]+", "...", text)


@pytest.fixture(scope="session")
def engine_of_reuse():
    """An engine whose sandboxes load pytest while their workspace is empty."""
    engine = DockerEngine(image_reference(), DOCKER_LIMITS, f"tests-reuse-{os.getpid()}", reuse=True)
    yield engine
    engine.remove_leftovers()


@pytest.fixture(params=["loaded_at_start", "loaded_when_needed"])
async def sandbox(request, engine):
    """A sandbox of either kind."""
    chosen = request.getfixturevalue("engine_of_reuse") if request.param == "loaded_at_start" else engine
    sandbox = await chosen.start()
    sandbox.uid = 2_050_000_000
    yield sandbox
    await sandbox.close()


async def compare(sandbox, options):
    """Runs pytest both ways and expects the same."""
    plain = ("/usr/bin/python3", "-u", "-m", "pytest", "-p", "no:cacheprovider", *options)
    expected = await sandbox.run(Execute(plain), 20)
    for _ in range(2):
        done = await sandbox.run(RunPytest(options), 20)
        assert without_accidents(done.output) == without_accidents(expected.output)
        assert done.exit_status == expected.exit_status


@pytest.mark.parametrize("repository", REPOSITORIES)
async def test_the_zygote_s_pytest_prints_what_plain_pytest_prints(sandbox, repository):
    for path, content in REPOSITORIES[repository].items():
        await sandbox.write_file(path, content.encode())

    await compare(sandbox, ())
    await compare(sandbox, ("-v", "-rA", "--tb=short", "-k", "a or b"))


@pytest.mark.parametrize(
    "options",
    [
        *(("-q",), ("-qq", "-l"), ("-v", "-x"), ("-vv", "--maxfail=1", "--tb=long"), ("--tb=no",), ("-s",)),
        *(("-k", "equal and not x"), ("-rA",), ("test_a.py",), ("test_a.py::test_expected", "-v")),
        *(("test_a.py::TestClass::test_own",), ("test_a.py::nothing",), ("--color=no",), ("-k", "a(")),
    ],
    ids=" ".join,
)
async def test_options_and_targets_mean_what_they_mean_to_plain_pytest(sandbox, options):
    await sandbox.write_file("test_a.py", REPOSITORIES["many_kinds"]["test_a.py"].encode())

    await compare(sandbox, options)


async def test_what_one_run_captures_is_not_seen_by_the_next(sandbox):
    source = b"import os\ndef test_a():\n    os.write(1, b'first' * 999)\n    assert 0\n"
    await sandbox.write_file("test_a.py", source)
    assert b"first" in (await sandbox.run(RunPytest(()), 20)).output
    await sandbox.write_file("test_a.py", b"def test_a():\n    print('second')\n    assert 0\n")

    done = await sandbox.run(RunPytest(()), 20)

    assert b"second" in done.output
    assert b"first" not in done.output
    assert await sandbox.scrub() == ""
