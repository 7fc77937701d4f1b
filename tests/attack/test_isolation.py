"""Ways out of a sandbox, and ways from one to another: none is open but those that SECURITY.md names."""

import platform
import time
from pathlib import Path

import pytest
from gym_contract.v1 import gym_pb2 as pb

from sandbox_images.build import image_reference
from tests.attack.conftest import CAPACITY, GRADERS
from tests.attack.player import CENSUS, TASK, bash, program, write

pytestmark = pytest.mark.docker

SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text()

by_number = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="system calls are named by their numbers on x86-64"
)

ATTEMPT = """
import ctypes, errno, fcntl, mmap, os, signal, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(work):
    try:
        work()
        print("done")
    except OSError as error:
        print(errno.errorcode.get(error.errno, type(error).__name__))
def call(number, *arguments):
    me = os.getpid()
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if os.getpid() != me: os._exit(0)
    if result == -1: raise OSError(ctypes.get_errno(), "refused")
"""


def outcomes(player, *attempts, setup=""):
    """What came of each attempt in turn: `done`, or the name of its error."""
    lines = "".join(f"attempt(lambda: {each})\n" for each in attempts)
    result = player.run(f"{ATTEMPT}\n{setup}\n{lines}")
    words = result.text.split()
    assert len(words) == len(attempts), result
    return dict(zip(attempts, words, strict=True))


def assert_denied(player, *attempts, setup="", errors=("EPERM", "ENOSYS")):
    """Shows that every attempt is refused, by one of a few errors."""
    came = outcomes(player, *attempts, setup=setup)
    assert {each: outcome for each, outcome in came.items() if outcome not in errors} == {}


def assert_allowed(player, *attempts, setup=""):
    """Shows that every attempt works."""
    assert_denied(player, *attempts, setup=setup, errors=("done",))


def begin(player, source, timeout):
    """Starts a program without waiting for its end."""
    return player.begin(pb.Action(tool_calls=pb.ToolCalls(calls=program(source, timeout=timeout))))


LOCAL_SERVER = """
server = socket.create_server(("127.0.0.1", 4000))
def talk():
    client = socket.create_connection(("127.0.0.1", 4000), 1)
    peer, _ = server.accept()
    peer.sendall(b"x")
    assert client.recv(1) == b"x"
"""


def test_I01_no_address_is_reached(player):
    addresses = (
        "1.1.1.1",
        "10.0.0.1",
        "172.17.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
    )
    attempts = [f"socket.create_connection(('{address}', 80), 1)" for address in addresses]
    attempts += [
        f"socket.socket(2, 2).sendto(b'x', ('{address}', 53))" for address in (*addresses, "8.8.8.8")
    ]
    attempts += ["socket.socket(10, 2).sendto(b'x', ('2001:4860:4860::8888', 53))"]
    attempts += [
        "socket.socket(10, 2).sendto(b'x', ('fe80::1', 53))",
        "socket.socket(2, 2).connect(('1.1.1.1', 9))",
    ]

    assert_denied(player, *attempts, errors=("ENETUNREACH", "EADDRNOTAVAIL", "EINVAL", "EPERM"))
    assert player.run("import socket\nprint(socket.if_nameindex())").text == "[(1, 'lo')]\n"
    assert_allowed(player, "talk()", setup=LOCAL_SERVER)


def test_I01_no_raw_or_packet_socket_is_made(player):
    assert_denied(
        player, "socket.socket(2, 3, 1)", "socket.socket(2, 3, 255)", "socket.socket(17, 3, 0x300)",
        "socket.socket(17, 2)", "socket.socket(10, 3, 58)",
        errors=("EPERM", "EACCES", "EPROTONOSUPPORT", "EAFNOSUPPORT"),
    )  # fmt: skip
    assert_allowed(player, "socket.socket(2, 1)", "socket.socket(2, 2)", "socket.socketpair()")


def test_I02_names_are_not_resolved_and_nobody_waits(player):
    source = """
import socket, time
begin = time.monotonic()
for name in ("example.com", "metadata.google.internal", "docker.internal", "host.docker.internal", "a" * 60 + ".test"):
    try:
        print(socket.getaddrinfo(name, 80))
    except socket.gaierror as error:
        print(error.errno in (socket.EAI_AGAIN, socket.EAI_NONAME))
print(time.monotonic() - begin < 2, "nameserver" in open("/etc/resolv.conf").read())
"""
    *names, end = player.run(source).text.splitlines()

    assert set(names) == {"True"}
    assert end == "True False"
    assert (
        player.run("import socket\nprint(socket.getaddrinfo('127.0.0.1', 80)[0][4])").text
        == "('127.0.0.1', 80)\n"
    )


