"""What a container does not let out of hand: one property a test, on the real engine."""

import asyncio
import os
import time

import docker
import pytest

from gym_service.sandbox import policy
from gym_service.sandbox.base import CallFunction, FileRefused, RunPython, SandboxLost
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.policy import SandboxLimits
from sandbox_images.build import image_reference
from tests.conftest import DOCKER_LIMITS

pytestmark = pytest.mark.docker


async def run(sandbox, source, timeout_seconds=10.0):
    """Runs source code as the episode and returns what came of it."""
    await sandbox.write_file("attack.py", source.encode())
    return await sandbox.run(RunPython(("attack.py",)), timeout_seconds)


SEARCH_MEMORY = """
import ctypes, re

def search_memory(pattern):
    found = set()
    for line in open("/proc/self/maps"):
        span, rights = line.split()[:2]
        if rights.startswith("r") and "[v" not in line:
            low, high = (int(end, 16) for end in span.split("-"))
            view = memoryview((ctypes.c_char * (high - low)).from_address(low)).cast("B")
            found |= {match[1].decode() for match in re.finditer(pattern, view)}
    return sorted(found)
"""


async def still_serves(sandbox):
    """Says whether an honest call works as if nothing had been."""
    done = await run(sandbox, "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))")
    return done.output == b"2\n"


async def test_code_has_no_capability_no_network_and_no_writable_root(sandbox):
    facts = await sandbox.probe()

    for name in ("effective", "permitted", "inheritable", "bounding", "ambient"):
        assert facts[f"{name}_capabilities"] == "0" * 16
    assert facts["no_new_privileges"] == "1"
    assert facts["network_interfaces"] == "lo"
    assert facts["root_file_system"] == "read-only"


async def test_code_runs_under_the_uid_of_its_episode(sandbox):
    done = await run(sandbox, "import os; print(os.getresuid(), os.getresgid(), os.getgroups())")

    assert done.output == b"(2050000000, 2050000000, 2050000000) (2050000000, 2050000000, 2050000000) []\n"


async def test_code_finds_nothing_of_an_earlier_episode_in_its_memory(sandbox):
    await sandbox.write_file("a.txt", b"MARK-written" * 9)
    await sandbox.read_file("a.txt")
    await run(sandbox, "print('MARK-printed' * 9); open('big', 'w').write('MARK-refused' * 400000)")
    with pytest.raises(FileRefused, match="too_large"):
        await sandbox.read_file("big")
    await sandbox.run(CallFunction("attack.py", "print", [["MARK-argument"]]), 5)
    assert await sandbox.scrub() == ""

    own = f"{SEARCH_MEMORY}\nown = 'MARK-' + 'own'\nprint(search_memory(rb'MARK-([a-z]+)'))"
    assert (await run(sandbox, own)).output == b"['own']\n"


async def test_a_timeout_keeps_what_was_printed_and_the_sandbox(sandbox):
    done = await run(sandbox, "print('so far', flush=True)\nwhile True: pass", 1.0)

    assert done.timed_out
    assert done.output == b"so far\n"
    assert await still_serves(sandbox)


async def test_code_goes_before_the_warden_when_memory_runs_out(sandbox):
    done = await run(sandbox, "print(open('/proc/self/oom_score_adj').read())")

    assert done.output.strip() == b"1000"


async def test_a_sandbox_that_ran_out_of_memory_is_not_used_again(sandbox):
    """The engine remembers it, and would blame the next episode for whatever ends the container."""
    await run(sandbox, "blocks = [bytearray(1 << 20) for _ in range(100000)]")

    assert "out of memory" in await sandbox.scrub()


async def test_no_memory_outlives_its_process_without_a_limit(sandbox):
    source = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.shmget(0, 4096, 0o1777), libc.semget(0, 1, 0o1777), libc.msgget(0, 0o1777))
for folder in ("/workspace", "/tmp", "/dev/shm", "/dev/mqueue"):
    try:
        for count in range(100000): open(f"{folder}/{count}", "w").close()
    except OSError as error:
        print(count < 8192, error.errno)
