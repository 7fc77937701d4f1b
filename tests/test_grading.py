"""Function-level grading: only what the function returns counts, whatever else it does."""

import random
from dataclasses import replace

import pytest

from gym_service.grading import oracle
from gym_service.grading.records import Answer, Failure, parse_answers
from gym_service.sandbox.fake import FakeSandbox
from gym_service.tasks.comparison import Exact, Tolerance
from gym_service.tasks.model import Case, hidden_cases, instantiate
from gym_service.tasks.suites import built_in
from gym_service.values import Submission, VerdictStatus
from tests.test_containment import SEARCH_MEMORY

TASK = built_in().task("bugfix/zero/share")
INSTANCE = instantiate(TASK, "seed")
PATH = f"{INSTANCE.function_name}.py"
HIDDEN = hidden_cases(TASK, b"private", "seed")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value": 5}', 5),
        (b'{"value": true}', True),
        (b'{"value": null}', None),
        (b'{"value": {"float": "0x1.8p+0"}}', 1.5),
        (b'{"value": {"tuple": [1, "a"]}}', (1, "a")),
        (b'{"value": {"dict": [["k", [1]], [{"tuple": [1]}, 2]]}}', {"k": [1], (1,): 2}),
    ],
)
def test_plain_values_are_rebuilt(line, value):
    assert parse_answers(line + b"\n", 1) == [Answer(value)]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"5", b"null", b"{}", b'{"value": 1, "value": 2}', b'{"value": NaN}', b'{"value": 1.5}',
        b'{"value": 1, "more": 2}', b'{"failed": "raised"}', b'{"value": {"float": "x"}}',
        b'{"value": {"float": "0x1p99999"}}', b'{"value": {"other": 1}}', b'{"value": {"dict": [[1]]}}',
        b'{"value": {"dict": [[1, 2], [1, 3]]}}', b'{"value": {"dict": [[[], 2]]}}', b"\xff\xfe",
        b'{"value": ' + b"9" * 10_000 + b"}", b'{"value": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"value": ' + b"[" * 100_000 + b"}", b'{"value": "' + b"x" * 200_000 + b'"}',
        b'cos\nsystem\n(S"id"\ntR.', b'{"value": {"dict": [[{"tuple": [[1]]}, 2]]}}',
    ],
)  # fmt: skip
def test_nothing_else_is_an_answer_and_nothing_makes_the_parser_fail(line):
    assert [answer.returned for answer in parse_answers(line.replace(b"\n", b" ") + b"\n", 1)] == [False]


def test_missing_records_count_as_failed():
    assert parse_answers(b'{"value": 1}\n{"val', 2) == [Answer(1), Answer(failure=Failure.MISSING)]


@pytest.mark.parametrize("more", [b'{"value": 1}\n', b"\n", b"x", b"\0", b'{"value": 1}\n' * 1000])
def test_anything_after_the_last_record_makes_all_of_them_failed(more):
    answers = parse_answers(b'{"value": 1}\n' * 2 + more, 2)

    assert answers == [Answer(failure=Failure.EXTRA_RECORDS)] * 2


def test_output_that_was_cut_off_holds_no_answer():
    answers = parse_answers(b'{"value": 1}\n' * 2, 2, truncated=True)

    assert answers == [Answer(failure=Failure.OUTPUT_TRUNCATED)] * 2


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (b'{"failed": "raised"}', Failure.RAISED),
        (b'{"failed": "not_plain_data"}', Failure.NOT_PLAIN_DATA),
        (b'{"failed": "too_large"}', Failure.TOO_LARGE),
        (b'{"failed": "passed"}', Failure.MALFORMED),
        (b'{"failed": "raised", "value": 1}', Failure.MALFORMED),
    ],
)
def test_why_there_is_no_answer_is_told_apart(line, failure):
    assert parse_answers(line + b"\n", 1) == [Answer(failure=failure)]


def test_keys_that_were_chosen_for_their_hashes_are_refused():
    pairs = ", ".join(f"[{number * ((1 << 61) - 1)}, 0]" for number in range(1, 100))
    record = b'{"value": {"dict": [%s]}}\n'

    assert parse_answers(record % pairs.encode(), 1) == [Answer(failure=Failure.MALFORMED)]
    assert parse_answers(record % b"[-1, 0], [-2, 0]", 1) == [Answer({-1: 0, -2: 0})]


async def grade(source):
    """Grades a module in a fake sandbox."""
    submission = source if isinstance(source, Submission) else Submission({PATH: source.encode()})
    return await oracle.grade(FakeSandbox(), INSTANCE, submission, HIDDEN, random.Random(0))


async def test_the_reference_passes_everything():
    verdict = await grade(INSTANCE.gold_files[PATH])

    assert verdict.status is VerdictStatus.RESOLVED
    assert verdict.hidden.passed == verdict.hidden.total == len(HIDDEN)
    assert verdict.public.passed == verdict.public.total == 3


@pytest.mark.parametrize(
    "source", ["", "x = 1", "def other(): pass", "1 / 0", "def {f}(*a): return True", "syntax error"]
)
async def test_what_is_wrong_is_unresolved(source):
    verdict = await grade(source.replace("{f}", INSTANCE.function_name))

    assert verdict.status is VerdictStatus.UNRESOLVED
    assert verdict.hidden.passed < verdict.hidden.total


@pytest.mark.parametrize(
    "submission",
    [
        Submission(),
        Submission({PATH: b"x" * (300 << 10)}),
        Submission({PATH: b"\0"}),
        Submission({PATH: b""}, refusal="not a regular file"),
    ],
)
async def test_what_is_no_source_file_is_refused(submission):
    verdict = await grade(submission)

    assert verdict.status is VerdictStatus.REFUSED
    assert verdict.hidden.passed == 0
    assert verdict.hidden.total == len(HIDDEN)


