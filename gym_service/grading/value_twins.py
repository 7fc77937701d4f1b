"""Twins of a test file in a language that nobody here parses: one value of a claim is another one, near it and like it.

A claim is told by a word on its line, such as `is`, `assert` or `==`. Whether what comes of it is a twin shows when it
runs: it has to fail with the gold. A number far away, or a name that nothing has, would give a twin away to code that
knows about what comes out; so numbers stay as round as they are, and of a text one character is another.
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
_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def value_twins(text: str, rng: random.Random) -> Iterator[str]:
    """Gives variants of a test file in random order, none of them twice, each with one value changed."""
    places = []
    start = 0
    for line in text.splitlines(keepends=True):
        if _CLAIM.search(line):
            places += [
                (start + found.start(found.lastgroup or 0), start + found.end(found.lastgroup or 0))
                for found in _VALUE.finditer(line)
            ]
        start += len(line)
    # All places before any comes again, so that the twins of a file differ in more than one of them.
    queues = [sorted(_near(text[begin:end]), key=lambda _: rng.random()) for begin, end in places]
    while any(queues):
        for (begin, end), queue in rng.sample([*zip(places, queues, strict=True)], len(places)):
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
