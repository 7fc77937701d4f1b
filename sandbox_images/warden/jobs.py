"""What a child does once it is the episode: a command, a Python file, calls of one function, or a graded run.

Python runs in this process, where a fork is an interpreter; or where the task names an interpreter of its own image, in
that (`in_image.py`).

This code runs as the episode. Whatever it reports is only as honest as the code that runs beside it, so it
reports nothing that decides anything: output is text for the policy, and records are claims that the service holds
against what never came here, such as the values that it expects.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import random
import signal
import sys
import types
from collections.abc import Callable, Mapping

from . import MODULES_AT_START, WORKSPACE, by_name
from .graded import JOB_DESCRIPTOR, RESULT_DESCRIPTOR
from .probe import observe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXIT_WARDEN_FAILED = 125
EXIT_CANNOT_START = 126
EXIT_NOT_FOUND = 127
MAX_RESULT_CHARACTERS = 100_000
"""The longest encoded value of one call; a longer one is reported as too large."""

_ENVIRONMENT = {
    "HOME": WORKSPACE,
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    # A UID without a name would show as a number, and each episode has another.
    "USER": "agent",
}


def prepare() -> None:
    """Gives the warden what every child inherits: the environment, and standard streams."""
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    for stream in (sys.stdout, sys.stderr):
        # As a child finds them on its own descriptors 1 and 2.
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def wants_result_channel(job: bytes) -> bool:
    """Says whether the output of the job is a channel of records instead of what it prints."""
    kinds = b"call", b"by_name", b"pytest_records", b"in_image"
    return job.startswith(tuple(b'{"kind": "%s"' % kind for kind in kinds))


def wants_pytest(job: memoryview) -> bool:
    """Says whether the job is one for the zygote."""
    return bytes(job[:16]) == b'{"kind": "pytest'


def perform(job: bytes, kinds: Mapping[str, Callable[..., int]]) -> int:
    """Carries out a job and returns the exit status."""
    os.chdir(WORKSPACE)
    # The warden's own folder, and its name for the episode's own use.
    del sys.path[0]
    del sys.modules[__package__]
    _prefer_as_victim_of_memory_pressure()
    # Who draws without a seed of its own draws the same in every sandbox, and is graded twice alike.
    random.seed(0)
    request = json.loads(job)
    os.environ.update(request.pop("variables", {}))
    return kinds[request.pop("kind")](**request)


def _execute(argv: list[str]) -> int:
    # Python itself ignores these two, and other programs would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_START


def _in_image(python: str, job: dict[str, object]) -> int:
    """Has an interpreter of the image carry out a graded run."""
    descriptor = os.memfd_create("job", 0)
    os.write(descriptor, json.dumps(job).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, JOB_DESCRIPTOR)
    return _execute([python, "-s", f"{os.path.dirname(__file__)}/in_image.py"])


def _python(argv: list[str]) -> int:
    """Runs a file as `python FILE ...` would, without starting an interpreter."""

    def run() -> None:
        path = argv[0]
        module = types.ModuleType("__main__")
        module.__file__ = path
        module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        sys.modules["__main__"] = module
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        # In a new interpreter, what lies beside the program goes before what the library calls by the same name.
        for entry in os.listdir(sys.path[0]):
            if entry.removesuffix(".py") not in MODULES_AT_START:
                sys.modules.pop(entry.removesuffix(".py"), None)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec"), module.__dict__)

    return run_to_exit(run)


def _call(file: str, function: str, arguments: list[list[Any]]) -> int:
    """Calls a function of a file once for each list of arguments; writes one record per call."""
    # Last, so that no file of the submission stands in for a module of the standard library.
    sys.path.append(WORKSPACE)
    with open(RESULT_DESCRIPTOR, "w", encoding="utf-8") as results:
        try:
            module = types.ModuleType(file.removesuffix(".py"))
            module.__file__ = file
            # As an import does: a dataclass looks up the module that it is in.
            sys.modules[module.__name__] = module
            with open(file, "rb") as source:
                exec(compile(source.read(), file, "exec"), module.__dict__)
            target = getattr(module, function)
        except BaseException:
            return 1
        for values in arguments:
            try:
                record = {"value": encode(target(*values), depth=0)}
                line = json.dumps(record)
                if len(line) > MAX_RESULT_CHARACTERS:
                    line = '{"failed": "too_large"}'
            except BaseException as error:
                line = '{"failed": "%s"}' % (
                    "not_plain_data" if isinstance(error, _NotPlainData) else "raised"
                )
            results.write(line + "\n")
            results.flush()
    return 0


class _NotPlainData(Exception):
    """The value holds something that is not plain data."""


def encode(value: Any, depth: int) -> Any:
    """Turns plain data into JSON that keeps types apart; the mirror of `gym_service.grading.records.decode`."""
    if depth > 50:
        raise _NotPlainData
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    if kind is tuple:
        return {"tuple": [encode(item, depth + 1) for item in value]}
    if kind is dict:
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    raise _NotPlainData


def run_to_exit(run: Callable[[], None]) -> int:
    """Runs code as the main program: exit status, traceback and exit handlers as an interpreter gives them."""
    exit_status = 0
    try:
        run()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            exit_status = stop.code or 0
        else:
            print(stop.code, file=sys.stderr)
            exit_status = 1
    except BaseException as error:
        import traceback

        # The first two frames are ours, not the program's.
        shown = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(shown.tb_next if shown else None))
        exit_status = 1
    if threading := sys.modules.get("threading"):
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    return exit_status & 0xFF


def _prefer_as_victim_of_memory_pressure() -> None:
    """Asks the kernel to kill this process before the warden when memory runs out."""
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"1000")
        os.close(descriptor)
    except OSError:
        # A runtime that does not offer it picks by size, and the warden is small.
        pass


KINDS: dict[str, Callable[..., int]] = {
    "exec": _execute,
    "in_image": _in_image,
    "python": _python,
    "call": _call,
    "by_name": by_name.run,
    "probe": observe,
}
