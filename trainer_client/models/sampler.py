"""Samples turns from any causal language model of transformers.

Two ways to put turns together. In lock-step, what is asked for in one call is one batch, and batches come one
after the other: which turns share a forward pass never depends on what arrives when, so that a run can be repeated
to the last bit. Continuously, every turn joins the passes that are under way as soon as it is asked for: nobody
waits for a batch, but the last bits depend on what happened to be under way.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from trainer_client.models.generation import Generation
from trainer_client.models.policy import Row, Sampled


@dataclass(slots=True, eq=False)
class _Request:
    rows: Sequence[Row]
    answer: asyncio.Future[list[Sampled]]
    turns: dict[Row, Sampled] = field(default_factory=dict)


class Sampler:
    """A policy that samples from a model, with no top-k and no top-p: what is recorded is what was drawn from."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Sequence[int],
        max_new_tokens: int,
        temperature: float = 1.0,
        version: str = "",
        continuous: bool = False,
    ) -> None:
        """Makes a sampler of the weights as they are: what it keeps of sequences is wrong for others.

        Args:
            model: A model that `packed.use_packed_attention` was called on.
            stop_ids: The ids that end a turn.
            max_new_tokens: The ids that a turn has at most.
            temperature: What logits are divided by.
            version: Which weights play.
            continuous: Whether turns join what is under way instead of being sampled batch by batch.
        """
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.version = version
        self._continuous = continuous
        self._generation = Generation(model, stop_ids, max_new_tokens, temperature, repeatable=not continuous)
        self._waiting: list[_Request] = []
        self._under_way: list[_Request] = []
        self._interrupt = threading.Event()
        self._work: asyncio.Task[None] | None = None

    async def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        """Samples one turn for each row, until a stop id or max_new_tokens."""
        request = _Request(rows, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._continuous:
            self._interrupt.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve())
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._interrupt.set()
            raise

    async def _serve(self) -> None:
        """Generates in a thread, because the event loop has to go on meanwhile, until nobody waits any more."""
        try:
            while (batches := self._admit()) or self._generation.busy:
                for row, sampled in await asyncio.to_thread(self._generate, batches):
                    request = next(each for each in self._under_way if row in each.rows)
                    request.turns[row] = sampled
                    if len(request.turns) == len(request.rows):
                        self._under_way.remove(request)
                        if not request.answer.done():
                            request.answer.set_result([request.turns[row] for row in request.rows])
        except Exception as error:
            for request in (*self._waiting, *self._under_way):
                if not request.answer.done():
                    request.answer.set_exception(error)

    def _admit(self) -> list[Sequence[Row]]:
        """Drops what nobody waits for any more, and takes in what may begin."""
        self._interrupt.clear()
        for request in [each for each in self._under_way if each.answer.done()]:
            self._generation.drop(request.rows)
            self._under_way.remove(request)
        batches: list[Sequence[Row]] = []
        while self._waiting and (self._continuous or not self._under_way):
            request = self._waiting.pop(0)
            if not request.answer.done():
                batches.append(request.rows)
                self._under_way.append(request)
        return batches

    def _generate(self, batches: Sequence[Sequence[Row]]) -> list[tuple[Row, Sampled]]:
        """Generates until there is something to look at."""
        for rows in batches:
            self._generation.begin(rows)
        ended: list[tuple[Row, Sampled]] = []
        while self._generation.busy and not self._interrupt.is_set():
            ended += self._generation.advance()
            if ended and self._continuous:
                break
        return ended
