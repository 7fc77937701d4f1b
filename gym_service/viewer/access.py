"""Who may see the page: whoever brings a token of the gym, or the cookie that a link of such a one was traded for.

A browser has no way to be told a token, so whoever has one asks for a link, which is good once and for a few minutes.
The cookie it is traded for stands for that token: with the token it ends. It is sent to no other site, and read by no
script. Ports of one machine are one site to a browser: what a page of another port asks for is refused, but a server at
another port that its user visits is sent the cookie. So a session ends, and the machine's servers are to be trusted.

The host is checked first of all: a name of somebody else's that resolves to this machine must not reach the page.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gym_service.callers import Bearers, Caller
from gym_service.errors import Unauthenticated
from gym_service.viewer.http import Request

LINK_SECONDS = 300.0
SESSION_SECONDS = 12 * 3600.0
_MOST_EACH = 16
"""Links, and sessions, of one caller: beyond, the oldest of theirs goes, and nobody else's."""


class Access:
    """The links and sessions of one service."""

    def __init__(self, bearers: Bearers, clock: Callable[[], float] = time.monotonic) -> None:
        self._bearers = bearers
        self._clock = clock
        self._links: dict[bytes, _Kept] = {}
        """By the hash of its secret."""
        self._sessions: dict[bytes, _Kept] = {}

    def make_link(self, brought: Sequence[str]) -> str:
        """Gives the code of a new link to whoever brings these values of `authorization`. Raises Unauthenticated."""
        caller = self._bearers.caller_of(brought)
        return self._keep(self._links, brought[0], caller, LINK_SECONDS)

    def open_link(self, code: str) -> str:
        """Trades a link for a session, and gives the secret of it. Raises Unauthenticated."""
        authorization = self._find(self._links, code)
        self._links.pop(_hash(code), None)
        if authorization is None:
            raise Unauthenticated(
                "this link was used or has come to its end: make another with `python -m gym_service view`",
                "LINK_INVALID",
            )
        return self._keep(
            self._sessions, authorization, self._bearers.caller_of([authorization]), SESSION_SECONDS
        )

    def caller_of(self, request: Request, cookie: str) -> Caller:
        """Says who asks, by a token or by the cookie of this name. Raises Unauthenticated."""
        if brought := request.values("authorization"):
            return self._bearers.caller_of(brought)
        authorization = self._find(self._sessions, _cookie_of(request, cookie))
        if authorization is None:
            raise Unauthenticated("open the link that `python -m gym_service view` prints", "TOKEN_INVALID")
        return self._bearers.caller_of([authorization])

    def _keep(self, known: dict[bytes, "_Kept"], authorization: str, caller: Caller, seconds: float) -> str:
        now, secret = self._clock(), secrets.token_urlsafe(32)
        for ended in [key for key, kept in known.items() if kept.ends_at <= now]:
            del known[ended]
        theirs = [key for key, kept in known.items() if kept.caller == caller.name]
        for oldest in theirs[: len(theirs) + 1 - _MOST_EACH]:
            del known[oldest]
        known[_hash(secret)] = _Kept(authorization, caller.name, now + seconds)
        return secret

    def _find(self, known: dict[bytes, "_Kept"], secret: str) -> str | None:
        kept = known.get(_hash(secret))
        return kept.authorization if kept and self._clock() < kept.ends_at else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a link or a session stands for."""

    authorization: str = field(repr=False)
    caller: str
    """By name."""
    ends_at: float


def is_of_the_page(request: Request) -> bool:
    """Whether no other page has its browser make the request, as far as the browser says."""
    return set(request.values("sec-fetch-site")) <= {"same-origin", "none"}


def _cookie_of(request: Request, name: str) -> str:
    # Not by http.cookies: it takes none where another server of this host has set one that is written oddly, and long
    # for quotes that a stranger sends.
    for each in ";".join(request.values("cookie")).split(";"):
        known, _, value = each.strip().partition("=")
        if known == name:
            return value
    return ""


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
