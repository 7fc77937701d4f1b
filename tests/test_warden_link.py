"""The line to the warden: over its own pipes where the service may, through the engine where it may not."""

import os
from pathlib import Path

import pytest

from gym_service.sandbox import docker
from gym_service.sandbox.base import CallFunction, SandboxLost
from gym_service.sandbox.warden_link import open_pipes

TWO = b"def f():\n    return 2\n"


async def serves(sandbox):
    """Says whether requests that are small and large, and answers likewise, come through."""
    content = os.urandom(3_000_000)
    await sandbox.write_file("large", content)
    await sandbox.write_file("m.py", TWO)
    done = await sandbox.run(CallFunction("m.py", "f", [[]]), 10)
    return await sandbox.read_file("large") == content and done.output == b'{"value": 2}\n'


def open_pipe_ends():
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("pipe:") for link in links if os.path.islink(link))


@pytest.mark.docker
async def test_a_service_that_may_not_look_into_containers_goes_through_the_engine(engine, monkeypatch):
    def refuse(process_id, numbers):
        raise PermissionError

    monkeypatch.setattr(docker, "open_pipes", refuse)
    sandbox = await engine.start()
    sandbox.uid = 2_050_000_003

    assert await serves(sandbox)
    await sandbox.close()


@pytest.mark.docker
async def test_a_service_that_may_takes_the_pipes_and_gives_them_back(engine):
    before = open_pipe_ends()
    for _ in range(3):
        sandbox = await engine.start()
        sandbox.uid = 2_050_000_003
        assert await serves(sandbox)
        await sandbox.close()
        assert not sandbox.alive
        with pytest.raises(SandboxLost):
            await sandbox.read_file("large")

    assert open_pipe_ends() == before


def test_pipes_of_another_process_are_not_taken(tmp_path):
    read_end, write_end = os.pipe()
    inode = os.fstat(read_end).st_ino
    before = open_pipe_ends()
    for wrong in ([read_end, inode + 1], [99_999, inode]):
        with pytest.raises(OSError, match=r"not the warden|No such file"):
            open_pipes(os.getpid(), {"requests": [write_end, inode], "answers": wrong})
    with Path(tmp_path, "file").open("w") as file:
        numbers = [file.fileno(), os.fstat(file.fileno()).st_ino]
        with pytest.raises(FileNotFoundError, match="not the warden"):
            open_pipes(os.getpid(), {"requests": numbers, "answers": numbers})

    assert open_pipe_ends() == before
    os.close(read_end)
    os.close(write_end)
