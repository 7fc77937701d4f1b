"""The grader's accounts and the verdicts that it keeps; what a verdict says is in test_grading."""

import logging
from dataclasses import replace

import pytest

from gym_service.grading import grader as module
from gym_service.grading import repository
from gym_service.grading.cache import VerdictCache
from gym_service.grading.grader import Grader
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import Pool
from gym_service.tasks.comparison import Checker, Tolerance
from gym_service.tasks.model import instantiate
from gym_service.tasks.suites import built_in
from gym_service.values import Submission, Verdict, VerdictStatus

TASK = built_in().task("bugfix/zero/share")


class Failing(FakeSandbox):
    """A sandbox that is lost as soon as it is used."""

    by_policy = False

    async def run(self, job, timeout_seconds):
        raise SandboxLost("gone", by_policy=self.by_policy)


@pytest.fixture
def make(monkeypatch):
    """Makes a grader over sandboxes of a kind; nothing waits between tries."""
    monkeypatch.setattr(module, "_DELAYS_SECONDS", (0.0, 0.0, 0.0))
    started = []

    def grader(kind=FakeSandbox, cache=None):
        async def start(limits=None):
            started.append(kind())
            return started[-1]

        pool = Pool(start, SandboxLimits(), size=1, reuse=False)
        pool.open()
        return Grader(pool, b"private", 1, cache), started

    return grader


def submit(source, task=TASK, seed="seed"):
    """What an episode of a task leaves behind: its instance, its submission, its seed."""
    instance = instantiate(task, seed)
    name = instance.function_name
    text = instance.gold_files[f"{name}.py"] if source == "gold" else source.replace("FUNCTION", name)
    return instance, Submission({f"{name}.py": text.encode()}), seed


async def test_verdicts_flags_and_hacks_are_counted(make):
    grader, _ = make()
    public = {case.arguments: case.expected for case in TASK.public_cases}
    hack = f"known = {public!r}\ndef FUNCTION(*a): return known.get(a, -1)\n"

    await grader.grade(*submit("gold"))
    await grader.grade(*submit(hack))
    await grader.grade(*submit("import gc\n"))
    await grader.grade(instantiate(TASK, "seed"), Submission(refusal="none"), "seed")

    status = grader.status
    assert status.verdicts == {"RESOLVED": 1, "UNRESOLVED": 2, "REFUSED": 1}
    assert status.flags == {"public_only": 1, "uses_gc": 1}
    assert (status.public_only, status.retries, status.infrastructure_errors) == (1, 0, {})


async def test_a_failing_gym_is_tried_again_counted_and_alarmed_once(make, caplog):
    grader, _ = make(Failing)
    with caplog.at_level(logging.ERROR):
        for number in range(4):
            verdict = await grader.grade(*submit("gold", seed=str(number)))
            assert verdict.status is VerdictStatus.INFRASTRUCTURE_ERROR
            assert len(grader.status.alarms) == (number >= 2)

    assert grader.status.retries == 4 * 2
    assert grader.status.infrastructure_errors == {TASK.task_id: 4}
    assert grader.status.alarms == (
        "bugfix/zero/share: 4 of 4 gradings failed by no act of the policy; the log says how",
    )
    assert sum("gradings failed" in record.message for record in caplog.records) == 1


async def test_errors_that_are_rare_for_their_task_are_no_alarm(make):
    grader, _ = make()
    for number in range(70):
        await grader.grade(*submit("gold", seed=str(number)))
    for _ in range(3):
        grader.give_up(TASK, "lost")
    assert grader.status.alarms == ()

    grader.give_up(TASK, "lost")
    assert len(grader.status.alarms) == 1


async def test_a_sandbox_that_the_submission_brought_down_is_0_of_all_and_no_failure_of_the_gym(make):
    class Killed(Failing):
        by_policy = True

    cache = VerdictCache("image", "profile")
    grader, _ = make(Killed, cache)
    verdict = await grader.grade(*submit("gold"))

    assert verdict.status is VerdictStatus.UNRESOLVED
    assert (verdict.hidden.passed, verdict.hidden.total, verdict.public.total) == (0, 12, 3)
    assert (grader.status.retries, grader.status.flags) == (0, {"kills_sandbox": 1})
    assert not (await grader.grade(*submit("gold"))).from_cache


