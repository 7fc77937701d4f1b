"""The zygote's pytest says what `python3 -m pytest` says, whatever the repository."""

import re

import pytest

from gym_service.sandbox.base import Execute, RunPytest

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


@pytest.mark.parametrize(
    "options", [(), ("-v", "-rA", "--tb=short", "-k", "a or b")], ids=["plain", "verbose"]
)
@pytest.mark.parametrize("repository", REPOSITORIES)
async def test_the_zygote_s_pytest_prints_what_plain_pytest_prints(sandbox, repository, options):
    for path, content in REPOSITORIES[repository].items():
        await sandbox.write_file(path, content.encode())

    plain = ("/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", *options)
    expected = await sandbox.run(Execute(plain), 20)
    done = await sandbox.run(RunPytest(options), 20)

    assert without_accidents(done.output) == without_accidents(expected.output)
    assert done.exit_status == expected.exit_status
