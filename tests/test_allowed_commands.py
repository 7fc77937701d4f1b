"""What a task allows beside the five commands of every task: which lines, as which argv, and what comes of them."""

import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_service.callers import OWNER
from gym_service.sandbox.base import Completed, Execute, FileRefused
from gym_service.sandbox.fake import FakeSandbox
from gym_service.tasks.commands import AllowedCommand, CommandRefused, Matching
from gym_service.tasks.environment import Environment
from gym_service.tasks.ready_commands import READY
from gym_service.tasks.repository import RepositoryInstance
from gym_service.tasks.suites import Catalogue
from gym_service.toolsets.base import Misuse, Progress
from gym_service.toolsets.bash import parse_command
from gym_service.toolsets.coding import Coding
from gym_service.values import ToolCall
from tests.conftest import fake_sandbox, gym_over
from tests.test_synthesis import TASK
from tests.tokenizers import gym_tokenizer

ALL = tuple(READY.values())
GIT = (
    "/usr/bin/env", "GIT_DIR=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "git",
    "--no-pager", "diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color",
)  # fmt: skip
GO = ("/usr/bin/env", "GOENV=off", "GOPROXY=off", "GOTOOLCHAIN=local", "go", "test", "-count=1")
CARGO = ("/usr/bin/env", "RUST_TEST_THREADS=1", "cargo", "test", "--offline", "-q")
NODE_TEST = ("/usr/bin/env", "node", "--test", "--test-reporter=tap")


def kind_of(text, extra=ALL):
    """The kind of refusal that a line gets."""
    with pytest.raises(Misuse) as refused:
        parse_command(text, extra)
    return refused.value.kind


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("head a", ("/usr/bin/head", "a")),
        ("head -n 5 a", ("/usr/bin/head", "-n", "5", "a")),
        ("head -n5 a", ("/usr/bin/head", "-n", "5", "a")),
        ("head -20 a", ("/usr/bin/head", "-n", "20", "a")),
        ("head -n -5 a", ("/usr/bin/head", "-n", "-5", "a")),
        ("head --lines=5 a", ("/usr/bin/head", "--lines=5", "a")),
        ("head --lines 5 a", ("/usr/bin/head", "--lines=5", "a")),
        ("head -qn5 a b", ("/usr/bin/head", "-q", "-n", "5", "a", "b")),
        ("head a -n 5", ("/usr/bin/head", "-n", "5", "a")),
        ("head -- a -n", ("/usr/bin/head", "a", "./-n")),
        ("head -", ("/usr/bin/head", "./-")),
        ("head /workspace/x/../a", ("/usr/bin/head", "a")),
        ("head \u2212n5", ("/usr/bin/head", "./\u2212n5")),
        ("head \u2010f a", ("/usr/bin/head", "./\u2010f", "a")),
        ("tail -n +5 a", ("/usr/bin/tail", "-n", "+5", "a")),
        ("tail +5", ("/usr/bin/tail", "./+5")),
        ("wc -lw a b", ("/usr/bin/wc", "-l", "-w", "a", "b")),
        ("sed -n '10,20p' f", ("/bin/sed", "-n", "10,20p", "f")),
        ("sed -n '5p;$p' f", ("/bin/sed", "-n", "5p;$p", "f")),
        ("sed -nE '/def (a|b)/,+3p' f", ("/bin/sed", "-n", "-E", "/def (a|b)/,+3p", "f")),
        ("sed '1,/e w/p' -n f", ("/bin/sed", "-n", "1,/e w/p", "f")),
        ("find", ("/usr/bin/find", ".")),
        ("find src -name '*.py' -type f", ("/usr/bin/find", "src", "-name", "*.py", "-type", "f")),
        ("find -maxdepth 2", ("/usr/bin/find", ".", "-maxdepth", "2")),
        ("find '!' -name x", ("/usr/bin/find", ".", "!", "-name", "x")),
        (
            "find . \\( -name a -o -name b \\)",
            ("/usr/bin/find", ".", "(", "-name", "a", "-o", "-name", "b", ")"),
        ),
        ("find a,b ,", ("/usr/bin/find", "a,b", "./,")),
        ("diff -ru a b", ("/usr/bin/diff", "--no-dereference", "-r", "-u", "a", "b")),
        ("diff -U3 a b", ("/usr/bin/diff", "--no-dereference", "-U", "3", "a", "b")),
        ("diff - b", ("/usr/bin/diff", "--no-dereference", "./-", "b")),
        ("git diff a b", (*GIT, "a", "b")),
        ("git diff --no-index --stat a b", (*GIT, "--stat", "a", "b")),
        ("git diff --unified=1 a b", (*GIT, "--unified=1", "a", "b")),
        ("node a.js", ("/usr/bin/env", "node", "a.js")),
        ("node --test", NODE_TEST),
        ("node --test --test-name-pattern=one a.js", (*NODE_TEST, "--test-name-pattern=one", "a.js")),
        ("go test", GO),
        ("go test -v -run '^TestA$' ./...", (*GO, "-v", "-run", "^TestA$", "./...")),
        ("go test -run=TestA ./a/b", (*GO, "-run", "TestA", "./a/b")),
        ("cargo test one::two", (*CARGO, "one::two")),
        ("cargo test -q", CARGO),
        ("perl -c a.pl", ("/usr/bin/env", "PERL_HASH_SEED=0", "perl", "-c", "a.pl")),
        ("cargo test --lib -- one", (*CARGO, "--lib", "one")),
    ],
)
def test_allowed_lines_become_an_argv(text, argv):
    assert parse_command(text, ALL).job == Execute(argv)


