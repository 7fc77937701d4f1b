"""What the self-test tries, as data: a program, what is seen when the wall holds, and what to do when it does not."""

from collections.abc import Sequence
from dataclasses import dataclass

from gym_service.sandbox.isolation import CONTROL_GROUP_REMEDY, RESOURCES_REMEDY
from gym_service.sandbox.policy import SandboxLimits

LIMITS = SandboxLimits(
    memory_bytes=96 << 20,
    pids=32,
    cpus=0.5,
    workspace_bytes=4 << 20,
    workspace_inodes=256,
    shared_memory_bytes=1 << 20,
    file_bytes=2 << 20,
    open_files=64,
    output_bytes=4 << 10,
    command_timeout_seconds=30.0,
)
"""Small, so that reaching them takes little time."""


@dataclass(frozen=True, slots=True)
class Check:
    """One attempt on a wall."""

    name: str
    programs: Sequence[str]
    """Run one after the other; the last one is judged."""
    expected: str
    """A pattern for all that is seen when the wall holds."""
    remedy: str
    neighbor: str = ""
    """Runs in the second sandbox at the same time as the last program, and is judged in its place."""
    timeout_seconds: float = 30.0


_SECCOMP = "let the engine and its runtime apply the seccomp profile (libseccomp 2.5, CONFIG_SECCOMP_FILTER)"
_MOUNTS = "use a runtime that mounts tmpfs with size and nr_inodes, and the root read-only (runc)"
_MASKS = "use a runtime that applies MaskedPaths and adds no devices"
_WARDEN = "use a runtime that gives the container a PID namespace of its own and keeps UIDs apart (runc)"

_CALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
admitted = []
def attempt(name, x86, arm64, *arguments):
    number = arm64 if arm else x86
    if number is None:
        return
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result == 0 and name.startswith(("clone", "fork")):
        import os; os._exit(0)
    # EPERM is the profile's answer, ENOSYS that of a call which it hides or the kernel lacks.
    if not (result == -1 and ctypes.get_errno() in (1, 38)):
        admitted.append(name)
"""
_REPORT = """
print("admitted: " + ", ".join(admitted) if admitted else "all denied")
"""

_DENIED_CALLS = {
    "io_uring": """
attempt("io_uring_setup", 425, 425, 1, 0)
attempt("io_uring_enter", 426, 426, -1, 0, 0, 0, 0)
attempt("io_uring_register", 427, 427, -1, 0, 0, 0)
""",
    "keys": """
attempt("keyctl", 250, 219, 0, -3, 0)
attempt("add_key", 248, 217, 0, 0, 0, 0, 0)
attempt("request_key", 249, 218, 0, 0, 0, 0)
""",
    "other_processes": """
attempt("process_vm_readv", 310, 270, 1, 0, 0, 0, 0, 0)
attempt("process_vm_writev", 311, 271, 1, 0, 0, 0, 0, 0)
attempt("process_madvise", 440, 440, -1, 0, 0, 0, 0)
attempt("pidfd_getfd", 438, 438, -1, 0, 0)
attempt("kcmp", 312, 272, 1, 1, 0, 0, 0)
attempt("migrate_pages", 256, 238, 1, 0, 0, 0)
attempt("move_pages", 279, 239, 1, 0, 0, 0, 0, 0)
attempt("ptrace", 101, 117, 0, 0, 0, 0)
attempt("setpriority", 141, 140, 0, 1, 19)
attempt("sched_setaffinity", 203, 122, 1, 0, 0)
""",
    "kernel_interfaces": """
