"""Repository-level tasks: a real repository with a fault, and the tests of its own that decide.

What an episode starts from is the *base tree*: the faulty sources, and the test files without the hidden tests. The
whole test files stay with the service. A submission is what an episode changed of the sources; everything else of the
base tree is what it was when it is graded.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from gym_service.tasks.environment import Environment
from gym_service.tasks.model import Split

MIN_PAIRS = 10
"""Tests with twins that a task needs to be called twinned: blind luck then is one in a thousand."""
PROTECTED_NAMES = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml",
        "MANIFEST.in", "noxfile.py", ".coveragerc",
    }
)  # fmt: skip
"""Files that say how tests run; a submission's own are never graded with."""


_TEST_MODULE = re.compile(r"(.*/)?(test_[^/]*|[^/]*_test)\.py")


def is_test_module(path: str) -> bool:
    """Whether pytest takes a file for one with tests, by its name."""
    return _TEST_MODULE.fullmatch(path) is not None


def function_of(test_id: str) -> str:
    """The test function of a test: its id without the parameters."""
    return test_id.partition("[")[0]


@dataclass(frozen=True)
class RepositoryTask:
    """One repository with one fault."""

    task_id: str
    """Suite, family and variant, with slashes between them."""
    suite: str
    """Name of the suite that the task belongs to."""
    split: Split
    """Training, validation or test."""
    family: str
    """The kind of fault; never shown to a policy."""
    request: str
    """What the policy is asked to do."""
    base: Mapping[str, bytes]
    """The base tree: content by path."""
    gold: Mapping[str, bytes]
    """The files that the reference solution changes, as they should be."""
    test_files: Mapping[str, bytes]
    """The test files with the hidden tests in them; those of the base tree lack these."""
    fail_to_pass: tuple[str, ...]
    """The hidden tests, by pytest's ids: they fail in the base tree and pass with the gold patch."""
    pass_to_pass: tuple[str, ...]
    """The public tests: they pass before and after."""
    twins: Mapping[str, tuple[int, ...]]
    """For each test function that can be turned, the places at which its twin was seen to fail.

    Of a hidden one the first is that at which it fails in the base tree, if there is a twin there.
    """
    plain: tuple[str, ...]
    """The test functions that were seen to pass as a plain script, without pytest."""
    roots: tuple[str, ...] = ("",)
    """The folders that modules are imported from; empty for the repository itself."""
    image_digest: str = ""
    """The sandbox image in which the tests were chosen."""
    source: str = ""
    """Where the repository comes from, such as toolz==1.1.0 and its hash."""
    test_command: str = "pytest"
    """What runs the public tests in an episode."""
    deterministic: bool = True
    """Whether the same files always get the same verdict."""
    environment: Environment = field(default_factory=Environment)
    """What it runs in."""
    sources: Literal["python", "all"] = "python"
    """What a submission may change: the packages and modules, or whatever is no test and no configuration."""

    @property
    def hidden_functions(self) -> tuple[str, ...]:
        """The functions of the hidden tests."""
        return tuple(dict.fromkeys(map(function_of, self.fail_to_pass)))

    @property
    def is_twinned(self) -> bool:
        """Whether every hidden test has a twin, and enough tests do for a pattern that luck does not meet."""
        return len(self.twins) >= MIN_PAIRS and self.twins.keys() >= set(self.hidden_functions)

    @cached_property
    def source_names(self) -> frozenset[str]:
        """The first names below a root that hold sources: packages, and files of modules."""
        names = set()
        for path in self.base:
            for root in self.roots:
                below = path.removeprefix(f"{root}/" if root else "")
                if (not root or below != path) and path.endswith(".py") and not self.is_protected(path):
                    names.add(f"{root}/{below.split('/')[0]}" if root else below.split("/")[0])
        return frozenset(names)

    @cached_property
    def test_folders(self) -> frozenset[str]:
        """The folders of the test files; all that lies in them is the task's own."""
        return frozenset(path.rpartition("/")[0] for path in self.test_files if "/" in path)

    @cached_property
    def test_data(self) -> Mapping[str, bytes]:
        """Of the test files those that hold no tests, but what tests need: gradings have them as they are."""
        holders = {test.partition("::")[0] for test in (*self.fail_to_pass, *self.pass_to_pass)}
        return {
            path: content
            for path, content in self.test_files.items()
            if not is_test_module(path) and path not in holders
        }

    def is_protected(self, path: str) -> bool:
        """Whether a path belongs to tests or configuration, which stay as they are in the base tree."""
        name = path.rpartition("/")[2]
        in_tests = any(path.startswith(f"{folder}/") for folder in self.test_folders)
        return in_tests or path in self.test_files or name in PROTECTED_NAMES

    def is_source(self, path: str) -> bool:
        """Whether a path is one that a submission may change."""
        inside = any(path == name or path.startswith(f"{name}/") for name in self.source_names)
        return (
            (inside or self.sources == "all")
            and not self.is_protected(path)
            and "__pycache__" not in path.split("/")
        )

    @cached_property
    def sha256(self) -> str:
        """The hash over everything that the task consists of, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """The task as plain data, with the hash of each file in the place of its content.

        Without `sources` where these are as always, as tasks were hashed before they could be others.
        """
        plain = {each.name: as_plain(getattr(self, each.name)) for each in fields(self)}
        return plain if self.sources != "python" else {key: plain[key] for key in plain if key != "sources"}

    def contents(self) -> Iterable[bytes]:
        """The contents of all files."""
        for files in (self.base, self.gold, self.test_files):
            yield from files.values()


@dataclass(frozen=True, slots=True)
class RepositoryInstance:
    """A repository task as one episode sees it."""

    task: RepositoryTask

    @property
    def tree(self) -> Mapping[str, bytes]:
        """The repository at the start: content by path."""
        return self.task.base

    @property
    def request(self) -> str:
        """What the policy is asked to do."""
        return self.task.request


def as_plain(value: object) -> object:
    """A field of a task as plain data; the hash of a content in its place."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    return value.to_json() if isinstance(value, Environment) else value
