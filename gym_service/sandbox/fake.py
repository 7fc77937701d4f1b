"""A sandbox that isolates nothing: for tests of everything around it, with authored code only.

It keeps files in memory and runs Python in this process. It has no limits and no UID; what those do is shown on
real containers.
"""

import builtins
import contextlib
import io
import json
import traceback
import types
from collections.abc import Callable

from gym_service.sandbox.base import (
    CallFunction,
    Completed,
    Execute,
    FileEntry,
    FileRefused,
    Job,
    RunChecks,
    RunPytest,
    RunPython,
    RunTests,
    SandboxLost,
)
from gym_service.sandbox.policy import SandboxLimits
from sandbox_images.warden import jobs


class FakeSandbox:
    """See `base.Sandbox`."""

    def __init__(self) -> None:
        self.uid = 0
        self.limits = SandboxLimits()
        self.observed = {"isolation": "none"}
        self.files: dict[str, bytes] = {}
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    @property
    def command_timeout_seconds(self) -> float:
        return self.limits.command_timeout_seconds

    async def read_file(self, path: str) -> bytes:
        await self.require_path(path, folder_allowed=False)
        return self.files[path]

    async def write_file(self, path: str, content: bytes) -> None:
        self._check()
        if path in self._folders():
            raise FileRefused("is_directory")
        if any(parent in self.files for parent in _parents(path)):
            raise FileRefused("path_outside_workspace")
        self.files[path] = content

    async def require_path(self, path: str, *, folder_allowed: bool) -> None:
        self._check()
        if path in self.files:
            return
        if path == "." or path in self._folders():
            if not folder_allowed:
                raise FileRefused("is_directory")
        else:
            raise FileRefused("not_found")

    async def list_files(self) -> tuple[FileEntry, ...]:
        self._check()
        entries = [FileEntry(path, "folder", 0o755, 0) for path in self._folders()]
        entries += [FileEntry(path, "file", 0o644, len(content)) for path, content in self.files.items()]
        return tuple(sorted(entries, key=lambda entry: entry.path.encode()))

    async def run(self, job: Job, timeout_seconds: float) -> Completed:
        self._check()
        match job:
            case CallFunction():
                exit_status, output = self._call(job)
            case RunPython(argv):
                exit_status, output = _captured(lambda: self._execute(argv[0], "__main__"))
            case RunPytest():
                exit_status, output = _captured(self._run_tests)
            case Execute(argv):
                exit_status, output = self._command(argv)
            case RunTests() | RunChecks():
                raise FileRefused("not_supported")
        return Completed(exit_status, output.encode(), False, False, False)

    async def scrub(self) -> str:
        self._check()
        self.files.clear()
        return ""

    async def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise SandboxLost("the sandbox is closed")

    def _folders(self) -> set[str]:
        return {parent for path in self.files for parent in _parents(path)}

    def _execute(self, path: str, name: str) -> types.ModuleType:
        module = types.ModuleType(name)
        source = self.files[path].decode()

        def load(wanted: str, *rest: object) -> object:
            if f"{wanted}.py" in self.files:
                return self._execute(f"{wanted}.py", wanted)
            return __import__(wanted, *rest)  # type: ignore[arg-type]

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": load}
        exec(compile(source, path, "exec"), module.__dict__)
        return module

    def _call(self, job: CallFunction) -> tuple[int, str]:
        try:
            target = getattr(self._execute(job.file, job.file.removesuffix(".py")), job.function)
        except Exception:
            return 1, ""
        records = []
        for values in job.arguments:
            try:
                records.append(json.dumps({"value": jobs.encode(target(*values), depth=0)}))
            except Exception:
                records.append('{"failed": "raised"}')
        return 0, "".join(record + "\n" for record in records)

    def _run_tests(self) -> None:
        failed = 0
        for path in sorted(self.files):
            if path.startswith("test_") and path.endswith(".py"):
                tests = vars(self._execute(path, path.removesuffix(".py")))
                for name in [name for name in tests if name.startswith("test_")]:
                    try:
                        tests[name]()
                    except AssertionError:
                        failed += 1
                        print(f"FAILED {path}::{name}")
                    else:
                        print(f"PASSED {path}::{name}")
        raise SystemExit(1 if failed else 0)

    def _command(self, argv: tuple[str, ...]) -> tuple[int, str]:
        name, operands = argv[0].rsplit("/", 1)[-1], [word for word in argv[1:] if not word.startswith("-")]
        if name == "ls":
            return 0, "".join(f"{path}\n" for path in sorted({path.split("/")[0] for path in self.files}))
        if name == "cat":
            return 0, "".join(self.files[path].decode() for path in operands)
        lines = [line for path in operands[1:] for line in self.files[path].decode().splitlines()]
        found = [line + "\n" for line in lines if operands[0] in line]
        return (0 if found else 1), "".join(found)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _captured(run: Callable[[], object]) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            run()
        except SystemExit as stop:
            return int(stop.code or 0), output.getvalue()
        except Exception:
            traceback.print_exc()
            return 1, output.getvalue()
    return 0, output.getvalue()
