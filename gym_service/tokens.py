"""From messages to token ids, by the model's own chat template.

The sequence of an episode only grows. Its prompt is the template's rendering of the opening messages; each
observation appends a delta: what the template renders for the new messages after a dummy exchange, cut at the
dummy's end-of-turn. Sampled ids are never decoded and encoded again, they only move the position.

Text of the repository is untrusted: where it spells a control token, the spelling is encoded in pieces, so that the
control token itself cannot come out.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from gym_service.errors import InvalidRequest
from gym_service.values import Action, Delta, Message

MAX_SEQUENCE_IDS = 1 << 20

# Private-use characters that no template and hardly a text holds; where a text does hold one, it only means that
# the text is encoded in two pieces there.
_BREAK = "\uf8fe"
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
        self._template = chat_template
        end_id = self._tokenizer.token_to_id(end_of_turn)
        if not end_of_turn or end_id is None:
            raise InvalidRequest(f"end_of_turn {end_of_turn!r} is no token", "TOKENIZER_INVALID")
        self._end_of_turn = end_of_turn
        self._end_id: int = end_id
        control = sorted(token.content for token in self._tokenizer.get_added_tokens_decoder().values())
        self._control = re.compile("|".join(re.escape(text) for text in control if len(text) > 1) or "(?!)")
        digest = hashlib.sha256()
        for part in (tokenizer_json, chat_template.encode(), end_of_turn.encode()):
            digest.update(len(part).to_bytes(8, "big") + part)
        self.facts = TokenizerFacts(
            fingerprint=digest.hexdigest(),
            vocabulary_size=self._tokenizer.get_vocab_size(with_added_tokens=True),
            stop_token_ids=(end_id,),
            append_only=self._proves_append_only(),
        )

    def prompt(self, messages: Sequence[Message]) -> Delta:
        """Gives the ids that open an episode."""
        return Delta(tuple(self._encode(self._render(_plain(messages), generate=True))), position=0)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Checks that ids belong to the vocabulary. Raises InvalidRequest."""
        if any(not 0 <= token < self.facts.vocabulary_size for token in ids):
            size = self.facts.vocabulary_size
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
        return (*self._encode(self._guard(action.text or "")), self._end_id)

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
        return [
            token
            for piece in text.split(_BREAK)
            if piece
            for token in self._tokenizer.encode(piece, add_special_tokens=False).ids
        ]

    def _guard(self, text: str) -> str:
        """Marks a break inside everything that spells a control token."""
        return self._control.sub(lambda match: match[0][0] + _BREAK + match[0][1:], text)

    def _render(self, conversation: list[dict[str, str]], *, generate: bool) -> str:
        guarded = [{**message, "content": self._guard(message["content"])} for message in conversation]
        try:
            rendered = render_jinja_template(
                [guarded], chat_template=self._template, add_generation_prompt=generate
            )
        except Exception as error:
            # A stranger's template can raise anything.
            raise InvalidRequest(f"the chat template does not render: {error}", "TEMPLATE_INVALID") from None
        # The library's annotation says str; it returns a pair of the texts and the spans of generation.
        return str(rendered[0][0])

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


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]
