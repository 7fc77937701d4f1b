"""Generates turns of many sequences at once, one forward pass after the other.

A pass takes one token of every sequence that is in the middle of its turn, and the unseen tokens (a prompt, or the
last sampled id and an observation) of those that have just come, in one line without padding. So a sequence that
comes starts at once, and one that has ended its turn costs nothing. What a sequence has seen stays in its slot; what
many begin with, such as the instructions, passes the model once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from trainer_client.models.packed import common_length, hidden_states, logits_of
from trainer_client.models.policy import Row, Sampled
from trainer_client.models.slots import Slot, SlotLayout, Slots

_TOKENS_PER_PASS = 2048
"""Bounds memory: what is longer takes several passes."""
_PREFIX_STEP = 32
"""Shared beginnings are cut to a multiple of it, so that different batches find the same one."""
_MAX_PREFIXES = 4
_BLOCK = 256


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn that is being sampled."""

    row: Row
    slot: Slot
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def unseen(self, limit: int) -> list[int]:
        """Returns the next tokens that have to pass the model, at most so many."""
        start = self.slot.seen - len(self.row.ids)
        rest = self.row.ids[start:] + self.token_ids if start < 0 else self.token_ids[start:]
        return rest[:limit]

    @property
    def length(self) -> int:
        return len(self.row.ids) + len(self.token_ids)


class Generation:
    """The turns under way of one model with one set of weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: Sequence[int],
        max_new_tokens: int,
        temperature: float,
        *,
        repeatable: bool,
    ) -> None:
        """With `repeatable` the last bits of a batch depend on nothing that came before it."""
        self._model = model
        self._repeatable = repeatable
        self._stop_ids = frozenset(stop_ids)
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._slots = Slots()
        self._turns: list[_Turn] = []
        self._prefixes: dict[tuple[int, ...], Row] = {}
        self._opening: list[int] = []

    @property
    def busy(self) -> bool:
        """Whether there are turns under way."""
        return bool(self._turns)

    @torch.inference_mode()
    def begin(self, rows: Sequence[Row]) -> None:
        """Begins a turn of each row. Rows that begin together share a batch in the same way each time."""
        self._slots.take(rows)
        turns = [_Turn(row, self._slots.of(row)) for row in rows]
        self._share_prefix([turn for turn in turns if turn.slot.seen == 0])
        self._slots.reserve(max(turn.length for turn in turns) + self._max_new_tokens)
        self._turns += turns

    def drop(self, rows: Sequence[Row]) -> None:
        """Gives up the turns of rows."""
        self._turns = [turn for turn in self._turns if turn.row not in rows]

    @torch.inference_mode()
    def advance(self) -> list[tuple[Row, Sampled]]:
        """Takes one forward pass; returns the rows whose turn ended with it."""
        line: list[tuple[_Turn, list[int]]] = []
        room = max(_TOKENS_PER_PASS, len(self._turns))
        for turn in self._turns:
            if unseen := turn.unseen(room):
                line.append((turn, unseen))
                room -= len(unseen)
        hidden_ND = self._forward([(turn.slot, ids) for turn, ids in line])
        # Those that have seen everything now get their next token.
        due = [place for place, (turn, _) in enumerate(line) if turn.slot.seen == turn.length]
        ended: list[tuple[Row, Sampled]] = []
        if due:
            logits = logits_of(self._model, hidden_ND[due])
            turns = [line[place][0] for place in due]
            ids, logprobs = draw(logits, self._temperature, [turn.row.random for turn in turns])
            for turn, token_id, logprob in zip(turns, ids, logprobs, strict=True):
                turn.token_ids.append(token_id)
                turn.logprobs.append(logprob)
                if token_id in self._stop_ids or len(turn.token_ids) >= self._max_new_tokens:
                    ended.append((turn.row, Sampled(tuple(turn.token_ids), tuple(turn.logprobs))))
            over = {row for row, _ in ended}
            self._turns = [turn for turn in self._turns if turn.row not in over]
        return ended

    def _forward(self, line: Sequence[tuple[Slot, list[int]]]) -> Tensor:
        """Passes new tokens through the model; returns the hidden state of each part's last one."""
        device = self._model.device
        layout = SlotLayout(self._slots, [(slot, len(ids)) for slot, ids in line], device)
        token_ids_T = torch.tensor([token for _, ids in line for token in ids], device=device)
        hidden_TD = hidden_states(self._model, token_ids_T, layout.positions_T, layout)
        for slot, ids in line:
            slot.seen += len(ids)
        return hidden_TD[layout.last_tokens]

    def _share_prefix(self, fresh: Sequence[_Turn]) -> None:
        """Has sequences that are new begin with what they share, computed once and by itself.

        By itself, so that its last bits do not depend on what else is under way.
        """
        if not fresh:
            return
        others = [turn.row.ids for turn in fresh[1:]]
        if not others:
            # One that comes alone could share with the one before, whichever that was.
            if self._repeatable:
                return
            others = [self._opening]
        self._opening = fresh[0].row.ids[:]
        shared = common_length([fresh[0].row.ids[:-1], *(ids[:-1] for ids in others)])
        ids = tuple(fresh[0].row.ids[: shared - shared % _PREFIX_STEP])
        if not ids:
            return
        if ids not in self._prefixes:
            if len(self._prefixes) >= _MAX_PREFIXES:
                del self._prefixes[next(iter(self._prefixes))]
            row = self._prefixes[ids] = Row(list(ids), Random(0))
            self._slots.take([row])
            slot = self._slots.of(row)
            for start in range(0, len(ids), _TOKENS_PER_PASS):
                self._forward([(slot, list(ids[start : start + _TOKENS_PER_PASS]))])
        for turn in fresh:
            self._slots.copy_prefix(self._slots.of(self._prefixes[ids]), turn.slot)


def draw(logits_NV: Tensor, temperature: float, randoms: Sequence[Random]) -> tuple[list[int], list[float]]:
    """Draws one id per line from all of the vocabulary; returns ids and their log-probabilities in nats.

    By the inverse of the cumulative distribution in double precision, first over blocks of ids and then inside of
    one. Cumulative sums are taken on the CPU, because those of a GPU are not the same each time.

    Raises ValueError where there is no distribution.
    """
    logp_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    count, size = logp_NV.shape
    blocks = pad(logp_NV.exp(), (0, -size % _BLOCK)).view(count, -1, _BLOCK)
    uniforms = torch.tensor([random.random() for random in randoms], dtype=torch.float64)[:, None]
    block, rest = _invert(blocks.sum(dim=-1, dtype=torch.float64).cpu(), uniforms)
    lines = torch.arange(count, device=blocks.device)
    inside, _ = _invert(blocks[lines, block[:, 0].to(blocks.device)].double().cpu(), rest)
    ids = block * _BLOCK + inside
    logprobs = logp_NV.gather(1, ids.to(logp_NV.device))[:, 0].tolist()
    if any(math.isnan(logprob) for logprob in logprobs):
        raise ValueError("the model's logits are no numbers any more: start a run with a lower learning_rate")
    return ids[:, 0].tolist(), logprobs


def _invert(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Finds in which weight each point from 0 to 1 lies, of shape (lines, 1), and where in it, again from 0 to 1.

    A weight of 0 is never found.
    """
    cumulative = weights.cumsum(dim=-1)
    points = points * cumulative[:, -1:]
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    found = torch.minimum(torch.searchsorted(cumulative, points, right=True), last)
    weight = weights.gather(1, found)
    return found, ((points - cumulative.gather(1, found) + weight) / weight).clamp(0, 1)
