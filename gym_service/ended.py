"""The episodes that have ended, kept so that a repeat gets its answer; each caller's are dropped for its own alone."""

from collections import Counter, defaultdict, deque

from gym_service.episode import Episode

_MOST_BYTES = 512 << 20
"""What the records of ended episodes may take together, by a generous estimate."""
_BYTES_PER_ID = 40
"""What one token id takes, as an object of its own."""


class EndedEpisodes:
    """So many ended episodes at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: defaultdict[str, deque[tuple[Episode, int]]] = defaultdict(deque)
        """The episodes of each caller in the order of their ends, each with the bytes that its record takes."""
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, episode: Episode) -> list[Episode]:
        """Keeps an episode. Gives those that are dropped for it: the oldest of whoever has the most."""
        size = episode.record_bytes + episode.length * _BYTES_PER_ID
        self._of[episode.owner].append((episode, size))
        self._counts[episode.owner] += 1
        self._bytes[episode.owner] += size
        dropped = []
        while self._counts.total() > self._most:
            dropped.append(self._drop_oldest(self._counts.most_common(1)[0][0]))
        while self._bytes.total() > _MOST_BYTES:
            dropped.append(self._drop_oldest(self._bytes.most_common(1)[0][0]))
        return dropped

    def _drop_oldest(self, owner: str) -> Episode:
        episode, size = self._of[owner].popleft()
        self._counts[owner] -= 1
        self._bytes[owner] -= size
        return episode
