"""Runs of pytest: what every run needs, whatever the repository, is made once, in the zygote.

Two sessions are kept ready. The *general* one has its plugins, its parser of options and their fixtures, and reads
arguments, configuration and conftest.py as pytest always does. The *flat* one has read its arguments and is
configured too, in a workspace that was still empty; it does for a workspace of files alone, without configuration or
conftest.py, and options that pytest looks at late. The difference is a third of the time of a small run.

This reaches into the pytest of the image (Debian's 7.2), which mypy does not see; a test compares the output with
that of `python3 -m pytest` over repositories of many kinds. The workspace is not on the path of modules by itself,
which is how the command `pytest` does it.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import _pytest.config
import _pytest.faulthandler
import _pytest.fixtures
import _pytest.main
import _pytest.timing
import pytest
from _pytest.fixtures import FixtureManager

from . import WORKSPACE, pytest_records
from .jobs import run_to_exit

_SAMPLE = f"{os.path.dirname(__file__)}/sample"
"""A folder with tests that pass and fail."""
_ALWAYS = ("-p", "no:cacheprovider")
_CONFIGURES = {
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
    "setup.py",
}
_LATE_OPTION = re.compile("-q+|-v+|-x|-l|--quiet|--verbose|--exitfirst|--(tb|maxfail)=.*")

_flat: Any = None
"""The session for a flat workspace; None where the workspace was not empty when pytest was loaded."""


def prepare(*, workspace_is_empty: bool) -> None:
    """Lets pytest load, once and before the first fork, whatever it needs to run, to pass and to explain a failure."""
    sys.argv = ["pytest"]
    path, hooks = sys.path[:], sys.meta_path[:]
    standard_output, sys.stdout = sys.stdout, open(os.devnull, "w")
    pytest.main([*_ALWAYS, "--rootdir", _SAMPLE, _SAMPLE])
    sys.stdout = standard_output
    sys.path[:], sys.meta_path[:] = path, hooks
    sys.modules.pop("test_sample")
    tempfile.tempdir = None  # Found anew by each run: this one may be full.
    # Observations hold no durations: the same actions give the same tokens.
    _pytest.timing.time = _pytest.timing.perf_counter = lambda: 0.0
    _pytest.fixtures.pytest_sessionstart = _start_session
    if workspace_is_empty:
        _prepare_flat()
    _prepare_general()


def run(argv: list[str]) -> int:
    """Runs pytest in the workspace and returns its exit status."""

    def main() -> NoReturn:
        sys.argv = ["pytest", *argv]
        if _flat is not None and _is_flat(argv):
            _reopen_files()
            _use_flat()
        else:
            leave_flat()
        sys.exit(pytest.main([*_ALWAYS, *argv]))

    return run_to_exit(main)


def run_graded(**job: Any) -> int:
    """Runs tests in the general session, a record for each; returns pytest's exit status."""
    leave_flat()
    return pytest_records.run(**job)


def leave_flat() -> None:
    """Ends the flat session where there is one: the next `pytest.main` uses the general one."""
    if _flat is not None:
        _reopen_files()
        _flat.config._ensure_unconfigure()


# --- the general session ---


def _prepare_general() -> None:
    # pytest builds this from its own plugins alone, so it can be built before the run; only the invocation differs.
    config: Any = _build_config(list(_ALWAYS))
    _keep_parser(config)
    fixtures = _find_fixtures_of(config)

    def get_config(
        args: Iterable[str] | None = None, plugins: Sequence[object] | None = None, **_: object
    ) -> Any:
        _pytest.config.get_config = _build_config  # A second session in one process gets its own.
        config.invocation_params = config.InvocationParams(args=args or (), plugins=plugins, dir=Path.cwd())
        return config

    def start_with_fixtures(session: Any) -> None:
        session._fixturemanager = fixtures
        fixtures.session = session
        fixtures._nodeid_autousenames[""][:0] = config.getini("usefixtures")
        config.pluginmanager.register(fixtures, "funcmanage")

    _pytest.config.get_config = get_config
    config.start_with_fixtures = start_with_fixtures


def _find_fixtures_of(config: Any) -> Any:
    """Looks through pytest's own plugins for fixtures; a session of this config then starts with what was found."""
    config.inicfg = {}  # Not read yet, and asked for here.
    session: Any = SimpleNamespace(config=config)
    found = FixtureManager(session)
    config.pluginmanager.unregister(found)
    config._inicache.clear()
    return found


# --- the flat session ---


def _prepare_flat() -> None:
    """Brings a session to where pytest would collect, in the empty workspace."""
    global _flat
    os.chdir(WORKSPACE)
    config: Any = _build_config(list(_ALWAYS))
    _keep_parser(config)
    config.parse(list(_ALWAYS))
    # What a test prints goes through files, which must be each child's own.
    config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    _flat = _pytest.main.Session.from_config(config)
    config._do_configure()
    _start_fixtures(_flat)
    config.start_with_fixtures = lambda session: None


def _is_flat(argv: list[str]) -> bool:
    words = iter(argv)
    for word in words:
        if word == "-k":
            next(words, None)
        elif (word.startswith("-") and not _LATE_OPTION.fullmatch(word)) or "/" in word.partition("::")[0]:
            return False
    return not any(entry.is_dir() or entry.name in _CONFIGURES for entry in os.scandir(WORKSPACE))


def _reopen_files() -> None:
    """Puts back, under their numbers, the files that the plugins had opened and the child has closed."""
    config = _flat.config
    os.dup2(2, config.stash[_faulthandler.fault_handler_stderr_key].fileno())
    os.dup2(0, config.pluginmanager.getplugin("logging-plugin").log_file_handler.stream.fileno())


def _use_flat() -> None:
    """Lets the next `pytest.main` find its config and its session ready; one within that run gets its own."""
    config: Any = _flat.config
    session_type: Any = _pytest.main.Session
    config_module: Any = _pytest.config
    prepare_config = config_module._prepareconfig
    make_session = session_type.from_config

    def take_config(args: list[str], plugins: Any) -> Any:
        config_module._prepareconfig = prepare_config
        config.invocation_params = config.InvocationParams(args=args, plugins=plugins, dir=Path.cwd())
        config.args = config._parser.parse_setoption(args, config.option, namespace=config.option)
        config.args_source = config.ArgsSource.ARGS
        if not config.args:
            config.args, config.args_source = [WORKSPACE], config.ArgsSource.INCOVATION_DIR
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.start_global_capturing()
        capture.suspend_global_capture()
        return config

    def take_session(_: Any) -> Any:
        session_type.from_config = make_session
        return _flat

    config_module._prepareconfig = take_config
    session_type.from_config = take_session
    config._do_configure = lambda: None


# --- both ---

_faulthandler: Any = _pytest.faulthandler
_build_config = _pytest.config.get_config
_start_fixtures = _pytest.fixtures.pytest_sessionstart


def _start_session(session: Any) -> None:
    """Stands in for the start of pytest's fixtures."""
    getattr(session.config, "start_with_fixtures", _start_fixtures)(session)


def _keep_parser(config: Any) -> None:
    """Lets pytest build its parser of options once, and again only when a conftest.py has added an option."""
    parser = config._parser
    build = parser._getparser
    built: dict[int, Any] = {}

    def get_parser() -> Any:
        options = sum(len(group.options) for group in [*parser._groups, parser._anonymous])
        if options not in built:
            built[options] = build()
        return built[options]

    parser._getparser = get_parser
    get_parser()