def test_I03_no_server_outlives_its_call(player):
    serve = f"{ATTEMPT}\nif os.fork() == 0:\n    os.setsid()\n    {LOCAL_SERVER.splitlines()[1]}\n    time.sleep(60)\n"
    serve += "time.sleep(0.2)\nsocket.create_connection(('127.0.0.1', 4000), 1)\nprint('served')\n"

    assert player.run(serve).text == "served\n"
    assert_denied(player, "socket.create_connection(('127.0.0.1', 4000), 1)", errors=("ECONNREFUSED",))
    assert_allowed(player, "talk()", setup=LOCAL_SERVER)


def test_I04_no_socket_of_another_episode_is_reached(service, player):
    listen = f"{ATTEMPT}\nserver = socket.socket(1)\nserver.bind('\\0gym')\nserver.listen()\n{LOCAL_SERVER}\n"
    other = service.open()
    turn = begin(other, listen + "open('up', 'w')\ntime.sleep(2)", 5000)
    time.sleep(0.7)
    assert_denied(
        player, "socket.socket(1).connect('\\0gym')", "socket.create_connection(('127.0.0.1', 4000), 1)",
        "open('/workspace/up')", errors=("ECONNREFUSED", "ENOENT"),
    )  # fmt: skip
    other.finish(turn)
    assert other.play(bash("ls up"))[0].text == "up\n"

    assert_allowed(player, "pair()", setup="def pair():\n    server = socket.socket(1)\n    server.bind('\\0gym')\n"
                   "    server.listen()\n    socket.socket(1).connect('\\0gym')\n")  # fmt: skip


def test_I05_no_socket_leads_to_the_hypervisor(player):
    assert_denied(
        player, "socket.socket(40, 1)", "socket.socket(40, 2)", "socket.socket(40, 5)", "socket.socketpair(40, 1)",
        errors=("EPERM",),
    )  # fmt: skip
    assert_allowed(player, "socket.socketpair(socket.AF_UNIX)", "socket.socket(socket.AF_INET)")


FAMILIES = (38, 15, 29, 30, 31, 21, 26, 41, 42, 43, 44, 16)
"""AF_ALG first; then keys, CAN, TIPC, Bluetooth, RDS, LLC, KCM, QIPCRTR, SMC, XDP, and what speaks to drivers."""


def test_I06_no_socket_leads_to_other_parts_of_the_kernel(player):
    attempts = [f"socket.socket({family}, {kind}, {protocol})"
                for family in FAMILIES for kind in (2, 3, 5) for protocol in (4, 15)]  # fmt: skip

    assert_denied(player, *attempts, errors=("EPERM", "EAFNOSUPPORT"))
    assert_allowed(player, "socket.socketpair(socket.AF_UNIX)", "socket.socket(socket.AF_INET)")


def test_I08_there_is_no_socket_file_and_no_socket_of_an_engine(player):
    source = """
import os, stat
for folder, folders, names in os.walk("/"):
    if folder == "/": folders.remove("proc")
    for name in names:
        if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode): print(folder, name)
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/user", "/run/dbus",
             "/var/lib/docker", "/host", "/mnt/host", "/run/secrets"):
    if os.path.exists(path): print(path)
print("walked")
"""
    assert player.run(source).text == "walked\n"
    honest = "import socket, os, stat\nsocket.socket(1).bind('s')\nprint(stat.S_ISSOCK(os.stat('s').st_mode))"
    assert player.run(honest).text == "True\n"


