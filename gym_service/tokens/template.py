"""A chat template of a stranger, rendered with measure: it may fail, never end, or make too much of its messages."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from gym_service.errors import InvalidRequest
from gym_service.tokens.control import Guard
from gym_service.values import Message

_MAX_CHARACTERS = 1 << 18
_MAX_ARGUMENTS_CHARACTERS = 1 << 14
_OF_THE_RENDERING = (
    *("messages", "conversations", "tools", "documents", "chat_template"),
    *("add_generation_prompt", "return_assistant_tokens_mask", "continue_final_message"),
)
"""What the gym itself gives to a template."""
_OWN_ROLES = ("system", "assistant")
"""Whose text is the gym's or the policy's own; what users and tools say may come from a stranger's repository."""
_PROBE = {
    "type": "function",
    "function": {
        "name": "probe_the_tools",
        "description": "Probes.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class ChatTemplate:
    """A chat template with its arguments."""

    def __init__(
        self, source: str, arguments: Mapping[str, object], strangers_guard: Guard, own_guard: Guard
    ) -> None:
        """Raises InvalidRequest for a template without measure."""
        if len(source) > _MAX_CHARACTERS:
            message = f"the chat template has more than {_MAX_CHARACTERS} characters"
            raise InvalidRequest(message, "TEMPLATE_INVALID")
        self._source = source
        self._arguments: dict[str, Any] = dict(arguments)
        self._strangers_guard = strangers_guard
        self._own_guard = own_guard

    def render(
        self,
        messages: Sequence[Message],
        schemas: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Renders a conversation and the beginning of the next turn, with breaks where texts are guarded.

        Raises InvalidRequest; a rendering that is cut off by `time_limit` raises TimeoutError.
        """
        guarded = [{"role": each.role, "content": self._guarded(each)} for each in messages]
        try:
            rendered = render_jinja_template(
                [guarded],
                # Not an empty list: templates ask whether there are tools in more ways than one.
                tools=[dict(schema) for schema in schemas] or None,
                chat_template=self._source,
                add_generation_prompt=True,
                **self._arguments,
            )
            # The library's annotation says str; it returns a pair of the texts and the spans of generation.
            text = str(rendered[0][0])
            text.encode()  # Half of a surrogate pair, which a template can write, has no ids.
        except TimeoutError:
            raise
        except Exception as error:
            # A stranger's template can raise anything.
            raise InvalidRequest(f"the chat template does not render: {error}", "TEMPLATE_INVALID") from None
        # A template adds markup; what multiplies its text would take minutes to encode.
        if len(text) > _MAX_CHARACTERS + 4 * sum(len(message["content"]) for message in guarded):
            raise InvalidRequest("the chat template makes too much of its messages", "TEMPLATE_INVALID")
        return text

    def renders_tools(self, messages: Sequence[Message]) -> bool:
        """Says whether the template tells the policy of its tools. Many take `tools` and say nothing."""
        try:
            return "probe_the_tools" in self.render(messages, [_PROBE])
        except InvalidRequest:
            return False

    def _guarded(self, message: Message) -> str:
        guard = self._own_guard if message.role in _OWN_ROLES else self._strangers_guard
        return guard(message.content)


def parse_template_arguments(text: str) -> dict[str, object]:
    """Reads the arguments of a template from JSON; none from an empty text. Raises InvalidRequest."""
    if not text:
        return {}
    if len(text) > _MAX_ARGUMENTS_CHARACTERS:
        raise _arguments_refused(f"has more than {_MAX_ARGUMENTS_CHARACTERS} characters")
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _arguments_refused(f"is no valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise _arguments_refused('is no JSON object, such as {"enable_thinking": false}')
    for name in arguments:
        if name in _OF_THE_RENDERING or not name.isidentifier():
            raise _arguments_refused(f"has {name[:40]!r}, which is no argument of a template's own")
    return arguments


def _arguments_refused(problem: str) -> InvalidRequest:
    return InvalidRequest(f"template_arguments_json {problem}", "TEMPLATE_ARGUMENTS_INVALID")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends Python code that works for too long, in this thread. Slows it down: not for what is done often.

    What counts is the thread's own time: on a busy machine the clock on the wall would refuse a good template.
    """
    deadline = time.thread_time() + seconds
    before = sys.gettrace()

    def check(frame: FrameType, event: str, argument: object) -> Any:
        if time.thread_time() > deadline:
            raise TimeoutError(f"it takes more than {seconds:g} s")
        return check

    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)
