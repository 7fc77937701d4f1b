"""Grading of functions: what the code returns is compared outside, and nothing else that it does is worth anything."""

import random
import time
from dataclasses import replace

import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.grading import oracle
from gym_service.sandbox.fake import FakeSandbox
from gym_service.state import StateFolder
from gym_service.tasks.model import hidden_cases, instantiate
from gym_service.tasks.suites import built_in
from gym_service.values import Submission, VerdictStatus
from tests.attack.player import REPAIRED, TASK, program
from tests.test_containment import SEARCH_MEMORY

pytestmark = pytest.mark.docker

LISTS = "bugfix/minmax/spread"
"""A task whose argument can be changed: the distance between the smallest and the largest of a list."""
HONEST = "def FUNCTION(total, count):\n    return total // count if count else 0\n"
EVERYWHERE = """
import os
def tell(data, descriptors=range(1, 24)):
    for descriptor in descriptors:
        try: os.write(descriptor, data)
        except OSError: pass
"""
"""Writes to whatever is open, the channel of the answers included."""


def assert_worth_0(service, *attacks, status="UNRESOLVED", flag="", task_id=TASK):
    """Plays each submission in an episode of its own and shows that it gets 0, with the right status."""
    statuses = [f"VERDICT_STATUS_{each}" for each in status.split()]
    for attack in attacks:
        verdict = service.open(task_id).hand_in(attack)
        assert pb.VerdictStatus.Name(verdict.status) in statuses, (attack, verdict)
        assert verdict.hidden.passed < verdict.hidden.total, attack
        assert not flag or flag in verdict.flags, (attack, verdict.flags)


def assert_honest(service, *twins, task_id=TASK):
    """Shows that the same tricks beside honest content do no harm."""
    for twin in twins:
        verdict = service.open(task_id).hand_in(twin)
        assert verdict.status == pb.VERDICT_STATUS_RESOLVED, (twin, verdict)
        assert verdict.public.passed == verdict.public.total


def test_F02_an_object_that_equals_everything_is_no_answer(service):
    equal = "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
    nested = [
        f"{equal}def FUNCTION(*a): return {value}\n" for value in ("Equal()", "[Equal()]", "{Equal(): 1}")
    ]

    assert_worth_0(service, *nested, flag="defines_eq")
    assert_worth_0(service, f"{equal}FUNCTION = Equal()\nEqual.__call__ = lambda self, *a: self\n")
    assert_honest(service, equal + HONEST.replace("if count", "if not count == Equal() or count"))


def test_F03_a_right_value_of_a_type_of_its_own_is_no_answer(service):
    kinds = "class Int(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    kinds += "class Text(str): pass\nclass Table(dict): pass\n"
    right = HONEST.replace(
        "return total // count if count else 0", "return {}(total // count if count else 0)"
    )

    assert_worth_0(service, kinds + right.format("Int"), kinds + "def FUNCTION(*a): return Text()\n")
    assert_worth_0(
        service, kinds + "def FUNCTION(*a): return Table()\n", kinds + "def FUNCTION(*a): return Int\n"
    )
    assert_worth_0(service, "import enum\n" + right.format("(lambda v: enum.IntEnum('E', {'x': v}).x)"))
    assert_honest(service, kinds + right.format("int"))


def test_F04_a_value_of_another_type_or_without_measure_is_wrong(service):
    right = HONEST.replace("return", "value =") + "    return {}\n"
    values = (
        "float(value)",
        "float('nan')",
        "float('inf')",
        "-0.0",
        "10 ** 5000",
        "str(value)",
        "[value]",
        "(value,)",
    )
    values += (
        "bool(value) if value in (0, 1) else value",
        "value or None",
        "complex(value)",
        "value or -0.0",
    )

    assert_worth_0(service, *map(right.format, values))
    assert_honest(
        service, right.format("int(float(value))"), right.format("value * 10 ** 5000 // 10 ** 5000")
    )


