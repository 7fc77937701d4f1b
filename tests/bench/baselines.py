"""The same work as others do it: plain child processes without any wall, and `docker run` + `docker exec`.

All sides run the Python and the pytest of the sandbox image. The plain processes live in a container for no other
reason: it has no limits and no seccomp profile, and each episode in it starts its processes directly.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

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


async def run(*argv: str, content: str = "") -> str:
    """Runs a program to its end and returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(content.encode())
    assert process.returncode == 0, output
    return output.decode()


PLAYS_PROCESSES = f"""
import json, os, subprocess, sys, tempfile
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
for _ in sys.stdin:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("zorp.py", {SOURCE!r}), ("test_zorp.py", {TESTS!r})):
            with open(f"{{folder}}/{{name}}", "w") as file: file.write(content)
        with open(f"{{folder}}/zorp.py") as file: source = file.read()
        with open(f"{{folder}}/zorp.py", "w") as file: file.write(source.replace({FAULTY_LINE!r}, {REPAIRED_LINES!r}))
        tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        subprocess.run(tests, cwd=folder, check=True, stdout=subprocess.PIPE)
        hidden = [sys.executable, "-I", "-c", {HIDDEN!r}]
        json.loads(subprocess.run(hidden, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)
    print("played", flush=True)
"""


@asynccontextmanager
async def plain_processes(at_once: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Gives a function that plays an episode by child processes; so many of them can play at once."""
    argv = (
        "docker",
        "run",
        "-i",
        "--rm",
        "--security-opt",
        "seccomp=unconfined",
        "--network",
        "none",
        "--tmpfs",
        "/tmp:exec",
    )
    python = ("--entrypoint", "/usr/bin/python3", image_reference(), "-c", PLAYS_PROCESSES)
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    players = [await asyncio.create_subprocess_exec(*argv, *python, **pipes) for _ in range(at_once)]
    free: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
    for player in players:
        free.put_nowait(player)

    async def play() -> None:
        player = await free.get()
        assert player.stdin
        assert player.stdout
        player.stdin.write(b"\n")
        assert await player.stdout.readline() == b"played\n"
        free.put_nowait(player)

    try:
        yield play
    finally:
        for player in players:
            await player.communicate(b"")  # Closes its input, which is its end.


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
