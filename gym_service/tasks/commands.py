"""Commands that a task allows beside the five that every task has, as plain data.

The names and the exact options are an interface, not a wall: a policy can run any program of the image out of a Python
file, and the sandbox is what holds it. A description says what a call may be made of. What it does not list is refused
before anything runs, and what would run code that stands on the line is refused in the description itself, as far as
it can be seen there: a shell, `perl -e`, `find -exec`, `sed` with anything but addresses. What a program does by files
that it reads (a Makefile, the configuration of a compiler) cannot be seen, and neither can what lies behind a name.

Patterns are Python's regular expressions. They are matched by the service, against at most MAX_VALUE_CHARACTERS; who
writes one that takes long for that holds up the gym.
"""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeGuard

MAX_VALUE_CHARACTERS = 500
"""Of a word that is matched against a pattern."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,7}")
_NAME = re.compile(r"[a-z][a-z0-9_.+-]*(?: -{0,2}[a-z][a-z0-9-]*)?")
_PROGRAM = re.compile(r"/(?!workspace/)(?:[\w.+-]+/)*[\w+-][\w.+-]*|[A-Za-z0-9_][\w.+-]*", re.ASCII)
_OPTION = re.compile(r"--?[A-Za-z0-9][\w-]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = frozenset({"pytest", "python", "python3", "ls", "cat", "grep"})
_GROUPING = frozenset({"!", "(", ")"})
"""What stands among the options of `find` without a dash."""


class CommandRefused(ValueError):
    """A description that is none, or of a command that no task may have; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Any text that a regular expression matches as a whole."""

    matches: str


Value: TypeAlias = Literal["number", "file", "path"] | tuple[str, ...] | Matching
"""What the value of an option may be: a number, a file (or folder) of the workspace, one of several words, a text."""


@dataclass(frozen=True, slots=True)
class AllowedCommand:
    """What a call of one program may be made of. Raises CommandRefused."""

    name: str
    """As the policy writes it: one word, or two such as `go test`."""
    program: str
    """By its path, or by a name that is looked up on the PATH of the image."""
    fixed: tuple[str, ...] = ()
    """Arguments that come first whatever the policy writes."""
    flags: tuple[str, ...] = ()
    """Options without a value. Single letters can be joined."""
    options: Mapping[str, Value] = field(default_factory=dict)
    """Options with a value, and which values."""
    number: str = ""
    """The option that `-20` stands for; empty if that is not allowed."""
    required: tuple[str, ...] = ()
    """Options that no call may lack."""
    word: str = ""
    """A regular expression of the one word that comes before the operands, such as a script; empty for none."""
    operands: Literal["none", "files", "paths", "words"] = "none"
    """What else a call may have; paths are files or folders."""
    pattern: str = ""
    """A regular expression of the operands; words have one, for files and paths it can be left empty."""
    least: int = 0
    most: int = 100
    """How many operands there may be."""
    default: str = ""
    """The operand of a call that has none."""
    operands_first: bool = False
    """Whether the operands come before the options, as `find` has it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are set for it alone."""
    erased: str = ""
    """A regular expression of what differs between runs that do the same, such as times; `...` is printed for it."""
    usage: str = ""
    """How the policy is told to write it; its name if that says enough."""

    def __post_init__(self) -> None:
        self._check_form()
        _check_dangers(self)

    @property
    def told(self) -> str:
        """What the policy reads of it in a list."""
        return self.usage or self.name

    @property
    def option_names(self) -> tuple[str, ...]:
        """All options, as the policy is told them after it has tried another."""
        return (*self.flags, *self.options, *(["-NUMBER"] if self.number else []))

    @property
    def joins_letters(self) -> bool:
        """Whether `-ab` can mean -a and -b: not where `-name` is one option."""
        return all(len(word) == 2 or word.startswith("--") for word in (*self.flags, *self.options))

    def has_value(self, option: str, text: str) -> bool:
        """Whether a text may be the value of an option, as far as its spelling says."""
        match self.options[option]:
            case "number":
                return _NUMBER.fullmatch(text) is not None
            case "file" | "path":
                return True
            case Matching(pattern):
                return matches(pattern, text)
            case words:
                return text in words

    def _check_form(self) -> None:
        def require(holds: object, message: str) -> None:
            if not holds:
                raise CommandRefused(f"{self.name}: {message}")

        require(
            _NAME.fullmatch(self.name), "a name is one word or two, of a-z, 0-9 and dashes, such as `go test`"
        )
        require(
            self.name.split()[0] not in _TAKEN, f"{', '.join(sorted(_TAKEN))} are there in every task as is"
        )
        require(
            _PROGRAM.fullmatch(self.program) and ".." not in self.program.split("/"),
            "program is a path outside the workspace, such as /usr/bin/head, or a name that is found on PATH",
        )
        for word in (*self.flags, *self.options):
            grouping = self.operands_first and word in _GROUPING
            require(grouping or _OPTION.fullmatch(word), f"{word!a} is no option")
        require(
            not self.options.keys() & {*self.flags}, "an option has a value or has none: flags or options"
        )
        require(not self.number or self.options.get(self.number) == "number", "number is none of its options")
        require(
            {*self.required} <= {*self.flags, *self.options}, "required has what is not among its options"
        )
        values = [value.matches for value in self.options.values() if isinstance(value, Matching)]
        for pattern in (self.word, self.pattern, self.erased, *values):
            try:
                compiled = re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise CommandRefused(f"{self.name}: {pattern!a} is no regular expression: {error}") from error
            if pattern and pattern is self.erased:
                require(not compiled.search(""), "erased matches nothing at all, and so everywhere")
        require(self.operands != "words" or self.pattern, "operands that are words need a pattern")
        require(
            self.operands != "none" or not self.pattern, "a pattern is one of operands, and there are none"
        )
        require(
            0 <= self.least <= self.most, "least and most are numbers from 0, and least is not above most"
        )
        require(
            self.operands != "none" or not (self.least or self.default), "there are no operands to ask for"
        )
        require(not (self.least and self.default), "a default is for calls that need no operand: least is 0")
        require(not (self.word and self.operands_first), "a word comes before the operands, and options too")
        for name in self.variables:
            require(_VARIABLE.fullmatch(name), f"{name!a} is no name of a variable")
        for text in (*self.fixed, *self.variables.values(), self.usage, self.default):
            require("\0" not in text and text.isprintable(), f"{text!a} has what does not print")


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches a text as a whole."""
    return len(text) <= MAX_VALUE_CHARACTERS and re.fullmatch(pattern, text) is not None


