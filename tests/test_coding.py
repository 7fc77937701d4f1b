"""Read, Edit, Write and Bash as a policy meets them."""

import pytest

from gym_service.sandbox.base import FileRefused, RunPython
from gym_service.sandbox.fake import FakeSandbox
from gym_service.tasks.model import instantiate
from gym_service.tasks.suites import built_in
from gym_service.toolsets.base import Misuse, Progress, check_arguments
from gym_service.toolsets.calls import parse_calls
from gym_service.toolsets.coding import Coding
from gym_service.values import ToolCall
from tests.tokenizers import gym_tokenizer


@pytest.fixture
def tools():
    """Calls a tool on a workspace with one file and returns its result."""
    toolset, sandbox = Coding(), FakeSandbox()
    instance = instantiate(built_in().task("bugfix/zero/share"), "seed")
    progress = Progress(edits_left=None, source="")
    sandbox.files["a.py"] = b"one\ntwo\ntwo\n"

    async def call(tool, **arguments):
        schema = next(each for each in toolset.tools if each.name == tool)
        check_arguments(schema, arguments)
        return await toolset.perform(ToolCall(tool, arguments), instance, progress, sandbox)

    call.sandbox = sandbox
    return call


def opening(**how):
    system, user = Coding().opening(instantiate(built_in().task("bugfix/zero/share"), "seed"), **how)
    assert (system.role, user.role) == ("system", "user")
    return system.content


def test_the_text_protocol_names_every_tool_and_argument_and_its_example_is_a_call():
    text = opening()

    for tool in Coding.tools:
        assert tool.line in text
        for name in tool.properties:
            assert name in tool.line
    assert parse_calls(text, {}) == (ToolCall("Read", {"file_path": "a.py"}),)


def test_a_template_that_tells_of_the_tools_leaves_little_to_say():
    assert len(opening(native=True)) < 150
    assert "Read" not in opening(native=True)


def test_the_opening_fits_a_small_model():
    tokenizer = gym_tokenizer("smollm2", {})
    tasks = built_in().suite("bugfix")
    openings = [Coding().opening(instantiate(task, "seed")) for task in tasks]

    assert max(len(tokenizer.prompt(messages).token_ids) for messages in openings) <= 260


async def refusal(call):
    """Gives the kind of error that a call ends with."""
    with pytest.raises((Misuse, FileRefused)) as refused:
        await call
    return refused.value.kind


async def test_read_numbers_the_lines(tools):
    assert (await tools("Read", file_path="/workspace/a.py")).text == "     1\tone\n     2\ttwo\n     3\ttwo"


async def test_read_gives_the_part_that_is_asked_for(tools):
    result = await tools("Read", file_path="a.py", offset=2, limit=1)

    assert result.text == "     2\ttwo"
    assert result.output_truncated


async def test_reading_past_the_end_says_how_long_the_file_is(tools):
    assert (await tools("Read", file_path="a.py", offset=9)).text == "(the file has 3 lines)"


@pytest.mark.parametrize("arguments", [{"offset": 0}, {"offset": -1}, {"limit": 0}])
async def test_impossible_parts_are_refused(tools, arguments):
    assert await refusal(tools("Read", file_path="a.py", **arguments)) == "invalid_arguments"


async def test_read_of_what_is_no_text_is_named(tools):
    tools.sandbox.files["b"] = b"\0\1"
    tools.sandbox.files["c"] = b"ok \xff"

    assert await refusal(tools("Read", file_path="b")) == "binary_file"
    assert (await tools("Read", file_path="c")).text == "     1\tok \ufffd"


async def test_an_edit_needs_a_read_first(tools):
    assert await refusal(tools("Edit", file_path="a.py", old_string="one", new_string="1")) == "not_read"


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("three", "x", "old_string_not_found"),
        ("two", "x", "old_string_not_unique"),
        ("one", "one", "no_change"),
        ("", "x", "empty_old_string"),
    ],
)
async def test_an_edit_that_is_not_exact_fails_and_changes_nothing(tools, old, new, kind):
    await tools("Read", file_path="a.py")

    assert await refusal(tools("Edit", file_path="a.py", old_string=old, new_string=new)) == kind
    assert tools.sandbox.files["a.py"] == b"one\ntwo\ntwo\n"


async def test_an_edit_replaces_one_or_all(tools):
    await tools("Read", file_path="a.py")
    await tools("Edit", file_path="a.py", old_string="one", new_string="1")
    await tools("Edit", file_path="a.py", old_string="two", new_string="2", replace_all=True)

    assert tools.sandbox.files["a.py"] == b"1\n2\n2\n"


async def test_an_edit_that_would_blow_a_file_up_is_refused_before_it_does(tools):
    tools.sandbox.files["a.py"] = b"a" * 1_000_000
    await tools("Read", file_path="a.py")
    call = tools("Edit", file_path="a.py", old_string="a", new_string="b" * 1_000_000, replace_all=True)

    assert await refusal(call) == "too_large"
    assert tools.sandbox.files["a.py"] == b"a" * 1_000_000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nold\r\n", b"a\r\nnew\r\n"),
        (b"\xef\xbb\xbfold", b"\xef\xbb\xbfnew"),
        (b"old", b"new"),
        (b"\xff\told\n", b"\xff\tnew\n"),
    ],
    ids=["crlf", "bom", "no_newline", "invalid_utf8"],
)
async def test_an_edit_changes_only_the_span(tools, before, after):
    tools.sandbox.files["a.py"] = before
    await tools("Read", file_path="a.py")
    await tools("Edit", file_path="a.py", old_string="old", new_string="new")

    assert tools.sandbox.files["a.py"] == after


