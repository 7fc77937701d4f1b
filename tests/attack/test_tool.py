"""The file tools: they act inside, as the episode, on regular files of the workspace, byte for byte or not at all."""

import time

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.values import Submission
from tests.attack.player import REPAIRED, bash, edit, program, read, write

pytestmark = pytest.mark.docker

OUTSIDE = "path_outside_workspace"
HONEST = "honest = 1\n"


def kinds(results):
    return [result.error_kind for result in results]


def make(player, source):
    """Prepares the workspace by a program, beside an honest file `a.py`."""
    results = player.play(write("a.py", HONEST), *program(source))
    assert not any(result.is_error or result.exit_status for result in results), results


def assert_works(player):
    """Shows that reading, writing and editing an ordinary file works as ever."""
    *_, shown = player.play(
        read("a.py"), edit("a.py", "1", "2"), write("b/c.py", HONEST), read("b/c.py"), bash("cat a.py")
    )
    assert shown.text == "honest = 2\n"


def content_of(player, path):
    """The bytes of a file, as a program sees them."""
    return bytes.fromhex(player.run(f"print(open({path!r}, 'rb').read().hex())").text)


def test_T01_a_FIFO_is_no_regular_file_and_nobody_waits_for_its_writer(player):
    make(player, "import os\nos.mkfifo('pipe')\nos.mkfifo('pipe.py')")
    started = time.monotonic()
    results = player.play(
        read("pipe"), write("pipe", "x"), edit("pipe", "a", "b"), bash("cat pipe"), bash("python pipe.py"),
        bash("grep x pipe"), bash("ls pipe"),
    )  # fmt: skip

    assert time.monotonic() - started < 3
    assert set(kinds(results)) == {"not_a_regular_file"}
    assert_works(player)


def test_T01_a_socket_and_a_folder_full_of_pipes_are_passed_by(player):
    make(
        player, "import os, socket\nsocket.socket(socket.AF_UNIX).bind('s')\nos.mkdir('d')\nos.mkfifo('d/p')"
    )
    started = time.monotonic()
    *refused, found = player.play(read("s"), bash("cat s"), bash("grep -rs x d"))

    assert time.monotonic() - started < 3
    assert set(kinds(refused)) == {"not_a_regular_file"}
    assert found.exit_status == 1
    assert_works(player)


def test_T03_what_cannot_be_read_is_named(player):
    make(
        player,
        "import os\nos.mkdir('d')\nopen('closed', 'w').close()\nos.chmod('closed', 0)\nos.mkdir('e', 0)",
    )

    assert kinds(
        player.play(
            read("d"), read("missing"), read("d/missing"), read("closed"), read("e/x"), read("."), read("d/")
        )
    ) == [
        *("is_directory", "not_found", "not_found", "permission_denied", "permission_denied"),
        *("is_directory", "is_directory"),
    ]
    assert_works(player)


def test_T04_no_link_is_read_through(player):
    make(
        player,
        "import os\nfor name, to in {'file': '/etc/passwd', 'folder': '/etc', 'root': '/proc/self/root', 'up': '..',\n"
        "    'self': '/proc/self', 'mine': 'a.py', 'deep': 'folder', 'stdin': '/proc/self/fd/0'}.items():\n"
        "    os.symlink(to, name)",
    )
    paths = (
        "file", "folder/passwd", "root/etc/passwd", "up/etc/passwd", "self/environ", "mine", "deep/passwd", "stdin",
        "/proc/self/root/etc/passwd", "/proc/self/cwd/a.py", "/etc/passwd", "../etc/passwd",
    )  # fmt: skip
    results = player.play(*map(read, paths))

    assert set(kinds(results)) == {OUTSIDE}
    assert not any("root:" in result.text or "PATH=" in result.text for result in results)
    assert_works(player)


def test_T05_a_huge_file_is_refused_and_the_service_does_not_grow(service, player):
    make(
        player,
        "import os\nfor size in (1 << 40, 100 << 20):\n    try:\n        open('tib', 'w').truncate(size)\n"
        "        raise SystemExit(1)\n    except OSError: pass\n"
        "open('sparse', 'w').truncate(60 << 20)\nopen('full', 'w').write('x' * (20 << 20))\n"
        "open('large', 'w').write('line\\n' * 200_000)",
    )
    resident_bytes = service.resident_bytes()
    *refused, large = player.play(*[read("sparse"), read("full")] * 5, edit("full", "x", "y"), read("large"))

    assert set(kinds(refused)) == {"too_large"}
    assert service.resident_bytes() - resident_bytes < 16 << 20
    assert (large.output_truncated, large.text.count("\n")) == (True, 1999)
    assert_works(player)


