"""Repository-level tasks in any language: each test is a file, and one command runs it and says by its exit status how.

A *check* is one test file. Hidden checks have *twins*: the same file with one value changed, which was seen to fail
with the gold. What an episode may change is what the task names as its sources; tests, and whatever says how programs
are built, found and run, stay as they are in the base tree.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property

from gym_service.tasks.environment import Environment
from gym_service.tasks.model import Split
from gym_service.tasks.repository import as_plain

FILE = "{file}"
"""What stands for the path of a test file in a command."""
FOLDER = "{folder}"
"""What stands for its folder."""
PROTECTED_NAMES = (
    # JavaScript
    "package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-*.yaml", "tsconfig*.json",
    "jsconfig.json", "deno.json*", "deno.lock", "bun.lock*", "bunfig.toml", "*.config.js", "*.config.cjs",
    "*.config.mjs", "*.config.ts",
    # Go, Rust, C
    "go.mod", "go.sum", "go.work", "go.work.sum", "Cargo.toml", "Cargo.lock", "build.rs", "rust-toolchain*",
    "Makefile", "makefile", "GNUmakefile", "*.mk", "CMakeLists.txt", "*.cmake", "meson.build", "configure",
    # Perl, Ruby, PHP, the JVM
    "Makefile.PL", "Build.PL", "cpanfile*", "dist.ini", "sitecustomize.pl", "Gemfile*", "Rakefile", "*.gemspec",
    "composer.json", "composer.lock", "phpunit.xml*", "pom.xml", "build.gradle*", "settings.gradle*",
    "gradle.properties", "build.xml",
    # Python, which may run a part of any of these
    "conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "sitecustomize.py",
    "usercustomize.py",
)  # fmt: skip
"""Files that say how programs are built and run, wherever they lie; and any file whose name begins with a dot."""
PROTECTED_FOLDERS = frozenset({"node_modules", "vendor", "blib", "local", "Test", "Test2", "TAP", "target"})
"""Folders of libraries that others wrote, and of what is built; and any folder whose name begins with a dot."""


@dataclass(frozen=True)
class CommandTask:
    """One repository with one fault, and the command that runs a test file of it."""

    task_id: str
    """Suite and name, with a slash between them."""
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
    """The checks by path; of these the base tree lacks the hidden ones."""
    fail_to_pass: tuple[str, ...]
    """The hidden checks: they fail in the base tree and pass with the gold."""
    pass_to_pass: tuple[str, ...]
    """The public checks: they pass before and after."""
    twins: Mapping[str, tuple[bytes, ...]]
    """For each hidden check the variants of it that were seen to fail with the gold."""
    test_command: tuple[str, ...]
    """The program and its arguments, with `{file}` or `{folder}` in them; exit status 0 says that the test passes."""
    test_names: str
    """A pattern of the names of test files; nobody but the task has files of such a name."""
    sources: tuple[str, ...]
    """Patterns of the paths that a submission may change; `**` stands for any folders."""
    image_digest: str = ""
    """The sandbox image in which the tests were run."""
    source: str = ""
    """Where the repository comes from."""
    deterministic: bool = True
    """Whether the same files always get the same verdict."""
    environment: Environment = field(default_factory=Environment)
    """What it runs in."""

    roots = ()
    """The folders that Python's modules are imported from: none."""

    def command_for(self, path: str) -> tuple[str, ...]:
        """The command that runs one test file."""
        folder = path.rpartition("/")[0] or "."
        return tuple(word.replace(FILE, path).replace(FOLDER, folder) for word in self.test_command)

    @cached_property
    def test_folders(self) -> frozenset[str]:
        """The folders at the top in which checks lie; all that lies in them is the task's own."""
        return frozenset(path.partition("/")[0] for path in self.test_files)

    def is_protected(self, path: str) -> bool:
        """Whether a path belongs to tests, configuration or libraries, which stay as they are in the base tree."""
        *folders, name = path.split("/")
        return (
            path.partition("/")[0] in self.test_folders
            or any(part.startswith(".") for part in (*folders, name))
            or not PROTECTED_FOLDERS.isdisjoint(folders)
            or any(fnmatchcase(name, each) for each in (self.test_names, *PROTECTED_NAMES))
        )

    def is_source(self, path: str) -> bool:
        """Whether a path is one that a submission may change."""
        return self._source_paths.fullmatch(path) is not None and not self.is_protected(path)

    @cached_property
    def _source_paths(self) -> re.Pattern[str]:
        parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
        return re.compile(
            "|".join(
                "".join(parts.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*/|\*\*|\*)", pattern))
                for pattern in self.sources
            )
        )

    @cached_property
    def sha256(self) -> str:
        """The hash over everything that the task consists of, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """The task as plain data, with the hash of each file in the place of its content."""
        return {each.name: as_plain(getattr(self, each.name)) for each in fields(self)}

    def contents(self) -> Iterable[bytes]:
        """The contents of all files."""
        for files in (self.base, self.gold, self.test_files):
            yield from files.values()
        for twins in self.twins.values():
            yield from twins


@dataclass(frozen=True, slots=True)
class CommandInstance:
    """A task with a test command as one episode sees it."""

    task: CommandTask

    @property
    def tree(self) -> Mapping[str, bytes]:
        """The repository at the start: content by path."""
        return self.task.base

    @property
    def request(self) -> str:
        """What the policy is asked to do."""
        return self.task.request
