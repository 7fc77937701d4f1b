"""What uses things up: each limit ends the call with its own name, and the episode and its neighbours go on."""

import time

import docker
import pytest
from gym_contract.v1 import gym_pb2 as pb

from sandbox_images.build import image_reference
from tests.attack.player import CENSUS, bash, program, read, write

pytestmark = pytest.mark.docker

MODEST = "block = bytearray(100 << 20)\nblock[::4096] = b'x' * len(block[::4096])\nprint(len(block) >> 20)\n"
"""A program that uses 100 MB, all of it."""
STILL_HERE = (
    "import os\nprint(*sorted(name for name in os.listdir('/proc') if name.isdigit())[:1], 'still here')\n"
)


def begin(player, source, timeout=1500):
    """Starts a program without waiting for its end."""
    return player.begin(pb.Action(tool_calls=pb.ToolCalls(calls=program(source, timeout=timeout))))


THREADS = """
import threading, time
made = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        made += 1
except RuntimeError:
    print(made, flush=True)
"""
FORKS = """
import os, time
made = 0
try:
    while os.fork(): made += 1
    time.sleep(60)
except OSError:
    print(made, flush=True)
"""
TREE = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
BOMBS = {
    "threads": THREADS + "import os; os._exit(0)",
    "threads_that_stay": THREADS + "time.sleep(60)",
    "forks": FORKS,
    "tree": TREE,
    "own_sessions": TREE.replace(
        "os.fork()", "os.fork() or (os.setsid(), __import__('signal').signal(15, 1))"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_R02_a_bomb_of_threads_or_processes_stops_at_the_limit(player, bomb):
    ends = bomb in ("threads", "forks")
    attacked = player.run(BOMBS[bomb], timeout=20_000 if ends else 1500)

    made = attacked.text.split("\n")[0]
    assert not made.isdigit() or 50 < int(made) < 128
    assert attacked.error_kind == ("" if ends else "timeout")
    twin = "import threading\nall = [threading.Thread(target=print, args=('one',)) for _ in range(20)]\n"
    honest = player.run(twin + "for each in all: each.start()\nfor each in all: each.join()")
    assert honest.text.count("one") == 20
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


MEMORY = {
    "heap": "blocks = [bytearray(1 << 20) for _ in range(100_000)]",
    "one_block": "block = b'x' * (3 << 30)",
    "shared": "import mmap\nblock = mmap.mmap(-1, 3 << 30)\nfor at in range(0, len(block), 4096): block[at] = 1",
    "children": "import os\nfor _ in range(8): os.fork() or [b'x' * (200 << 20), os.read(os.pipe()[0], 1)]\nos.wait()",
}


@pytest.mark.parametrize("bomb", MEMORY)
def test_R03_memory_that_runs_out_is_named_and_the_episode_goes_on(player, bomb):
    attacked = player.run(MEMORY[bomb])

    assert attacked.error_kind == "out_of_memory"
    assert attacked.text.endswith("[out of memory]")
    assert player.run(MODEST).text == "100\n"
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


def test_R03_memory_that_runs_out_in_grading_is_worth_nothing(service, player):
    player.play(write(f"{player.module}.py", f"def {player.module}(a, b):\n    return [0] * (1 << 40)\n"))
    bomb = service.open()
    bomb.play(write(f"{bomb.module}.py", f"def {bomb.module}(a, b):\n    return 'x' * (3 << 30)\n"))

    assert player.end().status == pb.VERDICT_STATUS_UNRESOLVED
    assert bomb.end().status == pb.VERDICT_STATUS_OUT_OF_MEMORY


FILL = """
import errno, os
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try:
        for number in range(1000):
            with open(f"{folder}/fill{number}", "wb", 0) as file: file.write(bytes(1 << 20))
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""
FREE = """
import os
for folder in ("/workspace", "/tmp", "/dev/shm"):
    for name in os.listdir(folder):
        if name.startswith("fill"): os.unlink(f"{folder}/{name}")
"""


def test_R04_a_full_workspace_and_then_memory_are_named_by_turns(player):
    player.play(write("free.py", FREE), write("modest.py", MODEST), write("heap.py", MEMORY["heap"]))
    _, filled, heap, refused, freed, honest = player.play(
        *program(FILL), bash("python heap.py"), write("x", "x" * 2_000_000), bash("python free.py"),
        bash("python modest.py"),
    )  # fmt: skip

    assert filled.text.split() == ["ENOSPC"] * 3
    assert heap.error_kind == "out_of_memory"
    assert refused.error_kind == "disk_full"
    assert freed.exit_status == 0
    assert honest.text == "100\n"
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


@pytest.mark.parametrize("folder", ["/workspace", "/tmp", "/dev/shm"])
def test_R06_empty_files_and_folders_stop_at_the_number_of_inodes(player, folder):
    source = f"""
import errno, os, shutil
for make in (lambda path: open(path, 'w').close(), os.mkdir, lambda path: os.symlink('x', path)):
    os.mkdir('{folder}/fill')
    try:
        for number in range(100_000): make(f'{folder}/fill/{{number}}')
    except OSError as error:
        print(errno.errorcode[error.errno], number)
    shutil.rmtree('{folder}/fill')
print(open('{folder}/x', 'w').write('free'))
"""
    *filled, freed = player.run(source).text.splitlines()

    assert [line.split()[0] for line in filled] == ["ENOSPC"] * 3
    assert all(5_000 < int(line.split()[1]) < 8192 for line in filled)
    assert freed == "4"
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


def test_R08_a_file_stops_at_its_limit(player):
    source = """
import errno, os
def attempt(work):
    try:
        work()
        print("done")
    except OSError as error:
        print(errno.errorcode[error.errno])
for folder in ("/workspace", "/tmp", "/dev/shm"):
    file = open(f"{folder}/huge", "wb", 0)
    attempt(lambda: file.truncate(1 << 40))
    attempt(lambda: os.posix_fallocate(file.fileno(), 0, 10 << 30))
    attempt(lambda: os.pwrite(file.fileno(), b"x", 10 << 30))
    attempt(lambda: [file.write(bytes(1 << 20)) for _ in range(10 << 10)])
    os.unlink(f"{folder}/huge")
"""
    assert set(player.run(source).text.split()) <= {"EFBIG", "ENOSPC"}
    assert player.run("print(open('a', 'wb').write(bytes(10 << 20)) >> 20)").text == "10\n"


def test_R09_who_spins_on_all_cores_gets_the_quota_and_neighbours_are_served(service, player):
    source = """
import os, time
for _ in range(7):
    if os.fork() == 0: break
while True: pass
"""
    others = [service.open() for _ in range(3)]
    started = time.monotonic()
    turn = begin(player, source)
    waits = []
    for other in others * 5:
        begun = time.monotonic()
        other.play(read(f"{other.module}.py"))
        waits.append(time.monotonic() - begun)
    (_, spun) = player.finish(turn).tool_results

    assert spun.error_kind == "timeout"
    assert time.monotonic() - started < 3.5
    assert sorted(waits)[-2] < 0.5
    assert player.run("print(sum(range(1000)))").text == "499500\n"


def test_R09_processor_time_is_throttled_to_the_quota(player):
    source = """
import os, time
begin, ends = time.monotonic(), []
for _ in range(4):
    receive, send = os.pipe()
    if os.fork() == 0:
        while time.monotonic() < begin + 1: pass
        os.write(send, str(time.process_time()).encode())
        os._exit(0)
    ends.append(receive)
print(sum(float(os.read(end, 100)) for end in ends), time.monotonic() - begin)
"""
    used, elapsed = map(float, player.run(source).text.split())

    assert used < 1.3 * elapsed + 0.1
    assert player.run("print(1)").text == "1\n"


FLOODS = {
    "yes": "while True: print('y')",
    "errors": "import sys\nwhile True: print('y' * 1000, file=sys.stderr)",
    "one_line": "import os\nfor _ in range(1 << 14): os.write(1, b'x' * (1 << 16))",
    "one_write": "print('x' * (50 << 20))",
    "children": "import os\nfor _ in range(4): os.fork()\nwhile True: os.write(1, b'z' * 4096)",
    "left_behind": "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: os.write(2, b'w' * 4096)",
    "zeros": "import os\nwhile True: os.write(1, bytes(1 << 16))",
    "escapes": "while True: print('\\x1b[2J\\u202e\\ufffd')",
}


@pytest.mark.parametrize("flood", FLOODS)
def test_R11_a_flood_is_cut_and_its_writer_killed(service, player, flood):
    resident_bytes = service.resident_bytes()
    started = time.monotonic()
    attacked = player.run(FLOODS[flood])

    assert time.monotonic() - started < 5
    if not (flood == "left_behind" and attacked.exit_status == 0):
        assert attacked.output_truncated
        assert attacked.text.endswith("[output cut: the limit is reached]")
    assert len(attacked.text.encode()) < 300_000
    assert service.resident_bytes() - resident_bytes < 16 << 20
    assert player.run("print('y' * 60_000)").text == "y" * 60_000 + "\n"


DAEMONS = {
    "setsid": "if os.fork() == 0:\n    os.setsid()\n    stay()",
    "double_fork": "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    stay()",
    "deaf": "if os.fork() == 0:\n    for number in range(1, 65):\n        try: signal.signal(number, signal.SIG_IGN)\n"
    "        except (OSError, ValueError): pass\n    stay()",
    "program": "import subprocess\nsubprocess.Popen(['/bin/sleep', '60'], start_new_session=True)",
    "closed_output": "if os.fork() == 0:\n    os.closerange(0, 256)\n    os.setsid()\n    stay()",
    "stopped": "if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)",
    "runner": "def run():\n    while True:\n        if os.fork(): os._exit(0)\nif os.fork() == 0: run()",
}
STAY = """
import os, signal, time
def stay():
    while True:
        try: open('/workspace/alive', 'a').write('x')
        except OSError: pass
        time.sleep(0.01)
"""


@pytest.mark.parametrize("daemon", DAEMONS)
def test_R13_nothing_runs_on_after_its_call(player, daemon):
    attacked, *looks = player.play(*program(f"{STAY}\n{DAEMONS[daemon]}", timeout=2000), *program(
        "import os, time\nsize = lambda: os.path.exists('alive') and os.path.getsize('alive')\n"
        f"before = size()\ntime.sleep(0.3)\nprint(size() == before)\n{CENSUS}",
        name="look.py",
    ))[1:]  # fmt: skip

    assert attacked.exit_status == 0
    assert looks[-1].text == "True\nitself\n"


@pytest.mark.parametrize(
    "source",
    [
        "os.kill(-1, signal.SIGKILL)",
        "for number in range(1, 65):\n    try: os.kill(1, number)\n    except OSError: pass",
        "os.killpg(0, signal.SIGKILL)",
        "if os.fork() == 0:\n    os.setsid()\n    os.kill(-1, signal.SIGKILL)\ntime.sleep(1)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.kill(os.getppid(), signal.SIGSEGV)",
        "fcntl.fcntl(0, fcntl.F_SETOWN, 1)\nfcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)",
        "os.setpgid(0, 0)\nos.kill(0, signal.SIGTERM)",
    ],
    ids=["everybody", "init", "group", "from_a_session", "stop", "parent", "owner", "own_group"],
)
def test_R15_signals_end_nobody_but_their_sender(player, source):
    player.run(f"import fcntl, os, signal, time\n{source}", timeout=1500)

    assert player.outcome is None
    assert player.run(STILL_HERE).text == "1 still here\n"
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


def test_R16_orphans_are_reaped_while_the_call_runs(player):
    source = """
import os, time
made = 0
while made < 200:
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.01)
        continue
    if child == 0:
        try: os.fork()
        finally: os._exit(0)
    os.waitpid(child, 0)
    made += 1
print(made)
"""
    assert player.run(source, timeout=20_000).text == "200\n"
    assert player.run("import os\nprint(os.waitpid(os.fork() or os._exit(0), 0)[1])").text == "0\n"


def test_R16_zombies_that_nobody_reaps_go_with_their_call(player):
    source = "import os\nmade = 0\ntry:\n    while True: os.fork() or os._exit(0); made += 1\n"
    source += "except OSError: print(made)\n"
    flood = player.run(source)

    assert 50 < int(flood.text) < 128
    honest = "import os\nfor _ in range(20): os.waitpid(os.fork() or os._exit(0), 0)\nprint('ok')"
    assert player.run(honest).text == "ok\n"


@pytest.mark.parametrize(
    "make",
    [
        "while True: os.mkdir('d'); os.chdir('d')",
        "open('f', 'w').close()\n    for number in range(1_000_000): os.link('f', f'l{number}')",
        "for number in range(1_000_000): open('n' * 248 + f'{number:07}', 'w').close()",
        "os.mkdir('shut')\n    open('shut/f', 'w').close()\n    os.chmod('shut', 0)",
        "os.mkdir('d')\n    os.chdir('d')\n    while True: os.mkdir('e', 0o700); os.chdir('e'); os.chmod('..', 0)",
        "for name in ('\\n', '\\x1b[2J', ' ', '-rf', '\\udcff\\udcfe', '*'): open(name, 'w').close()",
    ],
    ids=["deep", "links", "huge_names", "shut", "deep_and_shut", "odd_names"],
)
def test_R18_a_hostile_tree_is_gone_with_its_episode(service, player, make):
    player.run(f"import os\ntry:\n    {make}\nexcept OSError: pass")
    started = time.monotonic()
    assert player.end().status == pb.VERDICT_STATUS_UNRESOLVED

    assert time.monotonic() - started < 10
    honest = service.open()
    listed, _, other = honest.play(bash("ls -a"), *program("import os\nprint(os.listdir('/tmp'))"))
    assert set(listed.text.split()) == {".", "..", f"{honest.module}.py", f"test_{honest.module}.py"}
    assert other.text == "[]\n"
    assert honest.solve().status == pb.VERDICT_STATUS_RESOLVED


UNPACK = {
    "zip": "import gzip\nopen('b', 'wb').write(gzip.compress(bytes(16 << 20), 1) * 100)\ngzip.open('b').read()",
    "xz": "import lzma\nopen('b', 'wb').write(lzma.compress(bytes(16 << 20), preset=0) * 100)\nlzma.open('b').read()",
    "zip_to_disk": "import gzip, shutil\nopen('b', 'wb').write(gzip.compress(bytes(16 << 20), 1) * 100)\n"
    "shutil.copyfileobj(gzip.open('b'), open('c', 'wb'))",
    "pickle": "import operator, pickle\n"
    "class Bomb:\n    def __reduce__(self): return operator.mul, ('xx', 1 << 30)\n"
    "open('b', 'wb').write(pickle.dumps(Bomb()))\npickle.load(open('b', 'rb'))",
    "laughs": "open('b', 'w').write(''.join(f'x{n + 1} = x{n} * 10\\n' for n in range(12)))\n"
    "exec('x0 = \"lol\"\\n' + open('b').read())",
}


@pytest.mark.parametrize("bomb", UNPACK)
def test_R19_a_packed_bomb_bursts_inside_and_the_service_does_not_open_it(service, player, bomb):
    resident_bytes = service.resident_bytes()
    free = "import os\nfor name in ('b', 'c'): os.path.exists(name) and os.unlink(name)\n"
    _, _, attacked, looked, freed = player.play(
        write("free.py", free), *program(UNPACK[bomb]), read("b"), bash("python free.py")
    )

    if bomb == "zip_to_disk":
        assert "No space left" in attacked.text or "File too large" in attacked.text
    else:
        assert attacked.error_kind == "out_of_memory" or "MemoryError" in attacked.text
    assert looked.error_kind in ("", "binary_file", "too_large")
    assert service.resident_bytes() - resident_bytes < 16 << 20
    assert freed.exit_status == 0
    honest = "import gzip\nopen('b', 'wb').write(gzip.compress(b'small'))\nprint(gzip.open('b').read())"
    assert player.run(honest).text == "b'small'\n"


SLOW = {
    "digits": "import sys\nsys.set_int_max_str_digits(0)\nprint(int('1' * 10**7) % 7)",
    "power": "print(7 ** 10**8 % 7)",
    "regex": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "exception": "raise ValueError('x' * (100 << 20))",
    "traceback": "def f(n): return f(n + 1)\nimport sys\nsys.setrecursionlimit(10**6)\nf(0)",
    "docstring": "source = 'def test_d():\\n    ' + repr('x' * (20 << 20)) + '\\n    assert 0\\n'\n"
    "open('test_d.py', 'w').write(source)\nimport pytest\npytest.main(['test_d.py'])",
    "assertion": "source = 'def test_d():\\n    assert list(range(10**6)) == list(range(10**6, 0, -1))\\n'\n"
    "open('test_d.py', 'w').write(source)\nimport pytest\npytest.main(['-vv', 'test_d.py'])",
}


@pytest.mark.parametrize("slow", SLOW)
def test_R20_work_without_end_is_ended_and_text_without_end_is_cut(player, slow):
    started = time.monotonic()
    attacked = player.run(SLOW[slow], timeout=1500)

    assert time.monotonic() - started < 3.5
    if slow in ("digits", "power", "regex"):
        assert attacked.error_kind == "timeout"
    if slow == "exception":
        assert attacked.output_truncated
    assert len(attacked.text) < 70_000
    assert (
        player.run("import re\nprint(int('7' * 4000) % 7, bool(re.match('(a+)+$', 'aaa')))").text
        == "0 True\n"
    )
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return 10 ** 10 ** 7", pb.VERDICT_STATUS_TIMEOUT),
        ("return 10 ** 5000", pb.VERDICT_STATUS_UNRESOLVED),
        ("raise ValueError('x' * (20 << 20))", pb.VERDICT_STATUS_UNRESOLVED),
        ("return 'x' * (20 << 20)", pb.VERDICT_STATUS_UNRESOLVED),
    ],
    ids=["power", "digits", "exception", "text"],
)
def test_R20_grading_of_endless_values_is_bounded(service, player, body, status):
    resident_bytes = service.resident_bytes()
    player.play(write(f"{player.module}.py", f"def {player.module}(total, count):\n    {body}\n"))
    started = time.monotonic()
    verdict = player.end()

    assert verdict.status == status
    assert verdict.hidden.passed == 0
    assert time.monotonic() - started < 20
    assert service.resident_bytes() - resident_bytes < 16 << 20


def test_R21_a_crash_leaves_no_core(player):
    source = """
import os, resource
print(resource.getrlimit(resource.RLIMIT_CORE), open("/proc/sys/kernel/core_pattern").read()[:1], flush=True)
block = bytearray(200 << 20)
block[::4096] = b"x" * len(block[::4096])
try: resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
except ValueError: pass
os.abort()
"""
    crashed = player.run(source)
    look = "import os\nprint([name for folder in ('/workspace', '/tmp', '/') for name in os.listdir(folder)"
    look += " if 'core' in name])"

    assert crashed.exit_status == -6
    assert crashed.text.startswith("(0, 0) ")
    assert not crashed.text.startswith("(0, 0) |")
    assert player.run(look).text == "[]\n"


def test_R22_priorities_are_not_raised_and_storms_are_harmless(player):
    source = """
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, work):
    try:
        work()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
