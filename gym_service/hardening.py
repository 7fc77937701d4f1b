"""What gRPC itself leaves open to strangers, closed: frames that would stop the server, lines that would fill the log.

A call comes with a path of any bytes. grpcio reads the path of a method that it does not know as UTF-8, and where it
is none its serving task ends: the process lives on and answers nobody any more. Everything that the gym serves is
registered by name, so that what comes as an unknown method can be refused without a look at its path.

What is of no measure or no use in a frame is told to who sent it. grpcio also writes a line for each, some of them with
a stack trace and the bytes that were sent, a token perhaps. Those lines are left out; see also `gym_service/__init__`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

# grpcio has no public way to do this, so its own parts are used; pyproject.toml holds the service to its release.


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # without types
    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Task[Any]":
        if method is None:
            return asyncio.get_running_loop().create_task(self._refuse_unknown())
        task: asyncio.Task[Any] = super()._make_request_call_future(method)
        return task

    async def _refuse_unknown(self) -> None:
        """Answers UNIMPLEMENTED to calls of unknown methods, until the server stops."""
        loop = asyncio.get_running_loop()
        nothing = cygrpc._MethodResolver([], {})
        refusals = set()
        while True:
            call = await self._request_call()
            refusal = cygrpc._handle_rpc("unknown", nothing, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(refusal, call, loop, "unknown"))
            # The loop itself would let go of it.
            refusals.add(task)
            task.add_done_callback(refusals.discard)


class _Server(_server.Server):
    def __init__(self, interceptors: Sequence[Any], options: Sequence[tuple[str, Any]]) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, None, (), tuple(interceptors), tuple(options), None)


def make_server(interceptors: Sequence[Any], options: Sequence[tuple[str, Any]]) -> grpc.aio.Server:
    """Makes what `grpc.aio.server` makes, but for the above."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_of_use)
    return _Server(interceptors, options)  # type: ignore[return-value]  # the stubs have one Server for two names


def _is_of_use(record: logging.LogRecord) -> bool:
    # A header that is no text; an answer to a call that has ended meanwhile.
    return not str(record.msg).startswith(("Invalid encoding on ", "ExecuteBatchError raised in core "))