@by_number
def test_I09_nothing_is_mounted_or_unmounted(player):
    assert_denied(
        player,
        "call(165, address(b'none'), address(b'/tmp'), address(b'tmpfs'), 0, 0)",
        "call(165, address(b'/proc/self/root'), address(b'/workspace/d'), 0, 4096, 0)",
        "call(165, 0, address(b'/'), 0, 32 | 4096, 0)",
        "call(166, address(b'/proc/acpi'), 2)",
        "call(166, address(b'/proc/keys'), 2)",
        "call(166, address(b'/sys/firmware'), 2)",
        "call(155, address(b'/workspace'), address(b'/workspace/d'))",
        "call(161, address(b'/workspace'))",
        "call(428, -100, address(b'/'), 1)",
        "call(429, -1, address(b'/'), -1, address(b'/'), 0)",
        "call(430, address(b'tmpfs'), 0)",
        "call(431, -1, 0, 0, 0, 0)",
        "call(432, -1, 0, 0)",
        "call(433, -100, address(b'/'), 0)",
        "call(442, -100, address(b'/'), 0, address(b'x' * 32), 32)",
        setup="kept = []\ndef address(text):\n    kept.append(ctypes.create_string_buffer(text))\n"
        "    return ctypes.addressof(kept[-1])\nos.makedirs('d', exist_ok=True)",
    )
    assert_allowed(
        player,
        "os.chdir('d')",
        "os.mkdir('e')",
        "os.rename('e', 'f')",
        setup="os.makedirs('d', exist_ok=True)",
    )


NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


@by_number
def test_I10_no_namespace_is_made(player):
    assert_denied(
        player,
        *(f"call(272, {flag})" for flag in NAMESPACES),
        *(f"call(272, {flag | 0x10000000})" for flag in NAMESPACES),
        *(f"call(56, {flag | 17}, 0, 0, 0, 0)" for flag in NAMESPACES[1:]),
        "call(435, ctypes.addressof(ctypes.create_string_buffer(struct.pack('Q', 0x10000000) + bytes(80))), 88)",
        "call(435, ctypes.addressof(ctypes.create_string_buffer(bytes(88))), 88)",
    )
    thread = "import threading\ndef thread():\n    one = threading.Thread(target=print)\n    one.start(); one.join()\n"
    assert_allowed(player, "os.waitpid(os.fork() or os._exit(0), 0)", "thread()", setup=thread)


@by_number
def test_I11_no_namespace_descriptor_or_handle_is_taken_over(player):
    assert_denied(
        player,
        *(
            f"call(308, os.open('/proc/self/ns/{name}', 0), 0)"
            for name in ("user", "mnt", "net", "pid", "ipc", "uts")
        ),
        "call(308, -1, 0)",
        "call(438, -1, 0, 0)",
        "call(438, os.pidfd_open(os.getpid()), 0, 0)",
        "call(304, -100, ctypes.addressof(ctypes.create_string_buffer(100)), 0)",
        "call(303, -100, ctypes.addressof(name), ctypes.addressof(handle), ctypes.addressof(mount), 0)",
        "call(312, 1, 1, 0, 0, 0)",
        setup="name, mount = ctypes.create_string_buffer(b'/'), ctypes.create_string_buffer(8)\n"
        "handle = ctypes.create_string_buffer(struct.pack('I', 128) + bytes(132))",
    )
    assert_allowed(player, "os.readlink('/proc/self/ns/user')", "os.dup(0)", "os.open('/', 0)")


@by_number
def test_I12_no_process_is_looked_into(player):
    assert_denied(
        player,
        "call(101, 16, 1, 0, 0)",
        "call(101, 0x4206, 1, 0, 0)",
        "call(101, 0, 0, 0, 0)",
        "call(101, 16, child, 0, 0)",
        "call(310, 1, 0, 0, 0, 0, 0)",
        "call(310, os.getpid(), 0, 0, 0, 0, 0)",
        "call(311, 1, 0, 0, 0, 0, 0)",
        "call(311, child, 0, 0, 0, 0, 0)",
        "call(440, -1, 0, 0, 0, 0)",
        setup="child = os.fork()\nif child == 0:\n    time.sleep(5)\n    os._exit(0)",
        errors=("EPERM", "ENOSYS"),
    )
    assert_denied(
        player, "open('/proc/1/mem', 'rb')", "open('/proc/1/mem', 'wb')", "os.listdir('/proc/1/fd')",
        "os.readlink('/proc/1/exe')", "os.readlink('/proc/1/cwd')", "os.listdir('/proc/1/root')",
        "open('/proc/1/oom_score_adj', 'w')", "open('/proc/1/environ')", "open('/proc/1/maps').read()",
        "open('/proc/1/syscall').read()", "open('/proc/1/stack').read()", errors=("EPERM", "EACCES", "ENOENT"),
    )  # fmt: skip
    assert_allowed(player, "os.kill(child, 9)", "os.waitpid(child, 0)", "open('/proc/self/maps')",
                   setup="child = os.fork()\nif child == 0:\n    time.sleep(5)\n    os._exit(0)")  # fmt: skip