@pytest.mark.parametrize(
    "text",
    [
        "head --line=5 a", "head --lin 5 a", "head -z a", "head -qz a", "head --help", "head --version",
        "head --n=5 a",
        "tail -f a", "tail -F a", "tail -qf a", "tail -fn5 a", "tail --follow a", "tail --f a",
        "tail --follow=name a",
        "tail --retry a", "tail --pid=1 a", "tail --pid 1 a", "tail -s 1 a", "tail -5f a", "tail -n5 -f a",
        "tail a -f",
        "wc --files0-from=a", "wc --files0-from a", "wc --files a", "wc --total=never a",
        "sed 1p f", "sed -i 1p f", "sed -ni 1p f", "sed -n -i 1p f", "sed -n -i.bak 1p f",
        "sed --in-place 1p f",
        "sed -n -e 1p f", "sed -n --expression=1p f", "sed -n -f f f", "sed --quiet 1p f", "sed -n '1e id' f",
        "sed -n 'e id' f", "sed -n e f", "sed -n 'w /tmp/x' f", "sed -n '1w x' f", "sed -n '1,2w x' f",
        "sed -n '$!w x' f",
        "sed -n '1r /etc/passwd' f", "sed -n 's/a/b/' f", "sed -n 's/a/b/e' f", "sed -n 's/a/b/w x' f",
        "sed -n '1p;1e id' f",
        "sed -n '1p\n1e id' f", "sed -n '/a/e id' f", "sed -n '/a\\/p;1e id;/b/p' f",
        "sed -n '/[/p;/]e id/p' f",
        "sed -n '1{p}' f", "sed -n '\\,a,p' f", "sed -n '1,2!p' f", "sed -n p f", "sed -n f",
        "sed -n -- -1p f",
        "sed -n '1p;' f", "sed -n -s 1p f", "sed -n '//p' f", "sed -n '1~2p' f", "sed -n '1P' f",
        "sed -n '\u0661p' f",
        "find . -exec ls", "find . -exe ls", "find . -execdir ls", "find . -ok ls", "find . -okdir ls",
        "find . -delete",
        "find . -del", "find . -fprint x", "find . -fprint0 x", "find . -fprintf x %p", "find . -fls x",
        "find . -ls",
        "find . -printf %T@", "find . -files0-from x", "find -L .", "find . -follow", "find -D exec .",
        "find -O3 .",
        "find --help", "find . --", "find -- .", "find . -name=x", "find . -name -delete", "find . -type fd",
        "find . -maxdepth -1", "find . -regex x", "find . -oa", "find . -newer x",
        "diff --to-file=a b", "diff --from-file a b", "diff -uX x a b", "diff --label=x a b",
        "diff --color a b", "diff -l a b",
        "diff --uni a b", "diff -c a b", "diff --ifdef=x a b",
        "git diff --output=x a b", "git diff --output x a b", "git diff --out=x a b",
        "git diff --ext-diff a b",
        "git diff --textconv a b", "git diff -O x a b", "git diff --cached", "git diff --no-ind a b",
        "git -c a=b diff a b",
        "git --no-pager diff a b", "git", "git status", "git log", "git -C / diff a b",
        "perl -e 1", "perl -ce 1 a.pl", "perl -we1", "perl -i a.pl", "perl -x a.pl", "perl -Mx a.pl",
        "node -e 1", "node --eval 1", "node -p 1", "node -r ./x.js a.js", "node --require=./x.js a.js",
        "node a.js --test", "node inspect", "node a.txt",
        "node --import=./x.mjs a.js", "node --test --test-reporter-destination=/tmp/x",
        "node --test --watch",
        "node --test -e 1", "node --tes a.js",
        "go test -exec x", "go test --exec x", "go test -exec=x", "go test -toolexec x", "go test -o x",
        "go test -c",
        "go test -run -exec", "go test -coverprofile=x", "go test -v=true", "go test /etc", "go test ../x",
        "go test ./../x",
        "go test ./a/../../x", "go test ./..", "go test fmt", "go test -args x", "go test -vshort",
        "go run a.go", "go", "go env",
        "cargo test --config x", "cargo test --conf x", "cargo test -- --nocapture", "cargo test -Z x",
        "cargo build",
        "cargo test --manifest-path x", "cargo +nightly test", "cargo test --target-dir=/tmp/x",
        "cargo test ../x",
    ],
)  # fmt: skip
def test_everything_else_is_not_allowed(text):
    assert kind_of(text) == "command_not_allowed"


