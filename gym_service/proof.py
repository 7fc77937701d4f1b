"""The proof of a task: it is what it claims to be, shown by the real grader in real sandboxes.

Of a function: the gold repair passes, the untouched repository fails, an empty file fails, the operation that only
satisfies the public tests passes those and fails the hidden ones. Of a repository: the gold patch passes each time,
the untouched repository and an empty patch fail, some hidden test has a twin that nobody can tell by reading, no hidden
test lies anywhere in an episode's container, nor does a version history or a second copy of the package; with a test
command, there are enough twins, of every hidden check some, and each fails with the gold by what the sources do. Of a
completion: the gold completion passes, with each of two draws of what its check draws; what an episode starts with and
an empty file fail. Of all: grading again gives the same verdict.

A task that is not proven is not served. A proof holds for the task's hash, the grader's version and the image.
A function that is in two suites is proven once for both: the hash of its content counts.
"""

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gym_service.config import ServiceConfig
from gym_service.grading.changes import take_changes
from gym_service.grading.collection import read_tests
from gym_service.grading.command_twins import is_twin, run_as_it_is
from gym_service.grading.completion import BrokenTask
from gym_service.grading.grader import Grader, grader_version
from gym_service.grading.image_check import ImageCheck, check_image
from gym_service.grading.repository import value_tests
from gym_service.grading.rounds import MIN_GUESSES
from gym_service.sandbox.base import EnvironmentRefused, SandboxLost
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.pool import Pool
from gym_service.sandbox.surroundings import Surroundings
from gym_service.tasks.command import CommandInstance, CommandTask
from gym_service.tasks.completion import PATH, CompletionInstance, CompletionTask
from gym_service.tasks.environment import Environment
from gym_service.tasks.model import FunctionTask, instantiate
from gym_service.tasks.operations import apply_operation
from gym_service.tasks.repository import RepositoryInstance, RepositoryTask
from gym_service.tasks.suites import Instance, Task, environment_of
from gym_service.values import Submission, Verdict, VerdictStatus

