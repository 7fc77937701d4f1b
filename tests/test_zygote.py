"""The zygote of pytest: out of reach of what it starts, and never a way to lose a sandbox."""

import os

import pytest

from gym_service.sandbox.base import RunPytest, RunPython
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.policy import SandboxLimits
from sandbox_images.build import image_reference

pytestmark = pytest.mark.docker

PASSING = b"def test_a():\n    pass\n"


async def run(sandbox, source, timeout_seconds=10.0):
    await sandbox.write_file("attack.py", source.encode())
    return await sandbox.run(RunPython(("attack.py",)), timeout_seconds)


async def passes(sandbox):
    await sandbox.write_file("test_a.py", PASSING)
    done = await sandbox.run(RunPytest(("-q",)), 20)
    return b"1 passed" in done.output


async def test_code_can_neither_signal_nor_look_into_the_zygote(sandbox):
    assert await passes(sandbox)
    source = """
import os, signal
for process in (int(name) for name in os.listdir("/proc") if name.isdigit() and name != str(os.getpid())):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT):
        try: os.kill(process, number); print(process, "signalled")
        except PermissionError: print("refused")
    for name in ("environ", "mem", "maps", "fd", "cwd", "root", "exe"):
        try: os.listdir(f"/proc/{process}/{name}") if name == "fd" else open(f"/proc/{process}/{name}").read()
        except OSError as error: print(type(error).__name__)
try: os.kill(-1, 9)
except OSError: pass
"""
    done = await run(sandbox, source)

    # PID 1 takes no signal from inside its container: the kernel answers without delivering one.
    said = done.output.decode().split("\n")
    assert [line for line in said if "signalled" in line] == []
    assert (
        {"refused", "PermissionError"} <= set(said) <= {"refused", "PermissionError", "IsADirectoryError", ""}
    )
    assert await passes(sandbox)


async def test_pytest_runs_as_the_episode_without_any_right(sandbox):
    source = b"""
import os
def test_a():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    print(os.getresuid(), os.getresgid(), os.getgroups(), status["CapEff"], status["CapPrm"], status["NoNewPrivs"])
    print(sorted(os.listdir("/proc/self/fd"), key=int)[:3], os.getcwd())
"""
    await sandbox.write_file("test_a.py", source)
    done = await sandbox.run(RunPytest(("-q", "-s")), 20)

    uid = sandbox.uid
    rights = f"({uid}, {uid}, {uid}) ({uid}, {uid}, {uid}) [] 0000000000000000 0000000000000000 1"
    assert rights in done.output.decode()
    assert "['0', '1', '2'] /workspace" in done.output.decode()


async def test_a_run_that_is_cut_short_leaves_nothing_to_the_next(sandbox):
    await sandbox.write_file("test_a.py", PASSING)
    for _ in range(20):
        done = await sandbox.run(RunPytest(("--no-such-option",)), 0.001)
        assert done.timed_out or done.exit_status == 4

    assert await passes(sandbox)
    assert await sandbox.scrub() == ""


async def test_daemons_of_a_test_are_gone_with_it(sandbox):
    source = b"""
import os, time
def test_a():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(60)
        os._exit(0)
    os.wait()
"""
    await sandbox.write_file("test_a.py", source)
    assert b"1 passed" in (await sandbox.run(RunPytest(("-q",)), 20)).output

    done = await run(sandbox, "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))")
    assert done.output == b"3\n"  # The warden, the zygote, and who asks.
    assert await sandbox.scrub() == ""


async def test_a_zygote_that_finds_no_memory_is_the_policy_s_trouble_and_not_the_gym_s():
    engine = DockerEngine(
        image_reference(), SandboxLimits(memory_bytes=80 << 20, pids=64), f"tests-zygote-{os.getpid()}"
    )
    sandbox = await engine.start()
    try:
        sandbox.uid = 2_050_000_001
        fill = "for n in range(15):\n f = open(f'/workspace/{n}', 'wb'); f.write(b'x' * (4 << 20)); f.close()"
        await run(sandbox, fill)
        done = await sandbox.run(RunPytest(()), 20)
        assert done.out_of_memory

        await run(sandbox, "import os\nfor n in range(15): os.unlink(f'/workspace/{n}')")
        assert await passes(sandbox)
    finally:
        await sandbox.close()
