"""A graded run without pytest: functions and methods of one file are called by their names.

The child is the warden's and not the zygote's: pytest was never in its memory, and code that does right only where
pytest is finds nothing to know it by. For the same reason nothing here is named for what is called.
"""

from __future__ import annotations

import os
import sys

from .files import WORKSPACE
from .graded import Records, add_roots, start_clock, stop_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run(file: str, names: list[str], roots: list[str], seconds_each: float) -> int:
    """Imports a file under its dotted name and calls what is named; without records if it cannot be imported."""
    records = Records()
    add_roots(roots)
    try:
        module = _import_file(file)
    except BaseException:
        records.end(1)
        return 1
    for name in names:
        records.add(f"{file}::{name.replace('.', '::')}", _outcome(module, name, seconds_each))
    records.end(0)
    return 0


def _import_file(file: str) -> object:
    """Imports a file as part of the package that its folder is, if it is one, like pytest does."""
    folder, base = os.path.split(file)
    name = base.removesuffix(".py")
    while os.path.isfile(f"{folder}/__init__.py"):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    start = os.path.normpath(f"{WORKSPACE}/{folder}")
    if start not in sys.path:
        sys.path.append(start)
    __import__(name)
    module = sys.modules[name]
    if module.__file__ is None or not os.path.samefile(module.__file__, file):
        raise ImportError
    return module


def _outcome(module: object, name: str, seconds: float) -> str:
    try:
        start_clock(seconds)
        try:
            _call(module, name)
        finally:
            stop_clock()
    except BaseException as error:
        unittest: Any = sys.modules.get("unittest")
        return "skipped" if unittest and isinstance(error, unittest.SkipTest) else "failed"
    return "passed"


def _call(module: object, name: str) -> None:
    class_name, _, method_name = name.rpartition(".")
    if not class_name:
        _require_done(getattr(module, name)())
        return
    owner = getattr(module, class_name)
    unittest: Any = sys.modules.get("unittest")
    if unittest and issubclass(owner, unittest.TestCase):
        # A suite of one, which sets up the class and the module too.
        unittest.TestSuite([owner(method_name)]).debug()
        return
    instance = owner()
    method = getattr(instance, method_name)
    _call_if_there(instance, "setup_method", method)
    try:
        _require_done(method())
    finally:
        _call_if_there(instance, "teardown_method", method)


def _call_if_there(instance: object, name: str, method: Callable[[], object]) -> None:
    if hook := getattr(instance, name, None):
        hook(*[method][: hook.__code__.co_argcount - 1])


def _require_done(value: object) -> None:
    """What a coroutine or a generator gives has not run yet."""
    if hasattr(value, "__await__") or hasattr(value, "__next__") or hasattr(value, "__anext__"):
        raise TypeError
