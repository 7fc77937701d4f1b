"""Grading by test commands: one process for each check, and which of them have to fail is the secret.

The exit status of a process is made by the process, so it proves nothing by itself. Each check runs alone in a sandbox
of its own, under a random name, half of the times as it is and half as a *twin* in which one value is another; which
comes first is drawn. Code that forges exit status 0, or makes every claim hold, lets a check and its twin both pass,
which is a contradiction: TAMPER_SUSPECTED. No process sees another one's file, nor anything that another one left
behind. Every pair of rounds has other twins as far as there are, so that code which guesses by what a file holds has to
guess anew.
"""

import asyncio
import random
import re
import string
from collections.abc import Mapping
from functools import partial

from gym_service.grading.rounds import MIN_GUESSES, Round, Run, grade_rounds, graded_tree, refuse
from gym_service.sandbox.base import Completed, Execute, FileRefused, Lend
from gym_service.tasks.command import CommandTask
from gym_service.values import Submission, Verdict

GRADER_VERSION = "command-1"
SECONDS_PER_CHECK = 60.0
_NAME_CHARACTERS = 8
_CANNOT_RUN = (125, 126, 127)
"""What is said of a program that is not found or cannot be executed."""


def draw_rounds(task: CommandTask, rng: random.Random) -> list[Round]:
    """Draws which checks are turned in which round: rounds come in pairs, each the opposite of the other.

    There are so many that all hidden checks together are turned as often as there have to be guesses. Public checks run
    as they are, once.
    """
    hidden = sorted(task.fail_to_pass)
    orders = {path: rng.sample(range(len(task.twins[path])), len(task.twins[path])) for path in hidden}
    rounds = []
    for number in range(-(-MIN_GUESSES // len(hidden))):
        turned = {path: orders[path][number % len(orders[path])] for path in hidden}
        first = {path for path in hidden if rng.random() < 0.5}
        rounds += [
            Round({path: turned[path] if (path in first) is is_first else None for path in hidden})
            for is_first in (True, False)
        ]
    rounds[0] = Round({**dict.fromkeys(sorted(task.pass_to_pass)), **rounds[0].roles})
    return rounds


async def grade(lend: Lend, task: CommandTask, submission: Submission, rng: random.Random) -> Verdict:
    """Grades a submission, each check in a sandbox of `lend` that is fresh and its own. Raises SandboxLost."""
    try:
        if submission.refusal:
            raise FileRefused(submission.refusal)
        tree = graded_tree(task, submission)
        rounds = [(each, random.Random(rng.getrandbits(64))) for each in draw_rounds(task, rng)]
        return await grade_rounds(
            task,
            submission,
            [partial(_run_round, lend, task, tree, each, own) for each, own in rounds],
            counts_parts=True,
        )
    except FileRefused as error:
        return refuse(task, submission, error)


async def run_check(
    lend: Lend, task: CommandTask, tree: Mapping[str, bytes], path: str, content: bytes, rng: random.Random
) -> Completed:
    """Runs one check over a tree that has none. Raises SandboxLost, FileRefused."""
    place = random_name(path, rng)
    async with lend() as sandbox:
        files = {**tree, place: content}
        await asyncio.gather(*(sandbox.write_file(path, content) for path, content in files.items()))
        return await sandbox.run(Execute(task.command_for(place)), SECONDS_PER_CHECK)


def passes(done: Completed) -> bool:
    """Whether a check passed."""
    return done.exit_status == 0 and not (done.timed_out or done.out_of_memory or done.output_truncated)


def fails_by_itself(done: Completed) -> bool:
    """Whether a check came to its end and found something wrong."""
    return done.exit_status > 0 and done.exit_status not in _CANNOT_RUN and not done.timed_out


def how_it_ended(done: Completed) -> str:
    """What an author is told about a run."""
    if done.timed_out:
        return f"it takes more than {SECONDS_PER_CHECK:g} s"
    if done.out_of_memory:
        return "it is out of memory"
    if done.output_truncated:
        return "it prints more than is read"
    if done.exit_status < 0:
        return f"it is killed by the signal {-done.exit_status}"
    if done.exit_status in _CANNOT_RUN:
        return (
            f"its exit status is {done.exit_status}: there is no such program in the image, or it cannot run"
        )
    return f"its exit status is {done.exit_status}"


def random_name(path: str, rng: random.Random) -> str:
    """Another name for a test file in the same folder; what tells tools that it is a test stays."""
    folder, slash, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    words = re.findall(r"[^\W_]+|[\W_]+", stem if dot else name)
    kept = {"test", "tests", "spec"}
    drawn = [
        "".join(rng.choices(string.ascii_lowercase, k=_NAME_CHARACTERS))
        if word.isalnum() and word.lower() not in kept
        else word
        for word in words
    ]
    return folder + slash + "".join(drawn) + (dot + extension if dot else "")


async def _run_round(
    lend: Lend, task: CommandTask, tree: Mapping[str, bytes], drawn: Round, rng: random.Random
) -> Run:
    outcomes = {}
    timed_out = out_of_memory = False
    for path, role in drawn.roles.items():
        content = task.test_files[path] if role is None else task.twins[path][role]
        done = await run_check(lend, task, tree, path, content, rng)
        outcomes[path] = "passed" if passes(done) else "failed"
        timed_out, out_of_memory = done.timed_out, done.out_of_memory
        if timed_out or out_of_memory:
            break
    return Run(
        roles=drawn.roles,
        outcomes=outcomes,
        anomalies=(),
        complete=len(outcomes) == len(drawn.roles),
        timed_out=timed_out,
        out_of_memory=out_of_memory,
    )