def test_T06_what_is_no_text_has_a_defined_answer(player):
    make(
        player,
        "for name, content in {'zeros': bytes(100), 'latin': b'caf\\xe9\\n', 'cut': b'\\xe2\\x82', 'lone': "
        "b'\\xed\\xa0\\x80', 'elf': b'\\x7fELF\\x00', 'empty': b'', 'bytes': bytes(range(1, 256))}.items():\n"
        "    open(name, 'wb').write(content)",
    )
    zeros, latin, cut, lone, elf, empty, everything = player.play(
        *map(read, ("zeros", "latin", "cut", "lone", "elf", "empty", "bytes"))
    )

    assert kinds([zeros, elf]) == ["binary_file", "binary_file"]
    assert latin.text == "     1\tcaf\ufffd"
    assert all("\ufffd" in result.text and not result.is_error for result in (cut, lone, everything))
    assert (empty.text, empty.is_error) == ("(the file has 0 lines)", False)
    assert_works(player)


def test_T07_the_part_of_a_file_is_a_part_of_it_or_refused(player):
    make(player, "open('lines', 'w').write('one\\ntwo\\n')")
    refused = player.play(
        read("lines", offset=-1), read("lines", offset=0), read("lines", limit=0), read("lines", limit=-(2**63)),
        read("lines", offset=1.5), read("lines", offset="1"), read("lines", limit=True), read("lines", limit=None),
    )  # fmt: skip
    beyond, far, most, second = player.play(
        read("lines", offset=3),
        read("lines", offset=2**63),
        read("lines", limit=2**63),
        read("lines", offset=2),
    )

    assert set(kinds(refused)) == {"invalid_arguments"}
    assert beyond.text == far.text == "(the file has 2 lines)"
    assert most.text == "     1\tone\n     2\ttwo"
    assert second.text == "     2\ttwo"
    assert_works(player)


@pytest.mark.parametrize(
    "tool",
    [read, lambda path: write(path, "x"), lambda path: edit(path, "a", "b")],
    ids=["read", "write", "edit"],
)
def test_T08_an_impossible_path_is_refused(player, tool):
    make(player, "")
    expected = {
        "a\0.py": "invalid_path",
        "\0": "invalid_path",
        "": "invalid_path",
        "\ud800": "invalid_path",
        "x" * 5000: "name_too_long",
        "x" * 256: "name_too_long",
        "\u00e9" * 128: "name_too_long",
        "d/" * 4096 + "x": "name_too_long",
        "/".join("d" * 80): "name_too_long",
        "../" * 300 + "x": OUTSIDE,
    }
    results = player.play(*map(tool, expected))

    assert kinds(results) == list(expected.values())
    assert all(len(result.text) < 500 for result in results)
    assert_works(player)


def test_T08_odd_letters_of_a_path_are_letters_and_are_shown_escaped(service, player):
    names = ("a\nb", "a\u202eb", "a\x1b[31mb", "a\rb")
    results = player.play(*(write(name, HONEST) for name in names), *map(read, names), read("x\ny"))

    assert kinds(results) == [""] * 8 + ["not_found"]
    shown = "".join(result.text for result in results[:4])
    assert not any(character in shown + service.log.read_text() for character in "\u202e\x1b\r")
    assert "\n" not in shown
    make(player, "")
    assert_works(player)


def test_T09_a_file_that_changes_under_the_tools_gives_nothing_from_outside(player):
    swap = """
import os
open('b.py', 'w').write('honest = 1')
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for new in ('file', 'link'):
                try:
                    os.symlink('/etc/passwd', 'next') if new == 'link' else open('next', 'w').write('honest = 1')
                    os.rename('next', 'b.py')
                except OSError: pass
"""
    make(player, "")
    first = player.play(*program(swap), *[read("b.py"), edit("b.py", "1", "1 "), write("b.py", HONEST)] * 4)
    second = player.play(*program(swap), *[bash("cat b.py"), bash("grep -r . b.py")] * 6)

    for result in first + second:
        assert result.error_kind in ("", OUTSIDE, "not_read", "old_string_not_found")
        assert "root:" not in result.text
    assert_works(player)


