"""The tokenizers that episodes can be opened with."""

from collections import Counter
from collections.abc import Iterable

from gym_service.callers import Caller
from gym_service.errors import InvalidRequest
from gym_service.tokens.tokenizer import ChatTokenizer, TokenizerFacts

_MOST = 32
_MOST_OF_A_CALLER = 8
"""So that nobody but the owner can take every place, which is not given back before the service stops."""


class TokenizerRegistry:
    """The registered tokenizers."""

    def __init__(self) -> None:
        self._known: dict[str, ChatTokenizer] = {}
        self._registered: Counter[str] = Counter()
        """How many of them are whose."""

    @property
    def facts(self) -> Iterable[TokenizerFacts]:
        """What may be known of them."""
        return [tokenizer.facts for tokenizer in self._known.values()]

    def add(self, tokenizer: ChatTokenizer, caller: Caller) -> None:
        """Makes a tokenizer known. Raises InvalidRequest when there are too many."""
        if tokenizer.facts.fingerprint in self._known:
            return
        if len(self._known) >= _MOST:
            message = f"{_MOST} tokenizers are registered, the most there can be"
            raise InvalidRequest(message, "TOO_MANY_TOKENIZERS")
        if caller.role != "admin" and self._registered[caller.name] >= _MOST_OF_A_CALLER:
            message = f"{caller.name} has registered {_MOST_OF_A_CALLER} tokenizers, the most of one caller"
            raise InvalidRequest(message, "TOO_MANY_TOKENIZERS")
        self._registered[caller.name] += 1
        self._known[tokenizer.facts.fingerprint] = tokenizer

    def find(self, fingerprint: str) -> ChatTokenizer:
        """Finds one. Raises InvalidRequest."""
        tokenizer = self._known.get(fingerprint)
        if tokenizer is None:
            raise InvalidRequest(
                "no tokenizer of this fingerprint; register it first (again after a restart of the gym)",
                "TOKENIZER_UNKNOWN",
            )
        return tokenizer
