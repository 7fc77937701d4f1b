"""Keys and values of live sequences, kept where they are from turn to turn.

Each sequence has a slot: a stretch of one large buffer per layer, into which its new tokens are written. Nothing
is padded, gathered or copied when sequences of different lengths pass the model together, when one ends its turn,
or when it comes back with an observation.

Shape letters: T tokens of a line, H query heads, G key heads, D width of a head, S slots, C tokens of a slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trainer_client.models.packed import attend_causally
from trainer_client.models.policy import Row


@dataclass(slots=True)
class Slot:
    """The place of one sequence."""

    index: int
    seen: int = 0
    """The tokens of the sequence whose keys and values it holds."""


class Slots:
    """The slots of one model with one set of weights. A slot is free again when nobody holds its row any more."""

    def __init__(self) -> None:
        self._slots: WeakKeyDictionary[Row, Slot] = WeakKeyDictionary()
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of each layer, each of shape (S, G, C, D)."""
        self.size = 0
        self.tokens = 0
        """S and C, which the buffers are brought to when they are next written to."""

    def of(self, row: Row) -> Slot:
        """Returns the slot of a row. Raises KeyError for one that has none."""
        return self._slots[row]

    def take(self, rows: Sequence[Row]) -> None:
        """Gives neighbouring slots to rows that have none yet.

        Neighbours, so that what shares a batch lies together whatever else is alive: it decides which sums are
        made in one go, and with it the last bits of a run.
        """
        new = [row for row in rows if row not in self._slots]
        taken = {slot.index for slot in self._slots.values()}
        first = 0
        while not taken.isdisjoint(range(first, first + len(new))):
            first += 1
        for index, row in enumerate(new, start=first):
            self._slots[row] = Slot(index)
        self.size = max(self.size, first + len(new))

    def reserve(self, tokens: int) -> None:
        """Makes room for sequences of so many tokens."""
        if tokens > self.tokens:
            self.tokens = max(tokens, self.tokens * 3 // 2)

    def copy_prefix(self, source: Slot, target: Slot) -> None:
        """Has one sequence begin with all that another one holds."""
        self.reserve(source.seen)
        for layer, (keys, values) in self.layers.items():
            keys, values = self._grown(layer, keys, values)
            for buffer in (keys, values):
                buffer[target.index, :, : source.seen] = buffer[source.index, :, : source.seen]
        target.seen = source.seen

    def buffers(self, layer: int, key_GTD: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of a layer, large enough for all slots; made like key_GTD at first."""
        if layer not in self.layers:
            # Zeros, since what is masked out is still multiplied, by 0.
            shape = (self.size, key_GTD.shape[0], self.tokens, key_GTD.shape[2])
            self.layers[layer] = key_GTD.new_zeros(shape), key_GTD.new_zeros(shape)
        return self._grown(layer, *self.layers[layer])

    def _grown(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        slots, heads, tokens, width = keys.shape
        if slots < self.size or tokens < self.tokens:
            shape = (max(slots, self.size), heads, max(tokens, self.tokens), width)
            larger = keys.new_zeros(shape), keys.new_zeros(shape)
            for old, new in zip((keys, values), larger, strict=True):
                new[:slots, :, :tokens] = old
            self.layers[layer] = larger
        return self.layers[layer]


class SlotLayout:
    """The layout of a line that goes on with sequences whose earlier tokens are in slots. See `packed.Layout`."""

    def __init__(self, slots: Slots, parts: Sequence[tuple[Slot, int]], device: torch.device) -> None:
        """`parts` are the slots in the order of the line, each with the number of its new tokens in the line."""
        self._slots = slots
        self._parts = parts
        for slot, new in parts:
            slots.reserve(slot.seen + new)
        lengths = torch.tensor([new for _, new in parts])
        self._slot_T = torch.tensor([slot.index for slot, _ in parts]).repeat_interleave(lengths).to(device)
        positions = [torch.arange(slot.seen, slot.seen + new) for slot, new in parts]
        self.positions_T = torch.cat(positions).to(device)
        """The position of each token in its own sequence."""
        self.last_tokens = (lengths.cumsum(0) - 1).to(device)
        """Where in the line each part ends."""
        self._runs = [(_Run(run, device), len(run)) for run in _neighbours(parts)]

    def attend(
        self, layer: int, query_HTD: Tensor, key_GTD: Tensor, value_GTD: Tensor, scale: float
    ) -> Tensor:
        """See `packed.Layout`."""
        keys, values = self._slots.buffers(layer, key_GTD)
        keys[self._slot_T, :, self.positions_T] = key_GTD.transpose(0, 1)
        values[self._slot_T, :, self.positions_T] = value_GTD.transpose(0, 1)
        sizes = [run.tokens for run, _ in self._runs]
        attended = [
            run.attend(query, keys, values, scale)
            for (run, _), query in zip(self._runs, query_HTD.split(sizes, dim=1), strict=True)
        ]
        return torch.cat(attended, dim=1)


class _Run:
    """Parts of a line that are attended to in one go: neighbouring slots with a new token each, or any one part."""

    def __init__(self, parts: Sequence[tuple[Slot, int]], device: torch.device) -> None:
        self.tokens = sum(new for _, new in parts)
        self._first = parts[0][0].index
        self._count = len(parts)
        lengths = [slot.seen + new for slot, new in parts]
        self._longest = max(lengths)
        self._mask: Tensor | None = None
        if min(lengths) < self._longest:
            columns = torch.arange(self._longest)
            self._mask = (columns < torch.tensor(lengths)[:, None])[:, None, None].to(device)

    def attend(self, query_HTD: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        last = self._first + self._count
        keys, values = (buffer[self._first : last, :, : self._longest] for buffer in (keys, values))
        if self._count == 1:
            return attend_causally(query_HTD, keys[0], values[0], scale)
        query = query_HTD.transpose(0, 1)[:, :, None]  # One sequence of one token for each slot.
        attended = scaled_dot_product_attention(
            query, keys, values, attn_mask=self._mask, scale=scale, enable_gqa=True
        )
        return attended[:, :, 0].transpose(0, 1)


def _neighbours(parts: Sequence[tuple[Slot, int]]) -> list[list[tuple[Slot, int]]]:
    """Cuts the parts of a line into runs."""
    runs: list[list[tuple[Slot, int]]] = []
    for slot, new in parts:
        if runs and new == runs[-1][-1][1] == 1 and slot.index == runs[-1][-1][0].index + 1:
            runs[-1].append((slot, new))
        else:
            runs.append([(slot, new)])
    return runs