async def test_evidence_says_of_each_case_that_failed_what_came():
    source = """
def FUNCTION(total, count):
    if (total, count) == (10, 3): return 10 // 3
    if count == 0: raise ValueError
    return "x" * 1000
"""
    verdict = await grade(source.replace("FUNCTION", INSTANCE.function_name))
    failed = verdict.hidden.total + verdict.public.total - verdict.hidden.passed - verdict.public.passed

    assert len(verdict.evidence) == failed
    assert {line.split()[0] for line in verdict.evidence} == {"hidden", "public"}
    assert any(line.endswith(": raised") and ", 0)" in line for line in verdict.evidence)
    assert any(": returned 'xxx" in line and len(line) < 260 for line in verdict.evidence)


async def test_the_rule_of_the_task_decides():
    off_by_a_little = f"def {INSTANCE.function_name}(a, b): return (a // b if b else 0) * 1.000001\n"
    cases = [Case(case.arguments, float(case.expected)) for case in HIDDEN]
    submission = Submission({PATH: off_by_a_little.encode()})
    statuses = []
    for rule in (Tolerance(relative=1e-3), Tolerance(relative=1e-9), Exact()):
        instance = replace(INSTANCE, task=replace(TASK, comparison=rule))
        verdict = await oracle.grade(FakeSandbox(), instance, submission, cases, random.Random(0))
        statuses.append(verdict.status)

    assert statuses == [VerdictStatus.RESOLVED, VerdictStatus.UNRESOLVED, VerdictStatus.UNRESOLVED]


def test_hidden_inputs_depend_on_the_private_seed():
    other = hidden_cases(TASK, b"another", "seed")

    assert hidden_cases(TASK, b"private", "seed") == HIDDEN
    assert {case.arguments for case in HIDDEN} != {case.arguments for case in other}


ATTACKS = {
    "always_equal": "class E:\n    def __eq__(self, o): return True\ndef {f}(*a): return E()",
    "int_subclass": "class I(int):\n    def __eq__(self, o): return True\ndef {f}(*a): return I(0)",
    "forged_records": """
import os
for descriptor in range(1, 24):
    try: os.write(descriptor, b'{"value": 0}\\n' * 15)
    except OSError: pass
os._exit(0)
""",
    "exit_zero": "import os; os._exit(0)",
    "system_exit": "def {f}(*a): raise SystemExit(0)",
    "skip": "import pytest\ndef {f}(*a): pytest.skip('x')",
    "patched_json": "import json\njson.dumps = lambda *a, **k: '{\"value\": 0}'\ndef {f}(*a): return 0",
    "hang": "def {f}(*a):\n    while True: pass",
    "memory": "x = [bytearray(1 << 20) for _ in range(100000)]",
    "generator": "def {f}(*a):\n    yield 1",
    "huge": "def {f}(*a): return 'x' * (1 << 28)",
    "deep": "def {f}(*a):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "daemon": """
import os, time
def {f}(*a):
    if os.fork() == 0:
        os.setsid(); time.sleep(1); os.write(3, b'{"value": 1}\\n'); os._exit(0)
    return 7
""",
    "nan": "def {f}(*a): return float('nan')",
    "frames": """
import gc, sys
def {f}(*a):
    for o in gc.get_objects():
        if isinstance(o, dict) and "expected" in o: return o["expected"]
    return sys._getframe(1).f_locals.get("expected")
""",
}


@pytest.mark.docker
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_on_grading_is_worth_0(sandbox, name):
    source = ATTACKS[name].replace("{f}", INSTANCE.function_name)
    submission = Submission({PATH: source.encode()})

    verdict = await oracle.grade(sandbox, INSTANCE, submission, HIDDEN, random.Random(0))

    assert verdict.status is not VerdictStatus.RESOLVED
    assert verdict.status is not VerdictStatus.INFRASTRUCTURE_ERROR
    assert verdict.hidden.passed < verdict.hidden.total
    # The honest twin, in the same sandbox, unless the pool would throw that away.
    left = await sandbox.scrub()
    if verdict.status is VerdictStatus.OUT_OF_MEMORY:
        assert left.startswith("out of memory")
        return
    assert left == ""
    honest = Submission({PATH: INSTANCE.gold_files[PATH].encode()})
    verdict = await oracle.grade(sandbox, INSTANCE, honest, HIDDEN, random.Random(0))
    assert verdict.status is VerdictStatus.RESOLVED


@pytest.mark.docker
async def test_long_answers_are_answers(sandbox):
    source = f"def {INSTANCE.function_name}(size): return 'x' * size\n"
    submission = Submission({PATH: source.encode()})
    cases = [Case((size,), "x" * size) for size in range(90_000, 90_008)]

    verdict = await oracle.grade(sandbox, INSTANCE, submission, cases, random.Random(0))

    assert verdict.hidden.passed == len(cases), verdict.evidence


@pytest.mark.docker
async def test_no_expected_value_enters_the_sandbox(sandbox):
    source = f"""{SEARCH_MEMORY}
def {INSTANCE.function_name}(*a):
    return search_memory(rb"((?:INPUT|EXPECTED)-4711)")
"""
    submission = Submission({PATH: source.encode()})
    cases = [Case(("INPUT-4711",), ["EXPECTED-4711", "INPUT-4711"])]

    verdict = await oracle.grade(sandbox, INSTANCE, submission, cases, random.Random(0))
    assert verdict.hidden.passed == 0

    control = await oracle.grade(
        sandbox, INSTANCE, submission, [Case(("INPUT-4711",), ["INPUT-4711"])], random.Random(0)
    )
    assert control.hidden.passed == 1