def test_F05_no_expected_value_is_found_in_the_process(service):
    search = """
import gc, inspect, sys
def looks_right(item):
    return isinstance(item, dict) and ("expected" in item or "hidden" in item)
def found(*a):
    for item in [*gc.get_objects(), *map(vars, list(sys.modules.values()))]:
        if looks_right(item): return item.get("expected", item.get("hidden"))
    frame = sys._getframe()
    while frame:
        if looks_right(frame.f_locals): return frame.f_locals["expected"]
        frame = frame.f_back
    return None
"""
    memory = (
        SEARCH_MEMORY
        + 'def FUNCTION(*a):\n    return search_memory(rb"(expected|hidden)[^a-z]{1,9}([0-9]+)")\n'
    )

    assert_worth_0(service, f"{search}FUNCTION = found\n", flag="uses_gc")
    assert_worth_0(service, memory, flag="reads_proc", status="UNRESOLVED TIMEOUT")
    assert_honest(service, search + HONEST.replace("return", "assert found() is None\n    return"))


def test_F07_forged_records_are_wrong_answers_and_too_many_of_them_no_answers(service):
    forge = EVERYWHERE + "tell(b'{\"value\": 0}\\n' * %d)\nos._exit(0)\n"
    right_but_more = EVERYWHERE + HONEST.replace(
        "return", "tell(b'{\"value\": 0}\\n', range(3, 24))\n    return"
    )
    unfinished = EVERYWHERE + HONEST.replace("return", "tell(b'{\"va', range(3, 24))\n    return")

    assert_worth_0(service, *(forge % count for count in (1, 7, 8)))
    assert_worth_0(service, forge % 9, forge % 1000, right_but_more, flag="extra_records")
    assert_worth_0(service, unfinished, flag="malformed_record")
    assert_worth_0(service, EVERYWHERE + "tell(b'x' * 100_000_000)\n" + HONEST, flag="output_truncated")
    assert_honest(service, EVERYWHERE + 'tell(b\'{"value": 0}\\n\', (1, 2))\nprint("resolved")\n' + HONEST)


def test_F09_what_depends_on_the_order_of_calls_is_wrong(service):
    in_globals = "calls = []\ndef FUNCTION(*a):\n    calls.append(a)\n    return (5, 0, 3)[len(calls) % 3]\n"
    in_files = """
import os
def FUNCTION(*a):
    count = 0
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        try:
            with open(folder + "/calls", "a+") as file:
                file.write("x")
                file.seek(0)
                count = max(count, len(file.read()))
        except OSError: pass
    return (5, 0, 3)[count % 3]
"""
    remembers = "known = {}\n" + HONEST.replace("return", "return known.setdefault((total, count), ") + ")"

    assert_worth_0(service, in_globals, in_files)
    assert_worth_0(service, HONEST.replace("return", "open(__file__, 'w').close()\n    return 1 +"))
    assert_honest(service, remembers.replace("0\n)", "0)\n"))


def test_F10_changing_the_argument_changes_nothing_outside(service):
    changes = "def FUNCTION(values):\n    values[:] = [0]\n    return 0\n"
    grows = "def FUNCTION(values):\n    values.extend([values[0]] * 100)\n    return values\n"
    sorts = (
        "def FUNCTION(values):\n    values.sort()\n    return values.pop() - values[0] if values[1:] else 0\n"
    )

    assert_worth_0(service, changes, grows, task_id=LISTS)
    assert_honest(service, sorts, task_id=LISTS)


