"""Compiled modules of base trees: without them each process that grades compiles the whole package anew.

They are made in a sandbox in which nothing but the base tree lies and nothing of it runs, once for each content, and go
into gradings beside the sources that a submission left as they were. A changed source is compiled where it runs.
"""

import asyncio
import hashlib
from collections.abc import Mapping

from gym_service.sandbox.base import Lend, RunPython, SandboxLost
from gym_service.tasks.environment import Environment
from gym_service.tasks.repository import RepositoryTask

_COMPILE = b"""
import compileall, os, py_compile
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
compileall.compile_dir(os.getcwd(), quiet=2, invalidation_mode=mode)
"""
_SCRIPT = "compile_all.py"
_SECONDS = 30.0


class Bytecode:
    """The compiled modules that were made so far. All tasks of a suite share most of theirs."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Environment, str, bytes], dict[str, bytes]] = {}
        """The compiled file by its path, for each source that was compiled: none if it does not compile."""
        self._one_at_a_time = asyncio.Lock()

    async def of(self, lend: Lend, task: RepositoryTask, tree: Mapping[str, bytes]) -> dict[str, bytes]:
        """Gives the compiled files of the sources that are as they are in the base tree. Raises SandboxLost."""
        sources = {
            path: content
            for path, content in tree.items()
            if path.endswith(".py") and task.is_source(path) and content == task.base.get(path)
        }
        keys = {
            path: (task.environment, path, hashlib.sha256(content).digest())
            for path, content in sources.items()
        }
        async with self._one_at_a_time:
            missing = {path: sources[path] for path, key in keys.items() if key not in self._compiled}
            if missing:
                made = await _compile(lend, missing)
                for path in missing:
                    self._compiled[keys[path]] = made.get(path, {})
        return {name: code for key in keys.values() for name, code in self._compiled[key].items()}


async def _compile(lend: Lend, sources: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Compiles sources; gives the compiled file of each by its path."""
    async with lend() as sandbox:
        writes = (
            sandbox.write_file(path, content) for path, content in {**sources, _SCRIPT: _COMPILE}.items()
        )
        await asyncio.gather(*writes)
        done = await sandbox.run(RunPython((_SCRIPT,)), _SECONDS)
        if done.exit_status != 0 or done.timed_out:
            raise SandboxLost(f"a base tree could not be compiled: {done.output[:200]!r}")
        found = [entry.path for entry in await sandbox.list_files() if entry.path.endswith(".pyc")]
        contents = await asyncio.gather(*map(sandbox.read_file, found))
    by_source: dict[str, dict[str, bytes]] = {}
    for name, content in zip(found, contents, strict=True):
        folder, _, file = name.rpartition("/")
        source = f"{folder.removesuffix('__pycache__')}{file.partition('.')[0]}.py"
        by_source[source] = {name: content}
    return by_source
