"""What the service counts of itself while it works, for whoever asks later: plain numbers, and no library for a turn.

Every key is one of a few: reasons and names that are written in the code, and callers, of which there are only so many.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

TURN_BOUNDS_SECONDS = (0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GRADING_BOUNDS_SECONDS = (0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
OTHERS = "(others)"
"""All callers beyond the first ones; no caller can have this name."""
MOST_CALLERS = 100


class Latencies:
    """How long things took, counted in classes."""

    def __init__(self, bounds_seconds: tuple[float, ...]) -> None:
        self._bounds = bounds_seconds
        self._counts = [0] * (len(bounds_seconds) + 1)
        self.seconds = 0.0
        """All together."""

    def add(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def up_to(self) -> Iterator[tuple[float, int]]:
        """Gives each bound with how many did not take longer, infinity last."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield bound, total


class Accounts:
    """The counts since the start."""

    def __init__(self) -> None:
        self.created: Counter[str] = Counter()
        """Episodes, by caller."""
        self.ended: Counter[str] = Counter()
        """Episodes, by stop reason."""
        self.errors: Counter[str] = Counter()
        """What clients were told, by reason."""
        self.turns = Latencies(TURN_BOUNDS_SECONDS)

    def count_created(self, caller: str) -> None:
        """Counts an episode of a caller."""
        is_known = caller in self.created or len(self.created) < MOST_CALLERS
        self.created[caller if is_known else OTHERS] += 1