attempt("bpf", 321, 280, 0, 0, 0)
attempt("perf_event_open", 298, 241, 0, 0, -1, -1, 0)
attempt("userfaultfd", 323, 282, 1)
attempt("seccomp", 317, 277, 2, 0, 0)
attempt("memfd_secret", 447, 447, 0)
attempt("fanotify_init", 300, 262, 0x200, 0)
attempt("modify_ldt", 154, None, 0, 0, 0)
attempt("iopl", 172, None, 4)
attempt("ioperm", 173, None, -1, 1, 1)
attempt("vmsplice", 278, 75, -1, 0, 0, 0)
attempt("splice", 275, 76, -1, 0, -1, 0, 0, 0)
attempt("syslog", 103, 116, 99, 0, 0)
attempt("quotactl", 179, 60, -1, 0, 0, 0)
attempt("quotactl_fd", 443, 443, -1, 0, 0, 0)
attempt("lookup_dcookie", 212, 18, 0, 0, 0)
attempt("personality(ADDR_NO_RANDOMIZE)", 135, 92, 0x40000)
attempt("prctl(PR_SET_MEMORY_MERGE)", 157, 167, 67, 1, 0, 0, 0)
attempt("prctl(PR_SCHED_CORE)", 157, 167, 62, 0, 0, 0, 0)
attempt("madvise(MADV_MERGEABLE)", 28, 233, 0, 0, 12)
attempt("memfd_create(MFD_HUGETLB)", 319, 279, 1, 4)
attempt("mmap(MAP_HUGETLB)", 9, 222, 0, 1 << 21, 3, 0x40022, -1, 0)
""",
    "machine": """
attempt("init_module", 175, 105, 0, 0, 0)
attempt("finit_module", 313, 273, -1, 0, 0)
attempt("delete_module", 176, 106, 0, 0)
attempt("kexec_load", 246, 104, 0, 0, 0, 0)
attempt("kexec_file_load", 320, 294, -1, -1, 0, 0, 0)
attempt("reboot", 169, 142, 0, 0, 0, 0)
attempt("settimeofday", 164, 170, 1, 0)
attempt("clock_settime", 227, 112, 0, 0)
attempt("clock_adjtime", 305, 266, 0, 0)
attempt("adjtimex", 159, 171, 0)
attempt("sethostname", 170, 161, 0, -1)
attempt("setdomainname", 171, 162, 0, -1)
attempt("acct", 163, 89, 1)
attempt("swapon", 167, 224, 1, 0)
attempt("swapoff", 168, 225, 1)
""",
    "mounts": """
attempt("mount", 165, 40, 1, 1, 1, 0, 0)
attempt("umount2", 166, 39, 1, 0)
attempt("pivot_root", 155, 41, 1, 1)
attempt("chroot", 161, 51, 1)
attempt("fsopen", 430, 430, 1, 0)
attempt("fsconfig", 431, 431, -1, 0, 0, 0, 0)
attempt("fsmount", 432, 432, -1, 0, 0)
attempt("fspick", 433, 433, -1, 1, 0)
attempt("move_mount", 429, 429, -1, 1, -1, 1, 0)
attempt("open_tree", 428, 428, -1, 1, 0)
attempt("mount_setattr", 442, 442, -1, 1, 0, 0, 0)
attempt("open_by_handle_at", 304, 265, -1, 1, 0)
attempt("name_to_handle_at", 303, 264, -1, 1, 1, 1, 0)
""",
    "namespaces": """
attempt("setns", 308, 268, -1, 0)
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt(f"clone({flag:#x})", 56, 220, flag | 17, 0, 0, 0, 0)
attempt("clone(CLONE_PARENT)", 56, 220, 0x8000 | 17, 0, 0, 0, 0)
attempt("clone3", 435, 435, 1, 88)
for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt(f"unshare({flag:#x})", 272, 97, flag)
""",
    "lasting_objects": """
attempt("shmget", 29, 194, 0, 4096, 0o1777)
attempt("semget", 64, 190, 0, 1, 0o1777)
attempt("msgget", 68, 186, 0, 0o1777)
attempt("mq_open", 240, 180, 1, 0, 0, 0)
attempt("flock", 73, 32, 0, 2)
""",
    "terminal_input": """