@pytest.mark.parametrize(
    "text",
    ["head", "head -n", "head -n x a", "head -n=5 a", "head -n 5k a", "head -n5x a", "head -n '' a", "head -n \u0665 a",
    "head -c", "wc",
     "head -n 99999999 a", "sed -n", "sed -n 1p", "find -name a src", "diff a", "diff a b c", "git diff",
     "git diff a",
     "find . -name", "node a.js b.js", "cargo test a b", "head a\0b"],
)  # fmt: skip
def test_a_line_that_lacks_or_has_too_much_is_a_parse_error(text):
    assert kind_of(text) == "parse_error"


@pytest.mark.parametrize(
    "text",
    ["head -c -1 -- /etc/passwd", "head ../x", "tail a/../../x", "sed -n 1p /etc/passwd", "find /", "find ..",
     "find a ../b -name x", "diff a /etc/passwd", "git diff /etc/passwd a", "wc /proc/1/environ",
     "node /etc/x.js",
     "node --test ../x.js"],
)  # fmt: skip
def test_paths_outside_the_workspace_are_refused(text):
    assert kind_of(text) == "path_outside_workspace"


def test_a_device_is_no_file():
    assert kind_of("head -c 5 /dev/zero") == "not_a_regular_file"


@pytest.mark.parametrize(
    "text",
    ["head a", "tail -n 5 a", "wc -l a", "sed -n 1p a", "find", "diff a b", "git diff a b", "node a.js",
    "node --test",
     "go test", "cargo test", "perl a.pl"],
)  # fmt: skip
def test_a_task_that_allows_none_of_them_refuses_them_all(text):
    parse_command(text, ALL)

    assert kind_of(text, ()) == "command_not_allowed"


def test_a_refusal_tells_the_commands_of_the_task_and_the_options_of_the_command():
    with pytest.raises(Misuse) as refused:
        parse_command("head -z a", (READY["head"],))

    assert refused.value.message == (
        "head: option -z is not allowed; its options are: -q, -v, --quiet, --silent, --verbose, -n, --lines, "
        "-c, --bytes, -NUMBER. Allowed: pytest, python FILE.py, ls, cat, grep, head [-n NUMBER] FILE"
    )


