"""One stream of commands: they are carried out side by side, and results sent as they come."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gym_service.callers import CALLER
from gym_service.errors import NotDue
from gym_service.fairness import COMMANDS_PER_PASS, Turnstile

MOST_UNANSWERED = 1024
"""Commands, those whose results the client has not taken yet included."""


class _Sized(Protocol):
    def ByteSize(self) -> int:
        """How large it is on the wire."""


Request = TypeVar("Request")
Command = TypeVar("Command")
Result = TypeVar("Result", bound=_Sized)
Response = TypeVar("Response")


class CommandStream(Generic[Request, Command, Result, Response]):
    """A stream that a client has opened."""

    def __init__(
        self,
        commands_of: Callable[[Request], Sequence[Command]],
        perform: Callable[[Command], asyncio.Task[Result]],
        respond: Callable[[list[Result]], Response],
        turnstile: Turnstile,
        *,
        longest_silence_seconds: float,
        goes_on: bool,
        batch_bytes: int = 0,
        most_unanswered: int = MOST_UNANSWERED,
    ) -> None:
        """Makes a stream.

        Args:
            commands_of: Takes a request apart.
            perform: Begins a command. Its task never fails.
            respond: Makes a response of results.
            turnstile: Where commands begin.
            longest_silence_seconds: After this, an idle stream is ended.
            goes_on: Whether commands go on when the client has gone.
            batch_bytes: What one response holds at most, about; 0 for one result in each.
            most_unanswered: Commands at a time.
        """
        self._commands_of = commands_of
        self._perform = perform
        self._respond = respond
        self._turnstile = turnstile
        self._longest_silence_seconds = longest_silence_seconds
        self._goes_on = goes_on
        self._batch_bytes = batch_bytes
        self._results: asyncio.Queue[Result | None] = asyncio.Queue()
        """None when all commands are answered and no more come."""
        self._places = asyncio.Semaphore(most_unanswered)
        self._unanswered = 0
        self._running: set[asyncio.Task[Result]] = set()

    async def answer(self, requests: AsyncIterable[Request]) -> AsyncIterator[Response]:
        """Gives the responses; several results at once if they come at once.

        Raises NotDue when nothing is due and nothing has come for so long that no episode of the client lives.
        """
        reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda _: self._results.put_nowait(None))
        try:
            while (result := await self._next_result()) is not None:
                batch, size = [result], result.ByteSize()
                while size < self._batch_bytes and not self._results.empty():
                    result = self._results.get_nowait()
                    if result is None:
                        self._results.put_nowait(None)
                        break
                    batch.append(result)
                    size += result.ByteSize()
                self._turnstile.charge(size)
                yield self._respond(batch)
                self._unanswered -= len(batch)
                for _ in batch:
                    self._places.release()
            await reader
        finally:
            reader.cancel()
            if not self._goes_on:
                for task in self._running:
                    task.cancel()

    async def _read(self, requests: AsyncIterable[Request]) -> None:
        async for request in requests:
            given = self._commands_of(request)
            for start in range(0, len(given), COMMANDS_PER_PASS):
                commands = given[start : start + COMMANDS_PER_PASS]
                for _ in commands:
                    # Not reading on is the stream's own flow control.
                    await self._places.acquire()
                    self._unanswered += 1
                await self._turnstile.keep_rate(len(commands))
                await self._turnstile.enter(len(commands))
                for command in commands:
                    task = self._perform(command)
                    self._running.add(task)
                    task.add_done_callback(self._answered)
        if self._running:
            await asyncio.wait(self._running)

    def _answered(self, task: asyncio.Task[Result]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._results.put_nowait(task.result())

    async def _next_result(self) -> Result | None:
        while True:
            try:
                async with asyncio.timeout(self._longest_silence_seconds):
                    return await self._results.get()
            except TimeoutError:
                # What waits to be read is no silence of the client's.
                if not self._unanswered and not self._turnstile.holds_up(CALLER.get().name):
                    message = f"nothing has come for {self._longest_silence_seconds:g} s; open another stream"
                    raise NotDue(message, "STREAM_IDLE") from None
