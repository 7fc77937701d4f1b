"""The strict, total parser of what a sandbox answers to calls of a function.

Every record is a line of ASCII JSON made by `sandbox_images.warden.jobs`, or by hostile code that pretends. The
parser never raises on any bytes, builds nothing but plain values, and bounds size and depth; the mirror of
`jobs.encode`.
"""

import json
from dataclasses import dataclass
from typing import NoReturn

from gym_service.tasks.model import Json

MAX_RECORD_BYTES = 100_100
_MAX_DEPTH = 110


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call came to."""

    returned: bool
    """Whether it returned plain data; otherwise it raised, never ended, or answered nonsense."""
    value: object = None


FAILED = Answer(returned=False)


def parse_answers(output: bytes, count: int) -> list[Answer]:
    """Parses the records of `count` calls; what is missing or wrong counts as failed.

    More records than calls make all of them failed: somebody else was writing.
    """
    lines = output.split(b"\n")
    # Every record ends with a newline, so the last piece is empty or was cut.
    complete = lines[:-1]
    if len(complete) > count:
        return [FAILED] * count
    answers = [_parse(line) for line in complete]
    return answers + [FAILED] * (count - len(answers))


def _parse(line: bytes) -> Answer:
    if len(line) > MAX_RECORD_BYTES or line.count(b"[") + line.count(b"{") > 20_000:
        return FAILED
    try:
        record = json.loads(
            line.decode("ascii"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_refuse,
            parse_float=_refuse,
        )
        if not isinstance(record, dict) or list(record) != ["value"]:
            return FAILED
        return Answer(returned=True, value=_decode(record["value"], depth=0))
    except (ValueError, RecursionError, OverflowError):
        return FAILED


def _decode(value: object, depth: int) -> object:
    if depth > _MAX_DEPTH:
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
        case {"dict": list(pairs), **rest} if not rest:
            decoded = [_pair(pair, depth) for pair in pairs]
            result = dict(decoded)
            if len(result) != len(decoded):
                raise ValueError("duplicate key")
            return result
    raise ValueError("no known encoding")


def _pair(pair: object, depth: int) -> tuple[object, object]:
    match pair:
        case [key, value]:
            decoded = _decode(key, depth + 1)
            try:
                hash(decoded)
            except TypeError:
                raise ValueError("not a key") from None
            return decoded, _decode(value, depth + 1)
    raise ValueError("no pair")


def same(left: object, right: Json) -> bool:
    """Compares by value and exact type: True is not 1, 1.0 is not 1, and nothing equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not allowed here")