def test_files_and_paths_are_left_to_the_sandbox_to_check():
    own = AllowedCommand("tool", "/usr/bin/tool", options={"--in": "file", "-d": "path"}, operands="files")

    command = parse_command("tool --in=a -d folder b", (own,))

    assert (command.files, command.paths) == (("a", "b"), ("folder",))
    assert kind_of("tool --in=../a", (own,)) == "path_outside_workspace"


@pytest.mark.parametrize(
    "text", ["tool -n -x", "tool -n-x", "tool --like=-x", "tool -- -x", "tool a -- b -x"]
)
def test_what_starts_with_a_dash_is_no_value_and_no_word_whatever_the_pattern_says(text):
    anything = Matching(".*")
    own = AllowedCommand(
        "tool",
        "/usr/bin/tool",
        options={"-n": anything, "--like": anything},
        operands="words",
        pattern=".*",
    )

    assert kind_of(text, (own,)) == "command_not_allowed"


# Whatever is written


def check_argv(listed, argv):
    """Whether an argv has nothing but what the description names; written apart from what makes it."""
    rest = list(argv[argv.index(listed.program) + 1 :])
    assert rest[: len(listed.fixed)] == list(listed.fixed)
    rest = rest[len(listed.fixed) :]
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            assert ".." not in word.split("/")
            assert not word.startswith("/") or listed.word
        elif word in listed.options:
            assert not word.startswith("--")
            value = rest.pop(0)
            assert not value.startswith("-") or value[1:].isdecimal()
        elif word not in listed.flags:
            name, equals, _ = word.partition("=")
            assert equals
            assert name in listed.options
            assert name.startswith("--")


PIECES = [
    "-n", "-n5", "-5", "-q", "-f", "-qf", "--", "-", "--lines=5", "--lines", "--line", "--follow", "5",
    "+5", "-i", "-e", "-E",
    "1p", "1,2p", "1e id", "w x", "/a/p", "-name", "-delete", "-exec", "-fprint", "-type", "f",
    "-maxdepth", "!", "(", ")",
    "-o", "-r", "-ru", "-U", "-U3", "--output=x", "--no-index", "--ext-diff", "--stat", "-O", "-run",
    "-run=X", "-exec=x",
    "-toolexec", "-v", "--test", "--lib", "--config", "a", "b.py", "./a", "./...", "../x", "/etc/passwd",
    "/workspace/a",
    "a/../../b", "-x=y", "--=", "=", "", "-\u0435", "\u2212n", "-n\u0665", "--lines\u003d5",
    "--files0-from=-", "-la", "--pid=1",
]  # fmt: skip
WORDS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text("-=abenpsf015./!\u2010\x7f", max_size=6)), max_size=6
)
NAMES = st.from_regex(r"--?[a-f]{1,3}", fullmatch=True)
VALUES = st.sampled_from(["number", "file", "path", ("a", "f"), Matching("[a-f-]+")])


@given(listed=st.sampled_from(ALL), words=WORDS)
@settings(max_examples=600, deadline=None)
def test_no_option_reaches_a_sandbox_that_its_description_does_not_name(listed, words):
    line = shlex.join(["x", *words]).replace("x", listed.name, 1)
    try:
        job = parse_command(line, (listed,)).job
    except Misuse:
        return
    check_argv(listed, job.argv)


@given(
    flags=st.lists(NAMES, max_size=4, unique=True),
    options=st.dictionaries(NAMES, VALUES, max_size=4),
    first=st.booleans(),
    words=st.lists(st.one_of(NAMES, st.text("-=abcdef015./", max_size=6)), max_size=6),
)
@settings(max_examples=600, deadline=None)
def test_that_holds_for_any_description(flags, options, first, words):
    try:
        listed = AllowedCommand(
            "x", "/bin/x", flags=tuple(flags), options=options, operands="paths", operands_first=first
        )
    except CommandRefused:
        return
    try:
        job = parse_command(shlex.join(["x", *words]), (listed,)).job
    except Misuse:
        return
    check_argv(listed, job.argv)


# What the policy is told


def instance_with(*names):
    commands = tuple(READY[name] for name in names)
    return RepositoryInstance(replace(TASK, environment=Environment(commands=commands)))


