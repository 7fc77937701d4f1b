"""Which variants of a check are twins: the gold fails by them, and what comes out depends on the sources.

A variant that fails before the sources have any say, such as one with an error of syntax or another module's name,
would be no riddle for code that forges exit statuses. So a twin fails otherwise than a file that cannot be read as
a program, if a check can at all; and what it prints, or how it ends, differs between the gold and the base tree.

Nor may it turn a claim that holds at the start already: code that forges only what it cannot do would get that right.
Such a twin complains in the base tree of the same as with the gold.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gym_service.grading.command import fails_by_itself, run_check
from gym_service.grading.rounds import graded_tree
from gym_service.grading.value_twins import value_twins
from gym_service.sandbox.base import Completed, Lend
from gym_service.tasks.command import CommandTask
from gym_service.values import Submission

_MOST_TWINS = 12
"""Of one check: enough for other ones in each pair of rounds, even where it is the only check."""
_MOST_TRIES = 200
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
    usual = await run_as_it_is(lend, task, path)
    variants = [*given, *(each.encode() for each in islice(value_twins(check.decode(), rng), _MOST_TRIES))]
    found: list[bytes] = []
    for first in range(0, len(variants), _AT_ONCE):
        if first >= len(given) and len(found) >= _MOST_TWINS:
            break
        some = variants[first : first + _AT_ONCE]
        are = await asyncio.gather(*(is_twin(lend, task, path, each, usual) for each in some))
        found += [each for each, is_one in zip(some, are, strict=True) if is_one]
    return tuple(dict.fromkeys(found[: max(_MOST_TWINS, len(given))]))


@dataclass(frozen=True, slots=True)
class Usual:
    """What a check does as it is."""

    at_start: frozenset[bytes]
    """The lines that it prints in the base tree."""
    with_gold: frozenset[bytes]
    no_program: int | None
    """The exit status of what is no program, unless that of a check that fails honestly is the same."""


async def run_as_it_is(lend: Lend, task: CommandTask, path: str) -> Usual:
    """Runs a check that is no twin. Raises SandboxLost, FileRefused."""
    base, gold = _trees(task)
    check = task.test_files[path]
    honest, passing, broken = await asyncio.gather(
        _run(lend, task, base, path, check),
        _run(lend, task, gold, path, check),
        _run(lend, task, gold, path, _NO_PROGRAM + check),
    )
    alike = honest.exit_status == broken.exit_status
    return Usual(
        frozenset(honest.output.splitlines()),
        frozenset(passing.output.splitlines()),
        None if alike else broken.exit_status,
    )


async def is_twin(lend: Lend, task: CommandTask, path: str, variant: bytes, usual: Usual) -> bool:
    """Whether a variant of a check fails with the gold, and by what the sources do. Raises SandboxLost, FileRefused."""
    base, gold = _trees(task)
    first = await _run(lend, task, gold, path, variant)
    if not fails_by_itself(first) or first.exit_status == usual.no_program:
        return False
    again, at_start = await asyncio.gather(
        _run(lend, task, gold, path, variant), _run(lend, task, base, path, variant)
    )
    lines, more, others = (each.output.splitlines() for each in (first, again, at_start))
    # Times and addresses differ between any two runs.
    steady = set(lines) & set(more)
    complaint = steady - usual.with_gold
    if len(complaint & set(others) - usual.at_start) > len(complaint - set(others)):
        return False
    if first.exit_status != at_start.exit_status:
        return True
    return len(lines) != len(others) or not steady <= set(others)


def _trees(task: CommandTask) -> tuple[dict[str, bytes], dict[str, bytes]]:
    return graded_tree(task, Submission()), graded_tree(task, Submission(dict(task.gold)))


async def _run(
    lend: Lend, task: CommandTask, tree: Mapping[str, bytes], path: str, content: bytes
) -> Completed:
    # Under the same name each time: it is in what is printed.
    return await run_check(lend, task, tree, path, content, random.Random(path))
