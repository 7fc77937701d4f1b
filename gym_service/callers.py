"""Who calls, and what they may do.

The token in the endpoint file is that of the gym's owner, who may do everything. Others get a token each, with a role
and an end:

observe    describe the gym, list tasks, read the record of any episode
train      and play training and validation tasks, in episodes of their own
evaluate   and play test tasks, and have submissions graded that no episode made
admin      everything, in the episodes of others as well

What is kept of a token is its hash. An episode is its caller's: for others it does not exist.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gym_service.errors import Forbidden, Unauthenticated
from gym_service.private_file import write_private

logger = logging.getLogger(__name__)

ROLES = ("observe", "train", "evaluate", "admin")
"""Each may do what those before it may, but for the records of others: an observer reads them, and an admin."""
_NEEDED = {
    "GetGymInfo": "observe",
    "ListTasks": "observe",
    "GetEpisode": "observe",
    "EvaluateSubmissions": "evaluate",
}
"""The role that a call takes, where it is another than train."""
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DAY_SECONDS = 86_400
_LEAST_RATE = 0.1
_MOST_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call."""

    name: str
    role: str
    quota: int = 0
    """The episodes of theirs that can be live at once; 0 for as many as the gym holds."""
    rate: float = 0.0
    """The commands per second that are begun for them; 0 for as many as there is time for."""
    weight: float = 1.0
    """Their share of what others want as well, beside those others' weights."""

    @property
    def _rank(self) -> int:
        return ROLES.index(self.role)

    def check_method(self, service: str, method: str) -> None:
        """Raises Forbidden unless the role may make such a call at all."""
        needed = _NEEDED.get(method, "train") if service.startswith("gym.") else "admin"
        self._check(needed, f"call {method}")

    def check_split(self, split: str) -> None:
        """Raises Forbidden unless the role may play tasks of the split."""
        self._check("evaluate" if split == "test" else "train", f"play {split} tasks")

    def sees(self, owner: str) -> bool:
        """Whether an episode of this owner exists for the caller."""
        return owner == self.name or self.role == "admin"

    def reads(self, owner: str) -> bool:
        """Whether the record of an episode of this owner exists for the caller."""
        return self.sees(owner) or self.role == "observe"

    @property
    def reads_all(self) -> bool:
        """Whether the record of every episode exists for the caller."""
        return self.role in ("observe", "admin")

    def _check(self, needed: str, what: str) -> None:
        if self._rank < ROLES.index(needed):
            raise Forbidden(
                f"the role {self.role} may not {what}: it takes a token with the role {needed}",
                "ROLE_FORBIDS",
            )


OWNER = Caller("owner", "admin")
STRANGER = Caller("", "observe", weight=0.01)
"""Whoever brings no token: all of them together, with a share that takes little from those who do."""
CALLER: ContextVar[Caller] = ContextVar("CALLER", default=OWNER)
"""Who makes the call that is being answered."""


@dataclass(frozen=True, slots=True)
class Issued:
    """What is kept of a token."""

    name: str
    role: str
    sha256: str
    """Of the token. A token has 256 random bits, so that there is nothing to guess and a plain hash does."""
    expires_at: float
    """In seconds of Unix time."""
    quota: int = 0
    rate: float = 0.0
    weight: float = 1.0
    """See `Caller` for these three."""