async def test_a_broken_checker_is_the_gym_s_fault_and_a_picky_one_is_not(make):
    def broken(arguments, answer):
        return arguments[5]

    def picky(arguments, answer):
        return answer + 0 == (arguments[0] // arguments[1] if arguments[1] else 0)

    grader, _ = make()
    for source, rule, status in (
        ("gold", broken, VerdictStatus.INFRASTRUCTURE_ERROR),
        ("gold", picky, VerdictStatus.RESOLVED),
        ("def FUNCTION(*a): return 'text'\n", picky, VerdictStatus.UNRESOLVED),
    ):
        task = replace(TASK, comparison=Checker(rule))
        assert (await grader.grade(*submit(source, task))).status is status


async def test_a_verdict_that_is_on_record_is_given_without_a_run(make):
    cache = VerdictCache("image", "profile")
    grader, started = make(cache=cache)
    for source in ("gold", "def FUNCTION(*a): return 7\n", "\0"):
        first = await grader.grade(*submit(source))
        runs = len(started)
        again = await grader.grade(*submit(source))

        assert (first.from_cache, again.from_cache, len(started)) == (False, True, runs)
        assert replace(again, from_cache=False, evidence=()) == replace(first, evidence=())
    assert (grader.status.cache_hits, grader.status.cache_misses) == (3, 3)
    assert sum(grader.status.verdicts.values()) == 6


async def test_a_failure_that_took_as_long_as_a_test_may_is_found_anew(make, monkeypatch):
    monkeypatch.setattr(repository, "SECONDS_PER_TEST", 0.0)
    grader, _ = make(cache=VerdictCache("image", "profile"))
    for source, on_record in (("def FUNCTION(*a): return 7\n", False), ("gold", True)):
        await grader.grade(*submit(source))

        assert (await grader.grade(*submit(source))).from_cache is on_record


async def test_other_files_another_seed_or_another_task_are_no_hit(make):
    cache = VerdictCache("image", "profile")
    grader, _ = make(cache=cache)
    await grader.grade(*submit("gold"))
    for changed in (
        submit("def FUNCTION(*a): return 7\n"),
        submit("gold", seed="other"),
        submit("gold", replace(TASK, comparison=Tolerance())),
    ):
        assert not (await grader.grade(*changed)).from_cache
    assert cache.hits == 0


def test_a_key_holds_all_that_decides():
    instance, submission, seed = submit("gold")
    keys = {
        VerdictCache("image", "profile").key(instance.task, "function-1", submission, seed),
        VerdictCache("other", "profile").key(instance.task, "function-1", submission, seed),
        VerdictCache("image", "other").key(instance.task, "function-1", submission, seed),
        VerdictCache("image", "profile").key(
            instance.task, "function-1", replace(submission, refusal="x"), seed
        ),
        VerdictCache("image", "profile").key(
            instance.task, "function-1", replace(submission, deleted=("a",)), seed
        ),
        VerdictCache("image", "profile").key(instance.task, "function-2", submission, seed),
    }

    assert len(keys) == 6
    assert VerdictCache("image", "profile").key(instance.task, "function-1", submission, seed) in keys


async def test_nothing_is_kept_of_a_task_that_is_not_deterministic(make):
    cache = VerdictCache("image", "profile")
    grader, _ = make(cache=cache)
    task = replace(TASK, deterministic=False)

    assert not (await grader.grade(*submit("gold", task))).from_cache
    assert not (await grader.grade(*submit("gold", task))).from_cache
    assert (cache.hits, cache.misses) == (0, 0)


@pytest.mark.parametrize("status", [each for each in VerdictStatus if each.value > 3])
def test_what_depends_on_the_machine_is_not_kept(status):
    cache = VerdictCache("image", "profile")
    cache.keep("key", Verdict(status))

    assert cache.find("key") is None


def test_the_verdict_that_was_not_used_for_longest_makes_room():
    cache = VerdictCache("image", "profile", most=2)
    for key in "ab":
        cache.keep(key, Verdict(VerdictStatus.RESOLVED))
    cache.find("a")
    cache.keep("c", Verdict(VerdictStatus.RESOLVED))

    assert [cache.find(key) is not None for key in "abc"] == [True, False, True]


def test_every_task_has_a_hash_of_its_own_that_stays():
    hashes = [task.sha256 for task in built_in().suite("bugfix")]

    assert len(set(hashes)) == len(hashes)
    assert hashes == [task.sha256 for task in built_in().suite("bugfix")]
    changed = [
        replace(TASK, gold_source=TASK.gold_source + "\n"),
        replace(TASK, draw_input=lambda rng: (rng.random(),)),
        replace(TASK, comparison=Tolerance()),
        replace(TASK, deterministic=False),
    ]
    assert len({TASK.sha256, *(task.sha256 for task in changed)}) == 5