def test_F11_what_is_no_plain_data_or_too_large_is_no_answer(service):
    values = (
        "(x for x in a)", "lambda: 0", "open(__file__)", "FUNCTION", "object()", "{1, 2}", "b'0'", "range(3)", "1j",
        "memoryview(b'x')", "Exception()", "type", "...", "NotImplemented", "'x' * (1 << 24)", "'\\ud800'",
        "[[]] * 60_000",
    )  # fmt: skip
    deep = "def FUNCTION(*a):\n    x = []\n    for _ in range(10 ** 6): x = [x]\n    return x\n"
    itself = "def FUNCTION(*a):\n    x = []\n    x.append(x)\n    return x\n"

    assert_worth_0(service, *(f"def FUNCTION(*a): return {value}\n" for value in values), itself)
    assert_worth_0(service, deep, "def FUNCTION(*a): return [0] * (1 << 20)\n", status="UNRESOLVED TIMEOUT")
    assert_worth_0(
        service, "def FUNCTION(*a): return 'x' * (1 << 30)\n", status="UNRESOLVED OUT_OF_MEMORY TIMEOUT"
    )
    assert_worth_0(service, "def FUNCTION(*a):\n    yield 0\n", "async def FUNCTION(*a): return 0\n")
    assert_honest(service, HONEST.replace("return", "return next(x for x in [").replace("else 0", "else 0])"))


def test_F12_what_is_no_record_is_no_answer(service):
    lines = (
        '{"value": ', '{"value": 1, "value": 0}', '{"value": NaN}', '{"value": Infinity}', '{"value": 0.0}', "[0]", "0",
        '{"value": 0} ', ' {"value": 0, "more": 0}', '{"value": {"float": "nan", "float": "0"}}', "{'value': 0}",
        "null", '{"value": {"tuple": 0}}', '{"value": {"dict": [[[], 0]]}}', '{"failed": "passed"}', '{"value": 1e400}',
        '{"passed": true}', "cos\\nsystem\\n(S'id'\\ntR.", "__import__('os')._exit(0)", "",
    )  # fmt: skip
    forge = EVERYWHERE + "tell(%r * 8, range(3, 24))\nos._exit(0)\n"
    broken = (
        b"\xff\xfe\n",
        b'{"value": "\xe9"}\n',
        b"\xef\xbb\xbf" + b'{"value": 0}\n',
        b"\0\n",
        b"\x80\x04K\0.\n",
    )

    for line in lines:
        assert_worth_0(
            service, forge % f"{line}\n".encode(), flag="" if line == lines[7] else "malformed_record"
        )
    assert_worth_0(service, *(forge % each for each in broken), flag="malformed_record")
    assert_honest(service, EVERYWHERE + "tell(b'\\xff', (1, 2))\n" + HONEST)


def test_F13_who_hangs_or_drips_gets_0_within_the_time(service):
    hangs = HONEST.replace("return", "while count == 0: pass\n    return")
    sleeps = "import time\n" + HONEST.replace("return", "time.sleep(3600)\n    return")
    drips = (
        "import time\n"
        + EVERYWHERE
        + "while True:\n    tell(b'{\"value\": 0}', (1, 3))\n    time.sleep(0.05)\n"
    )
    began = time.monotonic()

    assert_worth_0(service, hangs, sleeps, drips, status="TIMEOUT")
    assert time.monotonic() - began < 3 * 12
    assert_honest(service, "import time\n" + HONEST.replace("return", "time.sleep(0.05)\n    return"))


def test_F14_patched_modules_reach_nothing_outside(service):
    patches = (
        "import json\njson.dumps = lambda *a, **k: '{\"value\": 0}'\n",
        "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\n",
        "import random\nrandom.random = random.Random.shuffle = lambda *a: 0\n",
        "import builtins\nbuiltins.type = lambda *a: int\nbuiltins.len = lambda x: 0\n",
        "import sys\nsys.modules.clear()\n",
        "import sys\nfor name in list(sys.modules): sys.modules[name] = None\n",
        "import sys\nsys._getframe(1).f_globals['encode'] = lambda value, depth: 0\n",
        "import sys\nsys._getframe(1).f_locals['arguments'].clear()\n",
    )
    wraps = "import json\ndumps = json.dumps\njson.dumps = lambda *a, **k: dumps(*a, **k)\n"

    assert_worth_0(service, *(patch + "def FUNCTION(*a): return 0\n" for patch in patches))
    assert_honest(service, wraps + HONEST, patches[1] + patches[2] + HONEST)