attempt("ioctl(TIOCSTI)", 16, 29, 1, 0x5412, 0)
attempt("ioctl(TIOCLINUX)", 16, 29, 1, 0x541C, 0)
""",
}

_SOCKETS = """
import errno, socket
admitted = []
for family in range(1, 64):
    if family not in (1, 2, 10):
        for kind in (1, 2, 3, 5):
            for protocol in ((2, 16) if family == 16 else (0,)):
                try: socket.socket(family, kind, protocol).close()
                except OSError as error:
                    if error.errno == errno.EPERM: continue
                admitted.append(str(family))
for family in (2, 10):
    for protocol in (132, 136, 262):
        try: socket.socket(family, 1, protocol).close()
        except OSError as error:
            if error.errno == errno.EPERM: continue
        admitted.append(f"{family} protocol {protocol}")
socket.socket(1), socket.socket(2), socket.socket(10), socket.socketpair(), socket.if_nameindex()
print("admitted: " + " ".join(sorted(set(admitted))) if admitted else "only UNIX, INET, INET6 and NETLINK_ROUTE")
"""

_OTHER_ARCHITECTURES = """
import ctypes, mmap, os, platform, signal
def killed(attempt):
    child = os.fork()
    if child == 0:
        attempt()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return "refused" if os.WIFSIGNALED(status) else "admitted"
def int_0x80():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    if ctypes.CFUNCTYPE(ctypes.c_int)(address)() < 0: os.abort()
def x32():
    if ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39)) < 0: os.abort()
if platform.machine() == "x86_64":
    print("int 0x80", killed(int_0x80) + ",", "x32", killed(x32))
else:
    print("none to be had on this machine")
"""

_DEVICES = "(core )?fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"

_READABLE = """
import os
found = []
for path in '''
    /proc/acpi /proc/asound /proc/buddyinfo /proc/cmdline /proc/config.gz /proc/crypto /proc/diskstats
    /proc/driver /proc/interrupts /proc/kallsyms /proc/kcore /proc/key-users /proc/keys /proc/kmsg
    /proc/kpageflags /proc/latency_stats /proc/loadavg /proc/locks /proc/mdstat /proc/modules
    /proc/pagetypeinfo /proc/partitions /proc/pressure /proc/sched_debug /proc/schedstat /proc/scsi
    /proc/slabinfo /proc/softirqs /proc/stat /proc/swaps /proc/sys/kernel/random/boot_id /proc/timer_list
    /proc/timer_stats /proc/version /proc/vmallocinfo /proc/vmstat /proc/zoneinfo /sys/block /sys/class
    /sys/devices/virtual/powercap /sys/firmware /sys/kernel /sys/module
'''.split():
    try:
        if os.path.isdir(path): seen = os.listdir(path)
        else:
            with open(path, "rb") as file: seen = file.read(1)
    except OSError: continue
    if seen: found.append(path)
print("readable: " + " ".join(found) if found else "none is readable")
"""

_ROOT = """
import errno, os
seen = set()
for folder in ("/", "/etc", "/usr/bin", "/usr/lib/python3", "/opt/gym/warden", "/var/tmp", "/root", "/home"):
    if folder == os.getcwd(): continue  # The workspace of an image can be one of these.
    try: os.close(os.open(f"{folder}/new", os.O_CREAT | os.O_WRONLY)); seen.add("written")
    except OSError as error: seen.add(errno.errorcode[error.errno])
for path in ("/proc/sys/kernel/hostname", "/proc/sys/fs/inotify/max_user_instances", "/etc/passwd", "/etc/hosts"):
    try: os.close(os.open(path, os.O_WRONLY)); seen.add("written")
    except OSError as error: seen.add(errno.errorcode[error.errno])
print(*sorted(seen - {"EACCES", "ENOENT"}))
"""

_FORK = """
import os, time
count = 1
try:
    while count <= 2 * pids:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError: pass