CALLS = {
    "io_uring_setup": "call(425, 8, ctypes.addressof(ctypes.create_string_buffer(200)))",
    "io_uring_enter": "call(426, -1, 0, 0, 0, 0, 0)",
    "io_uring_register": "call(427, -1, 0, 0, 0)",
    "userfaultfd": "call(323, 0)",
    "userfaultfd_of_user_mode": "call(323, 1)",
    "bpf_map": "call(321, 0, ctypes.addressof(ctypes.create_string_buffer(struct.pack('IIII', 2, 4, 4, 1), 128)), 72)",
    "bpf_program": "call(321, 5, ctypes.addressof(ctypes.create_string_buffer(128)), 72)",
    "perf_event_open": "call(298, ctypes.addressof(ctypes.create_string_buffer(bytes(128))), 0, -1, -1, 0)",
    "keyctl": "call(250, 0, -3, 0)",
    "add_key": "call(248, ctypes.addressof(ctypes.create_string_buffer(b'user')), 0, 0, 0, -3)",
    "request_key": "call(249, 0, 0, 0, 0)",
    "fanotify_init": "call(300, 0x200, 0)",
    "modify_ldt": "call(154, 0, 0, 0)",
    "iopl": "call(172, 3)",
    "kexec_load": "call(246, 0, 0, 0, 0)",
    "init_module": "call(175, 0, 0, 0)",
    "reboot": "call(169, 0, 0, 0, 0)",
    "settimeofday": "call(164, ctypes.addressof(ctypes.create_string_buffer(16)), 0)",
    "sethostname": "call(170, ctypes.addressof(ctypes.create_string_buffer(b'x')), 1)",
    "swapon": "call(167, 0, 0)",
    "quotactl": "call(179, 0, 0, 0, 0)",
    "acct": "call(163, 0)",
    "syslog": "call(103, 3, 0, 0)",
    "personality": "call(135, 0x40000)",
}


@by_number
def test_I14_the_risky_interfaces_of_the_kernel_are_closed(player):
    assert_denied(player, *CALLS.values())
    assert_allowed(
        player, "select.epoll()", "call(253)", "call(39)", "time.clock_gettime(0)", "os.uname()", "mmap.mmap(-1, 4096)",
        setup="import select",
    )  # fmt: skip


MACHINE_CODE = """
import ctypes, mmap, os
def run(code):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
FOREIGN = {
    "getpid": "b814000000cd80c3",  # mov eax, 20; int 0x80; ret
    "socketcall": "53b86600000031db31c9cd805bc3",  # eax 102
    "execve": "53b80b00000031db31c931d2cd805bc3",  # eax 11
    "x32_getpid": "b8270000400f05c3",  # mov eax, 0x40000027; syscall; ret
    "x32_ptrace": "b809020040bf000000000f05c3",
}


@by_number
@pytest.mark.parametrize("name", FOREIGN)
def test_I15_calls_of_another_architecture_kill_or_fail(player, name):
    result = player.run(f"{MACHINE_CODE}\nprint(run({FOREIGN[name]!r}), flush=True)")

    # SIGSYS, or -EPERM or -ENOSYS.
    assert result.exit_status == -31 or result.text.strip() in ("-1", "-38")
    honest = player.run(f"{MACHINE_CODE}\nprint(run('b8270000000f05c3') == os.getpid())")
    assert honest.text == "True\n"


def test_I16_no_setting_of_the_kernel_is_written(player):
    paths = (
        "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/shmmni", "/proc/sys/net/ipv4/ip_forward", "/proc/irq",
        "/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/pids/pids.max",
        "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/release_agent", "/sys/power/state",
        "/sys/fs/cgroup/memory/release_agent", "/proc/1/oom_score_adj", "/proc/self/uid_map", "/proc/self/setgroups",
    )  # fmt: skip
    assert_denied(
        player,
        *(f"os.write(os.open('{path}', os.O_WRONLY), b'1')" for path in paths),
        "os.mkdir('/sys/fs/cgroup/memory/x')",
        "os.mkdir('/sys/fs/cgroup/x')",
        errors=("EACCES", "EROFS", "EPERM", "ENOENT", "EISDIR"),
    )
    assert_allowed(player, "open('/tmp/x', 'w').write('1')", "open('/dev/null', 'w').write('1')")


HIDDEN = (
    "buddyinfo", "cmdline", "config.gz", "diskstats", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg",
    "loadavg", "locks", "modules", "partitions", "sched_debug", "schedstat", "slabinfo", "softirqs", "swaps",
    "sys/kernel/random/boot_id", "sysrq-trigger", "timer_list", "version", "vmallocinfo", "vmstat", "zoneinfo",
)  # fmt: skip
READABLE = {
    "bootconfig", "cgroups", "consoles", "cpuinfo", "crypto", "devices", "dma", "dynamic_debug", "execdomains", "fb",
    "filesystems", "iomem", "ioports", "mdstat", "meminfo", "misc", "mounts", "mtrr", "stat", "uptime",
}  # fmt: skip


def test_I17_what_tells_of_the_machine_is_empty_or_closed(player):
    source = f"""
