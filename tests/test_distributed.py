"""Several processes that make one run."""

import asyncio
import json
import os
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from tests.conftest import Gym, fake_sandbox, gym_over
from tests.test_update import CONFIG, make_batch, make_model
from trainer_client.checkpoint import state_hash
from trainer_client.distributed import ALONE, PeerLost, World, joined
from trainer_client.models.tiny import build_tiny
from trainer_client.update import make_optimizer, update_policy

LINES = replace(CONFIG, microbatch_tokens=1, epochs=2, learning_rate=0.01)
"""Three lines that teach and one that does not: the processes have different numbers of them."""


def _take_updates(world: World) -> tuple[dict[str, torch.Tensor], str, list[dict[str, float]]]:
    torch.use_deterministic_algorithms(True)
    model = make_model()
    optimizer = make_optimizer(model, LINES)
    stats = [asdict(update_policy(model, optimizer, make_batch(), LINES, world)) for _ in range(2)]
    torch.use_deterministic_algorithms(False)
    return model.state_dict(), state_hash(model), stats


def _in_processes(work: Any, folder: Path) -> list[Any]:
    """Runs work(world) in two processes and returns what each returned."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    spawn(_one_of_two, (port, work, folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def _one_of_two(rank: int, port: int, work: Any, folder: Path) -> None:
    torch.set_num_threads(1)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update(
        {name: str(value) for name, value in (where | {"RANK": rank, "LOCAL_RANK": rank}).items()}
    )
    with joined() as world:
        torch.save(work(world), folder / f"{rank}.pt")


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """The same weights in both to the last bit, and those of one process but for the order of sums."""
    (weights, first, stats), (_, second, others) = _in_processes(_take_updates, tmp_path)
    expected, _, alone = _take_updates(ALONE)

    assert first == second
    assert stats == others
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    for found, each in zip(stats, alone, strict=True):
        assert found == pytest.approx(each, rel=1e-4, abs=1e-6)


def _take_an_update_in_bfloat16(world: World) -> str:
    model = make_model().bfloat16()
    config = replace(CONFIG, microbatch_tokens=10_000)
    update_policy(model, make_optimizer(model, config), make_batch(), config, world)
    return state_hash(model)


def test_a_process_without_a_line_takes_the_same_step_in_bfloat16(tmp_path: Path) -> None:
    first, second = _in_processes(_take_an_update_in_bfloat16, tmp_path)

    assert first == second != state_hash(make_model().bfloat16())


def _leave_or_wait(world: World) -> tuple[str, float]:
    if not world.is_first:
        return "left", 0.0
    started = time.monotonic()
    with pytest.raises(PeerLost) as lost:
        asyncio.run(world.gather("something"))
    return str(lost.value), time.monotonic() - started


def test_the_end_of_one_is_noticed_by_the_other_at_once(tmp_path: Path) -> None:
    (message, seconds), _ = _in_processes(_leave_or_wait, tmp_path)

    assert "goes on from its last checkpoint with --resume" in message
    assert seconds < 60  # The hour of TIMEOUT is what it would be otherwise.


def test_shares_have_each_item_once() -> None:
    assert [World(rank, 3).share("abcde") for rank in range(3)] == [["a", "d"], ["b", "e"], ["c"]]


async def _run(folder: Path, name: str, processes: int, **settings: Any) -> tuple[int, str, str]:
    """Makes a small run as a user does, over the gym whose endpoint lies in the folder."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m")
    flags = [
        "--no-mask-truncated",
        *(f"--{key.replace('_', '-')}={value}" for key, value in settings.items()),
    ]
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            *(launcher if processes > 1 else ()),
            "trainer_client.run",
            "--name",
            name,
            *flags,
        ),
        cwd=folder,
        env=os.environ | {"GYM_STATE_DIR": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def leave_endpoint(gym: Gym, folder: Path) -> None:
    """Leaves what a gym leaves for the trainers of its user."""
    path = folder / "endpoint.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"address": gym.running.address, "token": gym.running.token}))


SMALL = {
    "steps": 2,
    "tasks_per_step": 3,
    "group_size": 2,
    "validate_every": 2,
    "validation_episodes": 1,
    "test_episodes": 1,
    "cohort_size": 2,
    "max_new_tokens": 4,
    "max_turns": 1,
    "reward": "fraction",
    "suite": "bugfix",
}


@pytest.mark.timeout(200)
async def test_a_run_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    """The same episodes and figures, one set of files, and each line said once."""
    build_tiny(tmp_path / "start")
    async with gym_over(fake_sandbox, tmp_path) as gym:
        leave_endpoint(gym, tmp_path)
        settings = SMALL | {"model": tmp_path / "start"}
        two = await _run(tmp_path, "two", 2, **settings)
        one = await _run(tmp_path, "one", 1, **settings)

    assert (two[0], one[0]) == (0, 0), two[2] + one[2]
    rows = {
        name: [
            json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("one", "two")
    }
    for found, expected in zip(rows["two"], rows["one"], strict=True):
        del found["seconds"], expected["seconds"]
        assert found.pop("update", {}) == pytest.approx(expected.pop("update", {}), rel=1e-3, abs=1e-6)
        assert found == expected
    assert two[1].count("Report") == 1
    assert json.loads((tmp_path / "runs" / "two" / "config.json").read_text())["record"]["processes"] == "2"
    assert (tmp_path / "runs" / "two" / "result.json").exists()


@pytest.mark.timeout(200)
async def test_an_error_ends_all_processes_with_its_message(tmp_path: Path) -> None:
    build_tiny(tmp_path / "start")
    async with gym_over(fake_sandbox, tmp_path) as gym:
        leave_endpoint(gym, tmp_path)
        settings = SMALL | {"model": tmp_path / "start", "suite": "none"}
        code, _, errors = await _run(tmp_path, "broken", 2, **settings)

    assert code != 0
    assert "none" in errors
