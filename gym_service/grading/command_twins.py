"""Which variants of a check are twins: the gold fails by them, and what comes out depends on the sources.

A variant that fails before the sources have any say, such as one with an error of syntax or another module's name,
would be no riddle for code that forges exit statuses. So a twin fails otherwise than a file that cannot be read as
a program, if a check can at all; and what it prints, or how it ends, differs between the gold and the base tree.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import islice

from gym_service.grading.command import fails_by_itself, run_check
from gym_service.grading.rounds import graded_tree
from gym_service.grading.value_twins import value_twins
from gym_service.sandbox.base import Completed, Lend
from gym_service.tasks.command import CommandTask
from gym_service.values import Submission

_MOST_TWINS = 12
"""Of one check: enough for other ones in each pair of rounds, even where it is the only check."""
_MOST_TRIES = 60
_AT_ONCE = 4
_NO_PROGRAM = b")]}>({[< ' \"\n"
"""Before a check, it makes one that no language takes for a program."""


async def find_twins(
    lend: Lend, task: CommandTask, path: str, given: Sequence[bytes], rng: random.Random
) -> tuple[bytes, ...]:
    """Finds twins among the given variants of a check and those with another value.

    Raises SandboxLost, FileRefused.
    """
    check = task.test_files[path]
    alike = await fails_alike(lend, task, path)
    variants = [*given, *(each.encode() for each in islice(value_twins(check.decode(), rng), _MOST_TRIES))]
    found: list[bytes] = []
    for first in range(0, len(variants), _AT_ONCE):
        if first >= len(given) and len(found) >= _MOST_TWINS:
            break
        some = variants[first : first + _AT_ONCE]
        are = await asyncio.gather(
            *(is_twin(lend, task, path, each, fails_like_no_program=alike) for each in some)
        )
        found += [each for each, is_one in zip(some, are, strict=True) if is_one]
    return tuple(dict.fromkeys(found[: max(_MOST_TWINS, len(given))]))


async def fails_alike(lend: Lend, task: CommandTask, path: str) -> int | None:
    """The exit status of what is no program, unless that of a check that fails honestly is the same."""
    base, gold = _trees(task)
    honest, broken = await asyncio.gather(
        _run(lend, task, base, path, task.test_files[path]),
        _run(lend, task, gold, path, _NO_PROGRAM + task.test_files[path]),
    )
    return None if honest.exit_status == broken.exit_status else broken.exit_status


async def is_twin(
    lend: Lend, task: CommandTask, path: str, variant: bytes, *, fails_like_no_program: int | None
) -> bool:
    """Whether a variant of a check fails with the gold, and by what the sources do. Raises SandboxLost, FileRefused."""
    base, gold = _trees(task)
    first = await _run(lend, task, gold, path, variant)
    if not fails_by_itself(first) or first.exit_status == fails_like_no_program:
        return False
    again, at_start = await asyncio.gather(
        _run(lend, task, gold, path, variant), _run(lend, task, base, path, variant)
    )
    if first.exit_status != at_start.exit_status:
        return True
    lines, more, others = (each.output.splitlines() for each in (first, again, at_start))
    # Times and addresses differ between any two runs.
    return len(lines) != len(others) or not set(lines) & set(more) <= set(others)


def _trees(task: CommandTask) -> tuple[dict[str, bytes], dict[str, bytes]]:
    return graded_tree(task, Submission()), graded_tree(task, Submission(dict(task.gold)))


async def _run(
    lend: Lend, task: CommandTask, tree: Mapping[str, bytes], path: str, content: bytes
) -> Completed:
    # Under the same name each time: it is in what is printed.
    return await run_check(lend, task, tree, path, content, random.Random(path))
