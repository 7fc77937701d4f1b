"""What plays an episode: something that continues sequences of token ids by one turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


@dataclass(slots=True, eq=False, weakref_slot=True)
class Row:
    """The sequence of one live episode, which only grows. A policy may keep something beside it while it lives."""

    ids: list[int]
    """Everything so far: prompt, sampled turns and observations."""
    random: Random
    """All randomness of the episode's turns, so that its draws do not depend on the other rows of a batch."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One turn of one row."""

    token_ids: tuple[int, ...]
    """At least one; the last one ends the turn, unless the limit of new tokens cut it."""
    logprobs: tuple[float, ...]
    """The log-probability of each id in nats."""


class Policy(Protocol):
    """Plays turns."""

    @property
    def version(self) -> str:
        """Which weights play, as kept in the gym's record."""

    @property
    def temperature(self) -> float:
        """The temperature of sampling."""

    @property
    def max_new_tokens(self) -> int:
        """The ids that a turn has at most."""

    async def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        """Returns one turn for each row, and appends nothing. May be called again before it has returned."""
