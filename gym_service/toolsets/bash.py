"""The Bash tool without a shell: one command, parsed to an argv, allowed by exact name and exact options.

The list is an interface, not a wall: `python FILE.py` runs whatever the policy writes, and the sandbox is what
holds it. The list keeps traces clean and makes every refusal explicit.

A task can allow further commands (`listed.py`).
"""

from collections.abc import Sequence

from gym_service.sandbox.base import WORKSPACE, Execute, RunPytest, RunPython
from gym_service.tasks.commands import AllowedCommand
from gym_service.toolsets.base import Misuse
from gym_service.toolsets.listed import Command, NotAllowed, parse_listed
from gym_service.toolsets.paths import shown, workspace_path

MAX_COMMAND_CHARACTERS = 8192
MAX_ARGUMENTS = 256
_MAX_EXPRESSION_CHARACTERS = 500
_MAX_EXPRESSION_PARENTHESES = 50
"""More than pytest's parser of expressions takes without running out of stack would only print its traceback."""

ALLOWED = "pytest, python FILE.py, ls, cat, grep"

_SHELL_SYNTAX = set(";|&<>()$`{}*?[]~!\n\r#")


def allowed_list(extra: Sequence[AllowedCommand] = ()) -> str:
    """What may be called, as the policy reads it."""
    return ", ".join([ALLOWED, *(command.told for command in extra)])


def parse_command(text: str, extra: Sequence[AllowedCommand] = (), *, workspace: str = WORKSPACE) -> Command:
    """Parses and allows one command; `extra` are those of the task, absolute paths are those of the workspace.

    Raises Misuse: parse_error, too_long, command_not_allowed, path_outside_workspace and other kinds of paths.
    """
    if len(text) > MAX_COMMAND_CHARACTERS:
        raise Misuse("too_long", f"the command is longer than {MAX_COMMAND_CHARACTERS} characters")
    try:
        words = _split(text)
        if len(words) > MAX_ARGUMENTS:
            raise Misuse("too_long", f"the command has more than {MAX_ARGUMENTS} arguments")
        return _parse_words(words, extra, workspace)
    except NotAllowed as error:
        raise _refuse(error.message, extra) from None


def _parse_words(words: list[str], extra: Sequence[AllowedCommand], workspace: str) -> Command:
    # The longest name first: `node --test` is not `node` with an option.
    for listed in sorted(extra, key=lambda each: -len(each.name.split())):
        count = len(listed.name.split())
        if words[:count] == listed.name.split():
            return parse_listed(listed, words[count:], workspace)
    name, arguments = words[0], words[1:]
    match name:
        case "pytest":
            return _pytest(arguments, workspace)
        case "python" | "python3":
            return _python(arguments, workspace)
        case "ls":
            return _ls(arguments, workspace)
        case "cat":
            options, operands = _take_options("cat", arguments, flags="n")
            files = tuple(workspace_path(path, workspace) for path in operands if path != "-")
            return Command(Execute(("/bin/cat", *options, "--", *files)), files=files)
        case "grep":
            return _grep(arguments, workspace)
        case _:
            raise NotAllowed(f"{shown(name)} is not allowed")


def _split(text: str) -> list[str]:
    """Splits a command into words by the quoting rules of a shell; any other shell syntax is refused."""
    if "\0" in text:
        raise Misuse("parse_error", "the command holds a NUL byte")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse("parse_error", "the command is no valid text") from None
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    quoted_start = False
    characters = iter(text.strip(" \t\n"))
    for character in characters:
        if quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in "$`":
                raise NotAllowed(f"{character} (expansion) is not supported: there is no shell")
            elif quote == '"' and character == "\\":
                following = next(characters, "")
                # Inside double quotes a shell keeps the backslash before anything but these.
                (word := word or []).append(following if following in '"\\$`' else "\\" + following)
            else:
                (word := word if word is not None else []).append(character)
        elif character in "'\"":
            quoted_start = quoted_start or not words
            quote = character
            word = word if word is not None else []
        elif character in " \t":
            if word is not None:
                words.append("".join(word))
            word = None
        elif character == "\\":
            quoted_start = quoted_start or not words
            following = next(characters, "")
            if not following:
                raise Misuse("parse_error", "the command ends with a backslash")
            (word := word if word is not None else []).append(following)
        elif character == "#" and word is None:
            raise Misuse("parse_error", "comments are not supported")
        elif character in _SHELL_SYNTAX and character != "#":
            raise NotAllowed(
                f"{shown(character)} is not supported: there is no shell, one plain command per call"
            )
        else:
            (word := word if word is not None else []).append(character)
    if quote:
        raise Misuse("parse_error", "a quote is not closed")
    if word is not None:
        words.append("".join(word))
    if not words:
        raise Misuse("parse_error", "the command is empty")
    if quoted_start:
        raise NotAllowed("the name of the command must not be quoted or escaped")
    return words


