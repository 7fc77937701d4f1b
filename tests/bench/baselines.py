"""The same work as others do it: plain child processes without any wall, and `docker run` + `docker exec`."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import docker

from sandbox_images.build import image_reference
from tests.bench.episodes import FAULTY_LINE, REPAIRED_LINES

SOURCE = f"def zorp(total, count):\n{FAULTY_LINE}\n"
TESTS = """from zorp import zorp


def test_1():
    assert zorp(6, 3) == 2


def test_2():
    assert zorp(4, 0) == 0
"""
HIDDEN = (
    "import sys; sys.path.insert(0, '.'); from zorp import zorp; print([zorp(n, n % 3) for n in range(12)])"
)


async def run(*argv: str, cwd: str | None = None, content: str = "") -> str:
    """Runs a program to its end and returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    output, _ = await process.communicate(content.encode())
    assert process.returncode == 0, output
    return output.decode()


async def play_processes() -> None:
    """Reads and writes files directly; pytest and the hidden tests are child processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "zorp.py").write_text(SOURCE)
        (path / "test_zorp.py").write_text(TESTS)
        source = (path / "zorp.py").read_text()
        (path / "zorp.py").write_text(source.replace(FAULTY_LINE, REPAIRED_LINES))
        await run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", cwd=folder)
        json.loads(await run(sys.executable, "-I", "-c", HIDDEN, cwd=folder))


async def play_docker_exec() -> None:
    """A container per episode and an exec per call, with little hardening, as peers do it."""
    async with container() as name:
        write = ("docker", "exec", "-i", name, "sh", "-c")
        await run(*write, "cat > zorp.py", content=SOURCE)
        await run(*write, "cat > test_zorp.py", content=TESTS)
        source = await read_by_exec(name)
        await run(*write, "cat > zorp.py", content=source.replace(FAULTY_LINE, REPAIRED_LINES))
        await run("docker", "exec", name, "python3", "-m", "pytest", "-p", "no:cacheprovider")
        json.loads(await run("docker", "exec", name, "python3", "-I", "-c", HIDDEN))


@asynccontextmanager
async def container() -> AsyncIterator[str]:
    """Runs a container that does nothing but live."""
    name = (
        await run(
            "docker", "run", "-d", "--rm", "--network", "none", "--tmpfs", "/workspace:exec", "-w", "/workspace",
            "--entrypoint", "/bin/sleep", image_reference(), "600",
        )
    ).strip()  # fmt: skip
    try:
        yield name
    finally:
        await run("docker", "kill", name)


async def read_by_exec(name: str) -> str:
    """Reads a file of a container."""
    return await run("docker", "exec", name, "cat", "zorp.py")


async def play_engine_start_remove(client: docker.DockerClient) -> None:
    """A container that ends at once: what the engine itself needs to create, start and remove one."""
    await asyncio.to_thread(_start_and_remove, client)


def _start_and_remove(client: docker.DockerClient) -> None:
    created = client.api.create_container(image_reference(), entrypoint="/bin/true", network_disabled=True)
    try:
        client.api.start(created["Id"])
    finally:
        client.api.remove_container(created["Id"], force=True)