import os
for name in {HIDDEN}:
    try:
        with open('/proc/' + name, 'rb') as file: print(name if file.read(16) else '')
    except OSError: print()
for folder in ('/proc/acpi', '/proc/scsi', '/sys/firmware', '/sys/devices/virtual/powercap', '/proc/asound'):
    try: print(folder if os.listdir(folder) else '')
    except OSError: print()
"""
    assert player.run(source).text.split() == []
    assert player.run(
        "import os\nprint(os.cpu_count() > 0, os.uname().sysname, os.sysconf('SC_PAGE_SIZE'))"
    ).text == ("True Linux 4096\n")


def test_I17_what_is_readable_of_the_kernel_is_a_short_list(player):
    source = """
import os, stat
for name in os.listdir('/proc'):
    if name.isdigit() or not stat.S_ISREG(os.stat('/proc/' + name).st_mode): continue
    try:
        with open('/proc/' + name, 'rb') as file: print(name if file.read(1) else '')
    except OSError: pass
"""
    readable = set(player.run(source).text.split())

    assert sorted(readable - READABLE) == []
    assert "meminfo" in readable


def test_I18_there_is_no_device_beyond_the_harmless_ones(player):
    listed = set(player.run("import os\nprint(*os.listdir('/dev'))").text.split())
    paths = (
        "mem",
        "kmsg",
        "fuse",
        "kvm",
        "port",
        "sda",
        "vda",
        "loop0",
        "loop-control",
        "vsock",
        "net/tun",
        "console",
    )
    assert listed <= {
        *(
            "core",
            "fd",
            "full",
            "mqueue",
            "null",
            "ptmx",
            "pts",
            "random",
            "shm",
            "stderr",
            "stdin",
            "stdout",
        ),
        *("tty", "urandom", "zero"),
    }
    assert_denied(
        player,
        *(f"open('/dev/{path}', 'rb')" for path in paths),
        errors=("ENOENT", "EPERM", "EACCES", "ENXIO"),
    )
    assert_denied(
        player,
        *(
            f"os.mknod('{folder}/d', stat.{kind} | 0o600, os.makedev({device}))"
            for folder in ("/workspace", "/tmp", "/dev/shm")
            for kind, device in (
                ("S_IFCHR", "1, 1"),
                ("S_IFCHR", "10, 229"),
                ("S_IFBLK", "254, 0"),
                ("S_IFBLK", "7, 0"),
            )
        ),
        errors=("EPERM",),
    )
    assert_allowed(
        player, "os.mkfifo('p')", "open('/dev/urandom', 'rb').read(8)", "open('/dev/full', 'rb').read(1)"
    )


def test_I20_nothing_of_another_episode_is_seen(service, player):
    other = service.open()
    turn = begin(other, "import time\nopen('/tmp/mark-of-the-other', 'w').write('x')\ntime.sleep(2)", 5000)
    time.sleep(0.5)
    source = f"""{CENSUS}
print([name for _, folders, names in os.walk('/') for name in names if name.startswith('mark-of')])
"""
    processes, files = player.run(source).text.splitlines()
    (_, done) = other.finish(turn).tool_results

    assert (processes, files) == ("itself", "[]")
    assert done.exit_status == 0
    assert other.run("print(open('/tmp/mark-of-the-other').read())").text == "x\n"


def test_I21_the_lock_channel_is_closed_or_documented(service, player):
    hold = f"{ATTEMPT}\nfiles = [open('/proc/self/ns/' + name) for name in ('user', 'time')]\n"
    lock = "for file in files: attempt(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))\n"
    other = service.open()
    turn = begin(other, hold + lock + "time.sleep(1.5)", 5000)
    time.sleep(0.5)
    seen = player.run(hold + lock).text.split()
    other.finish(turn)

    assert set(seen) <= {"EPERM", "ENOSYS"} or "`flock` on namespace files" in SECURITY
    assert_allowed(player, "fcntl.lockf(open('own', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)")


def test_I22_no_trace_is_found_by_a_later_episode(service, player):
    leave = """
