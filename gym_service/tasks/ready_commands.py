"""Commands that a task can take by their names, and how a file says which commands a task has.

    commands = ["head", "tail", "sed"]        ready-made ones

    [commands.head]                           a ready-made one, as it is: no keys
    [commands.wordlist]                       one of one's own, with the keys of `AllowedCommand`
    program = "/usr/bin/wordlist"

Of what they print, times are erased or not asked for: episodes that do the same read the same.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from gym_service.tasks.commands import AllowedCommand, CommandRefused, Matching, command_from_plain

_ADDRESS = r"(?:[0-9]{1,7}|\$|/[^/\\\[\n]+/)"
"""Without brackets and backslashes: programs called sed do not agree on where such an expression ends."""
_SCRIPT = rf"{_ADDRESS}(?:,(?:{_ADDRESS}|\+[0-9]{{1,7}}))?p"
_FOLDERS = r"(?:/(?!\.\.?(?:/|$))[\w.-]+)*"
_TEXT = Matching(r"[^-].*")
_SCRIPTS = r".*\.[cm]?[jt]s"
_TAP_TIMES = r"(?<=duration_ms )[0-9.]+|(?<=duration_ms: )[0-9.]+"
_COUNTS: dict[str, AllowedCommand] = {
    name: AllowedCommand(
        name,
        f"/usr/bin/{name}",
        flags=("-q", "-v", "--quiet", "--silent", "--verbose"),
        options=dict.fromkeys(("-n", "--lines", "-c", "--bytes"), "number"),
        number="-n",
        operands="files",
        least=1,
        usage=f"{name} [-n NUMBER] FILE",
    )
    for name in ("head", "tail")
}

READY: Mapping[str, AllowedCommand] = {
    **_COUNTS,
    "wc": AllowedCommand(
        "wc",
        "/usr/bin/wc",
        flags=("-l", "-w", "-c", "-m", "-L", "--lines", "--words", "--bytes", "--chars"),
        operands="files",
        least=1,
        usage="wc [-l] FILE",
    ),
    "sed": AllowedCommand(
        "sed",
        "/bin/sed",
        flags=("-n", "-E", "-r"),
        required=("-n",),
        word=rf"{_SCRIPT}(?:;{_SCRIPT})*",
        operands="files",
        least=1,
        usage="sed -n 'FIRST,LASTp' FILE",
    ),
    "find": AllowedCommand(
        "find",
        "/usr/bin/find",
        flags=("!", "(", ")", "-not", "-a", "-and", "-o", "-or", "-print", "-empty", "-prune"),
        options={
            **dict.fromkeys(("-name", "-iname", "-path", "-ipath"), _TEXT),
            "-type": ("f", "d", "l"),
            "-maxdepth": Matching("[0-9]{1,3}"),
            "-mindepth": Matching("[0-9]{1,3}"),
        },
        operands="paths",
        default=".",
        operands_first=True,
        usage="find [PATH] [-name 'GLOB'] [-type f] [-maxdepth NUMBER]",
    ),
    "diff": AllowedCommand(
        "diff",
        "/usr/bin/diff",
        # Links are compared, not followed to what is outside.
        fixed=("--no-dereference",),
        flags=("-u", "-r", "-q", "-w", "-b", "-B", "-i", "-s", "--unified", "--recursive", "--brief"),
        options={"-U": Matching("[0-9]{1,7}")},
        operands="paths",
        least=2,
        most=2,
        # The times of the files, after their names.
        erased=r"(?m)(?<=\t)[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}\.[0-9]+ [+-][0-9]{4}$",
        usage="diff [-u] [-r] PATH PATH",
    ),
    "git diff": AllowedCommand(
        "git diff",
        "git",
        # Two paths of the workspace: there is no repository of git in it, and if a policy makes one, it is not read.
        fixed=("--no-pager", "diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color"),
        flags=(
            "--no-index",
            "--stat",
            "--numstat",
            "--name-only",
            "--name-status",
            "--word-diff",
            "-w",
            "-b",
        ),
        options=dict.fromkeys(("-U", "--unified"), Matching("[0-9]{1,7}")),
        operands="paths",
        least=2,
        most=2,
        # Configuration names programs, and the home of an episode is the workspace.
        variables={"GIT_DIR": "/dev/null", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"},
        usage="git diff --no-index PATH PATH",
    ),
    "perl": AllowedCommand(
        "perl",
        "perl",
        flags=("-c", "-w"),
        operands="files",
        least=1,
        most=1,
        # Hashes in the same order in every run.
        variables={"PERL_HASH_SEED": "0"},
        usage="perl [-c] FILE",
    ),
    "node": AllowedCommand(
        "node",
        "node",
        operands="files",
        # `node inspect` is no file.
        pattern=_SCRIPTS,
        least=1,
        most=1,
        erased=_TAP_TIMES,
        usage="node FILE.js",
    ),
    "node --test": AllowedCommand(
        "node --test",
        "node",
        fixed=("--test", "--test-reporter=tap"),
        options={"--test-name-pattern": _TEXT},
        operands="files",
        pattern=_SCRIPTS,
        erased=_TAP_TIMES,
        usage="node --test [FILE.js]",
    ),
    "go test": AllowedCommand(
        "go test",
        "go",
        # Not out of the cache, which says so and leaves the time out.
        fixed=("test", "-count=1"),
        flags=("-v", "-short", "-failfast"),
        options={"-run": _TEXT, "-skip": _TEXT, "-timeout": Matching("[0-9]{1,4}[sm]")},
        operands="words",
        pattern=rf"\.{_FOLDERS}",
        variables={"GOENV": "off", "GOPROXY": "off", "GOTOOLCHAIN": "local"},
        erased=r"(?<=\()[0-9]+\.[0-9]+s(?=\))|(?<=\t)[0-9]+\.[0-9]+s\b|(?<=goroutine )[0-9]+|0x[0-9a-f]{8,16}",
        usage="go test [-v] [-run NAME] [./...]",
    ),
    "cargo test": AllowedCommand(
        "cargo test",
        "cargo",
        fixed=("test", "--offline", "-q"),
        flags=("-q", "--lib", "--bins", "--tests", "--doc", "--no-fail-fast", "--release"),
        options={"--test": Matching(r"\w[\w-]*"), "-p": Matching(r"\w[\w-]*")},
        operands="words",
        pattern=r"\w[\w:]*",
        most=1,
        # In the order of their names, whatever there are of processors.
        variables={"RUST_TEST_THREADS": "1"},
        erased=r"(?<=finished in )[0-9.]+s|(?<=target\(s\) in )[0-9.]+s|(?<=' \()[0-9]+(?=\) panicked)",
        usage="cargo test [NAME]",
    ),
}


def read_commands(plain: object) -> tuple[AllowedCommand, ...]:
    """Reads what `commands` says in a file, in its order. Raises CommandRefused."""
    if isinstance(plain, Mapping):
        return tuple(
            _ready(name) if table == {} else command_from_plain(name, table) for name, table in plain.items()
        )
    if not isinstance(plain, list | tuple) or not all(isinstance(name, str) for name in plain):
        raise CommandRefused('commands is a list of names, such as ["head", "tail"], or a table for each')
    if len({*plain}) < len(plain):
        raise CommandRefused(f"commands has a name twice: {', '.join(plain)}")
    return tuple(map(_ready, plain))


def read_command_file(path: Path) -> tuple[AllowedCommand, ...]:
    """Reads a TOML file that has `commands` and nothing else. Raises CommandRefused."""
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CommandRefused(f"{path} cannot be read: {error}") from error
    if settings.keys() != {"commands"}:
        raise CommandRefused(f"{path} has {', '.join(settings) or 'nothing'}; there is commands alone")
    return read_commands(settings["commands"])


def _ready(name: str) -> AllowedCommand:
    if name not in READY:
        known = ", ".join(READY)
        raise CommandRefused(
            f"no command {name!a} is ready-made; there is {known}; describe others by a table"
        )
    return READY[name]
