"""What hostile episodes run, each a Python program that would go on for ever or leave something behind."""

ATTACKS = {
    "fork_bomb": """\
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "memory_bomb": """\
held = []
while True:
    held.append(b"x" * (16 << 20))
""",
    "output_flood": """\
while True:
    print("x" * 65536)
""",
    "daemon": """\
import os, signal, time
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
for number in range(3):
    os.close(number)
time.sleep(600)
""",
    "disk_fill": """\
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try:
        with open(folder + "/large", "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
    except OSError:
        pass
    try:
        for number in range(100_000):
            open(f"{folder}/{number}", "w").close()
    except OSError:
        pass
""",
    "mode_000_folder": """\
import os
os.makedirs("locked/inner")
open("locked/inner/file", "w").close()
os.chmod("locked/inner", 0)
os.chmod("locked", 0)
""",
    "deep_tree": """\
import os
while True:
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
""",
    "killing_signals": """\
import os
for target in (1, os.getppid(), -1):
    for number in range(1, 65):
        try:
            os.kill(target, number)
        except OSError:
            pass
""",
}