def test_T10_no_hard_link_leads_outside(player):
    source = """
import errno, os
for target in ('/etc/passwd', '/bin/cat', '/proc/1/environ', '/proc/self/exe', '/etc/hostname', '/tmp/x'):
    open('/tmp/x', 'w').close()
    try:
        os.link(target, 'l')
        print('linked', target)
    except OSError as error:
        print(errno.errorcode[error.errno])
print(open('/proc/sys/fs/protected_hardlinks').read())
"""
    *failures, protected = player.run(source).text.split()
    missing, written, *_, shown = player.play(
        read("l"), write("l", HONEST), *program("import os\nos.link('l', 'm')"), bash("cat m")
    )

    assert set(failures) <= {"EXDEV", "EPERM", "EACCES"}
    assert protected == "1"
    assert missing.error_kind == "not_found"
    assert not written.is_error
    assert shown.text == HONEST


def test_T11_an_edit_that_changes_nothing_is_refused(player):
    make(player, "")
    _, *refused, shown = player.play(
        read("a.py"), edit("a.py", "1", "1"), edit("a.py", HONEST, HONEST, replace_all=True), bash("cat a.py")
    )

    assert kinds(refused) == ["no_change", "no_change"]
    assert shown.text == HONEST
    assert_works(player)


def test_T12_an_edit_of_nothing_is_refused(player):
    make(player, "open('empty', 'w').close()")
    _, _, *refused, shown = player.play(
        read("a.py"), read("empty"), edit("a.py", "", "x"), edit("a.py", "", "x", replace_all=True),
        edit("empty", "", "x"), edit("new", "", "x"), bash("cat a.py empty"),
    )  # fmt: skip

    assert set(kinds(refused)) == {"empty_old_string"}
    assert shown.text == HONEST
    assert_works(player)


def test_T13_an_edit_has_exactly_one_place(player):
    make(player, "open('twice', 'w').write('x = 1\\nx = 1\\n')")
    _, _, absent, twice, missing, shown = player.play(
        read("a.py"), read("twice"), edit("a.py", "absent", "y"), edit("twice", "x = 1", "y"),
        edit("missing", "x", "y"), bash("cat a.py twice"),
    )  # fmt: skip

    assert kinds([absent, twice, missing]) == ["old_string_not_found", "old_string_not_unique", "not_found"]
    assert "2 times" in twice.text
    assert shown.text == HONEST + "x = 1\nx = 1\n"
    assert_works(player)


BYTES = {
    "crlf": (b"a\r\nold\r\nb\r\n", b"a\r\nnew\r\nb\r\n"),
    "mixed_ends": (b"a\r\nold\nb\rc", b"a\r\nnew\nb\rc"),
    "no_final_newline": (b"a\nold", b"a\nnew"),
    "byte_order_mark": (b"\xef\xbb\xbfold\n", b"\xef\xbb\xbfnew\n"),
    "form_feed": (b"a\x0cold\x0b\x1c\n", b"a\x0cnew\x0b\x1c\n"),
    "decomposed": ("e\u0301 old".encode(), "e\u0301 new".encode()),
}


def test_T14_an_edit_changes_its_span_alone(player):
    make(player, f"for name, (before, _) in {BYTES}.items(): open(name, 'wb').write(before)")
    edits = [call for name in BYTES for call in (read(name), edit(name, "old", "new"))]

    assert not any(kinds(player.play(*edits)))
    after = player.run(f"for name in {list(BYTES)}: print(open(name, 'rb').read().hex())").text.split()
    assert [bytes.fromhex(line) for line in after] == [expected for _, expected in BYTES.values()]
    assert_works(player)


def test_T16_bytes_that_are_no_text_survive_an_edit_elsewhere(player):
    before = b"\xff\xfe caf\xe9\nold\n\xed\xa0\x80 \xc0\xaf"
    make(player, f"open('odd', 'wb').write({before})\nopen('zero', 'wb').write(b'old\\0')")
    _, edited, _, binary, lossy = player.play(
        read("odd"),
        edit("odd", "old", "new"),
        read("zero"),
        edit("zero", "old", "new"),
        edit("odd", "\ufffd", "x"),
    )

    assert not edited.is_error
    assert binary.error_kind == "not_read"
    assert lossy.error_kind == "old_string_not_found"
    assert content_of(player, "odd") == before.replace(b"old", b"new")
    assert content_of(player, "zero") == b"old\0"


