"""What runs in sandboxes to grade a completion; the service puts this file there, and uses its `encode` itself.

`call` stands beside the submission. `record` and `replay` run a task's check where no submission ever is: `record` with
the reference solution, to learn what the check calls; `replay` with the answers that a submission gave to these calls.
Calls and answers travel as JSON that keeps types apart, like that of the warden, and knows sets too. What a submission
returns may be of a subclass (a Counter, a named tuple): it travels as the plain value that it is one of.

Nothing of the service is imported here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

_LEVELS = 100


class NotPlainData(Exception):
    """The value holds something that is not plain data."""


class _Asks(BaseException):
    """The check made a call that has no answer yet; not for the check to catch."""


def call(name: str, arguments: str) -> str:
    """Calls the submission's function; gives a record."""
    import solution  # type: ignore[import-not-found]

    positional, named = decode(json.loads(arguments))
    return json.dumps({"value": encode(getattr(solution, name)(*positional, **named))})


def call_and_look(name: str, arguments: str) -> str:
    """Like `call`; gives a record of the answer and of the arguments that the call changed, as they are then.

    One that holds what is no plain data by now is None in the record: no argument can be changed into that.
    """
    import solution

    positional, named = decode(json.loads(arguments))
    answer = getattr(solution, name)(*positional, **named)
    before = _by_place(*decode(json.loads(arguments)))
    changed = {}
    for place, value in _by_place(positional, named).items():
        try:
            if encode(value) != encode(before[place]):
                changed[place] = value
        except (NotPlainData, RecursionError):
            changed[place] = None
    return json.dumps({"value": encode((answer, changed))})


def record(reference: str, check: str, name: str, seed: int) -> tuple[list[str], list[int]]:
    """Gives the calls that a check makes of the reference solution. Raises what the check raises, or a call.

    And the places where one takes an answer as its argument: whoever sees that call knows what was right before it.
    """
    namespace: dict[str, Any] = {}
    exec(reference, namespace)
    function = namespace[name]
    calls: list[str] = []
    cuts: list[int] = []
    answers: set[str] = set()
    failures: list[BaseException] = []

    def candidate(*positional: Any, **named: Any) -> Any:
        try:
            if not answers.isdisjoint(json.dumps(encode(each)) for each in (*positional, *named.values())):
                cuts.append(len(calls))
                answers.clear()
            calls.append(json.dumps(encode((positional, named))))
            # What the solution draws is no concern of the check's own draws, which have to come again.
            state = random.getstate()
            answer = function(*positional, **named)
            random.setstate(state)
            text = json.dumps(encode(answer))
            if answer is not None and not isinstance(answer, bool):  # Which are arguments for other reasons.
                answers.add(text)
        except BaseException as error:
            failures.append(error)
            raise
        return answer

    _run_check(namespace, check, name, seed, candidate)
    if failures:
        raise failures[0]
    return calls, cuts


def replay(
    reference: str, check: str, name: str, seed: int, calls: list[str], answers: list[str]
) -> str | list[str]:
    """Runs a check with answers to the calls that it made so far. Raises what the check raises.

    Gives "passed"; or, when the check makes another call, those before it and that one.
    """
    namespace: dict[str, Any] = {}
    exec(reference, namespace)
    used = 0
    asked: list[str] = []

    def candidate(*positional: Any, **named: Any) -> Any:
        nonlocal used
        arguments = json.dumps(encode((positional, named)))
        if used == len(calls) or arguments != calls[used]:
            asked.extend([*calls[:used], arguments])
            raise _Asks
        used += 1
        answer, changed = decode(json.loads(answers[used - 1]))
        for place, value in _by_place(positional, named).items():
            if place in changed and changed[place] is None:
                _spoil(value)
            else:
                _become(value, changed.get(place, value))
        return answer

    try:
        _run_check(namespace, check, name, seed, candidate)
    except _Asks:
        pass
    return asked or "passed"


def encode(value: object, levels: int = _LEVELS) -> object:
    """Turns plain data into JSON. Raises an exception for anything else, and for what nests in more levels."""
    if levels == 0:
        raise NotPlainData
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, dict):
        return {"dict": [[encode(key, levels - 1), encode(item, levels - 1)] for key, item in value.items()]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items = [encode(item, levels - 1) for item in value]
            return items if kind is list else {kind.__name__: items}
    raise NotPlainData


def decode(value: Any) -> Any:
    """The opposite of `encode`."""
    if isinstance(value, list):
        return [*map(decode, value)]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(decode, content))


def _by_place(positional: Sequence[Any], named: Mapping[str, Any]) -> dict[int | str, Any]:
    return dict(enumerate(positional)) | dict(named)


def _become(value: Any, other: Any) -> None:
    """Gives an argument the content that a call gave it, as far as anything can be changed in it."""
    if type(value) is not type(other) or value is other:
        return
    if isinstance(value, tuple) and len(value) == len(other):
        for item, its_other in zip(value, other, strict=True):
            _become(item, its_other)
    elif isinstance(value, list):
        value[:] = other
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(other)


def _spoil(value: Any) -> None:
    """Fills an argument with what equals nothing, as far as anything can be changed in it."""
    odd = object()
    if isinstance(value, tuple):
        for item in value:
            _spoil(item)
    elif isinstance(value, list):
        value[:] = [odd]
    elif isinstance(value, dict):
        value.clear()
        value[odd] = odd
    elif isinstance(value, set):
        value.clear()
        value.add(odd)


def _run_check(namespace: dict[str, Any], check: str, name: str, seed: int, candidate: Any) -> None:
    """Runs the check as if the candidate were the function in the file of the reference solution."""
    # A copy: the reference solution may call itself.
    names = {**namespace, name: candidate}
    exec(check, names)
    random.seed(seed)
    names["check"](candidate)
