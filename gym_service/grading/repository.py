"""Repository-level grading: the task's own tests run over the submission, and the pattern of passes is the secret.

Exit codes, reports and anything else that a process says about itself can be forged from inside it, so what is asked
is something that code cannot know. Each grading renders the test files anew (`rendering`): no comments, random names,
and of the tests that can be turned a random half as *twins*, which have to fail. A second round in another sandbox has
the complementary half. Code that makes every assertion hold, every report say "passed", or that writes the records
itself lets a test and its twin both pass, which is a contradiction: TAMPER_SUSPECTED. In the second round the tests
that need no pytest run as a plain script, so that code which looks for pytest is seen without it. Where few tests are
hidden, they alone run in further rounds.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from gym_service.grading.bytecode import Bytecode
from gym_service.grading.collection import test_functions
from gym_service.grading.outcomes import parse_outcomes
from gym_service.grading.rendering import render, value_claims
from gym_service.grading.rounds import MIN_GUESSES, Round, Run, grade_rounds, graded_tree, refuse
from gym_service.sandbox.base import Completed, FileRefused, Lend, RunChecks, RunTests
from gym_service.tasks.hiding import remove_tests, written_tests
from gym_service.tasks.repository import RepositoryTask, function_of
from gym_service.values import Submission, Verdict

GRADER_VERSION = "repository-3"
SECONDS_PER_RUN = 60.0
SECONDS_PER_TEST = 10.0


def draw_rounds(task: RepositoryTask, rng: random.Random) -> list[Round]:
    """Draws which tests are turned in which round. Tests without a twin run as they are in the first two.

    Whoever forges outcomes can leave the public tests alone and guess at the hidden ones that fail; so these alone run
    again, each time turned or not, until there are enough guesses to make. The second round is no guess, being the
    opposite of the first, which is known from it by the pytest in the process. Nor is a test that gives itself away,
    where there are others. Nor, for code that forges the deciding claim alone, is a test that is turned elsewhere: one
    time in four, where it can be.
    """
    functions = sorted({function_of(each) for each in (*task.fail_to_pass, *task.pass_to_pass)})
    able = frozenset(task.plain)
    first = {name for name in functions if name in task.twins and rng.random() < 0.5}
    second = {name for name in functions if name in task.twins and name not in first}
    drawn = [(functions, first, frozenset[str]()), (functions, second, able)]
    guessed = [name for name in task.hidden_functions if name in task.twins]
    hard = float(len(value_tests(task)) or len(guessed))
    if any(len(task.twins[name]) > 1 for name in guessed):
        hard *= 3 / 4
    while guessed and (len(drawn) - 1) * hard < MIN_GUESSES:
        drawn.append((guessed, {name for name in guessed if rng.random() < 0.5}, able))
    places = {name: _by_turns(each, rng) for name, each in task.twins.items()}
    return [
        Round(
            {name: next(places[name]) if name in turned else None for name in names},
            plain & set(names),
        )
        for names, turned, plain in drawn
    ]


def _by_turns(places: Sequence[int], rng: random.Random) -> Iterator[int]:
    """Gives the first place, which decides, and another one, by turns.

    Code that forges the deciding claim alone is convicted by the one, code that sees by a rule which value is right
    there by the other.
    """
    decides = rng.random() < 0.5
    while True:
        yield places[0] if decides else rng.choice(places[1:] or places)
        decides = not decides


def value_tests(task: RepositoryTask) -> list[str]:
    """Names the hidden test functions whose twin only differs in a value: nothing about it tells that it is one."""
    found = []
    for function in task.hidden_functions:
        path, _, name = function.partition("::")
        claims = value_claims(task.test_files[path].decode())
        if function in task.twins and name.replace("::", ".") in claims:
            found.append(function)
    return found


async def grade(
    lend: Lend, task: RepositoryTask, submission: Submission, rng: random.Random, bytecode: Bytecode
) -> Verdict:
    """Grades a submission, each round in a sandbox of `lend` that is fresh and its own. Raises SandboxLost."""
    try:
        if submission.refusal:
            raise FileRefused(submission.refusal)
        tree = graded_tree(task, submission)
        tree |= await bytecode.of(lend, task, tree)
        drawn = await asyncio.to_thread(draw_rounds, task, rng)  # It reads test files.
        rounds = [(each, random.Random(rng.getrandbits(64))) for each in drawn]
        runs = [partial(run_round, lend, task, tree, each, own_rng) for each, own_rng in rounds]
        return await grade_rounds(task, submission, runs)
    except FileRefused as error:
        return refuse(task, submission, error)


async def run_round(
    lend: Lend,
    task: RepositoryTask,
    tree: Mapping[str, bytes],
    drawn: Round,
    rng: random.Random,
    seconds_each: float = SECONDS_PER_TEST,
) -> Run:
    """Runs one round in a sandbox of its own. Raises SandboxLost, FileRefused."""
    # In a thread: a long file takes a while, and others wait for the loop.
    plan = await asyncio.to_thread(_plan_round, task, drawn, rng, seconds_each)
    files = {**tree, **plan.files}
    async with lend() as sandbox:
        await asyncio.gather(*(sandbox.write_file(path, content) for path, content in files.items()))
        runs = []
        for job in plan.jobs:
            runs.append(await sandbox.run(job, SECONDS_PER_RUN))
            if runs[-1].timed_out or runs[-1].out_of_memory:
                break
    return _read_runs(drawn, plan, runs)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one round comes to."""

    files: Mapping[str, bytes]
    """The rendered test files."""
    names: Mapping[str, str]
    """The test functions as the task knows them, by the ids that they have here."""
    jobs: Sequence[RunTests | RunChecks]