async def test_what_was_written_can_be_edited(tools):
    await tools("Write", file_path="new/b.py", content="x = 1\n")
    await tools("Edit", file_path="new/b.py", old_string="1", new_string="2")

    assert tools.sandbox.files["new/b.py"] == b"x = 2\n"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "/workspace/../x"])
async def test_no_tool_leaves_the_workspace(tools, path):
    assert await refusal(tools("Write", file_path=path, content="")) == "path_outside_workspace"
    assert await refusal(tools("Read", file_path=path)) == "path_outside_workspace"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("x\0y", "invalid_path"),
        ("a" * 300, "name_too_long"),
        ("a/" * 600, "name_too_long"),
        ("", "invalid_path"),
        (".", "is_directory"),
    ],
)
async def test_odd_paths_are_named(tools, path, kind):
    assert await refusal(tools("Write", file_path=path, content="")) == kind


async def test_text_that_cannot_be_stored_is_refused(tools):
    assert await refusal(tools("Write", file_path="a.py", content="\ud800")) == "invalid_arguments"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"file_path": 1},
        {"file_path": "a", "content": None},
        {"file_path": "a", "content": "", "mode": "w"},
    ],
)
async def test_arguments_are_checked_against_the_schema(tools, arguments):
    assert await refusal(tools("Write", **arguments)) == "invalid_arguments"


async def test_a_boolean_is_no_number(tools):
    assert await refusal(tools("Read", file_path="a.py", offset=True)) == "invalid_arguments"


async def test_bash_shows_the_output_and_the_exit_status(tools):
    tools.sandbox.files["test_a.py"] = b"def test_a():\n    assert False\n"

    result = await tools("Bash", command="pytest")

    assert result.text == "FAILED test_a.py::test_a\n[exit status 1]"
    assert result.exit_status == 1
    assert not result.is_error


async def test_bash_checks_paths_in_the_sandbox(tools):
    assert await refusal(tools("Bash", command="cat missing")) == "not_found"


async def test_a_timeout_of_any_size_is_understood(tools):
    for timeout in (1, 10**400):
        assert not (await tools("Bash", command="ls", timeout=timeout)).is_error
    assert await refusal(tools("Bash", command="ls", timeout=0)) == "invalid_arguments"


async def test_a_refusal_is_short_whatever_it_refuses(tools):
    with pytest.raises(Misuse) as refused:
        await tools("Read", **{"k" * 100_000: 1})

    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("[<A at 0x7f0123456789>]", "[<A at 0x...>]"),
        ("<A object at 0x7f0...", "<A object at 0x......"),
        ("[<A at 0x7f0123456789>, <...56789>]", "[<A at 0x...>, <......>]"),
        ("[<A ob...at 0x7f0123456789>]", "[<A ob...at 0x...>]"),
        ("[<A ob...t 0x7f0123456789>]", "[<A ob......>]"),
        ("<Thread(T, started daemon 140642870032064)>", "<Thread(T, started daemon ...)>"),
        ("assert [<A ob...56789...", "assert [<A ob........."),
        ("at 0x10 and ...", "at 0x10 and ..."),
    ],
)
async def test_no_part_of_an_address_reaches_the_policy(tools, printed, text):
    tools.sandbox.files["b.py"] = f"print({printed!r})".encode()

    assert (await tools("Bash", command="python b.py")).text == text + "\n"


@pytest.mark.docker
async def test_the_same_actions_read_alike_in_every_sandbox(engine):
    source = """
import random, threading
class Many:
    def __init__(self): self.all = [object() for _ in range(30)]
    def __repr__(self): return f"Many({self.all})"
def test_objects(): assert [Many(), {1: object()}] == [2, {3: 4}]
def test_sets(): assert {"a", "b", "c", "d"} == set("bcde")
def test_folder(tmp_path): assert tmp_path == Many()
def test_thread(): assert threading.current_thread() == random.random()
"""
    toolset, instance = Coding(), instantiate(built_in().task("bugfix/zero/share"), "seed")

    async def play(sandbox, uid):
        sandbox.uid = uid
        texts = []
        for tool, arguments in (
            ("Write", {"file_path": "test_a.py", "content": source}),
            ("Write", {"file_path": "b.py", "content": "print({'a', 'b', 'c'}, object())\n1 / 0\n"}),
            ("Bash", {"command": "pytest -l"}),
            ("Bash", {"command": "pytest -rA --tb=native -v"}),
            ("Bash", {"command": "python b.py"}),
            ("Bash", {"command": "ls -laR"}),
        ):
            progress = Progress(edits_left=None, source="")
            texts.append((await toolset.perform(ToolCall(tool, arguments), instance, progress, sandbox)).text)
        assert await sandbox.scrub() == ""
        return texts

    first, second = await engine.start(), await engine.start()
    try:
        texts = await play(first, 2_050_000_001)
        assert await play(second, 2_060_000_002) == texts
        assert await play(first, 2_070_000_003) == texts
    finally:
        await first.close()
        await second.close()


@pytest.mark.docker
async def test_a_program_can_run_pytest_more_than_once(sandbox):
    await sandbox.write_file("test_m.py", b"def test_f():\n    pass\n")
    await sandbox.write_file(
        "main.py", b"import pytest\nprint([int(pytest.main(['-q'])) for _ in range(3)])\n"
    )

    done = await sandbox.run(RunPython(("main.py",)), 20)

    assert done.output.endswith(b"[0, 0, 0]\n")


async def test_addresses_do_not_reach_the_policy(tools):
    tools.sandbox.files["b.py"] = b"print(object())\n"

    assert (await tools("Bash", command="python b.py")).text == "<object object at 0x...>\n"