print(count, "of", pids, "processes", flush=True)
os._exit(0)
"""
_THREADS = """
import os, threading, time
count = 1
try:
    while count <= 2 * pids:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError: pass
print(count, "of", pids, "threads", flush=True)
os._exit(0)
"""
_MEMORY = """
blocks = []
while len(blocks) * (1 << 20) < 2 * memory_bytes:
    blocks.append(b"x" * (1 << 20))
print("got", len(blocks), "MiB")
"""
_FILL = """
import os
seen = []
for folder, limit in ((os.getcwd(), workspace_bytes), ("/tmp", workspace_bytes), ("/dev/shm", shared_memory_bytes)):
    written = 0
    try:
        for number in range(9):
            with open(f"{folder}/fill{number}", "wb", buffering=0) as file:
                for _ in range(16): written += file.write(b"x" * 65536)
    except OSError: pass
    for number in range(9):
        try: os.unlink(f"{folder}/fill{number}")
        except OSError: pass
    seen.append(f"{folder} " + ("stopped" if written <= limit else "not stopped") + f" at {written >> 10} KiB")
print(", ".join(seen))
"""
_INODES = """
import os
seen = []
for folder in (os.getcwd(), "/tmp", "/dev/shm"):
    count = 0
    try:
        while count <= 2 * workspace_inodes:
            os.mkdir(f"{folder}/{count}")
            count += 1
    except OSError: pass
    for number in range(count): os.rmdir(f"{folder}/{number}")
    seen.append(f"{folder} " + ("stopped" if count < workspace_inodes else "not stopped") + f" at {count}")
print(", ".join(seen))
"""
_NO_EXECUTION = """
import os
for folder in ("/tmp", "/dev/shm"):
    with open(f"{folder}/program", "w") as file: file.write("#!/bin/true\\n")
    os.chmod(f"{folder}/program", 0o755)
    try:
        if os.fork() == 0: os.execv(f"{folder}/program", ["program"])
    except PermissionError: print(folder, "refused", flush=True); os._exit(0)
    os.wait()
"""
_DESCRIPTORS = """
import os
count = 0
try:
    while count <= 2 * open_files:
        os.dup(0)
        count += 1
except OSError: pass
print("stopped" if count < open_files else "not stopped", "at", count, "descriptors")
"""
_FILE = """
try:
    with open("/tmp/big", "wb", buffering=0) as file:
        written = 0
        while written <= file_bytes: written += file.write(b"x" * 65536)
except OSError: pass
print("stopped" if written <= file_bytes else "not stopped", "at", written >> 10, "KiB")
"""
_CORE = """
import os
child = os.fork()
if child == 0: os.abort()
status = os.waitpid(child, 0)[1]
left = [name for name in os.listdir(".") if name.startswith("core")]
print("a core was written" if os.WCOREDUMP(status) or left else "no core")
"""
_LOCKED = """
import ctypes
block = ctypes.create_string_buffer(1 << 20)
print("refused" if ctypes.CDLL(None).mlock(block, len(block)) != 0 else "locked 1 MiB")
"""
_CPU = """
import os, time
started = time.monotonic()
child = os.fork()
while time.monotonic() < started + 1: pass
if child == 0: os._exit(0)
os.wait()
used = sum(os.times()[:4]) / (time.monotonic() - started)
print("held" if used < cpus + 0.2 else "exceeded", f"{used:.2f} cores of {cpus}")
"""
_SETSID = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    for number in (1, 2, 13, 15): signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0: time.sleep(60)
    time.sleep(60)
"""
_COUNT = """
import os
others = {name for name in os.listdir("/proc") if name.isdigit()} - {"1", str(os.getpid())}
print(len(others), "left")
"""
_WARDEN_LOOK = """
import os
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
try: os.kill(1, 9); signal = "killed"
except PermissionError: signal = "refused"
try: open("/proc/1/environ").read(); look = "read"
except PermissionError: look = "refused"
uid = int(status["Uid"].split()[0])
print("signal", signal + ",", "look", look + ",", "UID", "the same" if uid in (0, os.getuid()) else "another", end=", ")
print("capabilities", status["CapPrm"].strip(), "of", status["CapBnd"].strip())
"""
_TAKE_INOTIFY = """
import ctypes, os, time
libc = ctypes.CDLL(None)
for _ in range(8):
    while libc.inotify_init() >= 0: pass
    if os.fork() != 0: break
    os.closerange(3, 4096)  # What the parent has open stays taken.
time.sleep(1)
"""
_NEED_INOTIFY = """
import ctypes, os, time
libc, failed = ctypes.CDLL(None), 0
for _ in range(8):
    time.sleep(0.1)
    descriptor = libc.inotify_init()
    if descriptor < 0: failed += 1
    else: os.close(descriptor)
print(failed, "of 8 refused")
"""