def test_the_tools_of_a_task_name_its_commands():
    instance = instance_with("head", "sed")

    *others, bash = Coding().tools_for(instance.task)
    system = Coding().opening(instance)[0].content

    assert tuple(others) == Coding.tools[:-1]
    assert bash.description.endswith("grep, head [-n NUMBER] FILE, sed -n 'FIRST,LASTp' FILE.")
    assert bash.line in system


def test_a_task_without_commands_reads_as_ever():
    instance = instance_with()

    assert Coding().tools_for(instance.task) == Coding.tools
    assert all(tool.line in Coding().opening(instance)[0].content for tool in Coding.tools)


async def test_a_template_that_renders_tools_is_given_those_of_the_task(tmp_path):
    task, qwen3 = instance_with("sed").task, gym_tokenizer("qwen3", {})

    async with gym_over(fake_sandbox, tmp_path, Catalogue({task.suite: (task,)})) as gym:
        gym.running.episodes.tokenizers.add(qwen3, OWNER)
        episode = await gym.create(
            task_id=task.task_id, toolset="coding", tokenizer_fingerprint=qwen3.facts.fingerprint
        )
        info = await gym.info()

    told = READY["sed"].told
    assert told in episode.tools[-1].description
    assert told in qwen3.text_of(episode.prompt.token_ids)
    assert all(told not in tool.description for toolset in info.toolsets for tool in toolset.tools)


class Answering(FakeSandbox):
    """A sandbox in which every program ends in the same way."""

    def __init__(self, exit_status, output):
        super().__init__()
        self.answer = Completed(exit_status, output, False, False, False)

    async def run(self, job, timeout_seconds):
        return self.answer


async def play(sandbox, line, *names):
    call = ToolCall("Bash", {"command": line})
    return await Coding().perform(call, instance_with(*names), Progress(edits_left=None, source=""), sandbox)


@pytest.mark.parametrize(
    ("name", "line", "printed", "text"),
    [
        ("go test", "go test", b"--- FAIL: TestA (0.01s)\nFAIL\tg\t0.042s\n",
        "--- FAIL: TestA (...)\nFAIL\tg\t...\n"),
        ("go test", "go test", b"goroutine 6 [running]:\nf(0xea58f86a6c8)\n",
        "goroutine ... [running]:\nf(...)\n"),
        ("node --test", "node --test", b"  duration_ms: 5.39\n# duration_ms 256.9\n",
        "  duration_ms: ...\n# duration_ms ...\n"),
        ("cargo test", "cargo test", b"thread 'two' (23876) panicked at x; finished in 0.11s\n",
         "thread 'two' (...) panicked at x; finished in ...\n"),
    ],
)  # fmt: skip
async def test_times_do_not_reach_the_policy(name, line, printed, text):
    assert (await play(Answering(0, printed), line, name)).text == text


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_diff_runs_no_program_that_a_file_in_the_workspace_names(tmp_path):
    ran = tmp_path / "ran"
    home = tmp_path / "workspace"
    home.mkdir()
    (home / ".gitattributes").write_text("* diff=x filter=x\n")
    config = f'[diff]\nexternal = touch {ran}\n[diff "x"]\ntextconv = touch {ran}\ncommand = touch {ran}\n'
    config += f'[filter "x"]\nclean = touch {ran}\nsmudge = touch {ran}\n[core]\nfsmonitor = touch {ran}\n'
    subprocess.run(["git", "init", "-q", "."], cwd=home, check=True)
    for path in (home / ".gitconfig", home / ".git/config"):
        path.write_text(config)
    for name in ("a", "b"):
        (home / name).write_text(name)
    argv = parse_command("git diff a b", ALL).job.argv

    done = subprocess.run(
        argv, cwd=home, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True
    )

    assert (done.returncode, done.stderr) == (1, b"")
    assert b"-a\n" in done.stdout
    assert not ran.exists()


# In real containers


