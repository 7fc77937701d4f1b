"""The Bash tool: one plain command by exact name and options, everything else refused before it runs."""

import pytest

from gym_service.sandbox.base import Execute, RunPytest, RunPython
from gym_service.toolsets.base import Misuse
from gym_service.toolsets.bash import parse_command


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("pytest", RunPytest(())),
        ("pytest -q -x test_a.py::test_one", RunPytest(("-q", "-x", "test_a.py::test_one"))),
        ("pytest --tb=short -k 'one and not two'", RunPytest(("--tb=short", "-k", "one and not two"))),
        ("python a.py", RunPython(("a.py",))),
        ("python3 /workspace/a.py -c x -m y --help", RunPython(("a.py", "-c", "x", "-m", "y", "--help"))),
        ("ls", Execute(("/bin/ls", "--"))),
        ("ls -a folder", Execute(("/bin/ls", "-a", "--", "folder"))),
        ("cat 'a b.txt' c", Execute(("/bin/cat", "--", "a b.txt", "c"))),
        ("cat -- -n", Execute(("/bin/cat", "--", "-n"))),
        ("cat -", Execute(("/bin/cat", "--"))),
        ('grep -n "a\\"b" x', Execute(("/bin/grep", "--color=never", "-n", "-e", 'a"b', "--", "x"))),
        ("grep -r x", Execute(("/bin/grep", "--color=never", "-r", "-e", "x", "--", "."))),
        ("grep -R x .", Execute(("/bin/grep", "--color=never", "-r", "-e", "x", "--", "."))),
        ("grep -e -x -A 2 a", Execute(("/bin/grep", "--color=never", "-e", "-x", "-A", "2", "--", "a"))),
        ("cat a\u00a0b \uff1b", Execute(("/bin/cat", "--", "a\u00a0b", "\uff1b"))),
    ],
)
def test_allowed_commands_become_an_argv(text, job):
    assert parse_command(text).job == job


@pytest.mark.parametrize(
    "text",
    [
        "cat $(python3 x.py)", "cat `x`", "cat a | sh", "cat a |& sh", "cat a &", "cat a; ls", "cat a && ls",
        "cat a || ls", "cat a > b", "cat a >> b", "cat < f", "cat <<EOF", "cat <(ls)", "cat a 2> b", "ls\nls",
        "LD_PRELOAD=./x.so cat a", "PYTHONPATH=evil python3 a.py", "env cat a", "command cat a", "exec cat a",
        "timeout 5 cat a", "xargs cat", "sudo cat a", "sh -c ls", "busybox ls", "c''at a", "\\cat a", "$'cat' a",
        "./cat a", "/workspace/cat a", "bin/python3 a.py", "/bin/cat a", "cat $HOME/x", "cat ${IFS}", 'cat "$@"',
        "python3 -c 'print(1)'", "python -m http.server", "python -i a.py", "python -X dev a.py", "python -",
        "python3", "pytest -p evil", "pytest -pevil", "pytest --rootdir=/", "pytest --confcutdir=/",
        "pytest --import-mode=append", "pytest --pyargs os", "pytest --pdb", "pytest --trace", "pytest -c x.ini",
        "pytest --tb short", "pytest --maxfail=x", "grep -f /etc/shadow x", "grep --file=x y", "grep --fil=x y",
        "grep --exclude-from=x y", "find . -exec ls", "sed -n p a", "awk 1 a", "sort -o a a", "tar cf a b",
        "git status", "rg --pre x", "tee a", "\u0441at a", "cat\u00a0a", "ca\u200bt a", "ls *.py", "ls ~",
        "cat {a,b}", "ls -Z", "cat --help", "cd /workspace",
    ],
)  # fmt: skip
def test_everything_else_is_not_allowed(text):
    with pytest.raises(Misuse) as refused:
        parse_command(text)

    assert refused.value.kind == "command_not_allowed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "cat 'a",
        'cat "a',
        "cat a\\",
        "#x",
        "cat a\0b",
        "\0",
        "grep",
        "grep -A x a",
        "grep \ud800 a",
    ],
)
def test_what_is_no_command_is_a_parse_error(text):
    with pytest.raises(Misuse) as refused:
        parse_command(text)

    assert refused.value.kind == "parse_error"


@pytest.mark.parametrize(
    "text",
    [
        "cat " + "a" * 9000,
        "cat " + "a " * 300,
        "pytest -k " + "a" * 600,
        "pytest -k '" + "(" * 60 + "'",
        "cat '" + "a" * (1 << 20) + "'",
    ],
)
def test_what_is_too_long_is_refused_before_anything_runs(text):
    with pytest.raises(Misuse) as refused:
        parse_command(text)

    assert refused.value.kind == "too_long"


@pytest.mark.parametrize(
    "text",
    ["ls ..", "ls /", "cat /etc/passwd", "cat a/../../../etc/passwd", "cat /proc/1/environ", "grep -r x /",
     "cat /workspacex", "pytest ..", "python3 ../x.py", "python3 /etc/x.py", "cat /workspace/../etc/passwd"],
)  # fmt: skip
def test_paths_outside_the_workspace_are_refused(text):
    with pytest.raises(Misuse) as refused:
        parse_command(text)

    assert refused.value.kind == "path_outside_workspace"


@pytest.mark.parametrize(
    "text", ["cat /dev/zero", "cat //dev/./fd/3", "grep x /etc/../dev/tty", "python /dev/stdin.py"]
)
def test_a_device_is_no_regular_file(text):
    with pytest.raises(Misuse) as refused:
        parse_command(text)

    assert refused.value.kind == "not_a_regular_file"


@pytest.mark.parametrize("text", ["cat /dev/shm/x", "ls /dev", "cat /device", "cat /dev/../etc/passwd"])
def test_other_places_near_the_devices_are_outside(text):
    with pytest.raises(Misuse) as refused:
        parse_command(text)

    assert refused.value.kind == "path_outside_workspace"
