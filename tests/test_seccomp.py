"""The seccomp profile: what coding work needs goes through, and nothing that was not asked for."""

import json

import pytest

from gym_service.sandbox import policy
from gym_service.sandbox.base import RunPytest, RunPython

PROFILE = json.loads(policy.SECCOMP_PROFILE)
ALLOWED = [rule for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]

NEVER = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module flock fsconfig
    fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
    kexec_load keyctl lookup_dcookie mbind memfd_secret migrate_pages modify_ldt mount mount_setattr move_mount
    move_pages mq_open msgget name_to_handle_at open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
    process_madvise process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key seccomp semget
    setdomainname sethostname setns settimeofday shmget splice swapoff swapon syslog umount2 unshare userfaultfd
    vmsplice
"""


def rules_of(call):
    return [rule for rule in ALLOWED if call in rule["names"]]


def test_what_is_not_named_is_refused_and_no_other_architecture_is_known():
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {entry["architecture"]: entry["subArchitectures"] for entry in PROFILE["archMap"]} == {
        "SCMP_ARCH_X86_64": [],
        "SCMP_ARCH_AARCH64": [],
    }


@pytest.mark.parametrize("call", NEVER.split())
def test_a_dangerous_call_is_not_named(call):
    assert rules_of(call) == []


@pytest.mark.parametrize("call", ["socket", "socketpair", "clone", "personality", "ioctl"])
def test_a_call_that_can_do_more_is_allowed_for_named_arguments_alone(call):
    assert rules_of(call)
    assert all(rule["args"] for rule in rules_of(call))


def test_clone3_hides_so_that_the_c_library_takes_clone():
    (rule,) = [rule for rule in PROFILE["syscalls"] if "clone3" in rule["names"]]

    assert (rule["action"], rule["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)


WORK = {
    "sqlite": """
import sqlite3
for mode in ("delete", "wal"):
    with sqlite3.connect(f"{mode}.db") as base:
        base.execute(f"pragma journal_mode={mode}")
        base.execute("create table t(a)")
        base.execute("insert into t values (7)")
    assert sqlite3.connect(f"{mode}.db").execute("select a from t").fetchall() == [(7,)]
""",
    "threads": """
import concurrent.futures, threading
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(lambda value: value * 2, range(100))) == 9900
""",
    "processes": """
import concurrent.futures, multiprocessing
from multiprocessing import shared_memory
def square(value): return value * value
def put(lock, queue):
    with lock: queue.put(7)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        lock, queue = context.Lock(), context.Queue()
        process = context.Process(target=put, args=(lock, queue))
        process.start()
        assert queue.get(timeout=10) == 7
        process.join()
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
    block = shared_memory.SharedMemory(create=True, size=64)
    block.close()
    block.unlink()
""",
    "subprocesses": """
import subprocess
command = "mkdir -p a/b && touch a/b/c && cp a/b/c d && mv d e && ln -s e f && find . -name c | wc -l && rm -r a"
assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.startswith("1\\n")
assert subprocess.run(["grep", "-c", "root", "/etc/passwd"], capture_output=True).stdout == b"1\\n"
""",
    "asyncio": """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"hello\\n"
    async def serve(reader, writer): writer.write(await reader.readline()); writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"echo\\n")
    assert await reader.read() == b"echo\\n"
    assert await asyncio.to_thread(sum, [1, 2]) == 3
asyncio.run(main())
""",
    "files": """
import fcntl, mmap, os, pathlib, shutil, signal, socket, tempfile
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x" * 5000); file.flush(); os.fsync(file.fileno()); fcntl.lockf(file, fcntl.LOCK_EX)
    assert mmap.mmap(file.fileno(), 0)[:1] == b"x"
pathlib.Path("a").mkdir(); pathlib.Path("a/b").write_text("c"); shutil.copytree("a", "d"); shutil.rmtree("a")
shutil.copy2("d/b", "e"); os.chmod("e", 0o600); os.utime("e"); os.rename("e", "f"); os.memfd_create("g"); os.eventfd(0)
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
assert socket.if_nameindex() == [(1, "lo")]
signal.setitimer(signal.ITIMER_REAL, 9); signal.setitimer(signal.ITIMER_REAL, 0)
""",
}


@pytest.mark.docker
@pytest.mark.parametrize("kind", WORK)
async def test_coding_work_goes_through(sandbox, kind):
    done_by_the_first_process_alone = "\nif __name__ == '__main__': print('done')"
    await sandbox.write_file("work.py", (WORK[kind] + done_by_the_first_process_alone).encode())
    done = await sandbox.run(RunPython(("work.py",)), 30)

    assert (done.exit_status, done.output) == (0, b"done\n")


@pytest.mark.docker
async def test_pytest_goes_through(sandbox):
    source = (
        b"def test_files(tmp_path, capfd, monkeypatch):\n    (tmp_path / 'a').write_text('b')\n    print(1)\n"
    )
    await sandbox.write_file("test_it.py", source)
    done = await sandbox.run(RunPytest(("-q",)), 30)

    assert done.exit_status == 0
    assert b"1 passed" in done.output
