"""A call of a command that a task allows beside those of every task: of its words an argv is made anew.

Every option in that is one that the description (`tasks.commands`) names; joined letters are taken apart, a path never
starts with a dash, and is inside the workspace as far as its spelling says.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gym_service.sandbox.base import Completed, Execute, Job
from gym_service.tasks.commands import AllowedCommand, matches
from gym_service.toolsets.base import Misuse
from gym_service.toolsets.paths import shown, workspace_path

_ENV = "/usr/bin/env"
"""Looks a program up on PATH, and sets variables for it."""
_EXIT_NOT_FOUND = 127
_EXIT_NOT_STARTED = 125
"""Of a program that is not at its path: then nothing is printed."""
_PLAIN_START = re.compile(r"[\w./]")
"""How a path starts that no program takes for anything else."""
_SHORT_NUMBER = re.compile(r"-[0-9]{1,7}")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that may run once its paths are checked inside the sandbox."""

    job: Job
    files: tuple[str, ...] = ()
    """Paths that must be regular files."""
    paths: tuple[str, ...] = ()
    """Paths that must be regular files or folders."""
    erased: str = ""
    """What is not to be read of its output, as a regular expression."""
    program: str = ""
    """The program, where an image need not have it."""

    def is_absent(self, done: Completed) -> bool:
        """Whether the image lacks the program, by what came of starting it."""
        # By the warden, by GNU's env, or by busybox's.
        told = tuple(f"{name}: ".encode() for name in (self.program, _ENV, "env"))
        by_name = done.exit_status == _EXIT_NOT_FOUND and done.output.startswith(told)
        return by_name or (done.exit_status == _EXIT_NOT_STARTED and not done.output)


class NotAllowed(Exception):
    """What is not on the list, before the policy is told the list."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def parse_listed(listed: AllowedCommand, arguments: list[str], workspace: str) -> Command:
    """Reads what follows the name of a command. Raises Misuse, NotAllowed."""
    return _Call(listed, workspace).parse(arguments)


@dataclass(slots=True)
class _Call:
    """A call of a command that the task allows, word by word."""

    listed: AllowedCommand
    workspace: str
    options: list[str] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    operands: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def parse(self, arguments: list[str]) -> Command:
        listed = self.listed
        rest = iter(arguments)
        for word in rest:
            if word in listed.flags:
                self._add(word)
            elif word == "--" and not listed.operands_first:
                self.operands += rest
            elif word.startswith("-") and word != "-":
                self._take_option(word, rest)
            elif listed.operands_first and self.options:
                raise Misuse("parse_error", f"{listed.name}: paths come before the options")
            else:
                self.operands.append(word)
        for option in listed.required:
            if option not in self.given:
                raise NotAllowed(f"{listed.name} is allowed with {option} only")
        words = self._take_word()
        operands = self._checked_operands()
        order = [*operands, *self.options] if listed.operands_first else [*self.options, *words, *operands]
        variables = [f"{name}={value}" for name, value in listed.variables.items()]
        start = [_ENV, *variables] if variables or not listed.program.startswith("/") else []
        job = Execute((*start, listed.program, *listed.fixed, *order))
        return Command(job, tuple(self.files), tuple(self.paths), listed.erased, listed.program)

    def _add(self, option: str, value: str | None = None) -> None:
        self.given.add(option)
        if value is None:
            # What is there already is not said twice: some programs take that for a mistake.
            self.options += [option] if option not in self.listed.fixed else []
        elif option.startswith("--"):
            self.options.append(f"{option}={value}")
        else:
            self.options += [option, value]

    def _take_option(self, word: str, rest: Iterator[str]) -> None:
        listed = self.listed
        name, equals, value = word.partition("=")
        if word in listed.options:
            self._add_value(word, next(rest, None))
        elif equals and name in listed.options and len(name) > 2 and not listed.operands_first:
            self._add_value(name, value)
        elif listed.number and _SHORT_NUMBER.fullmatch(word):
            self._add_value(listed.number, word[1:])
        elif listed.joins_letters and not word.startswith("--"):
            self._take_letters(word, rest)
        else:
            raise self._unknown(word)

    def _take_letters(self, word: str, rest: Iterator[str]) -> None:
        for place, letter in enumerate(word[1:], start=2):
            if f"-{letter}" in self.listed.options:
                self._add_value(f"-{letter}", word[place:] or next(rest, None))
                return
            if f"-{letter}" not in self.listed.flags:
                raise self._unknown(word)
            self._add(f"-{letter}")

    def _unknown(self, word: str) -> NotAllowed:
        options = ", ".join(self.listed.option_names) or "none"
        return NotAllowed(
            f"{self.listed.name}: option {shown(word)} is not allowed; its options are: {options}"
        )

    def _add_value(self, option: str, value: str | None) -> None:
        name, kind = self.listed.name, self.listed.options[option]
        if value is None:
            raise Misuse("parse_error", f"{name}: {option} needs a value")
        if not self.listed.has_value(option, value):
            if kind == "number":
                raise Misuse("parse_error", f"{name}: {option} needs a number")
            choice = f", one of {', '.join(kind)}" if isinstance(kind, tuple) else ""
            raise NotAllowed(f"{name}: {option} cannot be {shown(value)}{choice}")
        if kind in ("file", "path"):
            value = self._path(value, folder_allowed=kind == "path")
        elif value.startswith("-") and kind != "number":
            raise NotAllowed(f"{name}: the value of {option} cannot start with a dash")
        self._add(option, value)

    def _take_word(self) -> list[str]:
        if not self.listed.word:
            return []
        if not self.operands:
            raise Misuse("parse_error", f"{self.listed.name}: write {self.listed.told}")
        word = self.operands.pop(0)
        self._require_match(self.listed.word, word)
        return [word]

    def _checked_operands(self) -> list[str]:
        listed = self.listed
        given = self.operands or ([listed.default] if listed.default else [])
        most = 0 if listed.operands == "none" else listed.most
        if not listed.least <= len(given) <= most:
            wanted = f"{listed.least}" if listed.least == most else f"{listed.least} to {most}"
            raise Misuse("parse_error", f"{listed.name} takes {wanted} arguments beside options")
        for word in given if listed.pattern else ():
            self._require_match(listed.pattern, word)
        if listed.operands == "words":
            return given
        return [self._path(path, folder_allowed=listed.operands == "paths") for path in given]

    def _require_match(self, pattern: str, word: str) -> None:
        if word.startswith("-") or not matches(pattern, word):
            raise NotAllowed(f"{self.listed.name}: {shown(word)} is not allowed; write {self.listed.told}")

    def _path(self, text: str, *, folder_allowed: bool) -> str:
        path = workspace_path(text, self.workspace)
        (self.paths if folder_allowed else self.files).append(path)
        return path if _PLAIN_START.match(path) else f"./{path}"
