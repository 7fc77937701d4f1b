"""Forward passes over sequences of different lengths that are laid end to end in one line: nothing is padded.

Everything in a decoder but attention works token by token, so it does not care where a sequence ends. Attention is
taken sequence by sequence by the layout that comes with the call. transformers hands unknown keyword arguments
through to the attention function, so any model that goes by its attention interface can be used.

Shape letters: T tokens of the whole line, H query heads, G key heads (H a multiple of G), D width of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "packed"


class Layout(Protocol):
    """Which token of a line looks at which."""

    def attend(
        self, layer: int, query_HTD: Tensor, key_GTD: Tensor, value_GTD: Tensor, scale: float
    ) -> Tensor:
        """Returns what attention gives each token, of shape (H, T, D)."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The layout of whole sequences that all begin with the same tokens, which are laid out only once.

    What a prefix costs is then paid once for all, forward and backward.
    """

    prefix_length: int
    """The tokens of the shared beginning, at the start of the line."""
    lengths: tuple[int, ...]
    """The tokens of each sequence after the prefix, in the order of the line."""

    def attend(
        self, layer: int, query_HTD: Tensor, key_GTD: Tensor, value_GTD: Tensor, scale: float
    ) -> Tensor:
        """See `Layout`."""
        sizes = [self.prefix_length, *self.lengths]
        (prefix_query, *queries), (prefix_key, *keys), (prefix_value, *values) = (
            tensor.split(sizes, dim=1) for tensor in (query_HTD, key_GTD, value_GTD)
        )
        attended = []
        if self.prefix_length:
            attended.append(attend_causally(prefix_query, prefix_key, prefix_value, scale))
        for query, key, value in zip(queries, keys, values, strict=True):
            if self.prefix_length:
                key, value = torch.cat((prefix_key, key), dim=1), torch.cat((prefix_value, value), dim=1)
            attended.append(attend_causally(query, key, value, scale))
        return torch.cat(attended, dim=1)


def hidden_states(model: PreTrainedModel, token_ids_T: Tensor, positions_T: Tensor, layout: Layout) -> Tensor:
    """Returns the last hidden states of a line of tokens, of shape (T, width of the model).

    Args:
        model: A model that `use_packed_attention` was called on.
        token_ids_T: The ids, int64.
        positions_T: The position of each token in its own sequence.
        layout: Which token looks at which.
    """
    if model.config._attn_implementation != _NAME:
        raise ValueError("the model would pass over the layout: call use_packed_attention on it first")
    # A mask of four dimensions is passed on as it is: transformers makes none of its own.
    no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=token_ids_T.device)
    output = model.base_model(
        input_ids=token_ids_T[None],
        attention_mask=no_mask,
        position_ids=positions_T[None],
        use_cache=False,
        layout=layout,
    )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def logits_of(model: PreTrainedModel, hidden_ND: Tensor) -> Tensor:
    """Returns the logits of hidden states, of shape (N, V), always computed in float32.

    Those of bfloat16 are 0.1 nats apart where they are large.
    """
    head = model.get_output_embeddings()
    if hidden_ND.dtype == torch.float32:
        return head(hidden_ND)  # type: ignore[no-any-return]
    return linear(hidden_ND.float(), head.weight.float())


def common_length(sequences: Sequence[tuple[int, ...]] | Sequence[list[int]]) -> int:
    """Returns how many tokens all the sequences begin with in common."""
    # All others lie between the least and the greatest one.
    first, last = min(sequences), max(sequences)
    differ = (place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return next(differ, min(len(first), len(last)))


def use_packed_attention(model: PreTrainedModel) -> None:
    """Has the model attend by a layout where one is given, and as before (sdpa) where none is.

    Raises ValueError for a model whose layers do more than look at everything before.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    other = set(kinds) != {"full_attention"} if kinds else getattr(config, "sliding_window", None)
    if other or getattr(config, "attn_logit_softcapping", None):
        raise ValueError(
            f"{config.model_type}: not every layer is of full attention; choose a model where it is"
        )
    model.set_attn_implementation(_NAME)


def attend_causally(query_HQD: Tensor, key_GKD: Tensor, value_GKD: Tensor, scale: float) -> Tensor:
    """Attention of the last Q of K tokens, each looking at itself and at everything before; (H, Q, D)."""
    queries, keys = query_HQD.shape[1], key_GKD.shape[1]
    return scaled_dot_product_attention(
        query_HQD[None],
        key_GKD[None],
        value_GKD[None],
        attn_mask=None if queries in (1, keys) else _looks_back(queries, keys, query_HQD.device),
        is_causal=1 < queries == keys,
        scale=scale,
        enable_gqa=True,
    )[0]


@lru_cache(maxsize=64)
def _looks_back(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    layout: Layout | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    attended_HTD = layout.attend(layer, query[0], key[0], value[0], float(settings["scaling"]))
    return attended_HTD.transpose(0, 1)[None], None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)
