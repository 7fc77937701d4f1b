"""Limits: what the operator sets, what a client may ask for, what really holds, and what happens when all is in use."""

import asyncio
import json
import math
from dataclasses import asdict, fields
from typing import ClassVar

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from gym_contract.v1 import gym_pb2 as pb

from gym_service import __main__ as command_line
from gym_service import episodes, wire
from gym_service.config import limits_from
from gym_service.sandbox.base import CallFunction, RunPytest
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.policy import BOUNDS, SandboxLimits, host_config
from tests.conftest import fake_sandbox, gym_over
from tests.test_server import error_of
from trainer_client.endpoint import Endpoint
from trainer_client.gym import GymClient

OWN = asdict(SandboxLimits())

# --- the operator ---


def given(*options):
    return limits_from(command_line._parser().parse_args(["serve", *options]))


def test_every_limit_is_an_option_under_its_own_name():
    wanted = {name: value / 2 if isinstance(value, float) else value // 2 for name, value in OWN.items()}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in wanted.items()]

    assert asdict(given(*options)) == wanted
    assert given() == SandboxLimits()


def test_sizes_can_be_given_in_units():
    limits = given("--memory-bytes", "1G", "--workspace-bytes=32M", "--output-bytes=8k", "--pids=16")

    assert (limits.memory_bytes, limits.workspace_bytes) == (1 << 30, 32 << 20)
    assert (limits.output_bytes, limits.pids) == (8192, 16)


@pytest.mark.parametrize("value", ["1.5", "64Q", "M", "-1", "", "0x10", "9" * 30])
def test_a_size_that_is_no_number_is_refused_by_the_option_s_name(value, capsys):
    with pytest.raises(SystemExit):
        given(f"--memory-bytes={value}")

    assert "--memory-bytes" in capsys.readouterr().err


@pytest.mark.parametrize("name", [field.name for field in fields(SandboxLimits)])
def test_a_limit_that_no_sandbox_lives_with_is_refused_with_the_option_to_change(name):
    bounds = BOUNDS[name]
    for value in (0, -1, bounds.least / 2, bounds.most * 2, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} must be from"):
            SandboxLimits(**{name: value})

    assert getattr(SandboxLimits(**{name: bounds.least}), name) == bounds.least


def test_the_least_limits_are_limits_to_the_kernel():
    """0 is no limit to a tmpfs and to a cgroup."""
    config = host_config(SandboxLimits(**{name: type(OWN[name])(BOUNDS[name].least) for name in OWN}))

    assert all("size=0" not in options and "inodes=0" not in options for options in config["Tmpfs"].values())
    assert min(config[name] for name in ("Memory", "PidsLimit", "NanoCpus")) > 0


def test_every_limit_is_told_to_clients():
    limits = SandboxLimits(command_timeout_seconds=1.5)
    message = wire.limits_to(limits)

    assert {field.name for field, _ in message.ListFields()} == {
        name.replace("command_timeout_seconds", "command_timeout") for name in OWN
    }
    assert message.command_timeout.ToMilliseconds() == 1500


# --- a client ---


async def limits_of(gym, request_id, toolset="menu", **asked):
    """Opens an episode with limits; gives what holds, and the answer as it came."""
    answer = await gym.create(request_id, toolset=toolset, limits=pb.SandboxLimits(**asked))
    return answer.limits, answer


async def test_without_limits_the_gym_s_own_hold(gym):
    answer = await gym.create()

    assert answer.limits == wire.limits_to(SandboxLimits())


async def test_a_client_can_ask_for_less_and_is_told_what_holds(gym):
    holds, answer = await limits_of(gym, "a", memory_bytes=64 << 20, command_timeout=Duration(seconds=2))

    expected = SandboxLimits(memory_bytes=64 << 20, command_timeout_seconds=2.0)
    assert holds == wire.limits_to(expected)
    assert answer.sandbox_reuse == pb.SANDBOX_REUSE_SINGLE_USE


async def test_an_episode_with_less_output_and_time_goes_to_a_warm_sandbox(gym):
    await asyncio.sleep(0.1)
    started = (await gym.info()).pool.started

    holds, answer = await limits_of(gym, "a", output_bytes=5000, command_timeout=Duration(seconds=2))

    assert holds.output_bytes == 5000
    assert answer.sandbox_reuse == pb.SANDBOX_REUSE_REUSE
    assert (await gym.info()).pool.started == started


async def test_what_equals_the_gym_s_own_is_as_good_as_nothing_asked(gym):
    holds, answer = await limits_of(gym, "a", memory_bytes=OWN["memory_bytes"], pids=0)

    assert holds == wire.limits_to(SandboxLimits())
    assert answer.sandbox_reuse == pb.SANDBOX_REUSE_REUSE


@pytest.mark.parametrize("name", [field.name for field in pb.SandboxLimits.DESCRIPTOR.fields])
async def test_more_than_the_gym_s_own_is_refused_by_name_with_the_most(gym, name):
    own = wire.limits_to(SandboxLimits())
    asked = Duration(seconds=31) if name == "command_timeout" else getattr(own, name) + 1

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await limits_of(gym, "a", **{name: asked})

    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error_of(raised).reason == "LIMITS_EXCEEDED"
    most = "30.0" if name == "command_timeout" else str(getattr(own, name))
    assert name in raised.value.details()
    assert most in raised.value.details()
    assert (await gym.info()).live_episodes == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"memory_bytes": 1},
        {"memory_bytes": -1},
        {"pids": -(2**31)},
        {"cpus": math.nan},
        {"cpus": -math.inf},
        {"cpus": 1e-300},
        {"output_bytes": 1},
        {"command_timeout": Duration(seconds=-5)},
        {"command_timeout": Duration(nanos=1)},
        {"command_timeout": Duration(seconds=-(2**63))},
    ],
    ids=str,
)
async def test_limits_that_no_sandbox_lives_with_are_refused(gym, asked):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await limits_of(gym, "a", **asked)

    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error_of(raised).reason == "LIMITS_INVALID"
    assert next(iter(asked)) in raised.value.details()