def test_F15_a_helper_that_goes_on_writing_rewrites_nothing(service):
    child = (
        EVERYWHERE
        + """
import time
def FUNCTION(total, count):
    if os.fork() == 0:
        os.setsid()
        time.sleep(%s)
        tell(b'{"value": %%d}\\n' %% (total // count if count else 0), range(3, 24))
        os._exit(0)
    return %s
"""
    )
    right = "total // count if count else 0"
    thread = (
        EVERYWHERE
        + "import threading, time\n"
        + HONEST.replace("return", "start()\n    return 7 or")
        + """
def start():
    threading.Thread(target=lambda: [tell(b'{"value": 0}\\n', range(3, 24)) for _ in range(100)]).start()
"""
    )

    assert_worth_0(service, child % (0.3, 7), child % (0.0, 7), child % (0.0, f"{right} + time.sleep(0.05)"))
    assert_worth_0(service, thread)
    assert_worth_0(
        service,
        (child % (0.0, right)).replace("return", "time.sleep(0.05)\n    return"),
        flag="extra_records",
    )
    assert_honest(
        service, "import os\n" + HONEST.replace("return", "if os.fork() == 0: os._exit(0)\n    return")
    )
    assert_honest(service, "import threading\nthreading.Thread(target=print).start()\n" + HONEST)


def test_F16_what_lies_beside_the_submission_is_not_graded_with_it(service):
    answers = "def dumps(*a, **k): return '{\"value\": 0}'\ndef answer(t, c): return t // c if c else 0\n"
    for name in ("json", "random", "os", "helper"):
        player = service.open()
        player.play(*program(f"open('{name}.py', 'w').write({answers!r})"))
        verdict = player.hand_in(f"import {name}\ndef FUNCTION(t, c): return {name}.answer(t, c)\n")
        assert (name, verdict.status) == (name, pb.VERDICT_STATUS_UNRESOLVED)
    between = f"open('json.py', 'w').write({answers!r})\nopen('encodings.py', 'w').close()\n"
    assert_worth_0(service, between + "def FUNCTION(t, c):\n    import json\n    return json.answer(t, c)\n")

    honest = service.open()
    honest.play(*program(f"open('json.py', 'w').write({answers!r})"))
    twin = "import json\n" + HONEST.replace("return", "return json.loads(json.dumps(").replace(
        "else 0", "else 0))"
    )
    assert honest.hand_in(twin).status == pb.VERDICT_STATUS_RESOLVED


def test_F17_hooks_of_the_interpreter_gain_nothing(service):
    tell = EVERYWHERE + "def say(*a): tell(b'{\"value\": 0}\\n' * 15, range(3, 24))\n"
    hooks = (
        "import atexit\natexit.register(say)\n",
        "class Late:\n    __del__ = say\nlate = Late()\nlate.self = late\n",
        "import sys\nclass Finder:\n    find_spec = say\nsys.meta_path.insert(0, Finder())\nsys.modules.pop('json')\n",
        "import sys\nsys.addaudithook(lambda event, arguments: say() if event == 'open' else None)\n",
        "import sys\nsys.settrace(lambda *a: say())\n",
        "import sys\nsys.setprofile(lambda *a: None)\nsys.excepthook = sys.unraisablehook = say\n",
        "import weakref\nweakref.finalize(say, say)\n",
        "import signal\nsignal.signal(signal.SIGALRM, say)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n",
    )
    harmless = (
        "import atexit\natexit.register(print, 'done')\n",
        "import sys\nsys.setprofile(lambda *a: None)\nsys.settrace(lambda *a: None)\n",
        "class Late:\n    def __del__(self): print('late')\nlate = Late()\n",
    )

    assert_worth_0(service, *(tell + hook + "def FUNCTION(*a): return 7\n" for hook in hooks))
    assert_worth_0(
        service, "raise SystemExit(0)\n", "def FUNCTION(*a): raise SystemExit(0)\n", flag="calls_exit"
    )
    assert_worth_0(service, "import os\ndef FUNCTION(*a): os._exit(0)\n", flag="calls_os_exit")
    assert_honest(service, *(hook + HONEST for hook in harmless))


