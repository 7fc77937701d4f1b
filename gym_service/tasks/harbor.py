"""A task of Harbor's, or of terminal-bench from before it, as a folder; and whether it is of a kind that fits here.

    Harbor           task.toml, instruction.md, environment/Dockerfile, solution/solve.sh, tests/test.sh, tests/*.py
    terminal-bench   task.yaml (instruction), Dockerfile, solution.sh, run-tests.sh, tests/*.py

What fits is one container, a solution that is one script, and tests that pytest runs. The script that starts the tests
is not run: it may do no more than fetch pytest, start it and write down what it says.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gym_service.tasks.base_tree import read_files
from gym_service.tasks.importing import ImportRefused, task_name
from gym_service.tasks.parsing import parse
from gym_service.tasks.repository import is_test_module

_MOST_SCRIPT_BYTES = 100_000
"""It becomes one argument of a program."""
_NOT_FOR_IMAGE = frozenset(
    {"tests", "solution.sh", "solution.yaml", "task.yaml", "run-tests.sh", "docker-compose.yaml"}
)
"""Of a folder of terminal-bench; a Dockerfile that copies all would bring tests and solution into the image."""
_STARTERS = {
    ".", ":", "[", "[[", "apt", "apt-get", "cd", "curl", "deactivate", "echo", "elif", "else", "exit", "export", "fi",
    "if", "mkdir", "pip", "pip3", "pytest", "return", "set", "source", "then", "true", "uv", "uvx",
}  # fmt: skip
"""What a script does that starts pytest and no more, by the first word of each command."""
_PYTHON_STARTER = re.compile(r"python[\d.]* -m (pytest|pip|venv|ensurepip)\b")
_TOP_FOLDERS = {
    "app", "bin", "boot", "data", "dev", "etc", "home", "lib", "logs", "media", "mnt", "opt", "oracle", "proc", "root",
    "run", "sbin", "solution", "srv", "sys", "tests", "usr", "var", "work", "workspace",
}  # fmt: skip
_EVERYWHERE = {"/bin/bash", "/bin/sh", "/dev/null", "/usr/bin/env"}


@dataclass(frozen=True, slots=True)
class HarborFolder:
    """A folder as it was read."""

    name: str
    """The last part of the task's id."""
    request: str
    image: str
    """An image that it names in the place of a Dockerfile; empty for none."""
    context: Path
    """The folder with the Dockerfile."""
    not_for_image: frozenset[str]
    """What lies in that folder and has no part in the image."""
    tests: Mapping[str, bytes]
    """The tests, and what they need."""
    solution: str
    """The script that solves it."""


def is_harbor(folder: Path) -> bool:
    """Whether a folder holds such a task."""
    return (folder / "instruction.md").is_file() or (folder / "task.yaml").is_file()


def read_harbor(folder: Path) -> HarborFolder:
    """Reads a folder. Raises ImportRefused."""
    try:
        files = read_files(folder)
        texts = {path: content.decode() for path, content in files.items() if path in _TEXTS}
        read = _read_harbor if "instruction.md" in files else _read_terminal_bench
        found = read(folder, files, texts)
        found.request.encode()  # A text can be written that is none in UTF-8.
        return found
    except (OSError, RecursionError, ValueError) as error:
        raise ImportRefused(f"{folder} cannot be read: {error}") from error


_TEXTS = {
    "instruction.md", "task.toml", "task.yaml", "solution/solve.sh", "solution.sh", "tests/test.sh", "run-tests.sh",
    "docker-compose.yaml",
}  # fmt: skip


def paths_outside(tests: Mapping[str, bytes], workspace: str) -> Iterator[tuple[str, str]]:
    """Gives the places outside of a folder that tests name in texts, each with the file that does."""
    for file, content in sorted(tests.items()):
        if not file.endswith(".py"):
            continue
        try:
            tree = parse(content.decode())
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ImportRefused(f"tests/{file} cannot be read as Python: {error}") from error
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str() as text) if text.startswith("/") and text not in _EVERYWHERE:
                    inside = text == workspace or text.startswith(f"{workspace}/")
                    if not inside and re.split(r"[/\s]", text)[1] in _TOP_FOLDERS:
                        yield text, file