import os
for folder in ('/workspace', '/tmp', '/dev/shm', '/var/tmp', '/root', '/home', '/run', '/var/lock', '/dev/mqueue',
               os.path.expanduser('~'), '/workspace/.cache', '/tmp/deep/er'):
    try:
        os.makedirs(folder, exist_ok=True)
        open(folder + '/trace-of-before', 'w').write('x')
        os.symlink('trace-of-before', folder + '/.trace-link')
        print(folder)
    except OSError: pass
try: os.setxattr('/tmp', 'user.trace', b'x')
except OSError: pass
"""
    find = """
import os
print([name for folder, folders, names in os.walk('/') if not folder.startswith('/proc')
       for name in folders + names if 'trace-' in name], os.listdir('/tmp'), os.listdir('/dev/shm'), os.getuid())
"""
    left = player.run(leave).text.split()
    uids = {player.run("import os\nprint(os.getuid())").text.strip()}
    player.end()
    later = []
    for _ in range(CAPACITY + GRADERS + 1):
        episode = service.open()
        later.append(episode.run(find).text.split())
        episode.end()

    assert {"/workspace", "/tmp", "/dev/shm"} <= set(left)
    assert not {"/var/tmp", "/root", "/home", "/run"} & set(left)
    assert {tuple(words[:-1]) for words in later} == {("[]", "[]", "[]")}
    assert len(uids | {words[-1] for words in later}) == len(later) + 1


def test_I23_the_runtime_is_not_reached_through_proc(player):
    assert_denied(
        player, "open('/proc/self/exe', 'r+b')", "open('/proc/1/exe', 'r+b')", "os.open('/proc/self/exe', os.O_WRONLY)",
        "os.open('/proc/self/exe', os.O_RDWR | os.O_TRUNC)", "os.chmod('/proc/self/exe', 0o777)",
        "open('/usr/bin/python3.11', 'r+b')", errors=("EACCES", "EPERM", "EROFS", "ETXTBSY"),
    )  # fmt: skip
    leaked = """
import os
print(os.getcwd(), os.readlink('/proc/self/cwd'), os.readlink('/proc/self/root'))
for number in range(3, 256):
    for way in ('', '/..', '/../../..', '/../../../../../../etc/shadow'):
        try: print(number, os.stat(f'/proc/self/fd/{number}{way}'))
        except OSError: pass
"""
    assert player.run(leaked).text == "/workspace /workspace /\n"
    assert_allowed(player, "open('/proc/self/exe', 'rb').read(4)", "os.chdir('/proc/self/cwd')")


FINGERPRINT = """
import glob, hashlib
digest = hashlib.sha256()
for path in ('/bin/cat', '/bin/ls', '/bin/grep', '/usr/bin/python3', '/etc/passwd', '/etc/ld.so.cache',
             *sorted(glob.glob('/lib/*-linux-gnu/libc.so.6')), *sorted(glob.glob('/opt/gym/warden/*.py'))):
    digest.update(open(path, 'rb').read())
print(digest.hexdigest())
"""


def test_I25_the_files_of_the_image_stay_what_they_are_for_everybody(service, player):
    tamper = f"""
{ATTEMPT}
import glob
targets = ['/bin/cat', '/usr/bin/python3', '/etc/passwd', *glob.glob('/opt/gym/warden/loop.py')]
def splice(path):
    receive, send = os.pipe()
    os.write(send, b'x' * 65536)
    os.read(receive, 65536)
    file = os.open(path, os.O_RDONLY)
    os.splice(file, send, 1, offset_src=0)
    os.write(send, b'tampered')
def memory(path):
    path = os.path.realpath(path)
    page = mmap.mmap(os.open(path, os.O_RDONLY), 1, mmap.MAP_PRIVATE, mmap.PROT_READ)
    low = next(int(line.split('-')[0], 16) for line in open('/proc/self/maps') if line.rstrip().endswith(path))
    with open('/proc/self/mem', 'r+b', 0) as file:
        file.seek(low)
        file.write(b'tampered')
