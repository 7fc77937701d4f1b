"""One Rollout stream: commands are carried out side by side, and results sent as they come."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable

from gym_contract.v1 import gym_pb2 as pb

from gym_service.callers import CALLER
from gym_service.errors import NotDue
from gym_service.fairness import COMMANDS_PER_PASS, Turnstile

_MOST_UNANSWERED = 1024
"""Commands, those whose results the client has not taken yet included."""


class RolloutStream:
    """A stream that a client has opened."""

    def __init__(
        self,
        perform: Callable[[pb.RolloutCommand], asyncio.Task[pb.RolloutResult]],
        turnstile: Turnstile,
        *,
        longest_silence_seconds: float,
        batch_bytes: int,
    ) -> None:
        """`perform` never fails; its tasks go on without the stream. A response has about `batch_bytes` at most."""
        self._perform = perform
        self._turnstile = turnstile
        self._longest_silence_seconds = longest_silence_seconds
        self._batch_bytes = batch_bytes
        self._results: asyncio.Queue[pb.RolloutResult | None] = asyncio.Queue()
        """None when all commands are answered and no more come."""
        self._places = asyncio.Semaphore(_MOST_UNANSWERED)
        self._unanswered = 0
        self._running: set[asyncio.Task[pb.RolloutResult]] = set()

    async def answer(self, requests: AsyncIterable[pb.RolloutRequest]) -> AsyncIterator[pb.RolloutResponse]:
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
                yield pb.RolloutResponse(results=batch)
                self._unanswered -= len(batch)
                for _ in batch:
                    self._places.release()
            await reader
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterable[pb.RolloutRequest]) -> None:
        async for request in requests:
            for start in range(0, len(request.commands), COMMANDS_PER_PASS):
                commands = request.commands[start : start + COMMANDS_PER_PASS]
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

    def _answered(self, task: asyncio.Task[pb.RolloutResult]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._results.put_nowait(task.result())

    async def _next_result(self) -> pb.RolloutResult | None:
        while True:
            try:
                async with asyncio.timeout(self._longest_silence_seconds):
                    return await self._results.get()
            except TimeoutError:
                # What waits to be read is no silence of the client's.
                if not self._unanswered and not self._turnstile.holds_up(CALLER.get().name):
                    message = f"nothing has come for {self._longest_silence_seconds:g} s; open another stream"
                    raise NotDue(message, "STREAM_IDLE") from None
