"""The self-test: every check can fail, and fails by name when the one thing is weakened that it watches."""

import asyncio
import json
import os
import subprocess
import sys

import docker
import pytest

from gym_service.config import ServiceConfig
from gym_service.sandbox import policy, selftest
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.selftest_checks import CHECKS, LIMITS
from gym_service.server import serve
from gym_service.state import StateFolder
from sandbox_images.build import image_reference
from tests.engine import containers_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

ORIGINAL = policy.host_config


def engine(limits=LIMITS, **more):
    return DockerEngine(image_reference(), limits, f"tests-{os.getpid()}", **more)


async def failures():
    result = await selftest.try_runtime(engine())
    assert not result.offered
    print(*result.failures, sep="\n")
    return {check.name for check in result.failures}


def weaken(monkeypatch, change):
    """Has every sandbox started with a configuration that is changed in one place."""

    def weakened(*asked):
        config = ORIGINAL(*asked)
        change(config)
        return config

    monkeypatch.setattr(policy, "host_config", weakened)


def tmpfs(path, options, replaced=""):
    def change(config):
        config["Tmpfs"][path] = config["Tmpfs"][path].replace(options, replaced)

    return change


def ulimit(name, value):
    def change(config):
        (entry,) = [entry for entry in config["Ulimits"] if entry["Name"] == name]
        entry["Soft"] = entry["Hard"] = value

    return change


def profile(change):
    """Changes the seccomp profile."""

    def changed(config):
        rules = json.loads(policy.SECCOMP_PROFILE)
        change(rules)
        config["SecurityOpt"] = ["no-new-privileges", f"seccomp={json.dumps(rules)}"]

    return changed


def allow(*names, **more):
    return profile(
        lambda rules: rules["syscalls"].append({"names": names, "action": "SCMP_ACT_ALLOW", **more})
    )


CALLS = {name for name in (check.name for check in CHECKS) if name.startswith("denied_calls_")}