for path in targets:
    attempt(lambda: open(path, 'r+b'))
    attempt(lambda: mmap.mmap(os.open(path, os.O_RDONLY), 1, mmap.MAP_SHARED, mmap.PROT_WRITE))
    attempt(lambda: os.truncate(path, 0))
    attempt(lambda: splice(path))
    attempt(lambda: memory(path))
attempt(lambda: socket.socket(38, 5).bind(('aead', 'authencesn(hmac(sha256),cbc(aes))')))
"""
    other = service.open()
    before = other.run(FINGERPRINT).text
    tampered = player.run(tamper)

    assert tampered.text.split()[-1] in ("EPERM", "EAFNOSUPPORT")
    assert len(before) == 65
    assert other.run(FINGERPRINT).text == before
    assert player.run(FINGERPRINT).text == before
    assert service.open().run(FINGERPRINT).text == before


def test_I26_nothing_says_which_task_or_run_this_is(service, player):
    source = """
import os, socket
print(socket.gethostname(), *os.environ)
for path in ('/etc/hostname', '/etc/hosts', '/proc/self/cgroup', '/proc/self/mountinfo', '/proc/self/environ',
             '/proc/self/cmdline', '/proc/1/cmdline', '/proc/1/status'):
    try: print(open(path).read())
    except OSError: pass
"""
    shown = player.run(source).text
    first, *rest = shown.splitlines()

    hostname, *environment = first.split()
    assert hostname == "sandbox"
    assert set(environment) <= {
        *(
            "HOME",
            "LANG",
            "PATH",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONHASHSEED",
            "USER",
        ),
    }
    names = (TASK, "bugfix", player.episode_id, player.episode_id.split("-")[0], "attack-", image_reference())
    assert not any(name in line for name in names for line in rest)
    assert service.open().run("import socket\nprint(socket.gethostname())").text == "sandbox\n"


def test_I27_no_descriptor_is_inherited(player):
    look = "import os\nprint(*sorted(os.listdir('/proc/self/fd'), key=int))\n"
    child = "import subprocess\nsubprocess.run(['/bin/ls', '/proc/self/fd'], close_fds=False)\n"
    test = "import os\ndef test_fds():\n    paths = [f'/dev/fd/{number}' for number in range(256)]\n"
    test += "    print('fds', *(os.readlink(path) for path in paths if os.path.lexists(path)))\n"
    _, plain, _, below, _, tested = player.play(
        *program(look),
        *program(child, name="child.py"),
        write("test_fds.py", test),
        bash("pytest -s test_fds.py"),
    )

    # One more is the listing itself.
    assert plain.text.split() == below.text.split() == ["0", "1", "2", "3"]
    shown = (
        next(line for line in tested.text.splitlines() if " fds " in line)
        .split(" fds ")[1]
        .rstrip(".")
        .split()
    )
    assert shown[0] == "/dev/null"
    assert len({link for link in shown if link.startswith(("pipe:", "socket:"))}) == 1  # the output
    assert all(link.startswith(("/dev/null", "pipe:", "/tmp/", "/workspace", "(deleted)")) for link in shown)


def test_I28_there_is_no_terminal(player):
    assert_denied(
        player, "os.open('/dev/tty', os.O_RDWR)", "os.ttyname(0)", "os.ttyname(1)",
        "fcntl.ioctl(0, 0x5412, b'x')", "fcntl.ioctl(1, 0x5412, b'x')", "fcntl.ioctl(2, 0x541C, b'x')",
        "fcntl.ioctl(0, 0x540E, 0)", "os.tcgetpgrp(0)", "open('/dev/console', 'w')", "open('/dev/tty0', 'w')",
        errors=("ENXIO", "ENOTTY", "EPERM", "ENOENT", "EACCES"),
    )  # fmt: skip
    assert player.run("import os\nprint(*(os.isatty(fd) for fd in range(3)))").text == "False False False\n"


def test_I29_what_can_be_told_from_timing_is_documented(service, player):
    other = service.open()
    turn = begin(other, "while True: pass", 1000)
    result = player.run(
        "import time\nbegin = time.monotonic()\nsum(range(10**5))\nprint(time.monotonic() > begin)"
    )
    other.finish(turn)

    assert result.text == "True\n"
    assert "Side channels" in SECURITY
    assert "CPU load" in SECURITY