def _plan_round(task: RepositoryTask, drawn: Round, rng: random.Random, seconds_each: float) -> _Plan:
    jobs: list[RunTests | RunChecks] = []
    names: dict[str, str] = {}
    files = dict(task.test_data)
    by_name: list[str] = []
    with_pytest: list[str] = []
    for path, source in sorted(task.test_files.items()):
        for plain in (True, False):
            chosen = {
                function.partition("::")[2].replace("::", "."): role
                for function, role in drawn.roles.items()
                if function.startswith(f"{path}::") and (function in drawn.plain) is plain
            }
            if not chosen:
                continue
            rendered = render(with_only(source, frozenset(chosen)), chosen, rng, without_pytest=plain)
            # In the folder where the test file was, for the data beside it and for relative imports.
            stem = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=10))
            new_path = f"{path.rpartition('/')[0]}/test_{stem}.py".lstrip("/")
            files[new_path] = rendered.source.encode()
            for new, stored in rendered.names.items():
                function = f"{new_path}::{new.replace('.', '::')}"
                names[function] = f"{path}::{stored.replace('.', '::')}"
                (by_name if plain else with_pytest).append(function)
    if by_name:
        jobs.append(RunChecks(tuple(by_name), task.roots, seconds_each))
    if with_pytest:
        paths = tuple(dict.fromkeys(function.partition("::")[0] for function in with_pytest))
        jobs.append(RunTests(paths, task.roots, tuple(with_pytest), seconds_each))
    return _Plan(files, names, jobs)


@lru_cache(maxsize=512)
def with_only(source: bytes, functions: frozenset[str]) -> str:
    """A test file without its other tests: rendering takes time by the length of the file."""
    text = source.decode()
    written = written_tests(text)
    inherited = {name.rpartition(".")[2] for name in functions - written}
    others = (set(test_functions(text)) & written) - functions
    try:
        return remove_tests(text, {name for name in others if name.rpartition(".")[2] not in inherited})
    except ValueError:
        return text


def _read_runs(drawn: Round, plan: _Plan, runs: Sequence[Completed]) -> Run:
    reported: dict[str, str] = {}
    anomalies: list[str] = []
    complete = len(runs) == len(plan.jobs)
    for done in runs:
        outcomes = parse_outcomes(done.output, truncated=done.output_truncated)
        anomalies += outcomes.anomalies
        complete = complete and outcomes.ended
        for test_id, outcome in outcomes.by_id.items():
            function = function_of(test_id)
            stored = plan.names.get(function, "") + test_id[len(function) :]
            if function not in plan.names or stored in reported:
                anomalies.append(f"a test that does not run there: {test_id[:200]}")
            else:
                reported[stored] = outcome
    return Run(
        roles=drawn.roles,
        outcomes=reported,
        anomalies=tuple(anomalies),
        complete=complete,
        timed_out=any(done.timed_out for done in runs),
        out_of_memory=any(done.out_of_memory for done in runs),
    )