"""
    done = await run(sandbox, source, 20.0)

    assert done.output == b"-1 -1 -1\n" + b"True 28\n" * 3 + b"True 24\n"
    started = time.monotonic()
    assert await sandbox.scrub() == ""
    assert time.monotonic() - started < 5


async def test_output_of_exactly_the_limit_is_whole(sandbox):
    for length, cut in ((65536, False), (65537, True)):
        done = await run(sandbox, f"import os\nos.write(1, b'x' * {length})")
        assert (len(done.output), done.output_truncated) == (65536, cut)


async def test_a_child_that_closes_its_output_is_waited_for(sandbox):
    done = await run(sandbox, "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(0.5)\nos._exit(7)")

    assert done.exit_status == 7


@pytest.mark.parametrize(
    "make",
    [
        "import os; os.mkdir('/workspace/d'); open('/workspace/d/f', 'w').close(); os.chmod('/workspace/d', 0)",
        "import os; os.makedirs('d/e/f'); os.chmod('d/e/f', 0); os.chmod('d/e', 0); os.chmod('d', 0)",
        "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')",
        "import os\nfor n in range(60):\n    os.mkdir(f'{n}'); os.mkdir(f'{n}/{n}'); os.mkdir(f'{n}/{n}/{n}')",
        "import os; os.mkdir('d'); os.mkdir('d/e'); open(f'.moved-up-{os.stat(\"d\").st_ino}-0', 'w').close()",
    ],
    ids=["closed_folder", "closed_folders", "deep_folders", "many_folders", "name_in_the_way"],
)
async def test_no_trace_is_too_stubborn_for_scrubbing(sandbox, make):
    await run(sandbox, make)

    assert await sandbox.scrub() == ""


async def test_a_trace_that_scrubbing_cannot_remove_is_reported(sandbox):
    api = docker.from_env().api
    command = ["/bin/sh", "-c", "mkdir -m 700 /workspace/d; echo > /workspace/d/f"]
    foreign = api.exec_create(sandbox._container_id, command, user="0")
    api.exec_start(foreign)

    assert "/workspace" in await sandbox.scrub()


async def test_scrubbing_removes_files_everywhere(sandbox):
    await run(sandbox, "for d in ('/workspace', '/tmp', '/dev/shm'): open(d + '/trace', 'w').write('x')")

    assert await sandbox.scrub() == ""

    done = await run(sandbox, "import os; print([os.listdir(d) for d in ('/tmp', '/dev/shm')])")
    assert done.output == b"[[], []]\n"


async def test_every_answer_goes_to_its_request(sandbox):
    for name in ("a", "b"):
        await sandbox.write_file(name, name.encode())

    with pytest.raises(SandboxLost):
        await sandbox.read_file("a\0b")
    for _ in range(50):
        given_up = asyncio.ensure_future(sandbox.read_file("a"))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await sandbox.read_file("b") == b"b"


async def test_a_start_that_is_given_up_leaves_no_container():
    engine = DockerEngine(image_reference(), DOCKER_LIMITS, f"given-up-{os.getpid()}")
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0.02)
    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engine.remove_leftovers() == 0


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("through_engine", [False, True])
async def test_a_container_whose_service_is_gone_ends_by_itself(engine, monkeypatch, busy, through_engine):
    if through_engine:
        monkeypatch.setattr("gym_service.sandbox.docker.open_pipes", lambda *_: os.stat("/nowhere"))
    client = docker.from_env()
    sandbox = await engine.start()
    sandbox.uid = 2_050_000_000
    if busy:
        running = asyncio.ensure_future(run(sandbox, "while True: pass", 30.0))
        await asyncio.sleep(0.5)

    sandbox._link.close()

    for _ in range(100):
        if client.api.inspect_container(sandbox._container_id)["State"]["Status"] == "exited":
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the container still runs")
    if busy:
        with pytest.raises(SandboxLost):
            await running
    await sandbox.close()


async def test_a_container_that_somebody_pauses_is_not_the_policy_s_doing(sandbox, monkeypatch):
    monkeypatch.setattr("gym_service.sandbox.docker._ANSWER_MARGIN_SECONDS", 0.2)
    docker.from_env().api.pause(sandbox._container_id)

    with pytest.raises(SandboxLost, match="in time") as lost:
        await sandbox.run(RunPython(("a.py",)), 0.5)

    assert not lost.value.by_policy
    docker.from_env().api.unpause(sandbox._container_id)


async def test_the_applied_settings_are_those_of_the_policy(sandbox):
    applied = docker.from_env().api.inspect_container(sandbox._container_id)
    host = applied["HostConfig"]

    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert host["ReadonlyRootfs"]
    assert host["Memory"] == host["MemorySwap"] == 256 << 20
    assert host["PidsLimit"] == 64
    assert host["SecurityOpt"] == ["no-new-privileges", f"seccomp={policy.SECCOMP_PROFILE}"]
    assert set(host["MaskedPaths"]) == set(policy.MASKED_PATHS)
    assert not host["Binds"]
    assert applied["Mounts"] == []
    assert applied["Config"]["Healthcheck"] == {"Test": ["NONE"]}


async def test_isolation_is_what_was_measured(sandbox):
    isolation = await sandbox.measure()

    # Of the two limits that the warden and the service keep there is nothing to read inside.
    assert isolation.limits == SandboxLimits(memory_bytes=256 << 20, pids=64)
    assert isolation.seccomp_sha256 == policy.SECCOMP_SHA256
    assert isolation.runtime == "runc"
    assert isolation.runtime_version.startswith("1.")
    assert isolation.image_digest.startswith("sha256:")
    assert isolation.observed["seccomp_mode"] == "2"
