"""A graded run of pytest: the files that are named, by our configuration alone.

pytest is in memory before anything of the repository is read. What the repository says in files of configuration has
no effect; what it does in a conftest.py has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from . import WORKSPACE
from .graded import Records, add_roots, start_clock, stop_clock

_OPTIONS = (
    # A file of configuration that says nothing, and nobody can change.
    *("-c", "/dev/null"),
    *("--rootdir", WORKSPACE),
    *("--confcutdir", WORKSPACE),
    *("-p", "no:cacheprovider"),
    "--import-mode=append",
    # A file that cannot be imported costs no other its run.
    "--continue-on-collection-errors",
    # Nobody reads why a test failed.
    "--assert=plain",
    "--tb=no",
    "-qq",
)


def run(files: list[str], functions: list[str], roots: list[str], seconds_each: float) -> int:
    """Runs the tests of files of the workspace, those of some functions or all; a record for each."""
    records = Records()
    sys.argv = ["pytest"]
    add_roots(roots)
    recorder = _Recorder(records, frozenset(functions), seconds_each)
    exit_status = int(pytest.main([*_OPTIONS, *(f"{WORKSPACE}/{file}" for file in files)], [recorder]))
    records.end(exit_status)
    return exit_status


class _Recorder:
    """A plugin that makes one record of the phases of a test, and limits the time of each."""

    def __init__(self, records: Records, functions: frozenset[str], seconds_each: float) -> None:
        self._records = records
        self._functions = functions
        self._seconds_each = seconds_each
        self._phases: list[pytest.TestReport] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._functions:
            items[:] = [item for item in items if item.nodeid.partition("[")[0] in self._functions]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        start_clock(self._seconds_each)
        yield
        stop_clock()

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._phases.clear()
        self._phases.append(report)
        if report.when == "teardown":
            self._records.add(report.nodeid, _outcome(self._phases))


def _outcome(phases: list[pytest.TestReport]) -> str:
    for phase in phases:
        if phase.failed:
            return "failed" if phase.when == "call" else "error"
    for phase in phases:
        if phase.skipped:
            return "xfailed" if hasattr(phase, "wasxfail") else "skipped"
    if [phase.when for phase in phases] != ["setup", "call", "teardown"]:
        return "error"
    return "xpassed" if hasattr(phases[1], "wasxfail") else "passed"
