"""The strict, total parser of what a sandbox answers to calls of a function.

Every record is a line of ASCII JSON made by `sandbox_images.warden.jobs`, or by hostile code that pretends. The
parser never raises on any bytes, builds nothing but plain values, and bounds size and depth; the mirror of
`jobs.encode`, and of `plain_calls.encode`, which has sets as well.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

MAX_RECORD_BYTES = 100_100
MAX_DEPTH = 110
_MAX_COLLISIONS = 16


class Failure(StrEnum):
    """Why a call gave no answer. What the sandbox says of it is a claim like any other, and decides nothing."""

    RAISED = "raised"
    NOT_PLAIN_DATA = "not plain data"
    TOO_LARGE = "too large"
    MISSING = "missing"
    """There is no record: the process ended, or was ended, before."""
    MALFORMED = "malformed record"
    """A line that the sandbox's own code does not write."""
    EXTRA_RECORDS = "extra records"
    """More came than was asked for, so that nobody can say which is which."""
    OUTPUT_TRUNCATED = "output truncated"
    """So much came that the rest was cut off."""


_CLAIMS = {
    b'{"failed": "raised"}': Failure.RAISED,
    b'{"failed": "not_plain_data"}': Failure.NOT_PLAIN_DATA,
    b'{"failed": "too_large"}': Failure.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call came to."""

    value: object = None
    """Plain data; None without an answer."""
    failure: Failure | None = None

    @property
    def returned(self) -> bool:
        """Whether it returned plain data."""
        return self.failure is None


def parse_answers(output: bytes, count: int, *, truncated: bool = False) -> list[Answer]:
    """Parses the records of `count` calls; what is missing or wrong counts as failed.

    Anything beyond as many records makes all of them failed: somebody else was writing.
    """
    if truncated:
        return [Answer(failure=Failure.OUTPUT_TRUNCATED)] * count
    # Every record ends with a newline, so the last piece is empty, or a record that was cut or is none.
    *complete, rest = output.split(b"\n", count + 1)
    if len(complete) > count or (len(complete) == count and rest):
        return [Answer(failure=Failure.EXTRA_RECORDS)] * count
    answers = [parse_record(line) for line in complete]
    return answers + [Answer(failure=Failure.MISSING)] * (count - len(answers))


def parse_record(line: bytes) -> Answer:
    """Parses one record, without the end of its line."""
    if line in _CLAIMS:
        return Answer(failure=_CLAIMS[line])
    malformed = Answer(failure=Failure.MALFORMED)
    if len(line) > MAX_RECORD_BYTES or line.count(b"[") + line.count(b"{") > 20_000:
        return malformed
    try:
        record = json.loads(
            line.decode("ascii"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_refuse,
            parse_float=_refuse,
        )
        if not isinstance(record, dict) or list(record) != ["value"]:
            return malformed
        return Answer(_decode(record["value"], depth=0))
    except (ValueError, RecursionError, OverflowError):
        return malformed


def _decode(value: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list):
        return [_decode(item, depth + 1) for item in value]
    match value:
        case {"float": str(text), **rest} if not rest:
            return float.fromhex(text)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_decode(item, depth + 1) for item in items)
        case {"set": list(items), **rest} if not rest:
            return set(_members(items, depth))
        case {"frozenset": list(items), **rest} if not rest:
            return frozenset(_members(items, depth))
        case {"dict": list(pairs), **rest} if not rest:
            decoded = [_pair(pair, depth) for pair in pairs]
            _refuse_collisions(key for key, _ in decoded)
            result = dict(decoded)
            if len(result) != len(decoded):
                raise ValueError("duplicate key")
            return result
    raise ValueError("no known encoding")


def _members(items: list[object], depth: int) -> list[object]:
    members = [_key(item, depth) for item in items]
    _refuse_collisions(members)
    return members


def _pair(pair: object, depth: int) -> tuple[object, object]:
    match pair:
        case [key, value]:
            return _key(key, depth), _decode(value, depth + 1)
    raise ValueError("no pair")


def _key(value: object, depth: int) -> object:
    decoded = _decode(value, depth + 1)
    try:
        hash(decoded)
    except TypeError:
        raise ValueError("not a key") from None
    return decoded


def _refuse_collisions(keys: Iterable[object]) -> None:
    """Refuses keys that were chosen for their hashes: a record full of such ints would hold up the service."""
    hashes = [hash(key) for key in keys]
    if len(hashes) - len(set(hashes)) > _MAX_COLLISIONS:
        raise ValueError("too many keys with one hash")


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not allowed here")
