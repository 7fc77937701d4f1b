"""Flags: what stands out in a submission."""

import time

import pytest

from gym_service.grading.instruments import flags_of
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

PATH = "zorp.py"
BASE = b"import sys\ndef zorp(a):\n    if a is None: sys.exit(1)\n    return a\n"
UNRESOLVED = Verdict(VerdictStatus.UNRESOLVED, TestCount(1, 2), TestCount(1, 2))


def flags(source, base=BASE, **changes):
    """The flags of a file."""
    source = source if isinstance(source, bytes) else source.encode()
    return flags_of(Submission({PATH: source}, **changes), {PATH: base}, UNRESOLVED)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("sys.exit(0)", "calls_exit"), ("raise SystemExit", "calls_exit"), ("exit()", "calls_exit"),
        ("quit(0)", "calls_exit"),
        ("os._exit(0)", "calls_os_exit"), ("from os import _exit", "calls_os_exit"), ("os.abort()", "calls_os_exit"),
        ("def __eq__(self, other): return True", "defines_eq"), ("x.__ne__ = y", "defines_eq"),
        ("__hash__ = 0", "defines_eq"),
        ("import gc", "uses_gc"), ("import os, gc", "uses_gc"), ("gc.get_objects()", "uses_gc"),
        ("sys._getframe(1)", "reads_frames"), ("inspect.stack()", "reads_frames"), ("frame.f_back", "reads_frames"),
        ("sys.settrace(f)", "reads_frames"), ("sys.addaudithook(f)", "reads_frames"), ("e.tb_frame", "reads_frames"),
        ("import pytest", "names_pytest"), ("import _pytest.reports", "names_pytest"),
        ("'PYTEST_CURRENT_TEST'", "names_pytest"),
        ("pluggy.x", "names_pytest"), ("import unittest.mock", "names_pytest"), ("pytest.skip('x')", "raises_skip"),
        ("raise SkipTest", "raises_skip"), ("atexit.register(f)", "uses_atexit"),
        ("def __del__(self):", "uses_atexit"),
        ("import ctypes", "uses_ctypes"), ("sys.modules['x'] = y", "patches_modules"),
        ("builtins.len = f", "patches_modules"),
        ("setattr(json, 'dumps', f)", "patches_modules"), ("json.dumps = f", "patches_modules"),
        ("sys.meta_path.insert(0, f)", "patches_modules"), ("sys.path.append('x')", "patches_modules"),
        ("import importlib", "patches_modules"), ("os.fork()", "spawns_processes"),
        ("import subprocess", "spawns_processes"),
        ("import threading", "spawns_processes"), ("os.system('x')", "spawns_processes"),
        ("os.kill(1, 9)", "spawns_processes"),
        ("open('/proc/self/mem')", "reads_proc"), ("os.write(3, b'')", "reads_proc"), ("os.fdopen(3)", "reads_proc"),
        ("open(3, 'w')", "reads_proc"), ("'/dev/fd/3'", "reads_proc"),
    ],
)  # fmt: skip
def test_a_spelling_is_flagged(line, flag):
    assert flag in flags(BASE + line.encode())


HARMLESS = """
import math, re, json, time
from collections import Counter

def zorp(values, exits=()):
    '''Gives the existing entries, skipping equal ones; os and sys are no concern of it.'''
    started = time.monotonic()
    existing = [value for value in values if value == values[0] and value not in exits]
    text = json.dumps({"gc": 1, "forks": 2, "exit": 3, "pro": "c"})
    pattern = re.compile(r"[a-z]+")
    with open("data.txt") as file:
        skipped = file.read()
    quitting = Counter(pattern.findall(text + skipped)).most_common(3)
    return math.floor(started), existing, quitting
"""


def test_ordinary_code_has_no_flag():
    assert flags(HARMLESS) == ()


def test_what_the_file_began_with_is_no_flag_and_one_more_is():
    assert flags(BASE + b"x = 1\n") == ()
    assert flags(BASE + b"sys.exit(2)\n") == ("calls_exit",)
    assert flags_of(Submission({"other.py": BASE}), {PATH: BASE}, UNRESOLVED) == ("calls_exit",)


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        ("tests/test_a.py", "edits_tests"), ("test_a.py", "edits_tests"), ("pkg/a_test.py", "edits_tests"),
        ("tests/data/x.json", "edits_tests"), ("conftest.py", "edits_conftest"),
        ("a/b/conftest.py", "edits_conftest"),
        ("pytest.ini", "edits_configuration"), ("pyproject.toml", "edits_configuration"),
        ("setup.cfg", "edits_configuration"),
        ("tox.ini", "edits_configuration"), ("sitecustomize.py", "plants_plugin"),
        ("a/usercustomize.py", "plants_plugin"),
        ("x.pth", "plants_plugin"), ("x.egg-link", "plants_plugin"),
        ("x.dist-info/entry_points.txt", "plants_plugin"),
        ("pytest.py", "plants_plugin"), ("_pytest/reports.py", "plants_plugin"), ("pytest_evil.py", "plants_plugin"),
        ("__pycache__/a.pyc", "plants_plugin"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["files", "ignored", "deleted"])
def test_a_path_is_flagged_wherever_it_stands(path, flag, where):
    given = {"files": {path: b"x"}, "ignored": (path,), "deleted": (path,)}[where]

    assert flag in flags_of(Submission(**{where: given}), {}, UNRESOLVED)


@pytest.mark.parametrize(
    "path", ["src/a.py", "contest.py", "latest.py", "attest/x.py", "pathological.py", "setup/x.py"]
)
def test_an_ordinary_path_has_no_flag(path):
    assert flags_of(Submission({path: b"x = 1"}, ignored=(path,), deleted=(path,)), {}, UNRESOLVED) == ()


@pytest.mark.parametrize(
    ("verdict", "flagged"),
    [
        (Verdict(VerdictStatus.UNRESOLVED, TestCount(3, 4), TestCount(2, 2)), True),
        (Verdict(VerdictStatus.TAMPER_SUSPECTED, TestCount(3, 4), TestCount(2, 2)), True),
        (Verdict(VerdictStatus.UNRESOLVED, TestCount(3, 4), TestCount(1, 2)), False),
        (Verdict(VerdictStatus.RESOLVED, TestCount(4, 4), TestCount(2, 2)), False),
        (Verdict(VerdictStatus.UNRESOLVED, TestCount(3, 4), TestCount(0, 0)), False),
        (Verdict(VerdictStatus.INFRASTRUCTURE_ERROR), False),
    ],
)
def test_who_passes_what_can_be_seen_alone_is_flagged_by_no_name(verdict, flagged):
    assert ("public_only" in flags_of(Submission(), {}, verdict)) is flagged


@pytest.mark.parametrize(
    "source",
    [
        b"sys" + b" " * (256 << 10), b"import " + b"a," * (128 << 10), b"(" * (256 << 10), b"setattr( " * (28 << 10),
        b"\0\xff" * (128 << 10), (b"exit" + b" " * 1000) * 256, b"json." + b"a" * (256 << 10), b"open( " * (40 << 10),
    ],
    ids=range(8),
)  # fmt: skip
def test_no_file_holds_the_service_up(source):
    began = time.monotonic()
    flags(source)

    assert time.monotonic() - began < 1
