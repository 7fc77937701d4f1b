"""Dashboard and report of a run while it is on, so that it can be looked at.

They are drawn in a thread: that costs a second of one core, and the run should not wait for it. What is drawn is a
copy of the history as it was, and nothing of it enters the numbers.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from trainer_client.metrics import Evaluation, History, Row

EVERY_SECONDS = 30.0


class LiveReport:
    """Rewrites the report with every evaluation, and else with the first row after so many seconds."""

    def __init__(
        self,
        write: Callable[[History], object],
        on_error: Callable[[str], None],
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """Is given what writes the report of a history, and what is told when that failed."""
        self._write = write
        self._on_error = on_error
        self._every_seconds = every_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="report")
        self._drawing: Future[object] | None = None
        self._begun = float("-inf")

    def update(self, row: Row, history: History) -> None:
        """Begins to write the report when it is time to, unless the last one is still being written."""
        due = isinstance(row, Evaluation) or monotonic() - self._begun >= self._every_seconds
        if not due or (self._drawing and not self._drawing.done()):
            return
        self._complain()
        self._begun = monotonic()
        rows = History(list(history.steps), list(history.evaluations), history.cold_start)
        self._drawing = self._thread.submit(self._write, rows)

    def close(self) -> None:
        """Waits for what is being written: nothing else draws at the same time."""
        self._thread.shutdown()
        self._complain()

    def _complain(self) -> None:
        error = self._drawing.exception() if self._drawing else None
        if error:
            # The run is worth more than its picture.
            self._on_error(f"the report could not be written: {error}")
        self._drawing = None