def command_from_plain(name: str, plain: object) -> AllowedCommand:
    """Reads a description of plain data, out of TOML or JSON. Raises CommandRefused, naming what is wrong."""
    if not isinstance(plain, Mapping):
        raise CommandRefused(f"{name}: a command is described by a table, not by {plain!a:.80}")
    known = {each.name: each for each in fields(AllowedCommand) if each.name != "name"}
    if unknown := plain.keys() - known.keys():
        raise CommandRefused(f"{name} has {', '.join(sorted(unknown))}; there is {', '.join(known)}")
    values = {key: _taken(name, known[key], value) for key, value in plain.items()}
    if not values.get("program"):
        raise CommandRefused(f"{name} has no program: a path such as /usr/bin/head, or a name")
    if values.get("operands", "none") not in ("none", "files", "paths", "words"):
        raise CommandRefused(f"{name}: operands must be none, files, paths or words")
    return AllowedCommand(name, **values)


def _taken(name: str, key: "Field[Any]", value: object) -> Any:
    """The value of a key, if it is of the kind that belongs there."""
    if key.default_factory is not MISSING:
        return _table(name, key.name, value)
    if isinstance(key.default, tuple):
        if _is_texts(value):
            return tuple(value)
        wanted = "a list of texts"
    else:
        kind = str if key.default is MISSING else type(key.default)
        if type(value) is kind:
            return value
        wanted = {bool: "true or false", int: "a number", str: "a text"}[kind]
    raise CommandRefused(f"{name}: {key.name} must be {wanted}, not {value!a:.80}")