async def test_limits_belong_to_what_is_created_once(gym):
    first, answer = await limits_of(gym, "same", pids=32)
    again, repeated = await limits_of(gym, "same", pids=32)

    assert (first, answer.episode_id) == (again, repeated.episode_id)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await limits_of(gym, "same", pids=33)
    assert error_of(raised).reason == "REQUEST_ID_REUSED"


async def test_a_repeat_is_told_the_limits_of_its_episode_though_the_sandbox_has_another_user(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, capacity=1, graders=1) as gym:
        first, answer = await limits_of(gym, "first", output_bytes=5000)
        for number in range(3):
            await gym.end(answer.episode_id)
            answer = await gym.create(f"r{number}")

        assert (await limits_of(gym, "first", output_bytes=5000))[0] == first


async def test_grading_has_the_gym_s_own_limits(tmp_path):
    class Watched(FakeSandbox):
        seen: ClassVar[list[SandboxLimits]] = []

        async def run(self, job, timeout_seconds):
            Watched.seen.append(self.limits)
            return await super().run(job, timeout_seconds)

    async def start(limits=None):
        return Watched()

    async with gym_over(start, tmp_path) as gym:
        _, answer = await limits_of(gym, "a", output_bytes=5000, pids=16)
        await gym.step(answer.episode_id, 0, "<call> test </call>")
        await gym.end(answer.episode_id)
        await gym.grade(answer.episode_id)

    assert [limits.pids for limits in Watched.seen] == [16] + [128] * (len(Watched.seen) - 1)
    assert set(Watched.seen[1:]) == {SandboxLimits()}


async def test_a_command_of_the_policy_has_the_time_that_the_limits_give(tmp_path):
    class Asked(FakeSandbox):
        seconds: ClassVar[list[float]] = []

        async def run(self, job, timeout_seconds):
            Asked.seconds.append(timeout_seconds)
            return await super().run(job, timeout_seconds)

    async def start(limits=None):
        return Asked()

    bash = pb.ToolCall(tool="Bash", arguments_json=json.dumps({"command": "ls", "timeout": 10**9}))
    action = pb.Action(tool_calls=pb.ToolCalls(calls=[bash]))
    async with gym_over(start, tmp_path, limits=SandboxLimits(command_timeout_seconds=90.0)) as gym:
        for number, limits in enumerate([{}, {"command_timeout": Duration(seconds=3)}]):
            answer = await gym.create(f"r{number}", toolset="coding", limits=pb.SandboxLimits(**limits))
            await gym.step(answer.episode_id, 0, action)

    assert Asked.seconds == [90.0, 3.0]


# --- when all is in use ---


async def test_many_more_episodes_than_places_all_come_to_their_turn_through_the_client(tmp_path):
    async def play(client, number):
        created = await client.create("bugfix/zero/share", "menu", run_seed=1, group="g", index=number)
        await client.step_text(created.episode_id, 0, "<call> submit </call>")
        return (await client.grade(created.episode_id)).verdict.status

    async with gym_over(fake_sandbox, tmp_path, capacity=4, graders=2) as gym:
        async with (
            asyncio.timeout(60),
            GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client,
        ):
            statuses = await asyncio.gather(*(play(client, number) for number in range(60)))
        await asyncio.sleep(0.2)
        info = await gym.info()

    assert statuses == ["unresolved"] * 60
    assert (info.live_episodes, info.warm_sandboxes, info.pool.lent, info.pool.started) == (0, 6, 0, 6)
    assert info.pool.hits + info.pool.misses == 120


