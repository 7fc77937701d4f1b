"""Runs of pytest: what every run needs, whatever the repository, is made once, in the zygote.

It reaches into the pytest of the image (Debian's 7.2), which mypy does not see; a test compares the output with that
of `python3 -m pytest` over repositories of many kinds.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import _pytest.config
import _pytest.fixtures
import _pytest.timing
import pytest
from _pytest.fixtures import FixtureManager

from .jobs import run_to_exit

_SAMPLE = f"{os.path.dirname(__file__)}/sample"
"""A folder with tests that pass and fail."""


def prepare() -> None:
    """Lets pytest load, once and before the first fork, whatever it needs to run, to pass and to explain a failure."""
    path, hooks = sys.path[:], sys.meta_path[:]
    standard_output, sys.stdout = sys.stdout, open(os.devnull, "w")
    pytest.main(["-p", "no:cacheprovider", "--rootdir", _SAMPLE, _SAMPLE])
    sys.stdout = standard_output
    sys.path[:], sys.meta_path[:] = path, hooks
    sys.modules.pop("test_sample")
    start_fixtures = _pytest.fixtures.pytest_sessionstart

    def pytest_sessionstart(session: pytest.Session) -> None:
        if session.config is not config:
            start_fixtures(session)
            return
        session._fixturemanager = fixtures
        fixtures.session = session
        fixtures._nodeid_autousenames[""][:0] = config.getini("usefixtures")
        config.pluginmanager.register(fixtures, "funcmanage")

    _pytest.fixtures.pytest_sessionstart = pytest_sessionstart
    # pytest builds this from its own plugins alone, so it can be built before the run; only the invocation differs.
    build_config = _pytest.config.get_config
    config: Any = build_config(["-p", "no:cacheprovider"])
    _keep_parser(config._parser)
    fixtures = _find_fixtures_of(config)

    def get_config(
        args: Iterable[str] | None = None, plugins: Sequence[object] | None = None, **_: object
    ) -> Any:
        _pytest.config.get_config = build_config  # A second session in one process gets its own.
        config.invocation_params = config.InvocationParams(args=args or (), plugins=plugins, dir=Path.cwd())
        return config

    _pytest.config.get_config = get_config
    # Observations hold no durations: the same actions give the same tokens.
    _pytest.timing.time = _pytest.timing.perf_counter = lambda: 0.0


def _keep_parser(parser: Any) -> None:
    """Lets pytest build its parser of options once, and again only when a conftest.py has added an option."""
    build = parser._getparser
    built: dict[int, Any] = {}

    def get_parser() -> Any:
        options = sum(len(group.options) for group in [*parser._groups, parser._anonymous])
        if options not in built:
            built[options] = build()
        return built[options]

    parser._getparser = get_parser
    get_parser()


def _find_fixtures_of(config: Any) -> Any:
    """Looks through pytest's own plugins for fixtures; a session of this config then starts with what was found."""
    config.inicfg = {}  # Not read yet, and asked for here.
    session: Any = SimpleNamespace(config=config)
    found = FixtureManager(session)
    config.pluginmanager.unregister(found)
    config._inicache.clear()
    return found


def run(argv: list[str]) -> int:
    """Runs pytest in the workspace and returns its exit status."""

    def main() -> NoReturn:
        sys.argv = ["pytest", *argv]
        sys.exit(pytest.main(["-p", "no:cacheprovider", *argv]))

    return run_to_exit(main)
