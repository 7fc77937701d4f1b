"""From messages to token ids, by the model's own chat template.

The sequence of an episode only grows. Its prompt is the template's rendering of the opening messages; each
observation appends a delta: what the template renders for the new messages after a dummy exchange, cut at the
dummy's end-of-turn. Sampled ids are never decoded and encoded again, they only move the position.

Text of the repository is untrusted: where it spells a control token, the spelling is encoded in pieces, apart from what
stands around it, so that neither this control token nor one that overlaps it can come out.
"""

import hashlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from gym_service.errors import InvalidRequest
from gym_service.values import Action, Delta, Message

MAX_SEQUENCE_IDS = 1 << 20
"""The longest sequence of an episode."""
_MAX_TEMPLATE_CHARACTERS = 1 << 18
_PROOF_SECONDS = 5.0
"""What the template may take to render the sample conversation; a real one takes milliseconds."""

# Private-use characters that no template and hardly a text holds. Where a text does hold a break, it is left out
# of the ids, and the text is encoded in two pieces there.
_BREAK = "\uf8fe"
_NO_LETTER = "\ufffd"
"""Stands for a character that is a control token by itself: it cannot be encoded in pieces."""
_DUMMY_ANSWER = "\uf8fd"
_DUMMY = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _DUMMY_ANSWER}]


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a client may know of a tokenizer."""

    fingerprint: str
    """SHA-256 over everything that decides which ids come out."""
    vocabulary_size: int
    stop_token_ids: tuple[int, ...]
    append_only: bool
    """Whether prompt and deltas equal the template's rendering of the whole conversation."""


