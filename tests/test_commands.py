"""Commands that a task allows: how they are described, which descriptions are refused, and where they are kept."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from gym_service.authoring import _draft
from gym_service.tasks.commands import AllowedCommand, CommandRefused, Matching, command_from_plain
from gym_service.tasks.environment import Environment
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.ready_commands import READY, read_command_file, read_commands
from gym_service.tasks.scaffold import read_folder, write_example
from gym_service.tasks.store import DamagedSuite, load_suite_folder, save_task
from tests.test_synthesis import TASK

WITH_ALL = replace(TASK, environment=Environment(commands=tuple(READY.values())))


def described(program, **fields):
    return AllowedCommand("tool", program, **fields)


@pytest.fixture
def read(tmp_path):
    """Reads a text as a file of commands."""

    def read(text):
        (tmp_path / "commands.toml").write_text(text)
        return read_command_file(tmp_path / "commands.toml")

    return read


def test_a_file_takes_ready_commands_by_name(read):
    assert read('commands = ["head", "git diff"]') == (READY["head"], READY["git diff"])


def test_a_table_without_keys_is_the_ready_command(read):
    assert read("[commands.head]\n[commands.'git diff']") == (READY["head"], READY["git diff"])


def test_a_table_describes_a_command_of_ones_own(read):
    [command] = read(
        """
        [commands."tool check"]
        program = "/opt/tool/bin/tool"
        fixed = ["check", "--plain"]
        flags = ["-q"]
        options = { "-n" = "number", "--level" = ["low", "high"], "--like" = { matches = "[a-z]+" }, "-i" = "file" }
        number = "-n"
        operands = "paths"
        most = 3
        default = "."
        """
    )

    assert command == AllowedCommand(
        "tool check",
        "/opt/tool/bin/tool",
        fixed=("check", "--plain"),
        flags=("-q",),
        options={"-n": "number", "--level": ("low", "high"), "--like": Matching("[a-z]+"), "-i": "file"},
        number="-n",
        operands="paths",
        most=3,
        default=".",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("commands = 3", "commands is a list of names"),
        ('commands = ["head", 3]', "commands is a list of names"),
        ('commands = ["head", "head"]', "has a name twice"),
        ('commands = ["rm"]', "no command 'rm' is ready-made; there is head, tail"),
        ('command = ["head"]', "has command; there is commands alone"),
        ("", "has nothing; there is commands alone"),
        ("commands = [", "cannot be read"),
        ("[commands]\nhead = 'x'", "head: a command is described by a table"),
        ("[commands.x]\nprogramm = '/x'", "x has programm; there is program, fixed"),
        ("[commands.x]\nflags = ['-a']", "x has no program"),
        ("[commands.x]\nprogram = '/x'\nflags = '-a'", "flags must be a list of texts"),
        ("[commands.x]\nprogram = '/x'\nmost = true", "most must be a number"),
        ("[commands.x]\nprogram = '/x'\noperands_first = 1", "operands_first must be true or false"),
        ("[commands.x]\nprogram = 1", "program must be a text"),
        ("[commands.x]\nprogram = '/x'\noperands = 'all'", "operands must be none, files, paths or words"),
        ("[commands.x]\nprogram = '/x'\noptions = ['-a']", "options must be a table"),
        ("[commands.x]\nprogram = '/x'\noptions = {'-a' = 'nubmer'}", '-a takes "number", "file"'),
        ("[commands.x]\nprogram = '/x'\noptions = {'-a' = []}", '-a takes "number", "file"'),
        ("[commands.x]\nprogram = '/x'\noptions = {'-a' = {match = 'a'}}", '-a takes "number", "file"'),
        ("[commands.x]\nprogram = '/x'\nvariables = {A = 1}", "variables must be texts by name"),
        ("[commands.x]\nprogram = '/x'\nvariables = {'A=B' = 'c'}", "no name of a variable"),
        ("[commands.x]\nprogram = '/x'\nflags = ['a']", "'a' is no option"),
        ("[commands.x]\nprogram = '/x'\nflags = ['--']", "'--' is no option"),
        ("[commands.x]\nprogram = '/x'\nflags = ['-a=b']", "'-a=b' is no option"),
        ("[commands.x]\nprogram = '/x'\nflags = ['!']", "'!' is no option"),
        ("[commands.x]\nprogram = '/x'\nflags = ['-a']\noptions = {'-a' = 'number'}", "flags or options"),
        ("[commands.x]\nprogram = '/x'\nnumber = '-n'", "number is none of its options"),
        ("[commands.x]\nprogram = '/x'\nrequired = ['-n']", "required has what is not among"),
        ("[commands.x]\nprogram = '/x'\nword = '('", "is no regular expression"),
        ("[commands.x]\nprogram = '/x'\nerased = 'a*'", "erased matches nothing at all"),
        ("[commands.x]\nprogram = '/x'\noperands = 'words'", "words need a pattern"),
        ("[commands.x]\nprogram = '/x'\npattern = 'a'", "a pattern is one of operands"),
        ("[commands.x]\nprogram = '/x'\noperands = 'files'\nleast = 2\nmost = 1", "least is not above most"),
        ("[commands.x]\nprogram = '/x'\nleast = 1", "there are no operands"),
        ("[commands.x]\nprogram = '/x'\noperands = 'files'\nleast = 1\ndefault = 'a'", "least is 0"),
        ("[commands.x]\nprogram = '/x'\nfixed = [\"\\u0000\"]", "does not print"),
        ("[commands.cat]\nprogram = '/bin/cat'", "are there in every task"),
        ("[commands.'python x']\nprogram = '/bin/cat'", "are there in every task"),
        ("[commands.'a b c']\nprogram = '/x'", "a name is one word or two"),
        ("[commands.'/bin/x']\nprogram = '/x'", "a name is one word or two"),
        ("[commands.x]\nprogram = './x'", "a path outside the workspace"),
        ("[commands.x]\nprogram = '/workspace/x'", "a path outside the workspace"),
        ("[commands.x]\nprogram = '/usr/../workspace/x'", "a path outside the workspace"),
        ("[commands.x]\nprogram = '-x'", "a path outside the workspace"),
        ("[commands.x]\nprogram = 'A=1'", "a path outside the workspace"),
    ],
)
def test_a_mistake_in_a_file_is_named(read, text, reason):
    with pytest.raises(CommandRefused) as refused:
        read(text)

    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "program",
    ["sh", "/bin/sh", "/bin/bash", "bash5.2", "busybox", "env", "/usr/bin/env", "xargs", "sudo", "timeout", "awk",
     "/usr/bin/gawk", "vim", "tar", "npx", "parallel", "sqlite3"],
)  # fmt: skip
def test_no_shell_and_no_program_that_runs_others_can_be_described(program):
    with pytest.raises(CommandRefused, match="name the program itself"):
        described(program, operands="files")


@pytest.mark.parametrize(
    ("program", "fields"),
    [
        ("python3.12", {"options": {"-c": Matching(".*")}}),
        ("/usr/bin/python3", {"flags": ("-i",)}),
        ("python3", {"fixed": ("-m",), "operands": "words", "pattern": "[a-z]+"}),
        ("pypy3", {"options": {"-c": Matching(".*")}}),
        ("perl", {"options": {"-e": Matching(".*")}}),
        ("perl", {"fixed": ("-lne",)}),
        ("perl5.36", {"fixed": ("-i.bak",)}),
        ("node", {"options": {"-e": Matching(".*")}}),
        ("node", {"options": {"--eval": Matching(".*")}}),
        ("node", {"flags": ("-pe",)}),
        ("node", {"fixed": ("--require=./x.js",)}),
        ("ruby", {"flags": ("-e",)}),
        ("php", {"options": {"-r": Matching(".*")}}),
        ("lua5.4", {"options": {"-e": Matching(".*")}}),
        ("bun", {"fixed": ("x",)}),
        ("find", {"flags": ("-delete",), "operands_first": True}),
        ("find", {"options": {"-exec": Matching(".*")}}),
        ("/usr/bin/find", {"options": {"-fprint": "file"}}),
        ("find", {"options": {"-fprintf": "file"}}),
        ("git", {"fixed": ("--no-pager", "-c", "core.pager=x", "diff", "--no-ext-diff", "--no-textconv")}),
        ("git", {"fixed": ("--no-pager", "diff", "--ext-diff", "--no-textconv")}),
        ("git", {"fixed": ("--no-pager", "log", "--no-ext-diff", "--no-textconv"), "flags": ("--textconv",)}),
        ("git", {"fixed": ("--no-pager", "show", "--no-ext-diff", "--no-textconv"), "flags": ("--ext",)}),
        ("git", {"fixed": ("--no-pager", "ls-files"), "options": {"--output": "file"}}),
        ("go", {"fixed": ("test",), "options": {"-exec": Matching(".*")}}),
        ("go", {"fixed": ("test",), "options": {"--exec": Matching(".*")}}),
        ("go", {"fixed": ("build",), "options": {"-toolexec": Matching(".*")}}),
        ("go", {"fixed": ("test",), "options": {"-o": "file"}}),
        ("cargo", {"fixed": ("test",), "options": {"--config": Matching(".*")}}),
        ("tail", {"flags": ("-f",)}),
        ("tail", {"flags": ("--follow",)}),
        ("tail", {"flags": ("--fol",)}),
        ("tail", {"options": {"--pid": "number"}}),
        ("wc", {"options": {"--files0-from": "file"}}),
        ("sort", {"options": {"--compress-prog": Matching(".*")}}),
        ("rg", {"options": {"--pre": Matching(".*")}}),
        ("make", {"options": {"--eval": Matching(".*")}}),
    ],
)
def test_an_option_that_runs_code_writes_or_waits_cannot_be_described(program, fields):
    with pytest.raises(CommandRefused, match="is or can be read as"):
        described(program, **fields)


@pytest.mark.parametrize(
    ("program", "fields", "reason"),
    [
        ("git", {"fixed": ("--no-pager", "push")}, "must name a subcommand of git"),
        ("git", {}, "must name a subcommand of git"),
        ("git", {"fixed": ("diff",)}, "fixed must have --no-pager, --no-ext-diff, --no-textconv"),
        ("git", {"fixed": ("--no-pager", "diff", "--no-ext-diff")}, "fixed must have --no-textconv"),
        ("go", {"fixed": ("generate",)}, "must name a subcommand of go"),
        ("cargo", {"fixed": ("install",)}, "must name a subcommand of cargo"),
        ("sed", {"operands": "files"}, "sed needs required"),
        ("sed", {"word": "[0-9]+p", "operands": "files"}, "sed needs required"),
        (
            "sed",
            {"flags": ("-n",), "required": ("-n",), "word": ".*", "operands": "files"},
            "lets 'e' through",
        ),
        ("sed", {"fixed": ("-n",), "word": r"\d+[pw].*", "operands": "files"}, "lets '1w /tmp/x' through"),
        ("make", {"operands": "words", "pattern": ".*"}, "lets CC=x through"),
    ],
)
def test_what_would_get_around_that_cannot_be_described(program, fields, reason):
    with pytest.raises(CommandRefused) as refused:
        described(program, **fields)

    assert reason in str(refused.value)


def test_what_looks_alike_but_does_no_harm_can_be_described():
    described("node", fixed=("--test", "--test-reporter=tap"), operands="files")
    described("git", fixed=("--no-pager", "log", "--no-ext-diff", "--no-textconv"), flags=("--oneline",))
    described("make", operands="words", pattern="test|build")
    described("/usr/bin/perl", operands="files")


def test_commands_are_kept_with_a_task(tmp_path):
    save_task(tmp_path / "ledger", WITH_ALL)

    [read] = load_suite_folder(tmp_path / "ledger")
    assert read.environment.commands == WITH_ALL.environment.commands
    assert read.sha256 == WITH_ALL.sha256


def test_commands_are_part_of_the_hash_of_a_task():
    one = replace(TASK, environment=Environment(commands=(READY["head"],)))
    other = replace(TASK, environment=Environment(commands=(replace(READY["head"], flags=()),)))

    assert len({TASK.sha256, one.sha256, other.sha256}) == 3


def test_sandboxes_of_tasks_with_different_commands_are_the_same():
    assert WITH_ALL.environment == TASK.environment


def test_a_task_without_commands_has_no_word_of_them():
    assert "commands" not in TASK.to_json()["environment"]


def test_a_stored_command_that_could_not_be_described_is_damage(tmp_path):
    path = save_task(tmp_path / "ledger", WITH_ALL)
    plain = json.loads(path.read_text())
    plain["environment"]["commands"][0]["program"] = "/bin/sh"
    path.write_text(json.dumps(plain))

    with pytest.raises(DamagedSuite, match="name the program itself"):
        load_suite_folder(tmp_path / "ledger")


@pytest.mark.parametrize("name", READY)
def test_a_ready_command_is_the_same_after_it_was_written_down(name):
    plain = json.loads(json.dumps(Environment(commands=(READY[name],)).to_json()))["commands"][0]

    assert plain.pop("name") == name
    assert command_from_plain(name, plain) == READY[name]


def test_a_folder_says_which_commands_its_task_allows(tmp_path):
    write_example(tmp_path / "prices")
    with (tmp_path / "prices/task.toml").open("a") as file:
        file.write('commands = ["head", "sed"]\n')

    task = _draft(read_folder(tmp_path / "prices"), "")
    assert task.environment.commands == read_commands(["head", "sed"])


def test_a_mistake_in_the_commands_of_a_folder_is_named(tmp_path):
    write_example(tmp_path / "prices")
    with (tmp_path / "prices/task.toml").open("a") as file:
        file.write("[commands.x]\nprogram = '/bin/sh'\n")

    with pytest.raises(ImportRefused, match=r"task.toml, commands: x: sh runs what stands on its line"):
        read_folder(tmp_path / "prices")


def run_tasks(tmp_path, *words):
    return subprocess.run(
        [sys.executable, "-m", "gym_service", "--state-folder", str(tmp_path / "state"), "tasks", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_show_prints_the_commands_of_the_task(tmp_path):
    save_task(
        tmp_path / "state/suites/ledger", replace(TASK, environment=Environment(commands=(READY["sed"],)))
    )

    done = run_tasks(tmp_path, "show", TASK.task_id)

    assert done.stdout.count("ls, cat, grep, sed -n 'FIRST,LASTp' FILE") == 2
    assert "head" not in done.stdout.split("--- files")[0]


def test_completions_are_not_given_commands(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / "commands.toml").write_text('commands = ["head"]')

    done = run_tasks(
        tmp_path,
        "import",
        str(tmp_path / "a.jsonl"),
        "--as",
        "mbpp",
        "--commands",
        str(tmp_path / "commands.toml"),
    )

    assert done.returncode == 2
    assert "--commands is for tasks of repositories" in done.stderr