def _pytest(arguments: list[str], workspace: str) -> Command:
    options: list[str] = []
    paths: list[str] = []
    targets: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if (
            word in _PYTEST_FLAGS
            or (equals and name in _PYTEST_VALUES and value in _PYTEST_VALUES[name])
            or (name == "--maxfail" and equals and value.isascii() and value.isdigit() and len(value) < 6)
        ):
            options.append(word)
        elif word == "-k":
            expression = next(rest, "")
            if len(expression) > _MAX_EXPRESSION_CHARACTERS:
                raise Misuse("too_long", f"-k takes at most {_MAX_EXPRESSION_CHARACTERS} characters")
            if expression.count("(") > _MAX_EXPRESSION_PARENTHESES:
                raise Misuse(
                    "too_long", f"-k takes at most {_MAX_EXPRESSION_PARENTHESES} opening parentheses"
                )
            options += ["-k", expression]
        elif word.startswith("-"):
            raise NotAllowed(f"pytest: option {shown(word)} is not allowed")
        else:
            path, separator, test = word.partition("::")
            inside = workspace_path(path, workspace)
            paths.append(inside)
            targets.append(inside + separator + test)
    return Command(RunPytest((*options, *targets)), paths=tuple(paths))


_PYTEST_FLAGS = {
    *("-q", "-qq", "-v", "-vv", "-x", "-s", "-l", "-ra", "-rA", "--quiet", "--verbose", "--exitfirst"),
    *("--showlocals", "--no-header", "--no-summary", "--collect-only", "--co"),
}
_PYTEST_VALUES = {
    "--tb": {"short", "long", "line", "no", "native", "auto"},
    "--color": {"no"},
    "--capture": {"no", "fd", "sys"},
}


def _python(arguments: list[str], workspace: str) -> Command:
    if not arguments or not arguments[0].endswith(".py") or arguments[0].startswith("-"):
        raise NotAllowed("python runs a file: python FILE.py [arguments]")
    path = workspace_path(arguments[0], workspace)
    return Command(RunPython((path, *arguments[1:])), files=(path,))


def _ls(arguments: list[str], workspace: str) -> Command:
    options, operands = _take_options("ls", arguments, flags="aA1lRrF")
    paths = tuple(workspace_path(path, workspace) for path in operands)
    # No owner, group or time: they differ between episodes that do the same.
    plain = ("-g", "-o", "--time-style=+") if any("l" in option for option in options) else ()
    return Command(Execute(("/bin/ls", *options, *plain, "--", *paths)), paths=paths)


def _grep(arguments: list[str], workspace: str) -> Command:
    options, operands = _take_options("grep", arguments, flags="nivclwxEFPoHhsrRq", values="eABCm")
    recursive = any("r" in option or "R" in option for option in options if option.startswith("-"))
    # -R would follow symlinks out of the workspace; what lies inside, -r finds as well.
    options = [option.replace("R", "r") if option.startswith("-") else option for option in options]
    pattern: list[str] = []
    if "-e" not in options:
        if not operands:
            raise Misuse("parse_error", "grep: the pattern is missing")
        pattern, operands = ["-e", operands[0]], operands[1:]
    places = tuple(workspace_path(path, workspace) for path in operands if path != "-")
    if recursive and not places:
        places = (".",)
    job = Execute(("/bin/grep", "--color=never", *options, *pattern, "--", *places))
    return Command(job, paths=places) if recursive else Command(job, files=places)


def _take_options(
    name: str, arguments: list[str], *, flags: str, values: str = ""
) -> tuple[list[str], list[str]]:
    """Separates options from operands; only single-letter options of the two lists are let through."""
    options: list[str] = []
    operands: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            operands += rest
        elif word == "-" or not word.startswith("-"):
            operands.append(word)
        elif len(word) == 2 and word[1] in values:
            value = next(rest, None)
            if value is None:
                raise Misuse("parse_error", f"{name}: {word} needs a value")
            if word != "-e" and not (value.isascii() and value.isdigit() and len(value) < 8):
                raise Misuse("parse_error", f"{name}: {word} needs a number")
            options += [word, value]
        elif all(letter in flags for letter in word[1:]):
            options.append(word)
        else:
            raise NotAllowed(f"{name}: option {shown(word)} is not allowed")
    return options, operands


def _refuse(message: str, extra: Sequence[AllowedCommand]) -> Misuse:
    return Misuse("command_not_allowed", f"{message}. Allowed: {allowed_list(extra)}")
