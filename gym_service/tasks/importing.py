"""Completions out of files of JSON lines, as others write them: like HumanEval, HumanEvalFix or MBPP.

    humaneval      task_id, prompt, entry_point, canonical_solution, test
    humanevalfix   these, and buggy_solution, with which an episode starts
    mbpp           task_id, text (or prompt), code, test_list, test_setup_code (or test_imports)

Nothing of a file is executed here. Whether a task holds is found out by its proof; what is refused here is a line that
is no such task.
"""

import ast
import gzip
import hashlib
import io
import json
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_service.tasks.completion import PATH, CompletionTask
from gym_service.tasks.model import Split
from gym_service.tasks.parsing import parse

_MAX_BYTES = 256 << 20
"""Of a file, also of what it is unpacked to."""
_MAX_ID_CHARACTERS = 100
"""An id is the name of a file, too."""
_REPAIR = (
    f"The function {{function}} in {PATH} does not do what its text says. Repair it. Hidden tests call it."
)


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file comes to."""

    source: str
    """Names the file and its content."""
    tasks: tuple[CompletionTask, ...]
    refused: tuple[str, ...]
    """A line for each that is no task, with its number and the reason."""


class ImportRefused(Exception):
    """What is to be imported is not there, or cannot be; the message says what to change."""


def read_file(path: Path, form: str, suite: str, split: Split) -> Imported:
    """Reads the tasks of a file; `form` is one of FORMS. Raises ImportRefused."""
    text, source = read_text(path)
    imported = _read_lines(text, form, {"suite": suite, "split": split, "source": source})
    if not imported.tasks:
        first = next(iter(imported.refused), "it is empty")
        raise ImportRefused(f"{path} holds no task as --as {form} wants it: {first}")
    return imported


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file, maybe compressed as .gz, and what names the file and its content. Raises ImportRefused."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        unpacked = content
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                unpacked = packed.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES or len(unpacked) > _MAX_BYTES:
            raise ImportRefused(f"{path} holds more than {_MAX_BYTES >> 20} MiB")
        return unpacked.decode(), f"{path.name} sha256:{hashlib.sha256(content).hexdigest()}"
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ImportRefused(f"{path} cannot be read: {error}") from error


def _read_lines(text: str, form: str, place: Mapping[str, Any]) -> Imported:
    tasks: dict[str, CompletionTask] = {}
    refused = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is no object")
            task = _task(row, form, place)
            if task.task_id in tasks:
                raise ValueError(f"{task.task_id} was there before")
            tasks[task.task_id] = task
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            refused.append(f"line {number}: {error}")
    return Imported(place["source"], tuple(tasks.values()), tuple(refused))


def suite_name(file_name: str) -> str:
    """The name of a suite that comes from a file of this name."""
    return re.sub(r"[^a-z0-9]+", "-", file_name.lower().partition(".")[0]).strip("-")


def _task(row: Mapping[str, Any], form: str, place: Mapping[str, Any]) -> CompletionTask:
    name = task_name(row, "task_id")
    return CompletionTask(task_id=f"{place['suite']}/{name}", **place, **FORMS[form](row))


def task_name(row: Mapping[str, Any], key: str) -> str:
    """What a row calls its task, as the last part of an id. Raises ValueError."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(row.get(key, ""))).strip("-")
    if not name:
        raise ValueError(f"it has no {key}")
    if len(name) > _MAX_ID_CHARACTERS:
        raise ValueError(f"its {key} has more than {_MAX_ID_CHARACTERS} characters")
    return name


def _humaneval(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "prompt": _text(row, "prompt"),
        "entry_point": _text(row, "entry_point"),
        "gold": _text(row, "canonical_solution"),
        "check": _without_last_call(_text(row, "test")),
    }


def _humanevalfix(row: Mapping[str, Any]) -> dict[str, Any]:
    return _humaneval(row) | {"stub": _text(row, "buggy_solution"), "request": _REPAIR}


def _mbpp(row: Mapping[str, Any]) -> dict[str, Any]:
    code = _text(row, "code").replace("\r\n", "\n")
    tests = row.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise ValueError("it has no test_list (a list of texts)")
    imports = row.get("test_imports") or []
    setup = row.get("test_setup_code") or "\n".join(map(str, imports))
    check = f"def check(candidate):\n{textwrap.indent(chr(10).join(tests), '    ')}\n"
    function = _tested(code, check)
    # All tests in sight could be written into the function as they are.
    told = f"{row.get('text') or _text(row, 'prompt')}\nFor example: {tests[0]}"
    return {
        "prompt": textwrap.indent(told.replace("\r", ""), "# ", lambda line: True) + "\n\n\n",
        "entry_point": function.name,
        "gold": code.rstrip("\n") + "\n",
        "stub": f"def {function.name}({ast.unparse(function.args)}):\n    pass\n",
        "check": f"{setup}\n\n\n{check}" if setup.strip() else check,
    }


FORMS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "humaneval": _humaneval,
    "humanevalfix": _humanevalfix,
    "mbpp": _mbpp,
}


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"it has no {name} (a text)")
    return value


def _without_last_call(test: str) -> str:
    """A test without the call of `check` that some files end with: who grades makes it."""
    body = parse(test).body
    match body[-1] if body else None:
        case ast.Expr(ast.Call(ast.Name("check"))) as last:
            return "\n".join(test.split("\n")[: last.lineno - 1]) + "\n"
    return test


def _tested(code: str, check: str) -> ast.FunctionDef:
    """The function of a source that a check calls. Raises ValueError without one."""
    functions = {node.name: node for node in parse(code).body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(parse(check)):
        match node:
            case ast.Call(ast.Name(name)) if name in functions:
                return functions[name]
    raise ValueError("no test calls a function that the code defines")