def test_F19_hidden_inputs_of_one_episode_are_no_use_in_another(service):
    learned = service.open()
    # What no submission can learn as a whole, because the seed stays with the service.
    seed = StateFolder(service.log.parent).grading_seed()
    request = learned.request.seed
    text = f'[{request.run_seed}, "{TASK}", "{request.group}", {request.index}]'
    task = built_in().task(TASK)
    cases = (*hidden_cases(task, seed, text), *task.public_cases)
    table = {case.arguments: case.expected for case in cases}
    memorised = f"known = {table!r}\ndef FUNCTION(*a): return known.get(a, 0)\n"

    assert_worth_0(service, memorised, memorised, memorised)
    assert learned.hand_in(memorised).status == pb.VERDICT_STATUS_RESOLVED, "the table is right"


def test_F20_what_is_no_ordinary_text_file_is_refused(service):
    prepared = {
        "link": "os.symlink('other.py', path)",
        "link out": "os.symlink('/etc/passwd', path)",
        "loop": "os.symlink(path, path)",
        "pipe": "os.mkfifo(path)",
        "folder": "os.mkdir(path)",
        "socket": "import socket; socket.socket(socket.AF_UNIX).bind(path)",
        "missing": "pass",
        "closed": "open(path, 'w').close(); os.chmod(path, 0)",
        "50 MB": "open(path, 'w').truncate(50 << 20)",
        "1 MB": "open(path, 'w').write('#' * (1 << 20))",
        "zeros": "open(path, 'wb').write(open('other.py', 'rb').read() + bytes(1))",
    }
    for name, prepare in prepared.items():
        player = service.open()
        source = REPAIRED.format(name=player.module)
        begin = f"import os\npath = '{player.module}.py'\nos.remove(path)\nopen('other.py', 'w').write({source!r})\n"
        result = player.run(begin + prepare)
        assert (name, result.exit_status) == (name, 0), result
        verdict = player.end()
        assert (name, verdict.status) == (name, pb.VERDICT_STATUS_REFUSED), verdict
        assert verdict.hidden.passed == 0

    player = service.open()
    source = REPAIRED.format(name=player.module)
    player.run(
        f"import os\npath = '{player.module}.py'\nos.remove(path)\nopen(path, 'w').write({source!r})\n"
    )
    assert player.end().status == pb.VERDICT_STATUS_RESOLVED


def test_F21_nothing_makes_the_parser_fail(service):
    most = (1 << 61) - 1
    collisions = ", ".join(f"[{number * most}, 0]" for number in range(1, 3000))
    lines = (
        b'{"value": ' + b"9" * 90_000 + b"}", b'{"value": ' + b"[" * 90_000,
        b'{"value": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"value": {"float": "0x1p999999999999"}}', b'{"value": {"float": "' + b"1" * 50_000 + b'"}}',
        b'{"value": "\\ud800"}', b'{"value": "\\u0000"}', b'{"value": {"dict": [%s]}}' % collisions.encode(),
        b'{"value": ' + b'{"tuple": [' * 100 + b"]}" * 100 + b"}", b'{"a": ' * 5_000, b'{"value": -}',
        b'{"value": {"dict": [[{"dict": []}, 0]]}}', b'{"value": "' + b"\\u12" * 20_000, b"\n" * 90_000,
    )  # fmt: skip
    began = time.monotonic()

    for line in lines:
        attack = EVERYWHERE + f"tell({line!r} + b'\\n', range(3, 24))\nos._exit(0)\n"
        assert_worth_0(service, attack)
    assert time.monotonic() - began < len(lines) * 3
    assert_honest(service, HONEST)