def test_T19_what_cannot_be_written_is_named(player):
    make(
        player,
        "import os\nos.mkdir('d')\nos.symlink('/etc/passwd', 'out')\nos.mkfifo('pipe')\nos.symlink('a.py', 'in')\n"
        "open('fixed', 'w').write('x')\nos.chmod('fixed', 0o444)\nos.mkdir('shut', 0o555)\n"
        "os.symlink('missing', 'dangling')",
    )
    expected = {
        "d": "is_directory",
        "out": OUTSIDE,
        "in": OUTSIDE,
        "dangling": OUTSIDE,
        "pipe": "not_a_regular_file",
        "fixed": "permission_denied",
        "shut/x": "permission_denied",
    }
    started = time.monotonic()
    written = player.play(*(write(path, "y") for path in expected))
    edited = player.play(read("fixed"), *(edit(path, "x", "y") for path in expected))

    assert time.monotonic() - started < 5
    assert kinds(written) == list(expected.values())
    assert kinds(edited)[1:] == [*list(expected.values())[:-1], "not_found"]
    assert_works(player)


def test_T20_nothing_is_written_outside(player):
    make(player, "import os\nos.symlink('/tmp', 'out')\nos.symlink('..', 'up')\nos.symlink('/', 'root')")
    paths = (
        "../x", "/etc/x", "a/../../x", "/workspace/../x", "out/x", "up/tmp/x", "root/tmp/x", "/tmp/x", "//tmp/x",
        "/workspace/out/x", "./../tmp/x", "/proc/self/cwd/x", "/workspacex/x",
    )  # fmt: skip
    results = player.play(*(write(path, "x") for path in paths))

    assert set(kinds(results)) == {OUTSIDE}
    assert player.run("import os\nprint(os.listdir('/tmp'), os.path.exists('/x'))").text == "[] False\n"
    assert_works(player)


def test_T22_a_write_that_does_not_fit_leaves_the_old_content(player):
    fill = "try:\n    with open('fill', 'wb', 0) as file:\n        while True: file.write(bytes(1 << 16))\n"
    fill += "except OSError: pass"
    player.play(write("free.py", "import os; os.unlink('fill')"), write("keep.txt", "old\n"))
    *_, written, edited, created, kept = player.play(
        *program(fill), read("keep.txt"), write("keep.txt", "n" * 1_000_000), edit("keep.txt", "o", "n" * 1_000_000),
        write("more.txt", "n" * 1_000_000), bash("cat keep.txt"),
    )  # fmt: skip

    assert kinds([written, edited, created]) == ["disk_full"] * 3
    assert kept.text == "old\n"
    *_, written, listed = player.play(
        bash("python free.py"), write("keep.txt", "n" * 1_000_000), bash("ls -a")
    )
    assert not written.is_error
    assert set(listed.text.split()) == {
        *(".", "..", "keep.txt", "free.py", "program.py", f"{player.module}.py", f"test_{player.module}.py"),
    }


def test_T23_folders_are_made_down_to_a_depth(player):
    results = player.play(
        write("d/" * 200 + "x", "x"), write("d/" * 64 + "x", "x"), write("y" * 256, "x"), write("y" * 256 + "/x", "x"),
        write("d/" * 63 + "x", "x"), read("d/" * 63 + "x"), write("y" * 255, "x"), read("y" * 255),
    )  # fmt: skip

    assert kinds(results) == ["name_too_long"] * 4 + [""] * 4
    assert results[5].text == results[7].text == "     1\tx"


def test_T24_content_is_stored_as_it_is_given_or_refused(player):
    kept = "a\0b\r\n\x1b[0m\u202e\ufeff\U0001f600\uffff"
    refused = player.play(write("s", "\ud800"), write("s", "ok \udfff"), edit("s", "\ud800", "x"), read("s"))
    (written,) = player.play(write("s", kept))

    assert kinds(refused) == ["invalid_arguments"] * 3 + ["not_found"]
    assert not written.is_error
    assert content_of(player, "s") == kept.encode()


def test_T24_bytes_that_are_no_text_are_no_message(service, player):
    action = pb.Action(tool_calls=pb.ToolCalls(calls=[write("s", "BYTES")]))
    request = pb.StepEpisodeRequest(episode_id=player.episode_id, turn=0, action=action).SerializeToString()
    step = service.channel.unary_unary("/gym.v1.GymService/StepEpisode")

    with pytest.raises(grpc.RpcError) as refused:
        step(request.replace(b"BYTES", b"\xff\xfe\xed\xa0\x80"), metadata=service.metadata, timeout=10)

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert content_of(player, f"{player.module}.py").startswith(b"def ")


