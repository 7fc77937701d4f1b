"""Grading many submissions side by side, each row written as soon as it is there."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from gym_service.evaluation.evaluator import Evaluator
from gym_service.evaluation.reading import Attempt
from gym_service.evaluation.rows import Conditions, Row, RowFile, row_of
from gym_service.evaluation.usage import new_usage

_BAR_CHARACTERS = 30
_DRAWN_SECONDS = 0.1
_TOLD_SECONDS = 15.0
"""How often a line is written where nobody looks on."""


async def grade_all(
    attempts: Sequence[Attempt],
    known: Mapping[tuple[str, int], Row],
    evaluator: Evaluator,
    file: RowFile,
    conditions: Conditions,
    at_once: int,
) -> list[Row]:
    """Grades what is not known yet; gives all rows in the order of the submissions. Raises OSError."""
    rows = dict(known)
    waiting = [attempt for attempt in attempts if attempt.key not in rows]
    progress = Progress(len(waiting))
    queue = iter(waiting)

    async def work(queue: Iterator[Attempt]) -> None:
        for attempt in queue:
            began, usage = time.monotonic(), new_usage()
            evaluated = await evaluator.evaluate(attempt.task, attempt.content)
            seconds = time.monotonic() - began
            row = rows[attempt.key] = row_of(attempt, evaluated, conditions, seconds, usage)
            file.append(row)
            progress.step()

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(work(queue))
    except ExceptionGroup as group:
        # A file that cannot be written fails for all of them alike.
        raise group.exceptions[0] from None
    return [rows[attempt.key] for attempt in attempts]


class Progress:
    """A bar with rate and remaining time on stderr; a line now and then where that is no terminal."""

    def __init__(self, of: int) -> None:
        self._of = of
        self._done = 0
        self._began = self._shown = time.monotonic()

    def step(self, count: int = 1) -> None:
        """Counts more that are done."""
        self._done += count
        now = time.monotonic()
        looked_at = sys.stderr.isatty()
        is_last = self._done == self._of
        if is_last or now - self._shown >= (_DRAWN_SECONDS if looked_at else _TOLD_SECONDS):
            self._shown = now
            line = progress_line(self._done, self._of, now - self._began)
            end = "\n" if is_last or not looked_at else ""
            start = "\r" if looked_at else ""
            print(f"{start}{line}", end=end, file=sys.stderr, flush=True)


def progress_line(done: int, of: int, seconds: float) -> str:
    """Says how far it is, how fast it goes and how long it still takes."""
    rate = done / max(seconds, 1e-9)
    left = round((of - done) / rate) if done else 0
    bar = "#" * (done * _BAR_CHARACTERS // max(of, 1))
    return f"[{bar:{_BAR_CHARACTERS}}] {done} of {of}  {rate:.1f}/s  {left // 60}:{left % 60:02d} left"
