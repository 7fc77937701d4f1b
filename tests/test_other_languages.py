"""A client in another language, made from the contract alone, plays an episode."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import fake_sandbox, gym_over

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "proto" / "examples" / "node"


async def _run(*command: str, cwd: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.skipif(shutil.which("npm") is None, reason="Node and npm are not installed")
async def test_a_client_in_node_plays_an_episode(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    shutil.copytree(EXAMPLE, folder)
    code, output = await _run("npm", "install", "--no-audit", "--no-fund", cwd=folder)
    if code != 0:
        pytest.skip(f"npm could not fetch the client's packages: {output[-200:]}")
    async with gym_over(fake_sandbox, tmp_path / "gym") as gym:
        endpoint = folder / "endpoint.json"
        endpoint.write_text(json.dumps({"address": gym.running.address, "token": gym.running.token}))
        contract = str(ROOT / "proto" / "gym" / "v1" / "gym.proto")
        code, output = await _run("node", "play.mjs", contract, str(endpoint), cwd=folder)

    assert code == 0, output
    assert output.splitlines()[1:] == [
        f"edit add_zero_guard: edited {output.split('edited ')[1].split()[0]}",
        "submit: submitted",
        "VERDICT_STATUS_RESOLVED 12 of 12",
    ]