class TokenBook:
    """The tokens that were issued, in a file that its owner alone can read. Read anew when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, ...], tuple[Issued, ...]] = ((), ())

    @property
    def issued(self) -> tuple[Issued, ...]:
        """All of them, those that have come to their end included. Raises ValueError for a file that is none."""
        try:
            found = self._path.stat()
            # A clock is too coarse to tell two changes that follow each other at once.
            state = found.st_mtime_ns, found.st_ino, found.st_size
            if state != self._read[0]:
                rows = json.loads(self._path.read_text(encoding="utf-8"))
                self._read = state, tuple(_issued(row) for row in rows)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{self._path} cannot be read: {error}") from None
        return self._read[1]

    def issue(
        self, name: str, role: str, days: float, quota: int = 0, rate: float = 0.0, weight: float = 1.0
    ) -> str:
        """Makes a token and returns it; it is not to be had again. Raises ValueError for what cannot be."""
        if not _NAME.fullmatch(name) or name == OWNER.name:
            raise ValueError(
                f"{name!r} is no name for a caller: take up to 64 letters, digits and _ . @ -, not {OWNER.name}"
            )
        if role not in ROLES:
            raise ValueError(f"there is no role {role}: choose one of {', '.join(ROLES)}")
        if not 0 < days <= 3650:
            raise ValueError(f"--days must be above 0 and at most 3650, not {days:g}")
        if quota < 0:
            raise ValueError(f"--episodes must not be negative, and is {quota}")
        if not (rate == 0 or _LEAST_RATE <= rate < math.inf):
            raise ValueError(f"--rate must be 0 for any, or at least {_LEAST_RATE:g}, not {rate:g}")
        if not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
            raise ValueError(
                f"--weight must be from {1 / _MOST_WEIGHT:g} to {_MOST_WEIGHT:g}, not {weight:g}"
            )
        with self._alone():
            if any(each.name == name for each in self.issued):
                raise ValueError(f"{name} has a token: revoke it first, or choose another name")
            token = secrets.token_urlsafe(32)
            expires_at = time.time() + days * _DAY_SECONDS
            issued = Issued(name, role, _hash(token), expires_at, quota, rate, weight)
            self._write((*self.issued, issued))
        return token

    def revoke(self, name: str) -> None:
        """Takes a token back; calls that bring it are refused from now on. Raises ValueError where there is none."""
        with self._alone():
            left = [each for each in self.issued if each.name != name]
            if len(left) == len(self.issued):
                raise ValueError(f"{name} has no token")
            self._write(left)

    def caller_of(self, token: str) -> Caller:
        """Returns who brings a token. Raises Unauthenticated."""
        digest = _hash(token)
        found = None
        # All of them are looked at, whichever fits.
        for each in self.issued:
            if hmac.compare_digest(each.sha256, digest):
                found = each
        if found is None:
            raise Unauthenticated("the call does not carry a token of this gym", "TOKEN_INVALID")
        if not time.time() <= found.expires_at:
            raise Unauthenticated(f"the token of {found.name} has come to its end", "TOKEN_EXPIRED")
        return Caller(found.name, found.role, found.quota, found.rate, found.weight)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits for other changes to end: of two at a time one would be lost, perhaps that a token was taken back."""
        path = self._path.with_suffix(".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, issued: Sequence[Issued]) -> None:
        write_private(self._path, json.dumps([asdict(each) for each in issued], indent=1).encode())


class Bearers:
    """Says who brings a token: the owner's, which is made anew at each start, or one that was issued."""

    def __init__(self, owners_token: str, book: TokenBook) -> None:
        self._owners = owners_token.encode()
        self._book = book
        self._complaint = ""
        """What was last wrong with the file of tokens."""

    def caller_of(self, brought: Sequence[str | bytes]) -> Caller:
        """Returns who brings these values of the header `authorization`. Raises Unauthenticated."""
        if len(brought) != 1:
            raise Unauthenticated("the call does not carry one token of this gym", "TOKEN_INVALID")
        (value,) = brought
        value = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        scheme, _, token = value.partition(b" ")
        if scheme != b"Bearer":
            raise Unauthenticated("authorization has to be: Bearer TOKEN", "TOKEN_INVALID")
        if hmac.compare_digest(token, self._owners):
            return OWNER
        try:
            return self._book.caller_of(token.decode("utf-8", "surrogateescape"))
        except ValueError as error:
            if str(error) != self._complaint:
                # Once, not for each call that a stranger makes.
                self._complaint = str(error)
                logger.warning("no token but the owner's is good: %s", error)
            raise Unauthenticated("the call does not carry a token of this gym", "TOKEN_INVALID") from None


def _issued(row: dict[str, Any]) -> Issued:
    """Reads a row, perhaps of a file that was edited by hand. Raises ValueError and TypeError."""
    issued = Issued(**row)
    if issued.role not in ROLES:
        raise ValueError(f"there is no role {issued.role}")
    if not _SHA256.fullmatch(issued.sha256):
        raise ValueError(f"the hash of the token of {issued.name} is none")
    if not (0 <= issued.rate < math.inf and 1 / _MOST_WEIGHT <= issued.weight <= _MOST_WEIGHT):
        raise ValueError(f"the rate or the weight of {issued.name} is none")
    return replace(issued, expires_at=float(issued.expires_at), quota=int(issued.quota))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
