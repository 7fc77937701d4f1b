"""The check of a record or a review sheet: whether it is as it was written, and who vouches for that.

Every byte is looked at: each line is read, written again in the one canonical way and compared. The file may come from
anybody, so nothing in it makes the check fail otherwise than by a finding.
"""

import hmac
import json
import re
from dataclasses import dataclass

from gym_service.evaluation.review import is_review, is_sealed, read_review
from gym_service.grading.certificate import check_content, signature
from gym_service.record import SEAL, START, Link, Sealer, canonical, seal_line

_KINDS = re.compile("created (turn )*ended graded ")


_NOT_OUR_SEAL = "the seal does not match: the record was made anew without the key"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one record."""

    summary: str
    """In one line, for people."""
    vouched: bool = False
    """Whether it is intact, and its seal or a head that was kept elsewhere says so."""


class _Changed(Exception):
    """The record is not as it was written; the message says where."""


def check_record(data: bytes, private_seed: bytes | None, head: str = "") -> Finding:
    """Checks a file.

    `private_seed` is that of the gym that is believed to have written it, None where it is not at hand; `head` is what
    a client was told, empty where it is not known.
    """
    try:
        if is_review(data):
            return _judge_review(data, private_seed, head.lower())
        links, contents, seal = _read(data)
        return _judge(links, contents[0], contents[-1], seal, private_seed, head.lower())
    except _Changed as change:
        return Finding(str(change))


def _judge(
    links: list[Link],
    created: object,
    graded: object,
    seal: str,
    private_seed: bytes | None,
    head: str,
) -> Finding:
    found = links[-1].sha256
    if head and head != found:
        raise _Changed(f"the head is {found}, not {head}")
    match created, graded:
        case {"gym": str(gym)}, {
            "verdict": {"content_sha256": str(digest), "signature": str(signed)} as verdict
        }:
            pass
        case _:
            raise _Changed("the record names no gym or holds no signed verdict")
    if not check_content(verdict):
        raise _Changed(f"line {len(links)} (graded): the verdict does not match its content_sha256")
    sealer = Sealer(private_seed) if private_seed else None
    if sealer and private_seed and sealer.gym == gym:
        if not _equal(seal, sealer.seal(found)):
            raise _Changed(_NOT_OUR_SEAL)
        if not _equal(signed, signature(private_seed, digest)):
            raise _Changed(f"line {len(links)} (graded): the signature of the verdict does not match")
        return Finding(f"intact: {len(links)} events, head {found}, seal valid", vouched=True)
    return _without_seal(f"{len(links)} events", found, head, sealer)


def _judge_review(data: bytes, private_seed: bytes | None, head: str) -> Finding:
    try:
        content, found, seal = read_review(data)
    except ValueError as error:
        raise _Changed(str(error)) from None
    if head and head != found:
        raise _Changed(f"the sha256 is {found}, not {head}")
    sealer = Sealer(private_seed) if private_seed else None
    if sealer and sealer.gym == content["gym"]:
        if not is_sealed(found, seal, sealer):
            raise _Changed(_NOT_OUR_SEAL)
        return Finding(f"intact: a review sheet, sha256 {found}, seal valid", vouched=True)
    return _without_seal("a review sheet", found, head, sealer)


def _without_seal(what: str, found: str, head: str, sealer: Sealer | None) -> Finding:
    why = "the grading seed is of another gym" if sealer else "there is no grading seed in the state folder"
    summary = f"{what}, head {found}, seal not checked: {why}"
    if head:
        return Finding(f"intact: {summary}", vouched=True)
    return Finding(
        f"the chain holds, but nothing vouches for it: {summary}; "
        "give the --head that the client got, or the --state-folder of the gym that wrote it"
    )


def _read(data: bytes) -> tuple[list[Link], list[object], str]:
    """Reads the links, their contents and the seal. Raises _Changed."""
    lines = data.splitlines(keepends=True) if data else []
    links: list[Link] = []
    contents: list[object] = []
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            raise _Changed(f"the seal is missing: the file was cut off in line {number}")
        fields = _fields(number, line)
        if fields.get("kind") == SEAL:
            seal = fields.get("seal")
            if not isinstance(seal, str) or not seal.isascii() or line != seal_line(seal):
                raise _Changed(f"line {number} (seal): it is not written as seals are")
            if number < len(lines):
                raise _Changed(f"line {number + 1} follows the seal, which is the last line")
            if not _KINDS.fullmatch("".join(f"{link.kind} " for link in links)):
                raise _Changed("the events are not those of an episode, from created to graded")
            return links, contents, seal
        links.append(_link(number, line, fields, links[-1].sha256 if links else START))
        contents.append(fields["content"])
    raise _Changed(f"the seal is missing: the file was cut off after line {len(lines)}")


def _link(number: int, line: bytes, fields: dict[str, object], previous: str) -> Link:
    kind = fields.get("kind")
    if not isinstance(kind, str) or not re.fullmatch("[a-z]{1,20}", kind) or "content" not in fields:
        raise _Changed(f"line {number}: it is no event of a record")
    if fields.get("previous") != previous:
        between = f"between lines {number - 1} and {number}" if number > 1 else "before line 1"
        raise _Changed(f"the chain is broken {between}")
    try:
        link = Link.after(previous, number - 1, kind, canonical(fields["content"]))
    except (ValueError, RecursionError):
        raise _Changed(f"line {number} ({kind}): its content is not of a record") from None
    if fields.get("sha256") != link.sha256:
        raise _Changed(f"line {number} ({kind}): content does not match its hash")
    if line != link.line:
        raise _Changed(f"line {number} ({kind}): it is not written as events are")
    return link


def _fields(number: int, line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError):
        raise _Changed(f"line {number}: it is no JSON") from None
    if not isinstance(fields, dict):
        raise _Changed(f"line {number}: it is no event of a record")
    return fields


def _equal(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(errors="replace"), right.encode())
