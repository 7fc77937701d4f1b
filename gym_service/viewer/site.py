"""What is answered at which path, and with which rules for the browser."""

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from gym_service.callers import CALLER, Bearers
from gym_service.episodes import Episodes
from gym_service.errors import Code, Forbidden, GymError, InvalidRequest
from gym_service.sandbox.pool import Pool
from gym_service.viewer.access import Access, is_of_the_page
from gym_service.viewer.http import HOST, HttpServer, Request, Response, listen
from gym_service.viewer.metrics import Metrics
from gym_service.viewer.views import SLOW_SECONDS, Wanted, version_of, view_episode, view_list

_LONG = 100_000
"""Characters and ids of an episode from which on it is written down in a thread: it would hold everybody up."""
_STATUSES = {Code.UNAUTHENTICATED: 401, Code.PERMISSION_DENIED: 403, Code.NOT_FOUND: 404}
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"


class Viewer:
    """The page of a service."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self.address = f"http://{HOST}:{server.port}"

    async def close(self) -> None:
        """Ends it."""
        await self._server.close()


async def open_viewer(port: int, episodes: Episodes, pool: Pool, bearers: Bearers) -> Viewer:
    """Serves the page at a port of the loopback interface, 0 for a free one. Raises RuntimeError where it is taken."""
    site = _Site(episodes, Metrics(episodes, pool), Access(bearers))
    server = await listen(port, site.answer)
    site.port = server.port
    return Viewer(server)


class _Site:
    """All paths."""

    def __init__(self, episodes: Episodes, metrics: Metrics, access: Access) -> None:
        self._episodes = episodes
        self._metrics = metrics
        self._access = access
        self.port = 0
        page = files("gym_service.viewer").joinpath("page.html").read_text(encoding="utf-8")
        self._page = page.encode()
        self._policy = _policy(page)
        self._open: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("POST", "/link"): self._link,
            ("GET", "/open"): self._trade,
        }
        """What takes no cookie."""
        self._closed: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", "/"): self._front,
            ("GET", "/api/episodes"): self._list,
            ("GET", "/api/episode"): self._one,
            ("GET", "/metrics"): self._measured,
        }

    @property
    def _cookie(self) -> str:
        # A browser shares cookies among the ports of a host.
        return f"gym_viewer_{self.port}"

    async def answer(self, request: Request) -> Response:
        """Answers a request."""
        names = [f"{host}:{self.port}" for host in (HOST, "localhost")]
        if len(hosts := request.values("host")) != 1 or hosts[0].lower() not in names:
            return Response.plain(
                421, f"this page is at {' and '.join(names)} alone; a tunnel has to keep the port"
            )
        key = request.method, request.path
        known = self._open | self._closed
        if key not in known:
            is_path = any(request.path == path for _, path in known)
            return Response.plain(405 if is_path else 404, "there is nothing of this kind here")
        try:
            if key in self._closed:
                CALLER.set(self._access.caller_of(request, self._cookie))
                if request.path != "/" and not is_of_the_page(request):
                    raise Forbidden("another page has made this request", "CROSS_SITE")
            return await known[key](request)
        except GymError as error:
            return Response.plain(_STATUSES.get(error.code, 400), error.message)

    async def _link(self, request: Request) -> Response:
        code = self._access.make_link(request.values("authorization"))
        return _json({"path": f"/open?code={code}"})

    async def _trade(self, request: Request) -> Response:
        session = self._access.open_link(request.query.get("code", ""))
        cookie = f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
        return Response(303, b"", fields={"Location": "/", "Set-Cookie": cookie})

    async def _front(self, request: Request) -> Response:
        return Response(200, self._page, _HTML, {"Content-Security-Policy": self._policy})

    async def _list(self, request: Request) -> Response:
        query = request.query
        try:
            slow_seconds = float(query.get("slow_seconds") or SLOW_SECONDS)
            wanted = Wanted(
                query.get("show", "all"), query.get("run", ""), query.get("text", ""), slow_seconds
            )
        except ValueError as error:
            raise InvalidRequest(str(error), "FILTER_INVALID") from None
        return _json(view_list(self._episodes.readable(), wanted, time.monotonic()))

    async def _one(self, request: Request) -> Response:
        episode = self._episodes.read(request.query.get("id", ""))
        if request.query.get("known") == version_of(episode):
            return Response(204, b"")
        now = time.monotonic()
        size = episode.record_bytes + episode.length + sum(map(len, episode.submission.files.values()))
        if size < _LONG:
            return _json(view_episode(episode, now))
        return await asyncio.to_thread(lambda: _json(view_episode(episode, now)))

    async def _measured(self, request: Request) -> Response:
        if not CALLER.get().reads_all:
            raise Forbidden("metrics take a token with the role observe or admin", "ROLE_FORBIDS")
        return Response(200, self._metrics.text(), CONTENT_TYPE_LATEST)


def _json(content: dict[str, Any]) -> Response:
    return Response(200, json.dumps(content).encode(), _JSON)


def _policy(page: str) -> str:
    """What the browser lets the page do: run its own script alone, and ask this service alone."""

    def hashes(tag: str) -> str:
        found = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in found)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