WEAKENED = {
    "no_seccomp": (
        lambda config: config.update(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
        {"seccomp_mode", "socket_families", "other_architectures", *CALLS},
    ),
    "a_denied_call": (allow("bpf", "keyctl"), {"denied_calls_kernel_interfaces", "denied_calls_keys"}),
    "vsock": (
        allow("socket", args=[{"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}]),
        {"socket_families"},
    ),
    "calls_of_32_bit": (
        profile(lambda rules: rules["archMap"][0].update(subArchitectures=["SCMP_ARCH_X86"])),
        {"other_architectures"},
    ),
    "writable_root": (
        lambda config: config.update(ReadonlyRootfs=False),
        {"root_file_system", "read_only_root"},
    ),
    "more_pids": (
        lambda config: config.update(PidsLimit=200),
        {"pids", "process_limit", "thread_limit"},
    ),
    "more_memory": (
        lambda config: config.update(Memory=1 << 30, MemorySwap=1 << 30),
        {"memory_bytes", "memory_limit"},
    ),
    "large_folder": (
        tmpfs("/tmp", f"size={LIMITS.workspace_bytes}", "size=64m"),
        {"temporary_bytes", "folder_size"},
    ),
    "many_files": (
        tmpfs("/dev/shm", f"nr_inodes={LIMITS.workspace_inodes}", "nr_inodes=9999"),
        {"shared_memory_inodes", "folder_inodes"},
    ),
    "programs_in_tmp": (tmpfs("/tmp", "noexec", "exec"), {"temporary_flags", "no_execution"}),
    "nothing_masked": (lambda config: config.update(MaskedPaths=[]), {"risky_files"}),
    "a_device": (
        lambda config: config.update(
            Devices=[{"PathOnHost": "/dev/zero", "PathInContainer": "/dev/extra", "CgroupPermissions": "r"}]
        ),
        {"devices"},
    ),
    "descriptors": (ulimit("nofile", 500), {"open_files", "descriptor_limit"}),
    "large_files": (ulimit("fsize", 64 << 20), {"file_bytes", "file_size"}),
    "core_dumps": (ulimit("core", 1 << 20), {"core_bytes", "no_core"}),
    "locked_memory": (ulimit("memlock", 8 << 20), {"locked_memory_bytes", "locked_memory"}),
}


@pytest.mark.parametrize("case", WEAKENED)
async def test_a_weakened_wall_fails_by_its_name(monkeypatch, case):
    change, names = WEAKENED[case]
    weaken(monkeypatch, change)

    assert await failures() == names


async def test_a_quota_that_is_not_kept_fails_by_its_name(monkeypatch):
    weaken(monkeypatch, lambda config: config.update(NanoCpus=0))
    monkeypatch.setattr(selftest, "CHECKS", ())

    # On a machine that is busy with other things nobody gets more than the quota, quota or not.
    for _ in range(10):
        if (names := await failures()) != {"cpus"}:
            break
    if names == {"cpus"} and os.getloadavg()[0] > 2 * os.cpu_count():
        pytest.skip("the machine is too busy to show it")
    assert names == {"cpus", "cpu_quota"}


async def test_sandboxes_of_one_uid_are_not_apart(monkeypatch):
    monkeypatch.setattr(selftest, "draw_uids", lambda: (2_140_000_001, 2_140_000_001))

    assert await failures() == {"neighbors_kept_apart"}


async def test_a_runtime_that_holds_is_offered():
    result = await selftest.try_runtime(engine())

    assert [(check.name, check.observed) for check in result.failures] == []
    assert result.offered
    assert all(check.observed and not check.remedy for check in result.checks)


async def test_a_sandbox_that_does_not_start_is_a_wall_that_does_not_hold(monkeypatch):
    weaken(monkeypatch, lambda config: config.update(Memory=6 << 20, MemorySwap=6 << 20))

    assert await failures() == {"sandbox_serves"}


async def test_nothing_is_served_behind_a_wall_that_does_not_hold(monkeypatch, tmp_path):
    weaken(monkeypatch, lambda config: config.update(MaskedPaths=[]))

    with pytest.raises(
        SandboxLost, match=r"risky_files: readable: .*; use a runtime that applies MaskedPaths"
    ):
        await serve(ServiceConfig(state_folder=tmp_path), StateFolder(tmp_path))

    assert containers_of(StateFolder(tmp_path).owner) == []


async def test_a_sandbox_that_is_not_as_configured_is_not_measured(monkeypatch):
    weaken(monkeypatch, lambda config: config.update(PidsLimit=200))
    sandbox = await engine().start()
    try:
        sandbox.uid, _ = selftest.draw_uids()
        with pytest.raises(SandboxLost, match="pids is 200, not 32"):
            await sandbox.measure()
    finally:
        await sandbox.close()


@pytest.mark.parametrize("cpus", [0.1, 0.29, 0.57, 1.13, 1.999])
async def test_any_share_of_the_processors_is_measured_as_it_was_asked_for(cpus):
    sandbox = await engine(SandboxLimits(cpus=cpus)).start()
    try:
        sandbox.uid, _ = selftest.draw_uids()
        assert (await sandbox.measure()).limits.cpus == pytest.approx(cpus, abs=1e-4)
    finally:
        await sandbox.close()


async def test_an_engine_that_drops_a_setting_is_found_out(monkeypatch):
    started = engine()
    create = started._client.api.create_container_from_config

    def forgetful(config):
        return create(
            config | {"HostConfig": config["HostConfig"] | {"ReadonlyRootfs": False, "Ulimits": []}}
        )

    monkeypatch.setattr(started._client.api, "create_container_from_config", forgetful)

    with pytest.raises(SandboxLost, match="did not apply ReadonlyRootfs, Ulimits"):
        await started.start()


def test_a_runtime_that_the_engine_does_not_know_is_named():
    with pytest.raises(SandboxLost, match=r"does not know the runtime 'other'; it knows .*runc"):
        engine(runtime="other")


async def test_another_runtime_is_offered_or_refused_by_name():
    others = engine().runtimes[1:]
    if not others:
        pytest.skip("the engine has one runtime")
    for runtime in others:
        result = await selftest.try_runtime(engine(runtime=runtime))
        assert result.offered != bool(result.failures)
        assert all(check.remedy for check in result.failures)


def test_each_runtime_is_listed_once():
    runtimes = engine().runtimes

    assert runtimes[0] == "runc"
    assert not [name for name in runtimes if name.startswith("io.containerd")]


def test_the_command_prints_a_table_and_the_gaps(tmp_path):
    command = [
        sys.executable,
        "-m",
        "gym_service",
        "--state-folder",
        str(tmp_path),
        "self-test",
        "--runtime",
        "runc",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "runtime runc" in done.stdout
    assert "process_limit" in done.stdout
    assert "for --profile evaluation this machine lacks" in done.stdout


async def test_a_sandbox_whose_runtime_lets_go_is_a_failure_and_no_hang(monkeypatch):
    """The service is told in which wall the sandbox was lost, and nothing waits for it."""
    client = docker.from_env()
    killed = engine()
    start = killed.start

    async def start_and_kill(limits):
        sandbox = await start(limits)
        client.api.kill(sandbox._container_id)
        return sandbox

    monkeypatch.setattr(killed, "start", start_and_kill)
    result = await asyncio.wait_for(selftest.try_runtime(killed), 60)

    assert [check.name for check in result.failures] == ["sandbox_serves"]
