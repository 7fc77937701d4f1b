"""Text from outside, written so that a reader sees every character of it."""

import re

_BLANK = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0\\U000e0100-\\U000e01ef]"
)
"""What counts as printable and shows nothing: fillers, selectors of a variant, the pattern without a dot."""


def printable(text: str) -> str:
    """Gives text in one line in which every character can be seen, and that can be written as UTF-8."""
    # Nearly all text is so, and a page may hold much of it.
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_seen(each) else f"\\u{{{ord(each):04X}}}" for each in text)


def visible(text: str) -> str:
    """Like `printable`, with lines and tabs as they are."""
    return "".join(part if part in "\n\t" else printable(part) for part in re.split(r"([\n\t])", text))


def _is_seen(character: str) -> bool:
    return character.isprintable() and not _BLANK.match(character)
