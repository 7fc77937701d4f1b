"""A graded run without pytest: functions and methods are called by their names.

The child is the warden's and not the zygote's: pytest was never in its memory, and code that does right only where
pytest is finds nothing to know it by. For the same reason nothing here is named for what is called.
"""

from __future__ import annotations

import os
import sys

from . import WORKSPACE
from .graded import Records, add_roots, start_clock, stop_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run(functions: list[str], roots: list[str], seconds_each: float) -> int:
    """Imports files under their dotted names and calls what is named in them.

    A file that cannot be imported has no records, and the exit status is 1.
    """
    records = Records()
    add_roots(roots)
    modules: dict[str, object] = {}
    exit_status = 0
    for each in functions:
        file, _, name = each.partition("::")
        if file not in modules:
            try:
                modules[file] = _import_file(file)
            except BaseException:
                modules[file] = None
                exit_status = 1
        if modules[file]:
            records.add(each, _outcome(modules[file], name.replace("::", "."), seconds_each))
    records.end(exit_status)
    return exit_status


def _import_file(file: str) -> object:
    """Imports a file as part of the package that its folder is, if it is one, like pytest does."""
    folder, base = os.path.split(file)
    name = os.path.splitext(base)[0]
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