PLANTED = {
    ".git/hooks/post-checkout": "#!/bin/sh\ntouch /workspace/ran\n",
    ".git/config": "[core]\n\tfsmonitor = touch /workspace/ran\n",
    "tests/test_all.py": "def test_passes():\n    pass\n",
    "conftest.py": "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    report = yield\n    report.outcome = 'passed'\n    return report\n",
    "pytest.ini": "[pytest]\naddopts = --co\n",
}


@pytest.mark.parametrize("repaired", [False, True], ids=["attack", "twin"])
def test_T25_files_that_tools_execute_are_written_and_earn_nothing(player, repaired):
    results = player.play(*(write(path, content) for path, content in PLANTED.items()), write(
        f"test_{player.module}.py", "def test_passes():\n    pass\n"
    ), bash("ls"))  # fmt: skip

    assert not any(kinds(results))
    assert "ran" not in results[-1].text.split()
    verdict = player.solve() if repaired else player.end()
    assert verdict.status == (pb.VERDICT_STATUS_RESOLVED if repaired else pb.VERDICT_STATUS_UNRESOLVED)


HIJACK = (
    "os.py", "json.py", "sitecustomize.py", "usercustomize.py", "evil.pth", "posixpath.py", "encodings/__init__.py",
    ".local/lib/python3.11/site-packages/usercustomize.py", ".pythonrc.py", "warden/__init__.py", "pyvenv.cfg",
)  # fmt: skip


def test_T27_planted_modules_do_not_reach_the_tools(player):
    trap = "import builtins; builtins.open('/workspace/ran', 'w').close(); raise SystemExit(9)\n"
    planted = player.play(write("a.py", HONEST), *(write(path, trap) for path in HIJACK))
    *works, listed = player.play(
        read("a.py"),
        edit("a.py", "1", "2"),
        write("b.py", HONEST),
        bash("cat a.py"),
        bash("grep 2 a.py"),
        bash("ls"),
    )

    assert not any(kinds(planted + works))
    assert works[3].text == "honest = 2\n"
    assert "ran" not in listed.text.split()
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


def test_T28_the_programs_of_the_image_cannot_be_replaced(player):
    source = """
import os, shutil
for path in ('/bin/cat', '/usr/bin/python3', '/usr/bin/cat', '/bin/ls', '/opt/gym/warden/loop.py', '/etc/ld.so.preload',
             '/usr/lib/python3/dist-packages/x.pth', '/etc/profile', '/usr/local/bin/cat', '/root/x'):
    for attempt in (lambda: open(path, 'ab'), lambda: os.unlink(path), lambda: os.rename('a.py', path),
                    lambda: os.symlink('/workspace/a.py', path), lambda: os.chmod(path, 0o777)):
        try:
            attempt()
            print('done', path)
        except OSError: pass
for name in ('cat', 'ls', 'grep', 'pytest', 'python'):
    open(name, 'w').write('#!/bin/sh\\necho planted\\n')
    os.chmod(name, 0o755)
open('.bashrc', 'w').write('alias cat=./cat\\nPATH=/workspace\\n')
os.environ['PATH'] = '/workspace'
"""
    make(player, source)
    *_, shown = player.play(*program(source), bash("cat a.py"))
    results = player.play(bash("ls a.py"), bash("grep honest a.py"), bash("pytest -q"), bash("python3 a.py"))

    assert shown.text == HONEST
    assert "done" not in player.run(source).text
    assert not any("planted" in result.text for result in results)
    assert [result.exit_status for result in results] == [0, 0, 1, 0]


def test_T29_the_submission_is_taken_once_and_when_nothing_runs(player):
    flip = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(10**9):
            open('MODULE.py', 'w').write('def MODULE(total, count):\\n    return 0 if count else 0\\n')
time.sleep(0.2)
""".replace("MODULE", player.module)
    repaired = REPAIRED.format(name=player.module).encode()
    (*_, written) = player.play(*program(flip), write(f"{player.module}.py", repaired.decode()))

    verdict = player.end()

    assert not written.is_error
    assert verdict.status == pb.VERDICT_STATUS_RESOLVED
    assert verdict.submission_sha256 == Submission({f"{player.module}.py": repaired}).sha256


def test_T29_an_episode_that_is_ended_in_the_middle_of_a_call_submits_nothing(player):
    turn = player.begin(pb.Action(tool_calls=pb.ToolCalls(calls=program("while True: pass", timeout=1000))))
    time.sleep(0.3)

    verdict = player.end()

    assert verdict.status == pb.VERDICT_STATUS_REFUSED
    turn.cancel()