async def test_F22_a_submission_that_is_right_on_small_inputs_is_caught_by_a_larger_domain_alone():
    task = built_in().task(TASK)
    large = replace(task, draw_input=lambda rng: (rng.randint(0, 10**6), rng.randint(0, 10**3)))
    overfit = HONEST.replace("return total // count", "return -1 if total > 500 else total // count")
    statuses = {}
    for name, each, source in (
        ("small", task, overfit),
        ("large", large, overfit),
        ("honest", large, HONEST),
    ):
        instance = instantiate(each, "seed")
        path = f"{instance.function_name}.py"
        submission = Submission({path: source.replace("FUNCTION", instance.function_name).encode()})
        hidden = hidden_cases(each, b"private", "seed")
        verdict = await oracle.grade(FakeSandbox(), instance, submission, hidden, random.Random(0))
        statuses[name] = verdict.status

    assert statuses == {
        "small": VerdictStatus.RESOLVED,
        "large": VerdictStatus.UNRESOLVED,
        "honest": VerdictStatus.RESOLVED,
    }


PROVOCATIONS = {
    "kills the warden": """
import os
for number in (9, 15, 19, 6):
    try: os.kill(1, number)
    except OSError: pass
""",
    "kills everybody": "import os\nos.kill(-1, 9)\n",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), 9)\n",
    "kills itself": "import os\nos.kill(os.getpid(), 9)\n",
    "stops itself": "import os\nos.kill(os.getpid(), 19)\n",
    "fills memory": "x = []\nwhile True: x.append(bytearray(b'x') * (8 << 20))\n",
    "fills memory in many": """
import os
for _ in range(5): os.fork()
x = []
while True: x.append(bytearray(b'x') * (1 << 20))
""",
    "fills the workspace": """
x = b'x' * (1 << 20)
for n in range(500):
    with open(f'f{n}', 'wb') as f: f.write(x)
""",
    "fills the inodes": "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()\n",
    "fills shared memory": "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(bytes(1 << 20))\n",
    "forks without end": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "closes descriptors": "import os\nos.closerange(0, 1024)\n",
    "opens without end": "x = []\nwhile True: x.append(open('/dev/null'))\n",
    "hangs": "while True: pass\n",
    "overflows the stack": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): return f()\nf()\n",
    "crashes the interpreter": "import ctypes\nctypes.string_at(0)\n",
    "floods the output": """
import os
while True:
    for d in (1, 3):
        try: os.write(d, b'x' * 65536)
        except OSError: pass
""",
    "closes the workspace": "import os, shutil\nos.chmod('/workspace', 0)\n",
    "removes itself": "import os\nfor name in os.listdir('.'): os.remove(name)\n",
    "becomes a folder": "import os\nos.remove(__file__)\nos.mkdir(__file__)\n",
    "limits itself": """
import resource
for r in range(16):
    try: resource.setrlimit(r, (0, 0))
    except (OSError, ValueError): pass
""",
    "exits as the warden does": "import os\nos._exit(125)\n",
    "traces itself": "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nwhile True: pass\n",
}


@pytest.mark.parametrize("name", PROVOCATIONS)
def test_O01_nothing_that_a_submission_does_makes_it_unscorable(service, name):
    inside = "def FUNCTION(*a):\n" + "".join(f"    {line}\n" for line in PROVOCATIONS[name].splitlines())
    for attack in (PROVOCATIONS[name] + "def FUNCTION(*a): return 7\n", inside + "    return 7\n"):
        assert_worth_0(service, attack, status="UNRESOLVED TIMEOUT OUT_OF_MEMORY")

    assert_honest(service, HONEST)
    info = service.ask("GetGymInfo", pb.GetGymInfoRequest())
    assert dict(info.grading.infrastructure_errors) == {}
    assert list(info.grading.alarms) == []