_PIDS = f"({LIMITS.pids - 2}|{LIMITS.pids - 1}) of {LIMITS.pids}"
"""PID 1 counts, and nothing else but the program."""

CPU_QUOTA = Check("cpu_quota", [_CPU], "held .*", CONTROL_GROUP_REMEDY)

NEIGHBORS = Check(
    "neighbors_kept_apart",
    [_TAKE_INOTIFY],
    "0 of 8 refused",
    "give each sandbox another UID; use userns-remap where UIDs do not suffice",
    neighbor=_NEED_INOTIFY,
)

CHECKS = (
    *(
        Check(f"denied_calls_{name}", [_CALL + calls + _REPORT], "all denied", _SECCOMP)
        for name, calls in _DENIED_CALLS.items()
    ),
    Check("socket_families", [_SOCKETS], "only UNIX, INET, INET6 and NETLINK_ROUTE", _SECCOMP),
    Check(
        "other_architectures",
        [_OTHER_ARCHITECTURES],
        "int 0x80 refused, x32 refused|none to be had on this machine",
        _SECCOMP,
    ),
    Check("devices", ["import os; print(*sorted(os.listdir('/dev')))"], _DEVICES, _MASKS),
    Check("risky_files", [_READABLE], "none is readable", _MASKS),
    Check("read_only_root", [_ROOT], "EROFS", _MOUNTS),
    Check(
        "warden",
        [_WARDEN_LOOK],
        "signal refused, look refused, UID another, capabilities 0+e0 of 0+",
        _WARDEN,
    ),
    Check("process_limit", [_FORK], f"{_PIDS} processes", CONTROL_GROUP_REMEDY),
    Check("thread_limit", [_THREADS], f"{_PIDS} threads", CONTROL_GROUP_REMEDY),
    Check("folder_size", [_FILL], r"\S+ stopped.*, \S+ stopped.*, \S+ stopped.*", _MOUNTS),
    Check("folder_inodes", [_INODES], r"\S+ stopped.*, \S+ stopped.*, \S+ stopped.*", _MOUNTS),
    Check("no_execution", [_NO_EXECUTION], "/tmp refused /dev/shm refused", _MOUNTS),
    Check("descriptor_limit", [_DESCRIPTORS], r"stopped at \d+ descriptors", RESOURCES_REMEDY),
    Check("file_size", [_FILE], r"stopped at \d+ KiB", RESOURCES_REMEDY),
    Check("no_core", [_CORE], "no core", RESOURCES_REMEDY),
    Check("locked_memory", [_LOCKED], "refused", RESOURCES_REMEDY),
    Check("memory_limit", [_MEMORY], "out of memory", CONTROL_GROUP_REMEDY),
    Check("nothing_left", [_SETSID, _COUNT], "0 left", _WARDEN),
    Check(
        "output_limit",
        ["while True: print('y' * 1000)"],
        f"output cut at {LIMITS.output_bytes} bytes",
        _WARDEN,
    ),
    Check("time_limit", ["while True: pass"], "timed out", _WARDEN, timeout_seconds=0.2),
)
