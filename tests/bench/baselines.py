"""The same work as others do it: plain child processes without any wall, and `docker run` + `docker exec`."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

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
    name = (
        await run(
            "docker", "run", "-d", "--rm", "--network", "none", "--tmpfs", "/workspace:exec", "-w", "/workspace",
            "--entrypoint", "/bin/sleep", image_reference(), "600",
        )
    ).strip()  # fmt: skip
    try:
        write = ("docker", "exec", "-i", name, "sh", "-c")
        await run(*write, "cat > zorp.py", content=SOURCE)
        await run(*write, "cat > test_zorp.py", content=TESTS)
        source = await run("docker", "exec", name, "cat", "zorp.py")
        await run(*write, "cat > zorp.py", content=source.replace(FAULTY_LINE, REPAIRED_LINES))
        await run("docker", "exec", name, "python3", "-m", "pytest", "-p", "no:cacheprovider")
        json.loads(await run("docker", "exec", name, "python3", "-I", "-c", HIDDEN))
    finally:
        await run("docker", "kill", name)