def _table(name: str, key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise CommandRefused(f"{name}: {key} must be a table, not {value!a:.80}")
    if key == "options":
        return {option: _value(name, option, each) for option, each in value.items()}
    if not all(isinstance(each, str) for each in value.values()):
        raise CommandRefused(f"{name}: {key} must be texts by name")
    return dict(value)


def _value(name: str, option: str, plain: object) -> Value:
    match plain:
        case "number" | "file" | "path":
            return plain
        case list() | tuple() if plain and _is_texts(plain):
            return tuple(plain)
        case {"matches": str(pattern), **rest} if not rest:
            return Matching(pattern)
    raise CommandRefused(
        f'{name}: {option} takes "number", "file", "path", a list of words, or {{ matches = "EXPRESSION" }}, '
        f"not {plain!a:.80}"
    )


def _is_texts(value: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


_RUNNERS = frozenset(
    {
        "sh", "bash", "dash", "rbash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "ash", "pwsh", "busybox", "toybox",
        "env", "xargs", "parallel", "sudo", "su", "doas", "runuser", "setpriv", "nohup", "timeout", "time", "nice",
        "ionice", "setsid", "stdbuf", "unbuffer", "script", "expect", "watch", "strace", "ltrace", "gdb", "lldb",
        "perf", "chroot", "unshare", "nsenter", "flock", "entr", "npx", "ssh", "awk", "gawk", "mawk", "nawk", "ed",
        "ex", "vi", "vim", "nvim", "emacs", "nano", "less", "more", "man", "tar", "rsync", "socat", "nc", "tclsh",
        "sqlite",
    }
)  # fmt: skip
"""What runs code or a command that stands on its line, also without any option."""
_REFUSED = {
    "find": "-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls -files0-from",
    "sed": "-i --in-place -f --file -e --expression",
    "git": "-c -C --config-env --exec-path --git-dir --work-tree -p --paginate --ext-diff --textconv --output "
    "-O --open-files-in-pager --upload-pack --receive-pack",
    "go": "-exec -toolexec -o -C -overlay -modfile -pkgdir -vettool -ldflags -gcflags -asmflags -gccgoflags "
    "-cpuprofile -memprofile -blockprofile -mutexprofile -coverprofile -trace -outputdir -test.outputdir -args -w",
    "cargo": "--config -Z -C --manifest-path --target-dir --out-dir --artifact-dir --root",
    "python": "-c -m -i -",
    "pypy": "-c -m -i -",
    "perl": "-e -E -n -p -i -x -s -M -m -d -I",
    "ruby": "-e -n -p -i -r -x -s -I -C",
    "node": "-e --eval -p --print -r --require --import --loader --experimental-loader -i --interactive --run "
    "--inspect --inspect-brk --env-file --watch --cpu-prof --heap-prof --test-reporter-destination",
    "deno": "eval repl -c --config --import-map",
    "bun": "-e --eval -p --print -r --preload repl x",
    "php": "-r -B -R -E -F -a -d -S",
    "lua": "-e -l -i -",
    "luajit": "-e -l -i -",
    "Rscript": "-e",
    "R": "-e -f --file",
    "julia": "-e --eval -E --print -L --load -i",
    "tail": "-f -F --follow --retry --pid",
    "wc": "--files0-from",
    "du": "--files0-from",
    "sort": "-o --output --compress-program -T --temporary-directory --files0-from",
    "rg": "--pre --hostname-bin -f --file",
    "fd": "-x --exec -X --exec-batch",
    "tree": "-o",
    "make": "-f --file --makefile --eval -C --directory -E -I --include-dir",
}
"""Options that run code, write where they are told to, read paths from elsewhere, or wait for what never comes."""
_WITHOUT_CLUSTERS = frozenset({"find", "go"})
_SHORTENING = frozenset({"sed", "git", "tail", "wc", "du", "sort", "make", "R"})
"""These take the beginning of a long option for the option."""
_SUBCOMMANDS = {
    "git": {"diff", "log", "show", "ls-files", "ls-tree", "rev-parse", "cat-file"},
    "go": {"test", "build", "vet", "list", "version", "run"},
    "cargo": {"test", "check", "build", "run", "tree", "clippy"},
}
_GIT_FIXED = ("--no-pager", "--no-ext-diff", "--no-textconv")
_NO_ADDRESSES = (
    "e",
    "1e id",
    "1,$e",
    "w x",
    "1w /tmp/x",
    "$!w x",
    "r x",
    "1R x",
    "W x",
    "s/a/b/e",
    "s/a/b/w x",
)


def _check_dangers(command: AllowedCommand) -> None:
    program = re.sub(r"[\d.-]+$", "", posixpath.basename(command.program))

    def refuse(message: str) -> CommandRefused:
        return CommandRefused(f"{command.name}: {message}")

    if program in _RUNNERS:
        raise refuse(f"{program} runs what stands on its line: name the program itself that is to be run")
    offered = (*command.flags, *command.options)
    for word in (*command.fixed, *offered):
        if dangerous := _danger(program, word):
            raise refuse(f"{word!a} is or can be read as {dangerous}, which no task may have of {program}")
    if program in _SUBCOMMANDS:
        chosen = next((word for word in command.fixed if not word.startswith("-")), "")
        if chosen not in _SUBCOMMANDS[program]:
            known = ", ".join(sorted(_SUBCOMMANDS[program]))
            raise refuse(f"fixed must name a subcommand of {program}, one of {known}")
        needed = _GIT_FIXED if chosen in ("diff", "log", "show") else _GIT_FIXED[:1]
        if program == "git" and (lacking := [word for word in needed if word not in command.fixed]):
            raise refuse(f"fixed must have {', '.join(lacking)}, or configuration can name a program to run")
    if program == "make" and command.pattern and matches(command.pattern, "CC=x"):
        raise refuse("the pattern lets CC=x through: a variable of make can be a program to run")
    if program == "sed":
        if not command.word or command.operands == "words" or "-n" not in (*command.required, *command.fixed):
            raise refuse("sed needs required = ['-n'], a word for its script, and files")
        if found := [script for script in _NO_ADDRESSES if matches(command.word, script)]:
            raise refuse(f"the word lets {found[0]!r} through: a script of sed is addresses and p")


def _danger(program: str, word: str) -> str:
    """The refused option that a word is, shortens or holds; empty for none."""
    refused = _REFUSED.get(program, "").split()
    option = word.partition("=")[0]
    if program == "go" and option.startswith("--"):
        option = option[1:]
    if option in refused:
        return option
    if option.startswith("--"):
        shortened = len(option) > 2 and program in _SHORTENING
        return next((each for each in refused if shortened and each.startswith(option)), "")
    letters = option[1:] if option.startswith("-") and program not in _WITHOUT_CLUSTERS else ""
    return next((f"-{letter}" for letter in letters if f"-{letter}" in refused), "")
