"""What every sandbox does, whatever it is made of: the fake one and the container pass the same claims."""

import pytest

from gym_service.sandbox.base import (
    CallFunction,
    Execute,
    FileEntry,
    FileRefused,
    RunPytest,
    RunPython,
    SandboxLost,
)
from gym_service.sandbox.fake import FakeSandbox


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.docker)])
async def sandbox(request):
    if request.param == "fake":
        yield FakeSandbox()
        return
    sandbox = await request.getfixturevalue("engine").start()
    sandbox.uid = 2_050_000_001
    yield sandbox
    await sandbox.close()


async def test_a_file_is_read_as_it_was_written(sandbox):
    content = "\ufefföne\r\ntwo".encode() + b"\xff\x00"

    await sandbox.write_file("deep/er/file.txt", content)

    assert await sandbox.read_file("deep/er/file.txt") == content


async def test_a_file_is_replaced_whole(sandbox):
    await sandbox.write_file("a.txt", b"long content")
    await sandbox.write_file("a.txt", b"short")

    assert await sandbox.read_file("a.txt") == b"short"


@pytest.mark.parametrize(("path", "kind"), [("missing", "not_found"), ("folder", "is_directory")])
async def test_reading_what_is_no_file_says_what_it_is(sandbox, path, kind):
    await sandbox.write_file("folder/file", b"")

    with pytest.raises(FileRefused) as refused:
        await sandbox.read_file(path)

    assert refused.value.kind == kind


async def test_writing_over_a_folder_is_refused(sandbox):
    await sandbox.write_file("folder/file", b"")

    with pytest.raises(FileRefused, match="is_directory"):
        await sandbox.write_file("folder", b"")


async def test_writing_below_a_file_is_refused(sandbox):
    await sandbox.write_file("file", b"")

    with pytest.raises(FileRefused, match="path_outside_workspace"):
        await sandbox.write_file("file/below", b"")


async def test_a_path_can_be_required_to_be_a_file_or_a_folder(sandbox):
    await sandbox.write_file("folder/file", b"")

    await sandbox.require_path("folder/file", folder_allowed=False)
    await sandbox.require_path("folder", folder_allowed=True)
    await sandbox.require_path(".", folder_allowed=True)
    with pytest.raises(FileRefused, match="is_directory"):
        await sandbox.require_path("folder", folder_allowed=False)


async def test_a_function_is_called_once_per_arguments(sandbox):
    source = b"def f(x):\n    if x == 3:\n        raise ValueError\n    return (x, [x / 2], {'k': x}, True)\n"
    await sandbox.write_file("m.py", source)

    done = await sandbox.run(CallFunction("m.py", "f", [[1], [3]]), 10)

    value = '[{"tuple": [1, [{"float": "0x1.0000000000000p-1"}], {"dict": [["k", 1]]}, true]}]'[1:-1]
    assert done.output.decode() == f'{{"value": {value}}}\n{{"failed": "raised"}}\n'


async def test_a_file_of_python_is_run_as_the_main_program(sandbox):
    await sandbox.write_file("helper.py", b"value = 7\n")
    await sandbox.write_file(
        "main.py",
        b"import helper\nif __name__ == '__main__':\n    print(helper.value)\n    raise SystemExit(3)\n",
    )

    done = await sandbox.run(RunPython(("main.py",)), 10)

    assert (done.exit_status, done.output) == (3, b"7\n")


@pytest.mark.parametrize("name", ["helper", "queue", "json", "warden"])
async def test_a_module_beside_the_program_goes_before_the_library_s(sandbox, name):
    await sandbox.write_file(f"{name}.py", b"value = 7\n")
    await sandbox.write_file("main.py", f"import {name}\nprint({name}.value)\n".encode())

    done = await sandbox.run(RunPython(("main.py",)), 10)

    assert (done.exit_status, done.output) == (0, b"7\n")


async def test_a_traceback_starts_in_the_program(sandbox):
    await sandbox.write_file("main.py", b"1 / 0\n")

    done = await sandbox.run(RunPython(("main.py",)), 10)

    assert done.exit_status == 1
    assert b"ZeroDivisionError" in done.output
    assert b"warden" not in done.output


@pytest.mark.parametrize(("expected", "exit_status"), [(b"2", 0), (b"3", 1)])
async def test_pytest_says_by_its_exit_status_whether_tests_pass(sandbox, expected, exit_status):
    await sandbox.write_file("m.py", b"def f():\n    return 2\n")
    await sandbox.write_file(
        "test_m.py", b"from m import f\n\n\ndef test_f():\n    assert f() == " + expected + b"\n"
    )

    done = await sandbox.run(RunPytest(("-q",)), 20)

    assert done.exit_status == exit_status


async def test_programs_of_the_image_see_the_workspace(sandbox):
    await sandbox.write_file("a.txt", b"one\ntwo\n")

    listed = await sandbox.run(Execute(("/bin/ls", "--")), 10)
    shown = await sandbox.run(Execute(("/bin/cat", "--", "a.txt")), 10)
    found = await sandbox.run(Execute(("/bin/grep", "two", "a.txt")), 10)

    assert [listed.output, shown.output, found.output] == [b"a.txt\n", b"one\ntwo\n", b"two\n"]


async def test_what_was_written_is_listed_with_its_folders(sandbox):
    await sandbox.write_file("a/b/c.py", b"12345")
    await sandbox.write_file("a.py", b"")

    assert await sandbox.list_files() == (
        FileEntry("a", "folder", 0o755, 0),
        FileEntry("a.py", "file", 0o644, 0),
        FileEntry("a/b", "folder", 0o755, 0),
        FileEntry("a/b/c.py", "file", 0o644, 5),
    )


async def test_an_empty_workspace_lists_nothing(sandbox):
    assert await sandbox.list_files() == ()


async def test_scrubbing_empties_the_workspace(sandbox):
    await sandbox.write_file("folder/a.txt", b"one")

    assert await sandbox.scrub() == ""
    with pytest.raises(FileRefused, match="not_found"):
        await sandbox.read_file("folder/a.txt")


async def test_a_closed_sandbox_is_lost(sandbox):
    await sandbox.close()
    await sandbox.close()

    with pytest.raises(SandboxLost):
        await sandbox.read_file("a.txt")
