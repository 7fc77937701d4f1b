"""Keeps control tokens out of the ids of a text that is not to hold any.

Where a text spells a control token, the spelling is encoded in pieces, apart from what stands around it, so that
neither this control token nor one that overlaps it can come out. The text itself stays as it is.
"""

import re
from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer

# A private-use character that no template and hardly a text holds. Where a text does hold a break, it is left out
# of the ids, and the text is encoded in two pieces there.
BREAK = "\uf8fe"
_NO_LETTER = "\ufffd"
"""Stands for a character that is a control token by itself: it cannot be encoded in pieces."""


class Guard:
    """Keeps certain added tokens out of the ids of a text."""

    def __init__(self, tokenizer: Tokenizer, tokens: Mapping[int, AddedToken]) -> None:
        self._tokenizer = tokenizer
        self._ids = frozenset(tokens)
        # The longest first: of two that start alike the whole spelling is broken.
        spellings = sorted((token.content for token in tokens.values()), key=len, reverse=True)
        self._letters = frozenset(spelling for spelling in spellings if len(spelling) == 1)
        self._spelling = re.compile("|".join(map(re.escape, spellings)) or "(?!)")
        self._normalized = tokenizer.normalizer is not None and any(t.normalized for t in tokens.values())

    def __call__(self, text: str) -> str:
        """Marks breaks inside and around everything that spells one of the tokens."""
        guarded = self._spelling.sub(self._broken, text)
        # Some are looked for in the text as the normalizer changes it; only encoding shows what comes out.
        if self._normalized and not self._ids.isdisjoint(encode(self._tokenizer, guarded)):
            return BREAK.join(guarded)
        return guarded

    def _broken(self, match: re.Match[str]) -> str:
        spelling = match[0]
        first = _NO_LETTER if spelling[0] in self._letters else spelling[0]
        return BREAK + first + BREAK + self._spelling.sub(self._broken, spelling[1:]) + BREAK


def guards(tokenizer: Tokenizer) -> tuple[Guard, Guard]:
    """Gives the guard for the text of strangers, and the one for the policy's and the gym's own.

    A stranger's text holds no control token whatever. The others may hold what is no special token: a policy writes
    `<tool_call>` and `<think>`, which are tokens of their own in many vocabularies, but never the end of a turn.
    """
    added = tokenizer.get_added_tokens_decoder()
    control = {token_id: token for token_id, token in added.items() if _is_control(token)}
    special = {token_id: token for token_id, token in control.items() if token.special}
    return Guard(tokenizer, control), Guard(tokenizer, special)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encodes a text in the pieces between its breaks."""
    pieces = [piece for piece in text.split(BREAK) if piece]
    # In a batch, also of one: `encode` would keep all other threads waiting until it is done.
    encodings = tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
    return [token for encoding in encodings for token in encoding.ids]


def _is_control(token: AddedToken) -> bool:
    """Says whether an added token is more than text: runs of blanks and single letters are often added, too."""
    return bool(token.content.strip()) and (token.special or len(token.content) > 1)
