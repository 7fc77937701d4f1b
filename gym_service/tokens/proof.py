"""Whether prompt and deltas equal the template's own rendering of the whole conversation, and where they do not.

A tokenizer plays sample conversations as an episode would, by prompt, turns and deltas, and each sequence is compared
with the rendering of the whole. A template that is not append-only renders a turn otherwise once it lies in the past:
Qwen3's, for one, leaves out the empty <think> block that it opens every answer with in its non-thinking mode, and all
<think> blocks once a user speaks again. What an episode holds is always what the policy saw: the sequence that only
grew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gym_service.values import Action, Delta, Message

_EXCERPT_IDS = 12
_EXCERPT_CHARACTERS = 80

_OPENING = (Message("system", "Do it."), Message("user", "Go on."))
_CALL = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "a.py"}}\n</tool_call>'
_SCHEMA = {
    "type": "function",
    "function": {
        "name": "Read",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {"file_path": {"type": "string"}},
            "required": ["file_path"],
        },
    },
}


class Chat(Protocol):
    """What is proven: see `ChatTokenizer`."""

    def prompt(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, object]] = ()) -> Delta: ...
    def ids_of(self, action: Action) -> tuple[int, ...]: ...
    def delta(self, length: int, action_ids: Sequence[int], results: Sequence[Message]) -> Delta: ...
    def text_of(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class _Sample:
    """A conversation."""

    name: str
    turns: tuple[str, ...]
    """What the policy says; each turn is answered by a tool."""
    results: tuple[str, ...] = ("     1\tone\n\n",)
    """What is answered to each turn."""
    last: str = ""
    """What the user says after the last result. No episode does that, but a rendering may depend on it."""
    schemas: tuple[Mapping[str, object], ...] = field(default=())


_SAMPLES = (
    _Sample("plain turns", ("<call> read 1 </call>", "Now 2.", "<call> read 3 </call>")),
    _Sample("turns with white space around", ("\n\n  <call> read </call> \n", " ", "\t<call> test </call>\n\n")),
    _Sample("turns with calls", (f"I look.\n{_CALL}", f"{_CALL}\n{_CALL}", _CALL)),
    _Sample("several results in a turn", (f"{_CALL}\n{_CALL}",) * 2, ("one", "", "\n three \n")),
    _Sample("<think> blocks", (f"<think>\nI should look.\n</think>\n\n{_CALL}",) * 2),
    _Sample("<think> blocks without line breaks", (f"<think>I should look.</think>{_CALL}",) * 2),
    _Sample("empty <think> blocks", (f"<think>\n\n</think>\n\n{_CALL}",) * 2),
    _Sample("a user message at the end", (_CALL, "Done."), last="Thanks. Go on."),
    _Sample("<think> blocks and a user message at the end", (f"<think>\nSo.\n</think>\n\n{_CALL}",), last="Go."),
)  # fmt: skip


def find_differences(chat: Chat, *, with_tools: bool) -> tuple[str, ...]:
    """Plays the samples; says for each whose rendering differs what the first difference is.

    Raises InvalidRequest when the template does not render one.
    """
    found = []
    for sample in _SAMPLES:
        schemas = (_SCHEMA,) if with_tools else ()
        ids = list(chat.prompt(_OPENING, schemas).token_ids)
        conversation = list(_OPENING)
        for number, said in enumerate(sample.turns, start=1):
            answer = [Message("tool", result, "Read") for result in sample.results]
            if number == len(sample.turns) and sample.last:
                answer.append(Message("user", sample.last))
            spoken = chat.ids_of(Action(text=said))
            ids += spoken
            ids += chat.delta(len(ids), spoken, answer).token_ids
            conversation += [Message("assistant", said), *answer]
        rendered = list(chat.prompt(conversation, schemas).token_ids)
        same_text = chat.text_of(ids) == chat.text_of(rendered)
        # A turn is encoded by itself: white space around it may fall into other tokens than in the text as a whole.
        ragged = any(said != said.strip() for said in sample.turns)
        if not same_text:
            found.append(f"{sample.name}: {_describe(chat, ids, rendered)}")
        elif ids != rendered and not ragged:
            found.append(f"{sample.name}: the template's text is the same, in other ids")
    return tuple(found)


def _describe(chat: Chat, ids: Sequence[int], rendered: Sequence[int]) -> str:
    """Says in words where an episode and the template's rendering differ first."""
    pairs = enumerate(zip(ids, rendered, strict=False))
    at = next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(ids), len(rendered)))
    after = f"after {_quoted(chat, ids[max(0, at - 4) : at])}"
    ours, theirs = ids[at:], rendered[at:]
    if dropped := _inserted(ours, theirs):
        return f"the template drops {_quoted(chat, dropped)} {after}"
    if added := _inserted(theirs, ours):
        return f"the template adds {_quoted(chat, added)} {after}"
    return (
        f"the template renders {_quoted(chat, theirs)} where the episode has {_quoted(chat, ours)}, {after}"
    )


def _inserted(longer: Sequence[int], shorter: Sequence[int]) -> Sequence[int]:
    """Gives what `longer` has first where `shorter` goes on at once; nothing if it is not as simple."""
    goes_on = list(shorter[:_EXCERPT_IDS])
    for length in range(1, len(longer)):
        if list(longer[length : length + len(goes_on)]) == goes_on:
            return longer[:length]
    return ()


def _quoted(chat: Chat, ids: Sequence[int]) -> str:
    text = chat.text_of(ids[:_EXCERPT_IDS])
    return repr(text[:_EXCERPT_CHARACTERS])
