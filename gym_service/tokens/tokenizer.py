"""From messages to token ids, by the model's own chat template.

The sequence of an episode only grows. Its prompt is the template's rendering of the opening messages; each
observation appends a delta: what the template renders for the new messages after a dummy exchange, cut at the
dummy's end-of-turn. Sampled ids are never decoded and encoded again, they only move the position.

Nothing of the repository's text becomes a control token: see `control`. Where the template would render the past
otherwise than the policy saw it, the episode keeps what the policy saw: see `proof`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from gym_service.errors import InvalidRequest
from gym_service.tokens.control import encode, guards
from gym_service.tokens.proof import find_differences
from gym_service.tokens.template import ChatTemplate, time_limit
from gym_service.values import Action, Delta, Message

MAX_SEQUENCE_IDS = 1 << 20
"""The longest sequence of an episode."""
_PROOF_SECONDS = 5.0
"""What the template may take to render the sample conversations; a real one takes a tenth of a second."""
_MAX_STOP_TOKENS = 32
_MAX_PADDING_IDS = 1024
"""Models are made with more ids than their tokenizer has, to a round number; a policy samples one of them, rarely."""

_DUMMY_ANSWER = "\uf8fd"
_DUMMY = (Message("user", "u"), Message("assistant", _DUMMY_ANSWER))


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a client may know of a tokenizer."""

    fingerprint: str
    """SHA-256 over everything that decides which ids come out."""
    vocabulary_size: int
    stop_token_ids: tuple[int, ...]
    """The first is the end-of-turn, which is appended to a turn that was cut."""
    differences: tuple[str, ...]
    """Where prompt and deltas are not the template's rendering of the whole conversation; see `proof`."""
    renders_tools: bool
    """Whether the template tells the policy of its tools."""

    @property
    def append_only(self) -> bool:
        """Whether prompt and deltas equal the template's rendering of the whole conversation."""
        return not self.differences


class ChatTokenizer:
    """A tokenizer with its chat template."""

    def __init__(
        self,
        tokenizer_json: bytes,
        chat_template: str,
        end_of_turn: str,
        template_arguments: Mapping[str, object] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """Proves the template on sample conversations. `stop_token_ids` are further ids that end a turn.

        Raises InvalidRequest.
        """
        arguments = dict(template_arguments or {})
        self._tokenizer = _open(tokenizer_json)
        end_id = self._tokenizer.token_to_id(end_of_turn)
        if not end_of_turn or end_id is None:
            raise InvalidRequest(f"end_of_turn {end_of_turn[:40]!r} is no token", "TOKENIZER_INVALID")
        self._end_of_turn = end_of_turn
        self._end_id: int = end_id
        # Ids can have gaps: what counts is the highest one.
        self._size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._stop_ids = self._all_stops(stop_token_ids)
        strangers_guard, self._own_guard = guards(self._tokenizer)
        self._template = ChatTemplate(chat_template, arguments, strangers_guard, self._own_guard)
        try:
            with time_limit(_PROOF_SECONDS):
                begins = self._after_dummy([Message("tool", "x", "x")])
                renders_tools = self._template.renders_tools((Message("system", "s"), Message("user", "u")))
                differences = find_differences(self, with_tools=renders_tools)
        except TimeoutError as error:
            raise InvalidRequest(f"the chat template does not end: {error}", "TEMPLATE_INVALID") from None
        self.opens_thought = begins.rfind("<think>") > begins.rfind("</think>")
        """Whether the policy's turn starts inside a <think> block, which the template has opened for it."""
        self.facts = TokenizerFacts(
            fingerprint=_fingerprint(
                tokenizer_json, chat_template, end_of_turn, arguments, self._stop_ids[1:]
            ),
            vocabulary_size=self._size,
            stop_token_ids=self._stop_ids,
            differences=differences,
            renders_tools=renders_tools,
        )

    def prompt(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, object]] = ()) -> Delta:
        """Gives the ids that open an episode; `schemas` are the tools for a template that renders them."""
        return Delta(tuple(self._encode(self._template.render(messages, schemas))), position=0)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Checks that a model of this tokenizer can have sampled the ids. Raises InvalidRequest."""
        self._check_below(self._size + _MAX_PADDING_IDS, ids)

    def text_of(self, ids: Sequence[int]) -> str:
        """Gives the text of a sampled turn, without the token that ended it."""
        if ids and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def ids_of(self, action: Action) -> tuple[int, ...]:
        """Gives the ids of a turn: as sampled, or encoded where the client brought text."""
        if action.token_ids is not None:
            return action.token_ids
        return (*self._encode(self._own_guard(action.text or "")), self._end_id)

    def delta(self, length: int, action_ids: Sequence[int], results: Sequence[Message]) -> Delta:
        """Gives what an observation appends after `length` ids, `action_ids` included.

        A turn that was cut, or ended by another token, gets the end-of-turn that the policy did not sample.
        """
        ids = self._encode(self._after_dummy(results))
        if not action_ids or action_ids[-1] != self._end_id:
            ids = [self._end_id, *ids]
        return Delta(tuple(ids), position=length)

    def _encode(self, text: str) -> list[int]:
        return encode(self._tokenizer, text)

    def _after_dummy(self, results: Sequence[Message]) -> str:
        """Gives what the template renders for results after the dummy exchange.

        The cut is looked for each time: what stands before it may change, such as the date that many templates write.
        """
        rendered = self._template.render([*_DUMMY, *results])
        answer = rendered.find(_DUMMY_ANSWER)
        end = rendered.find(self._end_of_turn, answer)
        if answer < 0 or end < 0:
            raise InvalidRequest(
                f"the chat template does not end an answer with {self._end_of_turn!r}", "TEMPLATE_INVALID"
            )
        return rendered[end + len(self._end_of_turn) :]

    def _check_below(self, size: int, ids: Sequence[int]) -> None:
        if any(not 0 <= token < size for token in ids):
            raise InvalidRequest(f"token ids must be from 0 to {self._size - 1}", "TOKEN_ID_UNKNOWN")

    def _all_stops(self, others: Sequence[int]) -> tuple[int, ...]:
        if len(others) > _MAX_STOP_TOKENS:
            raise InvalidRequest(f"more than {_MAX_STOP_TOKENS} stop_token_ids", "TOKENIZER_INVALID")
        self._check_below(self._size, others)
        return tuple(dict.fromkeys((self._end_id, *others)))


def _open(tokenizer_json: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:
        # The library raises a bare Exception for anything that is no tokenizer.
        raise InvalidRequest(f"tokenizer_json is no tokenizer: {error}", "TOKENIZER_INVALID") from None
    # They belong to training: an observation must be encoded whole and as it is.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _fingerprint(
    tokenizer_json: bytes,
    chat_template: str,
    end_of_turn: str,
    arguments: Mapping[str, object],
    other_stops: Sequence[int],
) -> str:
    parts = [tokenizer_json, chat_template.encode(), end_of_turn.encode()]
    # Each only where there is one: what has none keeps the fingerprint that it always had.
    if arguments:
        parts += [b"template arguments", json.dumps(arguments, sort_keys=True).encode()]
    if other_stops:
        parts += [b"stop tokens", json.dumps(sorted(other_stops)).encode()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
