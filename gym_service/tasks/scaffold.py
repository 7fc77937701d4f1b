"""A task of one's own as a folder, and examples to start from: with pytest, and with a test command.

task.toml     what the policy is asked to do, and where the task belongs
repo/         the repository with its fault, without the tests in question
public/       tests that the policy sees, in the folder `tests`; they pass before and after
hidden/       tests that decide; they fail at the start and pass with the gold
gold/         the files of repo/ that the reference solution changes, as they should be
twins/SET/    where a test command runs the tests: variants of files of hidden/ with one wrong value, by the same path
"""

import posixpath
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gym_service.tasks.command import FILE, FOLDER
from gym_service.tasks.commands import AllowedCommand, CommandRefused
from gym_service.tasks.environment import Environment
from gym_service.tasks.examples import WITH_COMMAND, WITH_PYTEST
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.ready_commands import READY, read_commands

TEST_FOLDER = "tests"
_MAX_BYTES = 16 << 20
_LEFT_OUT = {"__pycache__", ".git", ".pytest_cache", ".DS_Store"}
_KEYS = {"request", "split", "suite", "commands", "test_command", "tests", "sources", "environment"}
_ENVIRONMENT_KEYS = {"image", "dockerfile", "workspace", "python", "variables"}


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A folder as it was read."""

    name: str
    request: str
    split: Split
    suite: str
    repo: dict[str, bytes] = field(default_factory=dict)
    public: dict[str, bytes] = field(default_factory=dict)
    hidden: dict[str, bytes] = field(default_factory=dict)
    gold: dict[str, bytes] = field(default_factory=dict)
    twins: dict[str, bytes] = field(default_factory=dict)
    test_command: tuple[str, ...] = ()
    """What runs a test file; nothing where pytest runs all."""
    tests: str = ""
    """A pattern of the names of test files."""
    sources: tuple[str, ...] = ()
    """Patterns of the paths that a solution may change."""
    environment: Environment = field(default_factory=Environment)
    dockerfile: str = ""
    """The Dockerfile of the task's own image, by its path in the folder."""

    @property
    def task_id(self) -> str:
        """What the task is called. Raises ImportRefused."""
        name = re.sub(r"[^a-z0-9_]+", "-", self.name.lower()).strip("-")
        if not name:
            raise ImportRefused(
                f"{self.name!a} has no letter or digit a task could be called by: rename the folder"
            )
        return f"{self.suite}/{name}"

    def placed_tests(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """The files of public/ and of hidden/ by where they lie in the repository.

        Raises ImportRefused where two lie at one place.
        """
        public, hidden = (
            {f"{TEST_FOLDER}/{path}": content for path, content in part.items()}
            for part in (self.public, self.hidden)
        )
        if double := sorted(
            public.keys() & hidden.keys() | self.repo.keys() & (public.keys() | hidden.keys())
        ):
            raise ImportRefused(
                f"{double[0]} is there twice: give the files of public/ and hidden/ other names"
            )
        return public, hidden


def write_example(folder: Path, *, with_command: bool = False) -> None:
    """Writes a task that can be proven, to be changed; in Perl, if it has a test command. Raises ImportRefused."""
    if folder.exists():
        raise ImportRefused(f"{folder} is there already: choose another name")
    for path, text in (WITH_COMMAND if with_command else WITH_PYTEST).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def read_folder(folder: Path) -> TaskFolder:
    """Reads a folder. Raises ImportRefused."""
    try:
        settings = tomllib.loads((folder / "task.toml").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ImportRefused(f"{folder / 'task.toml'} cannot be read: {error}") from error
    if unknown := settings.keys() - _KEYS:
        raise ImportRefused(
            f"task.toml has {', '.join(sorted(unknown))}; there is {', '.join(sorted(_KEYS))}"
        )
    request, split, suite = (settings.get(key, "") for key in ("request", "split", "suite"))
    if not isinstance(request, str) or not request.strip():
        raise ImportRefused("task.toml has no request: a text that says what to do")
    if split not in list(Split):
        raise ImportRefused(f"task.toml has no split: one of {', '.join(Split)}")
    try:
        commands = read_commands(settings.get("commands", []))
    except CommandRefused as error:
        raise ImportRefused(f"task.toml, commands: {error}") from error
    try:
        parts = {name: _files(folder / name) for name in ("repo", "public", "hidden", "gold", "twins")}
    except (OSError, RecursionError) as error:
        raise ImportRefused(f"{folder} cannot be read: {error}") from error
    for name in ("repo", "hidden", "gold"):
        if not parts[name]:
            raise ImportRefused(f"{folder / name} holds no file")
    environment, dockerfile = _environment(settings.get("environment", {}))
    # What lies beside it is given to its steps: nothing of this machine but the task's own folder.
    if not (folder / dockerfile).resolve().is_relative_to(folder.resolve()):
        raise ImportRefused(
            f"the dockerfile {dockerfile!a} of [environment] lies outside of the task's folder"
        )
    test_command = _words(settings, "test_command")
    commands += tuple(each for each in _own_command(test_command) if each.name not in _names(commands))
    read = TaskFolder(
        folder.resolve().name,
        request,
        Split(split),
        str(suite),
        **parts,
        test_command=test_command,
        tests=str(settings.get("tests", "")),
        sources=_words(settings, "sources"),
        environment=replace(environment, commands=commands),
        dockerfile=dockerfile,
    )
    _check_command(read)
    return read


def _check_command(read: TaskFolder) -> None:
    """Raises ImportRefused."""
    if not read.test_command:
        if read.tests or read.sources or read.twins:
            raise ImportRefused("tests, sources and twins/ go with a test_command in task.toml")
        return
    if not any(place in word for word in read.test_command for place in (FILE, FOLDER)):
        raise ImportRefused(f"test_command has no {FILE} (nor {FOLDER}), which stands for a test file")
    if not read.tests or not read.sources:
        raise ImportRefused(
            'with a test_command, task.toml has tests and sources: patterns such as "*.t" and "lib/**"'
        )


def _own_command(test_command: Sequence[str]) -> tuple[AllowedCommand, ...]:
    """What a policy may call to run a public test: the test command itself, if it is options and one file.

    What no task may allow, such as a shell, runs tests in grading all the same.
    """
    *words, last = test_command or ("",)
    if last != FILE or not words:
        return ()
    name = " ".join([posixpath.basename(words[0]), *words[1:2]])
    if name in READY:
        return (READY[name],)
    try:
        return (
            AllowedCommand(
                name,
                words[0],
                fixed=tuple(words[1:]),
                operands="files",
                least=1,
                most=1,
                usage=f"{name} FILE",
            ),
        )
    except CommandRefused:
        return ()


def _names(commands: Sequence[AllowedCommand]) -> set[str]:
    return {command.name for command in commands}


def _environment(settings: object) -> tuple[Environment, str]:
    """Gives what a task runs in, and the Dockerfile of its image. Raises ImportRefused."""
    if not isinstance(settings, Mapping):
        raise ImportRefused("environment in task.toml is a table: [environment]")
    if unknown := settings.keys() - _ENVIRONMENT_KEYS:
        raise ImportRefused(
            f"[environment] of task.toml has {', '.join(sorted(unknown))}; there is "
            f"{', '.join(sorted(_ENVIRONMENT_KEYS))}"
        )
    variables = settings.get("variables", {})
    words = {key: value for key, value in settings.items() if key != "variables"}
    if not isinstance(variables, Mapping) or not all(
        isinstance(value, str) for value in (*words.values(), *variables.values())
    ):
        raise ImportRefused("what is said under [environment] of task.toml are texts")
    dockerfile = words.pop("dockerfile", "")
    if dockerfile and words.get("image"):
        raise ImportRefused("[environment] of task.toml has an image or a dockerfile, not both")
    if "image" in words and not re.fullmatch(r"sha256:[0-9a-f]{64}", words["image"]):
        raise ImportRefused(
            "the image of [environment] is named by its digest, sha256: and 64 digits: that which "
            "`docker inspect -f '{{.Id}}' NAME` prints"
        )
    return Environment(**words, variables=dict(variables)), dockerfile


def _words(settings: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Raises ImportRefused."""
    words = settings.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise ImportRefused(f'{key} in task.toml is a list of texts, such as ["perl", "{FILE}"]')
    return tuple(words)


def _files(folder: Path) -> dict[str, bytes]:
    if folder.is_symlink():
        raise ImportRefused(f"{folder} is a link: a task has no links")
    found = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if _LEFT_OUT & {*path.relative_to(folder).parts}:
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ImportRefused(f"{path} is no file of its own: a task has no links")
        if path.is_file():
            size += path.stat().st_size  # Before it is read: a file can be larger than all memory.
            if size > _MAX_BYTES:
                raise ImportRefused(f"{folder} holds more than {_MAX_BYTES >> 20} MiB")
            found[name] = path.read_bytes()
    return found