@pytest.mark.docker
async def test_ready_commands_do_what_they_say_and_read_alike_in_every_sandbox(engine):
    names = ("head", "tail", "wc", "sed", "find", "diff")

    async def all_of(sandbox, uid):
        sandbox.uid = uid
        for path in ("a.txt", "src/b.py", "src/deep/c.py"):
            await sandbox.write_file(path, "".join(f"{path} {number}\n" for number in range(1, 21)).encode())
        await sandbox.write_file("-n", b"dash\n")
        texts = {}
        for line in (
            "head -2 a.txt", "head -n1 a.txt src/b.py", "tail -n 1 a.txt", "tail -n +20 a.txt", "wc -l a.txt",
            "sed -n '3,4p' a.txt", "sed -n '/ 5/p;$p' a.txt", "find . -name '*.py' -type f",
            "find src -maxdepth 1",
            "diff -u a.txt src/b.py", "diff -r src src/deep", "head -- -n",
        ):  # fmt: skip
            texts[line] = (await play(sandbox, line, *names)).text
        assert await sandbox.scrub() == ""
        return texts

    first, second = await engine.start(), await engine.start()
    try:
        texts = await all_of(first, 2_050_000_001)
        assert await all_of(second, 2_060_000_002) == texts
        assert await all_of(first, 2_070_000_003) == texts
    finally:
        await first.close()
        await second.close()
    assert texts["head -2 a.txt"] == "a.txt 1\na.txt 2\n"
    assert texts["head -n1 a.txt src/b.py"] == "==> a.txt <==\na.txt 1\n\n==> src/b.py <==\nsrc/b.py 1\n"
    assert texts["tail -n 1 a.txt"] == texts["tail -n +20 a.txt"] == "a.txt 20\n"
    assert texts["wc -l a.txt"] == "20 a.txt\n"
    assert texts["sed -n '3,4p' a.txt"] == "a.txt 3\na.txt 4\n"
    assert texts["sed -n '/ 5/p;$p' a.txt"] == "a.txt 5\na.txt 20\n"
    assert sorted(texts["find . -name '*.py' -type f"].split()) == ["./src/b.py", "./src/deep/c.py"]
    assert sorted(texts["find src -maxdepth 1"].split()) == ["src", "src/b.py", "src/deep"]
    assert texts["diff -u a.txt src/b.py"].startswith(
        "--- a.txt\t...\n+++ src/b.py\t...\n@@ -1,20 +1,20 @@\n"
    )
    assert texts["head -- -n"] == "dash\n"


@pytest.mark.docker
async def test_a_link_is_no_file_for_them_and_is_not_followed(sandbox):
    await sandbox.write_file(
        "m.py",
        b"import os\nos.symlink('/etc', 'etc')\nos.mkdir('d')\nos.symlink('/etc', 'd/etc')\n"
        b"os.symlink('/etc/passwd', 'd/m.py')\n",
    )
    await play(sandbox, "python m.py")

    for line in ("head etc", "head etc/passwd", "find etc", "diff etc d"):
        with pytest.raises(FileRefused) as refused:
            await play(sandbox, line, "head", "find", "diff")
        assert refused.value.kind == "path_outside_workspace"
    assert sorted((await play(sandbox, "find d", "find")).text.split()) == ["d", "d/etc", "d/m.py"]
    assert "root" not in (await play(sandbox, "diff d m.py", "diff")).text


@pytest.mark.docker
async def test_a_program_that_the_image_lacks_is_an_observation(sandbox):
    own = AllowedCommand("tool", "/usr/bin/no-such-tool")
    instance = RepositoryInstance(replace(TASK, environment=Environment(commands=(own, READY["go test"]))))

    results = [
        await Coding().perform(
            ToolCall("Bash", {"command": line}), instance, Progress(edits_left=None, source=""), sandbox
        )
        for line in ("tool", "go test")
    ]

    assert [each.text for each in results] == [
        "[/usr/bin/no-such-tool is not in this image]",
        "[go is not in this image]",
    ]
    assert not any(each.is_error for each in results)


def test_paths_of_a_listed_command_are_those_of_the_task_s_own_workspace():
    command = parse_command("head -n 2 /testbed/a.py", (READY["head"],), workspace="/testbed")

    assert command.files == ("a.py",)
    with pytest.raises(Misuse, match=r"/workspace/a\.py is outside /testbed"):
        parse_command("head /workspace/a.py", (READY["head"],), workspace="/testbed")