class ChatTokenizer:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer_json: bytes, chat_template: str, end_of_turn: str) -> None:
        """Proves the template on a sample conversation. Raises InvalidRequest."""
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        except Exception as error:
            # The library raises a bare Exception for anything that is no tokenizer.
            raise InvalidRequest(f"tokenizer_json is no tokenizer: {error}", "TOKENIZER_INVALID") from None
        # They belong to training: an observation must be encoded whole and as it is.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if len(chat_template) > _MAX_TEMPLATE_CHARACTERS:
            message = f"the chat template has more than {_MAX_TEMPLATE_CHARACTERS} characters"
            raise InvalidRequest(message, "TEMPLATE_INVALID")
        self._template = chat_template
        end_id = self._tokenizer.token_to_id(end_of_turn)
        if not end_of_turn or end_id is None:
            raise InvalidRequest(f"end_of_turn {end_of_turn[:40]!r} is no token", "TOKENIZER_INVALID")
        self._end_of_turn = end_of_turn
        self._end_id: int = end_id
        self._control = _ControlTokens(self._tokenizer)
        digest = hashlib.sha256()
        for part in (tokenizer_json, chat_template.encode(), end_of_turn.encode()):
            digest.update(len(part).to_bytes(8, "big") + part)
        try:
            with _time_limit(_PROOF_SECONDS):
                append_only = self._proves_append_only()
        except TimeoutError as error:
            raise InvalidRequest(f"the chat template does not end: {error}", "TEMPLATE_INVALID") from None
        self.facts = TokenizerFacts(
            fingerprint=digest.hexdigest(),
            # Ids can have gaps: what counts is the highest one.
            vocabulary_size=max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
            stop_token_ids=(end_id,),
            append_only=append_only,
        )

    def prompt(self, messages: Sequence[Message]) -> Delta:
        """Gives the ids that open an episode."""
        return Delta(tuple(self._encode(self._render(_plain(messages), generate=True))), position=0)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Checks that ids belong to the vocabulary. Raises InvalidRequest."""
        size = self.facts.vocabulary_size
        if any(not 0 <= token < size for token in ids):
            raise InvalidRequest(f"token ids must be from 0 to {size - 1}", "TOKEN_ID_UNKNOWN")

    def text_of(self, ids: Sequence[int]) -> str:
        """Gives the text of a sampled turn, without the end-of-turn."""
        if ids and ids[-1] == self._end_id:
            ids = ids[:-1]
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def ids_of(self, action: Action) -> tuple[int, ...]:
        """Gives the ids of a turn: as sampled, or encoded where the client brought text."""
        if action.token_ids is not None:
            return action.token_ids
        return (*self._encode(self._control.guard(action.text or "")), self._end_id)

    def delta(self, length: int, action_ids: Sequence[int], results: Sequence[Message]) -> Delta:
        """Gives what an observation appends after `length` ids, `action_ids` included.

        A turn that was cut gets the end-of-turn that the policy did not sample.
        """
        rendered = self._render([*_DUMMY, *_plain(results)], generate=True)
        answer = rendered.find(_DUMMY_ANSWER)
        end = rendered.find(self._end_of_turn, answer)
        if answer < 0 or end < 0:
            raise InvalidRequest(
                f"the chat template does not end an answer with {self._end_of_turn!r}", "TEMPLATE_INVALID"
            )
        ids = self._encode(rendered[end + len(self._end_of_turn) :])
        if not action_ids or action_ids[-1] != self._end_id:
            ids = [self._end_id, *ids]
        return Delta(tuple(ids), position=length)

    def _encode(self, text: str) -> list[int]:
        return _encode(self._tokenizer, text.split(_BREAK))

    def _render(self, conversation: list[dict[str, str]], *, generate: bool) -> str:
        guarded = [
            {**message, "content": self._control.guard(message["content"])} for message in conversation
        ]
        try:
            rendered = render_jinja_template(
                [guarded], chat_template=self._template, add_generation_prompt=generate
            )
        except TimeoutError:
            raise
        except Exception as error:
            # A stranger's template can raise anything.
            raise InvalidRequest(f"the chat template does not render: {error}", "TEMPLATE_INVALID") from None
        # The library's annotation says str; it returns a pair of the texts and the spans of generation.
        text = str(rendered[0][0])
        # A template adds markup; what multiplies its text would take minutes to encode.
        if len(text) > _MAX_TEMPLATE_CHARACTERS + 4 * sum(len(message["content"]) for message in guarded):
            raise InvalidRequest("the chat template makes too much of its messages", "TEMPLATE_INVALID")
        return text

    def _proves_append_only(self) -> bool:
        """Plays a conversation by deltas and compares it with the rendering of the whole."""
        opening = [Message("system", "Do it."), Message("user", "Go on.")]
        ids = list(self.prompt(opening).token_ids)
        conversation = list(opening)
        for turn in range(3):
            said = f"<call> read {turn} </call>"
            answer = [Message("tool", f"line {turn}\n\n", "read")]
            spoken = self.ids_of(Action(text=said))
            ids += spoken
            ids += self.delta(len(ids), spoken, answer).token_ids
            conversation += [Message("assistant", said), *answer]
        return ids == self._encode(self._render(_plain(conversation), generate=True))


class _ControlTokens:
    """Keeps what is no ordinary text out of the ids of a stranger's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        control = {token_id: token for token_id, token in added.items() if _is_control(token)}
        self._ids = frozenset(control)
        # The longest first: of two that start alike the whole spelling is broken.
        spellings = sorted((token.content for token in control.values()), key=len, reverse=True)
        self._letters = frozenset(spelling for spelling in spellings if len(spelling) == 1)
        self._spelling = re.compile("|".join(map(re.escape, spellings)) or "(?!)")
        self._normalized = tokenizer.normalizer is not None and any(t.normalized for t in control.values())

    def guard(self, text: str) -> str:
        """Marks breaks inside and around everything that spells a control token."""
        guarded = self._spelling.sub(self._broken, text)
        # Some are looked for in the text as the normalizer changes it; only encoding shows what comes out.
        if self._normalized and not self._ids.isdisjoint(_encode(self._tokenizer, guarded.split(_BREAK))):
            return _BREAK.join(guarded)
        return guarded

    def _broken(self, match: re.Match[str]) -> str:
        spelling = match[0]
        first = _NO_LETTER if spelling[0] in self._letters else spelling[0]
        return _BREAK + first + _BREAK + self._spelling.sub(self._broken, spelling[1:]) + _BREAK


def _encode(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
    # In a batch, also of one: `encode` would keep all other threads waiting until it is done.
    encodings = tokenizer.encode_batch_fast([piece for piece in pieces if piece], add_special_tokens=False)
    return [token for encoding in encodings for token in encoding.ids]


def _is_control(token: AddedToken) -> bool:
    """Says whether an added token is more than text: runs of blanks and single letters are often added, too."""
    return bool(token.content.strip()) and (token.special or len(token.content) > 1)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Ends Python code that runs for too long, in this thread. Slows it down: not for what is done often."""
    deadline = time.monotonic() + seconds
    before = sys.gettrace()

    def check(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it takes more than {seconds:g} s")
        return check

    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]
