"""SECURITY.md says what is there: each setting, check, test and attack case that it names; no setting is missing."""

import json
import re
from pathlib import Path

import pytest

from gym_service.sandbox import policy
from gym_service.sandbox.isolation import FACTS
from gym_service.sandbox.read_back import _CONFIG_KEYS
from gym_service.sandbox.selftest_checks import CHECKS, CPU_QUOTA, NEIGHBORS
from tests.test_frames import WRONG

TESTS = Path(__file__).parent
DOCUMENT = TESTS.with_name("SECURITY.md").read_text()
SETTINGS = {*policy.host_config(policy.SandboxLimits()), *_CONFIG_KEYS}
CHECKED = {each.name for each in (*FACTS, *CHECKS, CPU_QUOTA, NEIGHBORS)} | {"file_tools"}
KINDS = {"met", "met otherwise", "met in part", "not met", "operator's"}


def section(title):
    """The text below a heading, down to the next one of the same rank or a higher one."""
    level, start = re.search(rf"^(#+) {title}\n", DOCUMENT, re.MULTILINE).group(1, 0)
    return re.split(rf"^#{{1,{len(level)}}} ", DOCUMENT.split(start)[1], flags=re.MULTILINE)[0]


def rows(title):
    """The cells of the tables of a section, without their heads."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if set(line) <= set("|- ")}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for number, line in enumerate(lines)
        if number not in heads and number - 1 not in heads
    ]


def spans(text):
    return set(re.findall(r"`([^`]+)`", text))


STANDARDS = section("CIS Docker Benchmark") + section("Kubernetes Pod Security Standards")
SANDBOX = rows("The sandbox")


def test_every_setting_of_a_sandbox_is_in_the_tables_and_no_other():
    named = {span for span in spans(STANDARDS) if re.fullmatch(r"[A-Z][A-Za-z]+", span)}

    assert named == SETTINGS


def test_every_check_at_start_stands_beside_the_wall_that_it_tries():
    assert set().union(*(spans(cells[3]) for cells in SANDBOX)) == CHECKED


def test_every_check_that_a_standard_is_said_to_be_measured_by_is_made():
    named = {span for span in spans(STANDARDS) if re.fullmatch(r"[a-z]+(_[a-z]+)+|devices|warden", span)}

    assert named
    assert named <= CHECKED


def test_every_file_of_tests_that_is_named_is_there():
    named = {
        span for span in spans(DOCUMENT) if re.fullmatch(r"(\w+/)?test_\w+\.py", span.removeprefix("tests/"))
    }

    assert len(named) > 40
    assert [name for name in named if not (TESTS / name.removeprefix("tests/")).exists()] == []


def test_every_attack_case_that_is_named_is_played():
    named = set(re.findall(r"\b[A-Z]\d\d\b", section("The walls")))
    files = "".join(path.read_text() for path in (TESTS / "attack").glob("test_*.py"))
    played = set(re.findall(r"[A-Z]\d\d(?=_)", "".join(re.findall(r"def test_\w+", files))))

    assert len(named) > 60
    assert named <= played


@pytest.mark.parametrize(("number", "last"), [(4, 12), (5, 32)], ids=["images", "runtime"])
def test_the_benchmark_is_answered_point_by_point(number, last):
    answered = [cells[0].split()[0] for cells in rows("CIS Docker Benchmark")]

    assert [each for each in answered if each.startswith(f"{number}.")] == [
        f"{number}.{point}" for point in range(1, last + 1)
    ]


@pytest.mark.parametrize("title", ["CIS Docker Benchmark", "Kubernetes Pod Security Standards"])
def test_every_answer_is_of_a_kind_and_what_is_not_met_has_its_reason(title):
    for cells in rows(title):
        assert cells[1] in KINDS, cells
        assert cells[1] in ("met", "operator's") or cells[2], cells


def test_what_is_counted_is_so_many():
    allowed = {
        name
        for rule in json.loads(policy.SECCOMP_PROFILE)["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    bash = set(re.findall(r"test_(B\d\d)_", (TESTS / "attack/test_bash.py").read_text()))

    assert f"{len(allowed)} calls are named" in DOCUMENT
    assert f"{len(WRONG)} kinds of wrong frames" in DOCUMENT
    assert f"{len(bash)} kinds, from substitution" in DOCUMENT
