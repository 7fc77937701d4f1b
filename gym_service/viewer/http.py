"""As much of HTTP/1.1 as a page on this machine needs: one short request for each connection, without a body.

Whoever gets here has not shown a token yet: what is read is bounded in size and time, and so are connections.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_MOST_BYTES = 16 << 10
_MOST_CONNECTIONS = 64
_READING_SECONDS = 5.0
_WRITING_SECONDS = 30.0
_REQUEST = re.compile(r"(?P<method>[A-Z]{1,16}) (?P<target>/[!-~]*) HTTP/1\.[01]")
_FIELD = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t -~\x80-\xff]*)")
_REASONS = {
    200: "OK",
    204: "No Content",
    303: "See Other",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}
_ALWAYS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked."""

    method: str
    path: str
    query: dict[str, str]
    fields: tuple[tuple[str, str], ...]
    """The header, names in lower case."""

    def values(self, name: str) -> list[str]:
        """All values of a field of the header."""
        return [value for each, value in self.fields if each == name]


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: int
    body: bytes
    kind: str = PLAIN
    """The media type."""
    fields: dict[str, str] = field(default_factory=dict)

    @classmethod
    def plain(cls, status: int, text: str) -> "Response":
        """Answers with a sentence."""
        return cls(status, f"{text}\n".encode())

    def encoded(self) -> bytes:
        """As it is sent."""
        fields = {
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            **_ALWAYS,
            "Content-Type": self.kind,
            "Content-Length": str(len(self.body)),
            **self.fields,
        }
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            *(f"{name}: {value}" for name, value in fields.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def parse(head: bytes) -> Request:
    """Reads a request without its body. Raises ValueError for what is none."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise ValueError("this is no request of HTTP/1.1")
    fields = []
    for line in lines:
        parts = _FIELD.fullmatch(line)
        if parts is None:
            raise ValueError("a line of the header is no field")
        fields.append((parts["name"].lower(), parts["value"].strip()))
    names = {name for name, _ in fields}
    if "transfer-encoding" in names or [v for n, v in fields if n == "content-length" and v != "0"]:
        raise ValueError("requests have no body here")
    target = urlsplit(request["target"])
    query = dict(parse_qsl(target.query, keep_blank_values=True, errors="replace", max_num_fields=16))
    return Request(request["method"], target.path, query, tuple(fields))


class HttpServer:
    """A server on the loopback interface."""

    def __init__(self, server: asyncio.Server, connections: set[asyncio.Task[None]]) -> None:
        self._server = server
        self._connections = connections
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends it, with what is under way."""
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


async def listen(port: int, answer: Callable[[Request], Awaitable[Response]]) -> HttpServer:
    """Serves at a port, 0 for a free one. Raises RuntimeError where it is taken."""
    connections: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(connections) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        connections.add(task)
        try:
            # Only `close` cancels it, and asyncio would report that as a failure.
            with suppress(asyncio.CancelledError):
                await _converse(reader, writer, answer)
        finally:
            connections.discard(task)
            writer.close()

    try:
        server = await asyncio.start_server(connect, HOST, port, limit=_MOST_BYTES)
    except OSError as error:
        raise RuntimeError(
            f"--viewer-port {port}: {error.strerror}: choose another, or 0 for a free one"
        ) from None
    return HttpServer(server, connections)


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[Request], Awaitable[Response]],
) -> None:
    # Whoever says nothing, or goes away, is told nothing.
    with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        try:
            async with asyncio.timeout(_READING_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            request = parse(head)
        except asyncio.LimitOverrunError:
            response = Response.plain(431, f"a request has at most {_MOST_BYTES} bytes here")
        except ValueError as error:
            response = Response.plain(400, str(error))
        else:
            response = await _answered(request, answer)
        writer.write(response.encoded())
        try:
            async with asyncio.timeout(_WRITING_SECONDS):
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            # Closed alone, it would keep what is not taken for as long as the other side likes.
            writer.transport.abort()


async def _answered(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    try:
        return await answer(request)
    except Exception:
        logger.exception("the page failed by a defect of the service")
        return Response.plain(500, "the service failed; its log says why")
