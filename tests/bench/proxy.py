"""A TCP proxy on the loopback interface whose connections can be cut, also in the middle of a message."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

_CHUNK_BYTES = 1 << 16
_LONGEST_WAIT_SECONDS = 0.5
"""How long a cut waits for something to cut through."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Carries bytes to wherever the target is when a connection is made. Made by `running_proxy`."""

    def __init__(self, target: Callable[[], str | None], random: Random) -> None:
        self._target = target
        self._random = random
        self._cutting = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    async def cut(self) -> bool:
        """Drops every connection: behind a part of whatever passes next, or after a moment in which nothing does.

        Returns whether there was one.
        """
        standing = set(self._connections)
        if not standing:
            return False
        self._cutting.set()
        await asyncio.wait(standing, timeout=_LONGEST_WAIT_SECONDS)
        self._cutting.clear()
        await self.close(standing)
        return True

    async def close(self, connections: set[asyncio.Task[None]] | None = None) -> None:
        """Drops connections as they are, all of them if none are named."""
        ending = set(self._connections) if connections is None else connections
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def serve(self, *client: asyncio.StreamReader | asyncio.StreamWriter) -> None:
        """Carries one connection to its end."""
        reader, writer = client
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            target = self._target()
            if target is None:
                return
            host, port = target.rsplit(":", 1)
            target_reader, target_writer = await asyncio.open_connection(host, int(port))
            try:
                ways = {
                    asyncio.ensure_future(self._carry(reader, target_writer)),
                    asyncio.ensure_future(self._carry(target_reader, writer)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                target_writer.transport.abort()
        except OSError:
            pass  # Nothing listens there now.
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self._cutting.is_set():
                writer.write(data[: self._random.randrange(len(data))])
                return
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def running_proxy(target: Callable[[], str | None], random: Random) -> AsyncIterator[Proxy]:
    """Runs a proxy to what `target` names, host and port, or to nowhere while that is None."""
    proxy = Proxy(target, random)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
