"""The zygote of pytest: out of reach of what it starts, and never a way to lose a sandbox."""

import asyncio
import os
import signal

import docker
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


async def kill_zygote(sandbox):
    """Kills the zygote from outside, as the kernel does when memory runs out."""
    for name, process in (line[:2] for line in docker.from_env().api.top(sandbox._container_id)["Processes"]):
        if name in ("991", "_991") or name.endswith("991"):
            os.kill(int(process), signal.SIGKILL)


async def test_a_zygote_that_was_killed_between_two_runs_is_made_anew(sandbox):
    assert await passes(sandbox)
    await kill_zygote(sandbox)
    await asyncio.sleep(0.3)

    assert await passes(sandbox)
    assert await sandbox.scrub() == ""


async def test_a_zygote_that_is_killed_in_the_middle_of_a_run_ends_that_run_alone(sandbox):
    assert await passes(sandbox)
    await sandbox.write_file("test_a.py", b"import time\ndef test_a(): time.sleep(60)\n")
    running = asyncio.ensure_future(sandbox.run(RunPytest(()), 20))
    await asyncio.sleep(0.5)
    await kill_zygote(sandbox)

    assert (await asyncio.wait_for(running, 10)).exit_status == -signal.SIGKILL
    assert await passes(sandbox)
    assert await sandbox.scrub() == ""


async def test_nothing_that_one_run_does_to_its_output_reaches_the_next(sandbox):
    look = b"""
import fcntl, os
def test_a():
    print(oct(fcntl.fcntl(1, fcntl.F_GETFL)), fcntl.fcntl(1, 1032), fcntl.fcntl(1, fcntl.F_GETSIG))
    os.close(os.open("/dev/stdout", os.O_WRONLY))
"""
    flood = b"""
import fcntl, os
def test_a():
    fcntl.fcntl(1, 1031, 1 << 20)
    fcntl.fcntl(1, fcntl.F_SETSIG, 12)
    fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
    while True:
        try: os.write(1, b"FORGED" * 999)
        except BlockingIOError: pass
"""
    await sandbox.write_file("test_a.py", look)
    before = await sandbox.run(RunPytest(("-q", "-s")), 20)
    await sandbox.write_file("test_a.py", flood)
    flooded = await sandbox.run(RunPytest(("-q", "-s")), 20)
    await sandbox.write_file("test_a.py", look)
    after = await sandbox.run(RunPytest(("-q", "-s")), 20)

    assert b"1 passed" in before.output
    assert flooded.output_truncated
    assert after.output == before.output


async def test_a_child_that_asks_for_the_zygote_as_its_sibling_s_parent_is_refused(sandbox):
    source = b"""
import ctypes, os
def test_a():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0: os._exit(0)
    assert ctypes.get_errno() == 1
"""
    await sandbox.write_file("test_a.py", source)

    assert b"1 passed" in (await asyncio.wait_for(sandbox.run(RunPytest(("-q",)), 5), 10)).output
    assert await passes(sandbox)


@pytest.mark.parametrize("timeout_seconds", [0.0, 0.001, 0.01])
async def test_a_timeout_holds_whenever_it_comes(sandbox, timeout_seconds):
    assert await passes(sandbox)
    await sandbox.write_file("test_a.py", b"import time\ndef test_a(): time.sleep(60)\n")
    for _ in range(10):
        done = await asyncio.wait_for(sandbox.run(RunPytest(()), timeout_seconds), 5)
        assert done.timed_out

    assert await passes(sandbox)


async def test_an_interrupt_is_to_a_program_what_it_is_to_any(sandbox):
    source = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt: print('caught')"

    assert (await run(sandbox, source)).output == b"caught\n"


async def test_a_sandbox_whose_loopback_was_used_is_not_used_again(sandbox):
    source = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen("http://127.0.0.1:8000/").status)
server.shutdown()
"""
    done = await run(sandbox, source)

    assert done.output.splitlines()[-1] == b"200"
    assert "network" in await sandbox.scrub()  # The port would be taken for a minute.