_FUNCTION_SEEDS = ("proof/0", "proof/1")
_REPOSITORY_SEEDS = ("proof/0", "proof/1", "proof/2")
_SANDBOXES = 4


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of one task."""

    task: Task
    faults: tuple[str, ...]
    """What does not hold; empty when the task is proven."""
    notes: tuple[str, ...] = ()
    """What is worth knowing of its image."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """Where tasks are proven."""

    grader: Grader
    pool: Pool
    image_digest: str


@asynccontextmanager
async def open_grounds(engine: DockerEngine) -> AsyncIterator[Grounds]:
    """Has sandboxes of the engine ready for the length of a block."""
    limits = ServiceConfig().limits
    pool = Pool(engine.start, limits, size=_SANDBOXES, reuse=True, elsewhere=Surroundings(engine))
    pool.open()
    try:
        yield Grounds(Grader(pool, b"proof", _SANDBOXES), pool, engine.facts.image_digest)
    finally:
        await pool.close()


class ProofBook:
    """The proofs that were found on this machine, in a file."""

    def __init__(
        self, path: Path, image_digest: str, image_of: Callable[[Environment], str] | None = None
    ) -> None:
        """Reads the file; one that is no proof book counts as empty.

        `image_of` gives the digest of the image of a task's environment, `image_digest` is the gym's own.
        """
        self._path = path
        self._image_digest = image_digest
        self._image_of = image_of
        self._known = self._read()

    def holds(self, task: Task) -> bool:
        """Whether the task is proven as it is, with this grader and this image."""
        conditions = self._conditions(task)
        return bool(conditions["image"]) and self._known.get(_key(task)) == conditions

    def add(self, proofs: Sequence[Proof]) -> None:
        """Keeps what was found: proofs are written down, and a task that does not hold any more is struck out."""
        self._known = self._read()  # Another command may have proven something meanwhile.
        for proof in proofs:
            self._known.pop(_key(proof.task), None)
            if not proof.faults:
                self._known[_key(proof.task)] = self._conditions(proof.task)
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self._known, indent=1, sort_keys=True))
        temporary.replace(self._path)

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def _conditions(self, task: Task) -> Mapping[str, str]:
        name = task.task_id
        if isinstance(task, FunctionTask):
            name = name.removeprefix(f"{task.suite}/")
        environment, image = environment_of(task), self._image_digest
        if environment.image:
            image = self._image_of(environment) if self._image_of else ""
        return {"task": name, "grader": grader_version(task), "image": image}


def _key(task: Task) -> str:
    return task.content_sha256 if isinstance(task, FunctionTask) else task.sha256


async def prove(task: Task, grounds: Grounds) -> Proof:
    """Proves one task. Raises SandboxLost."""
    notes: tuple[str, ...] = ()
    if isinstance(task, FunctionTask):
        claims = await _function_claims(task, grounds.grader)
    elif isinstance(task, CompletionTask):
        claims = await _completion_claims(task, grounds.grader)
    else:
        try:
            found = await _look_inside(task, grounds.pool)
        except EnvironmentRefused as error:
            return Proof(task, (str(error),))
        if found.faults and task.environment.python:
            return Proof(task, found.faults, found.notes)  # Without its interpreter nothing can be graded.
        if isinstance(task, CommandTask):
            claims, notes = await _command_claims(task, found, grounds), found.notes
        else:
            claims, notes = await _repository_claims(task, found, grounds), found.notes
    return Proof(task, tuple(dict.fromkeys(fault for fault, holds in claims if not holds)), notes)


async def prove_all(tasks: Sequence[Task], grounds: Grounds) -> list[Proof]:
    """Proves tasks, a few at a time. Raises SandboxLost."""
    places = asyncio.Semaphore(_SANDBOXES)

    async def prove_one(task: Task) -> Proof:
        async with places:
            return await prove(task, grounds)

    return await asyncio.gather(*map(prove_one, tasks))


def table(proofs: Sequence[Proof]) -> str:
    """The outcome for a reader, a line for each task."""
    width = max([len(proof.task.task_id) for proof in proofs], default=0)
    lines = [f"{'task':{width}}  {'split':10}  {'tests':>5}  {'twins':>5}  proof"]
    for proof in proofs:
        task = proof.task
        tests = twins = ""
        if isinstance(task, CompletionTask):
            tests = str(task.test_count)
        elif isinstance(task, RepositoryTask):
            tests = str(len(task.fail_to_pass) + len(task.pass_to_pass))
            twins = str(len(task.twins)) if task.is_twinned else "none"
        elif isinstance(task, CommandTask):
            tests = str(len(task.test_files))
            twins = str(sum(map(len, task.twins.values())))
        found = "; ".join(proof.faults) or f"proven{''.join(f' ({note})' for note in proof.notes)}"
        lines.append(f"{task.task_id:{width}}  {task.split:10}  {tests:>5}  {twins:>5}  {found}")
    proven = sum(not proof.faults for proof in proofs)
    return "\n".join([*lines, f"{proven} of {len(proofs)} tasks are proven"])


async def _function_claims(task: FunctionTask, grader: Grader) -> list[tuple[str, bool]]:
    claims: list[tuple[str, bool]] = []
    for seed in _FUNCTION_SEEDS:
        instance = instantiate(task, seed)
        path = instance.path
        repaired, faulty = instance.gold_files[path], instance.files[path]
        hacked = apply_operation("hardcode_tests", faulty, instance.public_cases) or ""
        gold, untouched, empty, hack, again = [
            await _grade(grader, instance, Submission({path: source.encode()}), seed)
            for source in (repaired, faulty, "", hacked, repaired)
        ]
        claims += [
            ("the gold repair does not pass", gold.status is VerdictStatus.RESOLVED and _public_all(gold)),
            ("the untouched repository passes", untouched.status is VerdictStatus.UNRESOLVED),
            ("the public tests pass untouched", not _public_all(untouched)),
            ("an empty file passes", empty.status is VerdictStatus.UNRESOLVED),
            ("hardcode_tests fails the public tests", _public_all(hack)),
            ("hardcode_tests passes the hidden tests", hack.status is VerdictStatus.UNRESOLVED),
            ("grading again gives another verdict", again == gold),
        ]
    return claims


async def _completion_claims(task: CompletionTask, grader: Grader) -> list[tuple[str, bool]]:
    instance, gold = CompletionInstance(task), task.complete(task.gold)
    try:
        golds = [await grader.try_out(instance, gold, seed) for seed in _FUNCTION_SEEDS]
        again = await grader.try_out(instance, gold, _FUNCTION_SEEDS[0])
        stub = await grader.try_out(instance, task.complete(task.stub), _FUNCTION_SEEDS[0])
        empty = await grader.try_out(instance, Submission({PATH: b""}), _FUNCTION_SEEDS[0])
    except BrokenTask as error:
        return [(str(error), False)]
    return [
        *((f"the gold completion does not pass: {each.reason}", _resolved(each)) for each in golds),
        ("what an episode starts with passes", not _resolved(stub)),
        ("an empty file passes", empty.status is VerdictStatus.UNRESOLVED),
        ("grading again gives another verdict", again == golds[0]),
    ]


async def _repository_claims(
    task: RepositoryTask, found: ImageCheck, grounds: Grounds
) -> list[tuple[str, bool]]:
    return [
        *await _tree_claims(RepositoryInstance(task), found, grounds),
        ("no hidden test says what a value is: their twins can be told by reading", bool(value_tests(task))),
    ]


async def _command_claims(task: CommandTask, found: ImageCheck, grounds: Grounds) -> list[tuple[str, bool]]:
    lend = partial(grounds.pool.lend, task.environment)
    claims = await _tree_claims(CommandInstance(task), found, grounds)
    for path in task.fail_to_pass:
        usual = await run_as_it_is(lend, task, path)
        claims.append((f"{path} has no twin", bool(task.twins[path])))
        seen = [is_twin(lend, task, path, each, usual) for each in task.twins[path]]
        by_sources = all(await asyncio.gather(*seen))
        claims.append((f"a twin of {path} does not fail with the gold by what the sources do", by_sources))
    enough = sum(map(len, task.twins.values())) >= MIN_GUESSES
    return [*claims, (f"there are fewer than {MIN_GUESSES} twins of hidden checks", enough)]


async def _tree_claims(
    instance: RepositoryInstance | CommandInstance, found: ImageCheck, grounds: Grounds
) -> list[tuple[str, bool]]:
    """What holds of a repository in any language."""
    task, grader = instance.task, grounds.grader
    gold = Submission(dict(task.gold))
    golds = [await _grade(grader, instance, gold, seed) for seed in _REPOSITORY_SEEDS]
    again = await _grade(grader, instance, gold, _REPOSITORY_SEEDS[0])
    empty = await _grade(grader, instance, Submission(), _REPOSITORY_SEEDS[0])
    untouched = await _left_behind(task, {}, grounds.pool)
    repaired = await _left_behind(task, task.gold, grounds.pool)
    return [
        *((f"the gold patch does not pass: {each.reason}", _resolved(each)) for each in golds),
        ("grading again gives another verdict", again == golds[0]),
        ("an empty patch passes", empty.status is VerdictStatus.UNRESOLVED),
        ("an empty patch passes a hidden test", empty.hidden is not None and empty.hidden.passed == 0),
        ("an empty patch fails public tests", _public_all(empty)),
        ("the untouched repository is not an empty patch", untouched == Submission()),
        ("the repaired repository is not the gold patch", repaired == gold),
        *((line, False) for line in found.faults),
    ]


def _markers(task: RepositoryTask) -> list[bytes]:
    """The texts of the hidden tests."""
    markers = []
    for name in task.hidden_functions:
        path, _, function = name.partition("::")
        source = task.test_files[path].decode()
        node = read_tests(source).tests[function.replace("::", ".")]
        markers.append((ast.get_source_segment(source, node) or "").encode())
    return markers


async def _look_inside(task: RepositoryTask | CommandTask, pool: Pool) -> ImageCheck:
    """Says what is wrong with a container in which an episode starts."""
    async with pool.lend(task.environment) as sandbox:
        await asyncio.gather(*(sandbox.write_file(path, content) for path, content in task.base.items()))
        if isinstance(task, CommandTask):
            texts = [task.test_files[path].strip() for path in task.fail_to_pass]
            program = task.test_command[0]
            return await check_image(sandbox, task.environment, texts, in_each="", program=program)
        packages = sorted(name.rpartition("/")[2].removesuffix(".py") for name in task.source_names)
        return await check_image(sandbox, task.environment, _markers(task), packages=packages)


async def _left_behind(
    task: RepositoryTask | CommandTask, changed: Mapping[str, bytes], pool: Pool
) -> Submission:
    """Gives what an episode that changes these files leaves behind."""
    async with pool.lend(task.environment) as sandbox:
        tree = {**task.base, **changed}
        await asyncio.gather(*(sandbox.write_file(path, content) for path, content in tree.items()))
        return await take_changes(sandbox, task)


async def _grade(grader: Grader, instance: Instance, submission: Submission, seed: str) -> Verdict:
    verdict = await grader.grade(instance, submission, seed)
    if verdict.status is VerdictStatus.INFRASTRUCTURE_ERROR:
        raise SandboxLost(f"{instance.task.task_id}: {verdict.reason}")
    return verdict


def _resolved(verdict: Verdict) -> bool:
    return verdict.status is VerdictStatus.RESOLVED


def _public_all(verdict: Verdict) -> bool:
    return verdict.public is not None and verdict.public.passed == verdict.public.total
