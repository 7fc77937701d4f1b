"""A task of one's own as a folder, and an example of one to start from.

task.toml     what the policy is asked to do, and where the task belongs
repo/         the repository with its fault, without the tests in question
public/       tests that the policy sees, in the folder `tests`; they pass before and after
hidden/       tests that decide; they fail at the start and pass with the gold
gold/         the files of repo/ that the reference solution changes, as they should be
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from gym_service.tasks.commands import AllowedCommand, CommandRefused
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.ready_commands import read_commands

TEST_FOLDER = "tests"
_MAX_BYTES = 16 << 20
_LEFT_OUT = {"__pycache__", ".git", ".pytest_cache", ".DS_Store"}
_KEYS = {"request", "split", "suite", "commands"}

_EXAMPLE = {
    "task.toml": """\
# What the policy is asked to do.
request = "total in prices.py does not do what its docstring says. Repair it; `pytest` runs the tests that are there."
# Which decisions the task takes part in: train, validation or test.
split = "train"
# The suite that it is put into.
suite = "own"
""",
    "repo/prices.py": '''\
"""Prices of an order."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in percent of it."""
    return sum(prices) - discount_percent
''',
    # A plain `pytest` has the folder of the tests on its path alone.
    "repo/pytest.ini": """\
[pytest]
pythonpath = .
""",
    "gold/prices.py": '''\
"""Prices of an order."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in percent of it."""
    return sum(prices) * (100 - discount_percent) / 100
''',
    "public/test_total.py": """\
from prices import total


def test_prices_are_added():
    assert total([2, 3]) == 5


def test_nothing_costs_nothing():
    assert total([]) == 0
""",
    "hidden/test_discount.py": """\
from prices import total


def test_a_tenth_less():
    assert total([200], 10) == 180


def test_half_of_several():
    assert total([10, 30], 50) == 20


def test_nothing_is_left():
    assert total([70, 80], 100) == 0
""",
}


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
    commands: tuple[AllowedCommand, ...] = ()


def write_example(folder: Path) -> None:
    """Writes a task that can be proven, to be changed. Raises ImportRefused."""
    if folder.exists():
        raise ImportRefused(f"{folder} is there already: choose another name")
    for path, text in _EXAMPLE.items():
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
        parts = {name: _files(folder / name) for name in ("repo", "public", "hidden", "gold")}
    except (OSError, RecursionError) as error:
        raise ImportRefused(f"{folder} cannot be read: {error}") from error
    for name in ("repo", "hidden", "gold"):
        if not parts[name]:
            raise ImportRefused(f"{folder / name} holds no file")
    return TaskFolder(folder.resolve().name, request, Split(split), str(suite), **parts, commands=commands)


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
