"""Twins of a test file in a language that nobody here parses: one value of a claim is another one, near it and like it.

A claim is told by a word on its line, such as `is`, `assert` or `==`. Whether what comes of it is a twin shows when it
runs: it has to fail with the gold. A number far away, or a name that nothing has, would give a twin away to code that
knows about what comes out; so numbers stay as round as they are, and of a text one character is another.

What comes out is turned before what goes in: honest code that passes over an argument gives the same for any.
"""

import random
import re
import string
from collections.abc import Iterator

_CLAIM = re.compile(
    r"[!=]=|\b(?:is|isnt|is_\w+|like|cmp_ok|ok|eq|ne|assert\w*|\w*[eE]qual\w*|\w*Same\w*|expect\w*|to(?:Be|Have)\w*"
    r"|be|want\w*|got|should\w*|must\w*)\b"
)
_VALUE = re.compile(
    r'"(?P<double>[^"\\\n]{1,80})"'
    r"|'(?P<single>[^'\\\n]{1,80})'"
    r"|(?<![\w.$@%])(?P<number>\d{1,15}(?:\.\d{1,15})?)(?![\w.]*\w)"
    r"|\b(?P<truth>true|false)\b"
)
_BRACKET = re.compile(r"(?:(\w+)!?)?([()])")
_FIRST = 8
"""How many variants of a place come before those of what goes in: all of a number."""
_NO_CALLS = {"if", "unless", "while", "and", "or", "not", "return"}
_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def value_twins(text: str, rng: random.Random) -> Iterator[str]:
    """Gives variants of a test file in random order, none of them twice, each with one value changed."""
    given: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []
    start = 0
    for line in text.splitlines(keepends=True):
        if _CLAIM.search(line):
            for found in _VALUE.finditer(line):
                place = start + found.start(found.lastgroup or 0), start + found.end(found.lastgroup or 0)
                (given if _goes_in(line[: found.start()]) else expected).append(place)
        start += len(line)
    near = {place: _near(text[slice(*place)]) for place in (*expected, *given)}
    for variants in near.values():
        rng.shuffle(variants)
    # A text has hundreds, and may be but the name of a claim.
    for part in (slice(_FIRST), slice(_FIRST, None)):
        for places in (expected, given):
            yield from _in_turn(text, {place: near[place][part] for place in places}, rng)


def _goes_in(before: str) -> bool:
    """Whether what follows on a line is handed to something else than a claim."""
    calls: list[bool] = []
    for name, bracket in _BRACKET.findall(before):
        if bracket == "(":
            calls.append(bool(name) and not _CLAIM.search(name) and name not in _NO_CALLS)
        elif calls:
            calls.pop()
    return any(calls)


def _in_turn(text: str, near: dict[tuple[int, int], list[str]], rng: random.Random) -> Iterator[str]:
    """Gives the variants of some places: all places before any comes again."""
    # So the twins of a file differ in more than one of them.
    while any(near.values()):
        for (begin, end), queue in rng.sample([*near.items()], len(near)):
            if queue:
                yield text[:begin] + queue.pop() + text[end:]


def _near(value: str) -> list[str]:
    """Gives other values that look like one."""
    if value in ("true", "false"):
        return ["false" if value == "true" else "true"]
    if re.fullmatch(r"\d+(?:\.\d+)?", value):
        return _near_numbers(value)
    return [
        value[:place] + other + value[place + 1 :]
        for place, each in enumerate(value)
        for kind in _KINDS
        if each in kind
        for other in kind.replace(each, "")
    ]


def _near_numbers(value: str) -> list[str]:
    whole, _, decimals = value.partition(".")
    digits = whole + decimals
    step = 10 ** (len(digits) - len(digits.rstrip("0"))) if int(digits) and not decimals else 1
    found = []
    for change in (-4, -3, -2, -1, 1, 2, 3, 4):
        other = int(digits) + change * step
        if other >= 0:
            text = str(other).zfill(len(decimals) + 1 if decimals else 1)
            found.append(f"{text[: -len(decimals)]}.{text[-len(decimals) :]}" if decimals else text)
    return found
