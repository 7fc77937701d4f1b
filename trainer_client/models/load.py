"""Opens a model folder of transformers, whatever its size.

On numbers of the weights: with bfloat16 everything that passes the model is in bfloat16, sampling and training
alike, and the logits become float32 before they are a distribution. What the optimizer does then is in
`trainer_client.optimizer`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer_client.models.packed import SharedPrefix, hidden_states, logits_of, use_packed_attention


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and what the gym has to know of its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    tokenizer_json: bytes
    """The tokenizer as the content of tokenizer.json."""
    chat_template: str
    end_of_turn: str
    """The text of the token that ends a turn."""
    stop_ids: tuple[int, ...]
    """Ids that end what the model says, that of end_of_turn first."""
    template_arguments: Mapping[str, Any]
    """What the chat template is rendered with beside the messages."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, control tokens and all, for people: sampled ids are never encoded again."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    gradient_checkpointing: bool = False,
    thinking: bool = False,
) -> LoadedModel:
    """Opens a model folder without the network, tokenizer and all.

    Args:
        folder: The model folder.
        dtype: See `load_weights`, as for the two that follow.
        device: Where the weights are put.
        gradient_checkpointing: Whether activations are recomputed.
        thinking: Whether the model thinks before it speaks, where its chat template knows the difference.

    Raises:
        ValueError: The folder lacks a fast tokenizer, a chat template or an end-of-turn token, or its layers are
            not all of full attention.
        OSError: It is no model folder.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"{folder}: a tokenizer with a tokenizer.json is needed")
    template, end_of_turn = tokenizer.chat_template, tokenizer.eos_token
    if not isinstance(template, str) or not isinstance(end_of_turn, str):
        raise ValueError(f"{folder}: a chat template and an eos_token are needed; is it an instruct model?")
    model = load_weights(folder, dtype, device, gradient_checkpointing=gradient_checkpointing)
    ends = model.generation_config.eos_token_id if model.generation_config else None
    others: list[int] = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return LoadedModel(
        model,
        tokenizer,
        tokenizer_json=tokenizer.backend_tokenizer.to_str().encode(),
        chat_template=template,
        end_of_turn=end_of_turn,
        stop_ids=tuple(dict.fromkeys([tokenizer.get_vocab()[end_of_turn], *others])),
        template_arguments={"enable_thinking": thinking} if "enable_thinking" in template else {},
    )


def load_weights(
    folder: Path, dtype: torch.dtype, device: torch.device | str, *, gradient_checkpointing: bool = False
) -> PreTrainedModel:
    """Opens the model of a folder, in evaluation mode and ready for `models.packed`.

    Args:
        folder: The model folder.
        dtype: Of the weights, whatever the folder has.
        device: Where they are put.
        gradient_checkpointing: See `recompute_activations`.

    Raises:
        ValueError: `models.packed` cannot pass it as it passes itself.
        OSError: It is no model folder.
    """
    opened = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    model: PreTrainedModel = opened.eval().to(device)
    use_packed_attention(model)
    _check_packed(model)
    if gradient_checkpointing:
        recompute_activations(model)
    return model


def _check_packed(model: PreTrainedModel) -> None:
    """Raises ValueError for a model that makes its logits by more than body and head, such as a scale or a cap.

    Sampler and trainer would agree on other distributions than the model's, so nothing else would show it.
    """
    ids_T = torch.arange(8, device=model.device) % model.config.get_text_config().vocab_size
    with torch.inference_mode():
        own = model(input_ids=ids_T[None], use_cache=False).logits[0].float()
        positions_T = torch.arange(8, device=model.device)
        packed = logits_of(model, hidden_states(model, ids_T, positions_T, SharedPrefix(4, (4,))))
    # What rounding in bfloat16 comes to is less, and whatever else a model does to its logits is more.
    if (packed - own).abs().max() > 0.05 * own.abs().max():
        raise ValueError(
            f"{model.config.model_type}: its logits are not those of its head alone; choose a model where they are"
        )


def recompute_activations(model: PreTrainedModel) -> None:
    """Has the layers keep no activations for the way back, but compute them again: less memory, a third more time.

    By the attributes that transformers' own switch sets, whose name changes between releases. A layer does so in
    training mode only. It alone is put into it, nothing inside of it, so that no dropout comes to life; and passes
    without gradient, such as those of a sampler, stay as they are. `model.eval()` ends it.

    Raises ValueError for a model whose layers cannot do it.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{model.config.model_type} has no gradient checkpointing: leave the flag out")
    again: Any = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for layer in layers:
        layer._gradient_checkpointing_func = again
        layer.gradient_checkpointing = layer.training = True


def choose_device(name: str) -> torch.device:
    """Returns the device of a name; of `auto` the GPU where there is one, else the CPU.

    Raises ValueError where this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device is {name}, and torch {torch.__version__} sees {torch.cuda.device_count()} GPUs: "
            "choose auto or cpu, or install a torch with CUDA"
        )
    return device