def mlock():
    block = ctypes.create_string_buffer(32 << 20)
    if libc.mlock(block, len(block)) != 0: raise OSError(ctypes.get_errno(), "mlock")
def mlockall():
    if libc.mlockall(3) != 0: raise OSError(ctypes.get_errno(), "mlockall")
attempt("nice", lambda: os.nice(-5))
attempt("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
attempt("rr", lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("mlock", mlock)
attempt("mlockall", mlockall)
attempt("init", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
"""
    storm = """
import os, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
while True: pass
"""
    outcomes = [line.split()[1] for line in player.run(source).text.splitlines()]

    assert len(outcomes) == 7
    assert set(outcomes) <= {"EPERM", "EACCES", "ENOMEM"}
    assert player.run(storm, timeout=1000).error_kind == "timeout"
    assert player.run("import os\nprint(os.nice(5))").text == "5\n"


def test_R24_the_tools_work_right_after_memory_ran_out(service, player):
    _, _, looked, edited, listed = player.play(
        *program(MEMORY["heap"]),
        read(f"{player.module}.py"),
        write("a.py", "print(1)\n"),
        bash("python a.py"),
    )

    assert looked.text.startswith("     1\tdef ")
    assert not edited.is_error
    assert listed.text == "1\n"
    assert player.end().status == pb.VERDICT_STATUS_UNRESOLVED
    assert service.open().run(MODEST).text == "100\n"


CRUSH = """
import os, socket
with open("/proc/self/oom_score_adj", "w") as file: file.write("500")
while True:
    pairs = [socket.socketpair() for _ in range(60)]
    for end, _ in pairs:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            while True: end.send(b"x" * 60000)
        except OSError: pass
    if os.fork() == 0:
        for pair in pairs:
            for end in pair: end.set_inheritable(True)
        os.execv("/bin/sleep", ["sleep", "60"])
"""


def test_R24_a_helper_that_was_crushed_ends_the_episode_as_the_policy_s_doing(service, player):
    player.play(*program(CRUSH))

    assert player.outcome.stop_reason == pb.STOP_REASON_SANDBOX_DEAD
    assert not player.outcome.errored
    assert player.end().hidden.passed == 0
    assert service.open().run(MODEST).text == "100\n"


def test_R25_a_container_that_is_killed_from_outside_is_the_gym_s_doing(service, player):
    api = docker.from_env().api
    turn = begin(player, "import time\ntime.sleep(20)", timeout=20_000)
    deadline = time.monotonic() + 10
    while not (busy := [each for each in service.containers() if len(api.top(each)["Processes"]) > 2]):
        assert time.monotonic() < deadline
    (container,) = busy
    killed = time.monotonic()
    api.kill(container)

    player.finish(turn)

    assert time.monotonic() - killed < 8
    assert player.outcome.stop_reason == pb.STOP_REASON_INFRASTRUCTURE
    assert player.outcome.errored
    verdict = player.end()
    assert (verdict.status, verdict.HasField("hidden")) == (pb.VERDICT_STATUS_INFRASTRUCTURE_ERROR, False)
    assert service.open().solve().status == pb.VERDICT_STATUS_RESOLVED


def test_R27_a_sandbox_has_no_volume_and_no_health_check(service, player):
    client = docker.from_env()
    image = client.images.get(image_reference()).attrs["Config"]
    containers = [client.api.inspect_container(each) for each in service.containers()]

    assert not image.get("Volumes")
    assert not image.get("Healthcheck")
    assert containers
    for container in containers:
        assert not [mount for mount in container["Mounts"] if mount["Type"] != "tmpfs"]
        assert "Health" not in container["State"]
        assert not container["HostConfig"]["Binds"]
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED


def test_R28_the_service_tried_every_limit_before_it_served(service, player):
    info = service.ask("GetGymInfo", pb.GetGymInfoRequest())
    (tried,) = [test for test in info.self_tests if test.runtime == info.isolation.runtime]

    assert tried.offered
    assert all(check.holds for check in tried.checks)
    names = {check.name for check in tried.checks}
    assert names >= {
        "memory_limit",
        "process_limit",
        "cpu_quota",
        "folder_size",
        "folder_inodes",
        "file_size",
    }
    assert player.solve().status == pb.VERDICT_STATUS_RESOLVED