async def test_a_client_that_gives_up_while_it_opens_episodes_leaves_none(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, capacity=4) as gym:
        async with GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client:
            creations = (
                client.create("bugfix/zero/share", "menu", run_seed=0, group="g", index=number)
                for number in range(4)
            )
            opening = [asyncio.create_task(creation) for creation in creations]
            # In flight: sent, and not answered yet.
            await asyncio.sleep(0.001)
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            assert client._live == {}

        assert gym.running.episodes.live == 0
        assert len(gym.running.episodes._by_id) == 4


async def test_a_creation_that_gets_no_sandbox_in_time_is_told_to_come_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(episodes, "_LONGEST_WAIT_SECONDS", 0.2)
    ready = asyncio.Event()

    async def start(limits=None):
        await ready.wait()
        return FakeSandbox()

    async with gym_over(start, tmp_path) as gym:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gym.create()

        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert error_of(raised).retry_delay.ToMilliseconds() > 0
        assert "no sandbox was ready" in caplog.text
        ready.set()
        assert (await gym.create()).episode_id
        assert (await gym.info()).live_episodes == 1


async def test_the_description_says_how_the_sandboxes_were_used(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, reuse=False) as gym:
        for number in range(3):
            await gym.end((await gym.create(f"r{number}")).episode_id)
        await asyncio.sleep(0.2)
        pool = (await gym.info()).pool

    assert (pool.size, pool.warm, pool.lent, pool.started) == (6, 6, 0, 9)
    assert pool.hits + pool.misses == 3
    assert dict(pool.retired) == {"single_use": 3}
    line = command_line._pool_line(pool)
    assert "6 of 6 warm, 9 started, retired: 3 single_use" in line


# --- in a container ---


@pytest.mark.docker
async def test_the_warden_lives_and_pytest_runs_on_the_least_of_every_limit(engine):
    least = {name: type(OWN[name])(BOUNDS[name].least) for name in OWN if name != "command_timeout_seconds"}
    sandbox = await engine.start(SandboxLimits(**least))
    sandbox.uid = 2_050_000_002
    await sandbox.write_file("m.py", b"def f():\n    return 2\n")
    await sandbox.write_file("test_m.py", b"from m import f\n\n\ndef test_f():\n    assert f() == 2\n")

    tested = await sandbox.run(RunPytest(("-q",)), 20)
    called = await sandbox.run(CallFunction("m.py", "f", [[]]), 20)

    assert (tested.exit_status, called.output) == (0, b'{"value": 2}\n')
    assert await sandbox.scrub() == ""
    await sandbox.close()


GREEDY = """
import subprocess, sys
what = sys.argv[1]
if what == "memory":
    held = [b"x" * (1 << 20) for _ in range(100)]
elif what == "processes":
    children = [subprocess.Popen(["/bin/sleep", "9"]) for _ in range(30)]
else:
    print("x" * 6000)
print("done")
"""


@pytest.mark.docker
async def test_limits_of_a_client_hold_in_the_container_and_the_next_episode_has_the_gym_s_own(docker_gym):
    async def greed(episode_id):
        results = []
        for what in ("memory", "processes", "output"):
            arguments = json.dumps({"command": f"python greedy.py {what}"})
            results.append(pb.ToolCall(tool="Bash", arguments_json=arguments))
        source = json.dumps({"file_path": "greedy.py", "content": GREEDY})
        calls = [pb.ToolCall(tool="Write", arguments_json=source), *results]
        action = pb.Action(tool_calls=pb.ToolCalls(calls=calls))
        answer = await docker_gym.step(episode_id, 0, action)
        return answer.observation.tool_results[1:]

    asked = {"memory_bytes": 96 << 20, "pids": 16, "output_bytes": 5000}
    holds, tight = await limits_of(docker_gym, "tight", toolset="coding", **asked)
    memory, processes, output = await greed(tight.episode_id)
    await docker_gym.end(tight.episode_id)
    free = await docker_gym.create("free", toolset="coding")

    assert (holds.memory_bytes, holds.pids, holds.output_bytes) == (96 << 20, 16, 5000)
    assert memory.error_kind == "out_of_memory"
    assert "BlockingIOError" in processes.text
    assert output.output_truncated
    assert len(output.text) < 5100
    for result in await greed(free.episode_id):
        assert result.text.endswith("done\n"), result
    assert (await docker_gym.info()).pool.retired == {"own_limits": 1, "single_use": 1}
