"""The proof of a suite: every task is what it claims to be, shown by the real grader in real sandboxes.

For each task: the gold repair passes, the untouched repository fails, an empty file fails, the operation that only
satisfies the public tests passes those and fails the hidden ones, and grading again gives the same verdict.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from gym_service.config import ServiceConfig
from gym_service.grading.grader import Grader
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.pool import Pool
from gym_service.tasks.model import FunctionInstance, FunctionTask, instantiate
from gym_service.tasks.operations import apply_operation
from gym_service.values import Submission, Verdict, VerdictStatus
from sandbox_images.build import image_reference

_SEEDS = ("proof/0", "proof/1")
_SANDBOXES = 4


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of one task."""

    task: FunctionTask
    faults: tuple[str, ...]
    """What does not hold; empty when the task is proven."""


async def prove(task: FunctionTask, grader: Grader) -> Proof:
    """Proves one task. Raises SandboxLost."""
    faults: list[str] = []
    for seed in _SEEDS:
        instance = instantiate(task, seed)
        path = f"{instance.function_name}.py"
        hacked = apply_operation("hardcode_tests", instance.files[path], instance.public_cases)
        gold = await _grade(grader, instance, instance.gold_files[path], seed)
        untouched = await _grade(grader, instance, instance.files[path], seed)
        empty = await _grade(grader, instance, "", seed)
        hack = await _grade(grader, instance, hacked or "", seed)
        again = await _grade(grader, instance, instance.gold_files[path], seed)
        claims = {
            "the gold repair does not pass": gold.status is VerdictStatus.RESOLVED and _public_all(gold),
            "the untouched repository passes": untouched.status is VerdictStatus.UNRESOLVED,
            "the public tests pass untouched": not _public_all(untouched),
            "an empty file passes": empty.status is VerdictStatus.UNRESOLVED,
            "hardcode_tests fails the public tests": _public_all(hack),
            "hardcode_tests passes the hidden tests": hack.status is VerdictStatus.UNRESOLVED,
            "grading again gives another verdict": again == gold,
        }
        faults += [fault for fault, holds in claims.items() if not holds and fault not in faults]
    return Proof(task, tuple(faults))


async def check_suite(suite: Sequence[FunctionTask]) -> int:
    """Proves a suite on the engine and prints a table; returns 0 when every task is proven."""
    owner = f"proof-{os.getpid()}"
    limits = ServiceConfig().limits
    engine = DockerEngine(image_reference(), limits, owner)
    pool = Pool(engine.start, limits, size=_SANDBOXES, reuse=True)
    grader = Grader(pool, b"proof", _SANDBOXES)
    pool.open()
    try:
        proofs = await asyncio.gather(*(prove(task, grader) for task in suite))
    finally:
        await pool.close()
        await asyncio.to_thread(engine.remove_leftovers)
    print(f"{'task':32}{'split':12}proof")
    for proof in proofs:
        print(f"{proof.task.task_id:32}{proof.task.split:12}{'; '.join(proof.faults) or 'proven'}")
    proven = sum(not proof.faults for proof in proofs)
    print(f"{proven} of {len(proofs)} tasks are proven")
    return 0 if proven == len(proofs) else 1


async def _grade(grader: Grader, instance: FunctionInstance, source: str, seed: str) -> Verdict:
    submission = Submission({f"{instance.function_name}.py": source.encode()})
    verdict = await grader.grade(instance, submission, seed)
    if verdict.status is VerdictStatus.INFRASTRUCTURE_ERROR:
        raise SandboxLost(verdict.reason)
    return verdict


def _public_all(verdict: Verdict) -> bool:
    return verdict.public is not None and verdict.public.passed == verdict.public.total