def _read_harbor(folder: Path, files: Mapping[str, bytes], texts: Mapping[str, str]) -> HarborFolder:
    try:
        settings = tomllib.loads(_text(texts, "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise ImportRefused(f"task.toml cannot be read: {error}") from error
    environment, verifier = (_table(settings, each) for each in ("environment", "verifier"))
    if settings.get("steps") or settings.get("multi_step_reward_strategy"):
        raise ImportRefused("it has several steps: a task here is one request")
    if environment.get("gpus"):
        raise ImportRefused("it needs a GPU: no sandbox has one")
    if environment.get("mcp_servers"):
        raise ImportRefused("it needs MCP servers: a sandbox has no network")
    if "environment" in verifier or verifier.get("environment_mode") == "separate":
        raise ImportRefused(
            "its tests have a container of their own: only those that run in the task's are taken"
        )
    context = _below(files, "environment")
    if compose := [path for path in context if re.fullmatch(r"(docker-)?compose\.ya?ml", path)]:
        raise ImportRefused(f"environment/{compose[0]}: a task has one container, made of a Dockerfile")
    image = environment.get("docker_image", "")
    if not isinstance(image, str) or not (image or "Dockerfile" in context):
        raise ImportRefused("it has no environment/Dockerfile, and task.toml no environment.docker_image")
    solution = _below(files, "solution")
    if more := sorted(solution.keys() - {"solve.sh"}):
        raise ImportRefused(f"solution/{more[0]}: the solution has to be one script, solution/solve.sh")
    return HarborFolder(
        name=_name(folder),
        request=_text(texts, "instruction.md"),
        image=image,
        context=folder / "environment",
        not_for_image=frozenset(),
        tests=_tests(_below(files, "tests"), "tests/test.sh", texts),
        solution=_script(texts, "solution/solve.sh"),
    )


def _read_terminal_bench(folder: Path, files: Mapping[str, bytes], texts: Mapping[str, str]) -> HarborFolder:
    settings = _yaml(_text(texts, "task.yaml"), "task.yaml")
    request = settings.get("instruction")
    if not isinstance(request, str) or not request.strip():
        raise ImportRefused("task.yaml has no instruction: a text that says what to do")
    if compose := texts.get("docker-compose.yaml"):
        services = _table(_yaml(compose, "docker-compose.yaml"), "services")
        if len(services) != 1:
            raise ImportRefused(f"docker-compose.yaml has {len(services)} services: a task has one container")
        asked = _table(services, next(iter(services)))
        for right in ("privileged", "cap_add", "devices", "network_mode"):
            if asked.get(right):
                raise ImportRefused(f"docker-compose.yaml asks for {right}, which no sandbox has")
    if "Dockerfile" not in files:
        raise ImportRefused("it has no Dockerfile")
    return HarborFolder(
        name=_name(folder),
        request=request,
        image="",
        context=folder,
        not_for_image=_NOT_FOR_IMAGE,
        tests=_tests(_below(files, "tests"), "run-tests.sh", texts),
        solution=_script(texts, "solution.sh"),
    )


def _name(folder: Path) -> str:
    return task_name({"name": folder.resolve().name}, "name")


def _tests(files: Mapping[str, bytes], starter: str, texts: Mapping[str, str]) -> dict[str, bytes]:
    if starter in texts:
        _check_starter(texts[starter], starter)
    tests = {path: content for path, content in files.items() if path != "test.sh"}
    if not any(map(is_test_module, tests)):
        raise ImportRefused("tests/ holds no test_*.py: only tests that pytest runs are taken")
    return tests


def _check_starter(script: str, name: str) -> None:
    """Checks that a script starts pytest and does nothing that tests could depend on."""
    joined = script.replace("\\\n", " ")
    for line in joined.split("\n"):
        for command in re.split(r"&&|\|\||;", line):
            words = re.sub(r"^(\s*\w+=\S*)+\s*", "", command).split()
            known = not words or words[0].startswith("#") or words[0] in _STARTERS
            if not known and not _PYTHON_STARTER.match(" ".join(words)):
                raise ImportRefused(f"{name} does more than to run pytest: {command.strip()[:100]!a}")
            if words and words[0].startswith("#"):
                break
    if "pytest" not in joined:
        raise ImportRefused(f"{name} does not run pytest")


def _script(texts: Mapping[str, str], name: str) -> str:
    script = _text(texts, name)
    if len(script.encode()) > _MOST_SCRIPT_BYTES:
        raise ImportRefused(f"{name} has more than {_MOST_SCRIPT_BYTES} bytes")
    if outside := re.search(r"/(solution|oracle|tests|logs)/", script):
        raise ImportRefused(
            f"{name} uses {outside[0]}, which no sandbox has: the solution has to be one script"
        )
    return script


def _text(texts: Mapping[str, str], name: str) -> str:
    if not texts.get(name, "").strip():
        raise ImportRefused(f"it has no {name}")
    return texts[name]


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = settings.get(name) or {}
    if not isinstance(table, dict):
        raise ImportRefused(f"{name} is no table")
    return table


def _yaml(text: str, name: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text)
    # The others are what its readers of numbers, times and truths stumble over.
    except (yaml.YAMLError, AttributeError, LookupError) as error:
        raise ImportRefused(f"{name} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ImportRefused(f"{name} is no table")
    return settings


def _below(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    return {
        path.removeprefix(f"{folder}/"): content
        for path, content in files.items()
        if path.startswith(f"{folder}/")
    }
