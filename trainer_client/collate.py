"""From trajectories to lines of tokens that pass the model without padding.

The episodes of a run begin alike: with the same instructions, and those of one task with the same task. What all
sequences of a line begin with is laid out once (`trainer_client.models.packed`), so sequences that share more are
put on the same line.

Shape letters: B sequences; N sampled tokens of the whole batch, sequence by sequence; T tokens of a line; M of the
N tokens that are on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from trainer_client.models.packed import SharedPrefix, common_length
from trainer_client.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one update."""

    token_ids: tuple[tuple[int, ...], ...]
    """The ids of each of the B sequences."""
    sampled: tuple[tuple[int, ...], ...]
    """Where in each sequence the tokens are that the policy sampled: only they are trained. Never at 0."""
    advantages: tuple[tuple[float, ...], ...]
    """The advantage that each sampled token of each sequence carries."""
    sampler_logp_N: Tensor
    """The sampler's log-probability of each sampled token in nats, float32."""

    @property
    def token_count(self) -> int:
        """The number of sampled tokens, N."""
        return len(self.sampler_logp_N)

    @property
    def advantages_N(self) -> Tensor:
        """The advantage that each sampled token carries, float32."""
        return torch.tensor([each for sequence in self.advantages for each in sequence])

    def places_of(self, indices: Sequence[int]) -> Tensor:
        """Returns which of the N tokens are of the sequences with these indices, in this order."""
        ends = [0, *accumulate(map(len, self.sampled))]
        places = [place for index in indices for place in range(ends[index], ends[index + 1])]
        return torch.tensor(places, dtype=torch.long)


@dataclass(frozen=True, slots=True)
class Line:
    """Some sequences of a batch, end to end after what all of them begin with."""

    token_ids_T: Tensor
    positions_T: Tensor
    """The position of each token in its own sequence."""
    layout: SharedPrefix
    sources_M: Tensor
    """Where on the line the state is that predicts each sampled token: one before it."""
    targets_M: Tensor
    """The id of each sampled token."""
    places_M: Tensor
    """Which of the batch's N tokens each is."""

    def to(self, device: torch.device) -> "Line":
        """Returns the line on a device."""
        tensors = ("token_ids_T", "positions_T", "sources_M", "targets_M", "places_M")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def collate(trajectories: Sequence[Trajectory], advantages: Sequence[Sequence[float]]) -> Batch:
    """Makes one batch of trajectories and the advantages of their turns, in the given order.

    Raises ValueError for an empty list, for a sequence that starts with a sampled token (there is nothing to
    predict it from) and where log-probabilities and sampled tokens are not as many.
    """
    if not trajectories:
        raise ValueError("no trajectories to collate")
    for each in trajectories:
        tokens, values = sum(each.mask), len(each.logprobs)
        if each.mask[0]:
            raise ValueError(f"{each.group}/{each.index} starts with a sampled token: it has no prompt")
        if tokens != values:
            raise ValueError(
                f"{each.group}/{each.index} has {tokens} sampled tokens and {values} log-probabilities"
            )
    return Batch(
        token_ids=tuple(tuple(each.token_ids) for each in trajectories),
        sampled=tuple(
            tuple(place for place, sampled in enumerate(each.mask) if sampled) for each in trajectories
        ),
        advantages=tuple(
            tuple(
                float(advantage)
                for turn, advantage in zip(each.turns, turns, strict=True)
                for _ in turn.action_ids
            )
            for each, turns in zip(trajectories, advantages, strict=True)
        ),
        sampler_logp_N=torch.tensor([value for each in trajectories for value in each.logprobs]),
    )


def pack(batch: Batch, indices: Sequence[int], line_tokens: int) -> list[Line]:
    """Lays the sequences with these indices on lines of at most so many tokens, shared beginnings counted once.

    Sorted by their ids, so that neighbours share the most, they are split where that leaves the fewest tokens to
    compute. A sequence that is longer than the limit gets a line of its own.
    """
    ordered = sorted(indices, key=lambda index: (batch.token_ids[index], index))
    shared = [0, *(_shared_length(batch, pair) for pair in pairwise(ordered))]
    # For the first so many: the tokens and the lines of their best split, and where its last line starts.
    best = [(0, 0, 0)]
    for end in range(1, len(ordered) + 1):
        choices: list[tuple[int, int, int]] = []
        prefix, total = line_tokens, 0
        for start in range(end - 1, -1, -1):
            total += len(batch.token_ids[ordered[start]])
            tokens = total - prefix * (end - start - 1)
            if tokens > line_tokens and choices:
                break
            choices.append((best[start][0] + tokens, best[start][1] + 1, start))
            prefix = min(prefix, shared[start])
        best.append(min(choices))
    lines: list[Line] = []
    end = len(ordered)
    while end:
        start = best[end][2]
        lines.insert(0, _lay_out(batch, ordered[start:end]))
        end = start
    return lines


def _shared_length(batch: Batch, indices: Sequence[int]) -> int:
    """Returns how many tokens all these sequences begin with, less the one that predicts a first sampled token."""
    own = (batch.sampled[i][0] if batch.sampled[i] else len(batch.token_ids[i]) for i in indices)
    return min(common_length([batch.token_ids[i] for i in indices]), *(first - 1 for first in own))


def _lay_out(batch: Batch, indices: Sequence[int]) -> Line:
    # Alone, a sequence is computed faster without a prefix.
    prefix = _shared_length(batch, indices) if len(indices) > 1 else 0
    token_ids = list(batch.token_ids[indices[0]][:prefix])
    positions, sources, targets = [*range(prefix)], [], []
    for index in indices:
        ids = batch.token_ids[index]
        start = len(token_ids) - prefix
        sources += [start + place - 1 for place in batch.sampled[index]]
        targets += [ids[place] for place in batch.sampled[index]]
        token_ids += ids[prefix:]
        positions += range(prefix, len(ids))
    return Line(
        token_ids_T=torch.tensor(token_ids),
        positions_T=torch.tensor(positions),
        layout=SharedPrefix(prefix, tuple(len(batch.token_ids[index]) - prefix for index in indices)),
        sources_M=torch.tensor(sources, dtype=torch.long),
        targets_M=torch.tensor(targets, dtype=torch.long),
        places_M=batch.places_of(indices),
    )
