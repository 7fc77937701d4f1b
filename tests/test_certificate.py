"""Verdicts are signed by what they are about."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.grading.certificate import Signer, check_content, signature, told
from gym_service.tasks.model import Case
from gym_service.tasks.suites import built_in
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus

SIGNER = Signer("sha256:image", "seccomp", b"private")
VERDICT = Verdict(
    VerdictStatus.UNRESOLVED,
    TestCount(5, 9),
    TestCount(3, 3),
    reason="some hidden test fails",
    submission_sha256="ab",
    flags=("calls_os_exit",),
    evidence=("input 5",),
)
TASK = built_in().task("bugfix/zero/share")


def sign(verdict=VERDICT, task_sha256="task", seed="seed", version="function-1", signer=SIGNER, image=""):
    return signer.sign(verdict, task_sha256, seed, version, image)


def content_of(message):
    """What a client computes content_sha256 from, with nothing of the service's."""
    counts = {
        name: {"passed": getattr(message, name).passed, "total": getattr(message, name).total}
        if message.HasField(name)
        else None
        for name in ("hidden", "public")
    }
    names = "reason", "submission_sha256", "task_sha256", "image_digest", "seccomp_sha256"
    return {
        "status": pb.VerdictStatus.Name(message.status),
        **counts,
        **{name: getattr(message, name) for name in (*names, "grader_version", "seed_sha256")},
        "flags": list(message.flags),
    }


def content_sha256_of(message):
    content = json.dumps(content_of(message), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def test_the_same_work_gets_the_same_certificate_whatever_the_evidence():
    assert sign() == sign(replace(VERDICT, evidence=()))


@pytest.mark.parametrize(
    "changes",
    [
        {"status": VerdictStatus.RESOLVED}, {"hidden": TestCount(6, 9)}, {"hidden": TestCount(5, 10)},
        {"public": None}, {"reason": "x"}, {"submission_sha256": "cd"}, {"flags": ()},
    ],
)  # fmt: skip
def test_each_part_of_a_verdict_is_signed(changes):
    other = sign(replace(VERDICT, **changes))

    assert other.content_sha256 != sign().content_sha256
    assert other.signature != sign().signature


@pytest.mark.parametrize(
    "certificate",
    [
        sign(task_sha256="x"), sign(seed="x"), sign(version="x"),
        sign(signer=Signer("x", "seccomp", b"private")), sign(signer=Signer("sha256:image", "x", b"private")),
    ],
)  # fmt: skip
def test_what_a_verdict_is_about_is_signed(certificate):
    assert certificate.content_sha256 != sign().content_sha256


def test_another_gym_names_seeds_and_signs_otherwise():
    other = sign(signer=Signer("sha256:image", "seccomp", b"another"))

    assert other.seed_sha256 != sign().seed_sha256
    assert signature(b"another", sign().content_sha256) != sign().signature
    assert signature(b"private", sign().content_sha256) == sign().signature


def test_the_fields_of_a_message_are_checked_without_a_key():
    fields = {**told(VERDICT, sign()), "content_sha256": sign().content_sha256, "signature": "x"}

    assert check_content(fields)
    assert not check_content({**fields, "status": "VERDICT_STATUS_RESOLVED"})
    assert not check_content({**fields, "more": 1})
    assert not check_content({})


def test_a_reason_that_is_no_unicode_is_signed_too():
    assert sign(replace(VERDICT, reason="\udcff.py: binary")).signature


def test_a_submission_whose_names_are_no_unicode_has_a_hash():
    names = Submission({"a\udcff.py": b""}, deleted=("\ud800",))

    assert names.sha256 != Submission({"a\udcfe.py": b""}, deleted=("\ud800",)).sha256


@pytest.mark.parametrize(
    "changes",
    [
        {"gold_source": "x"}, {"split": "test"}, {"public_cases": (Case((1,), 1),)},
        {"public_cases": (Case((1,), 1.0),)}, {"public_cases": (Case((True,), 1),)},
        {"draw_input": lambda rng: (rng.random(),)},
    ],
)  # fmt: skip
def test_each_part_of_a_task_is_in_its_hash(changes):
    cases = {"public_cases": (Case((1,), True),)} if "public_cases" in changes else {}
    before = replace(TASK, **cases)

    assert replace(before, **changes).sha256 != before.sha256


def test_no_two_tasks_share_a_hash():
    hashes = [task.sha256 for suite in built_in().suites.values() for task in suite]

    assert len(set(hashes)) == len(hashes)


def test_a_task_has_the_same_hash_in_every_process():
    command = (
        f"from gym_service.tasks.suites import built_in; print(built_in().task({TASK.task_id!r}).sha256)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "5"}

    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.strip() == TASK.sha256
