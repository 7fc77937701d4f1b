"""Samples turns from any causal language model of transformers, in batches of rows of different lengths.

Each row keeps its keys and values between turns. A turn puts those of its rows side by side, padded to the
longest; runs the ids that the model has not seen (the last sampled id and the observation), padded on the
left so that all end in one column; and then samples id by id. Padding is masked out, and positions are counted
per row, so that a row's probabilities are those that it would have alone, up to rounding. A row that has ended
its turn leaves the batch at once: that costs no more than the copy of the cache that each id costs anyhow.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from trainer_client.models.policy import Row, Sampled


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
    ) -> None:
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.version = version

    @torch.inference_mode()
    def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        """Samples one turn for each row, until a stop id or max_new_tokens, and advances the rows' caches."""
        cache, mask = self._gather_caches(rows)
        unseen, unseen_mask = self._pad_left([row.ids[row.cached_length :] for row in rows])
        mask = torch.cat((mask, unseen_mask), dim=1)
        token_ids: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        active = list(range(len(rows)))  # active[b] is the row in line b of the tensors.
        inputs = unseen
        while True:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
            # By position, because releases of transformers differ in what they call the cache.
            output = self.model(inputs, mask, positions, cache, use_cache=True, logits_to_keep=1)
            logits = output.logits[:, -1]
            ids, values = self._draw(logits, [rows[row].random.random() for row in active])
            for row, token_id, value in zip(active, ids, values, strict=True):
                token_ids[row].append(token_id)
                logprobs[row].append(value)
            going = [line for line, row in enumerate(active) if not self._has_ended(token_ids[row])]
            if len(going) < len(active):
                for line in set(range(len(active))).difference(going):
                    rows[active[line]].cache = _take_line(cache, line, mask[line])
                if not going:
                    break
                lines = torch.tensor(going, device=mask.device)
                cache.batch_select_indices(lines)
                mask, active = mask[lines], [active[line] for line in going]
            inputs = torch.tensor([[token_ids[row][-1]] for row in active], device=mask.device)
            mask = torch.cat((mask, mask.new_ones(len(active), 1)), dim=1)
        return [Sampled(tuple(i), tuple(p)) for i, p in zip(token_ids, logprobs, strict=True)]

    def _has_ended(self, token_ids: list[int]) -> bool:
        return token_ids[-1] in self.stop_ids or len(token_ids) >= self.max_new_tokens

    def _draw(self, logits: Tensor, uniforms: list[float]) -> tuple[list[int], list[float]]:
        """Draws one id per line by the inverse of the cumulative distribution, in double precision.

        On the CPU, because the cumulative sum of a GPU is not the same each time.
        """
        logprobs = torch.log_softmax(logits.float() / self.temperature, dim=-1).cpu()
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        points = torch.tensor(uniforms, dtype=torch.float64)[:, None] * cumulative[:, -1:]
        # The first id whose sum is above the point: an id of probability 0 is never drawn.
        ids = torch.searchsorted(cumulative, points, right=True).clamp(max=logits.shape[-1] - 1)
        return ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist()

    def _pad_left(self, sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Returns ids and mask, both of shape (rows, longest)."""
        width = max(map(len, sequences))
        ids = [[0] * (width - len(sequence)) + sequence for sequence in sequences]
        mask = [[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _gather_caches(self, rows: Sequence[Row]) -> tuple[DynamicCache, Tensor]:
        """Returns the rows' caches side by side, padded on the right, and their mask (rows, longest)."""
        lengths = torch.tensor([row.cached_length for row in rows], device=self.model.device)
        longest = int(lengths.max())
        cache = DynamicCache()
        filled = [(line, row.cache) for line, row in enumerate(rows) if row.cache is not None]
        if filled:
            layers, pair, heads, _, width = filled[0][1].shape
            # Zeros, since what is masked out is still multiplied, by 0.
            both = filled[0][1].new_zeros(layers, pair, len(rows), heads, longest, width)
            for line, own in filled:
                both[:, :, line, :, : own.shape[3]] = own
            for layer, (keys, values) in enumerate(both):
                cache.update(keys, values, layer)
        return cache, (torch.arange(longest, device=lengths.device) < lengths[:, None]).long()


def _take_line(cache: DynamicCache, line: int, mask: Tensor) -> Tensor:
    """Returns one line's keys and values without padding, of the shape that a row keeps."""
    columns = mask.nonzero()[:, 0]
    pairs = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer), "every layer has to keep keys and values"
        assert layer.keys is not None
        assert layer.values is not None
        pairs.append(torch.stack((layer.keys[line, :, columns], layer.values[line, :, columns])))
    return torch.stack(pairs)
