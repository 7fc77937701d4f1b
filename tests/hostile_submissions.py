"""Hostile submissions for functions, a kind each, and honest ones beside them: `python -m tests.hostile_submissions`.

Writes lines for `evaluate bugfix`, with the kind of each for whoever counts afterwards.
"""

import argparse
import json
import random
from pathlib import Path

from gym_service.tasks.model import instantiate
from gym_service.tasks.suites import built_in

HONEST = "honest"
_GIVES = "def FUNCTION(*values): return {}\n"
_ON_ALL_DESCRIPTORS = """\
import os
for descriptor in range(1, 30):
    try: os.write(descriptor, {})
    except OSError: pass
def FUNCTION(*values): return 0
"""
KINDS = {
    "exit": "import os\nos._exit(0)\n",
    "sys.exit": "import sys\nsys.exit(0)\n",
    "loop": "while True: pass\n",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 20))\n",
    "equal": (
        "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        + _GIVES.format("Equal()")
    ),
    "records": _ON_ALL_DESCRIPTORS.format("b'{\"value\": 1}\\n' * 200"),
    "garbage": _ON_ALL_DESCRIPTORS.format("bytes(range(256)) * 99"),
    "signals": (
        "import os\nfor number in range(1, 300):\n    try: os.kill(number, 9)\n    except OSError: pass\n"
        + _GIVES.format(None)
    ),
    "network": (
        "import socket\ns = socket.socket()\ns.settimeout(1)\ntry: s.connect(('1.1.1.1', 53))\nexcept OSError: pass\n"
        + _GIVES.format(None)
    ),
    "escape": (
        "import os\ntry: open('/../../../../tmp/HOSTILE_WAS_HERE', 'w').write('x')\nexcept OSError: pass\n"
        "os.system('touch /tmp/HOSTILE_WAS_HERE; touch /host')\n" + _GIVES.format(None)
    ),
    "system calls": (
        "import ctypes\nlibrary = ctypes.CDLL(None)\nlibrary.ptrace(16, 1, 0, 0)\n"
        "library.mount(b'none', b'/', b'tmpfs', 0, 0)\nlibrary.unshare(0x10000000)\n" + _GIVES.format(None)
    ),
    "crash": "import ctypes\nctypes.string_at(0)\n",
    "report": "# </pre><script>alert(1)</script>\u202e\n"
    + _GIVES.format("'</pre><script>alert(2)</script>'"),
    "frames": (
        "import sys\ndef FUNCTION(*values):\n    frame = sys._getframe()\n    while frame: frame = frame.f_back\n"
    ),
    "builtins": (
        "import json, builtins\njson.dumps = lambda *a, **k: '{\"value\": 0}'\nbuiltins.len = lambda x: 0\n"
        + _GIVES.format("object()")
    ),
    "disk": (
        "for number in range(500):\n    try: open(f'f{number}', 'wb').write(b'x' * (1 << 20))\n"
        "    except OSError: break\n" + _GIVES.format(None)
    ),
    "background": "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\n"
    + _GIVES.format(None),
    "deep": "def FUNCTION(*values):\n    x = []\n    for _ in range(100000): x = [x]\n    return x\n",
    "huge": _GIVES.format("10 ** 400000"),
}


def hostile_among_honest(count, seed=0):
    """As many of each, mixed: (task id, sample, kind, source)."""
    tasks = built_in().suite("bugfix")
    rows, samples = [], dict.fromkeys((task.task_id for task in tasks), 0)
    for number in range(count):
        task = tasks[number % len(tasks)]
        instance = instantiate(task, str(number))
        kind = list(KINDS)[number % len(KINDS)]
        hostile = KINDS[kind].replace("FUNCTION", instance.function_name)
        for what, source in ((HONEST, instance.gold_files[instance.path]), (kind, hostile)):
            rows.append((task.task_id, samples[task.task_id], what, source))
            samples[task.task_id] += 1
    random.Random(seed).shuffle(rows)
    return rows


def as_lines(rows):
    """The lines of a file of submissions."""
    names = ("task_id", "sample", "kind", "completion")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.hostile_submissions", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=200, help="of each, hostile and honest")
    options = parser.parse_args()
    options.file.write_text(as_lines(hostile_among_honest(options.count)))
