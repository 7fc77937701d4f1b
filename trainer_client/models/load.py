"""Opens a model folder of transformers, whatever its size."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from trainer_client.models.packed import use_packed_attention


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


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Opens a model folder without the network, in evaluation mode.

    Raises:
        ValueError: The folder lacks a fast tokenizer, a chat template or an end-of-turn token.
        OSError: It is no model folder.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"{folder}: a tokenizer with a tokenizer.json is needed")
    template, end_of_turn = tokenizer.chat_template, tokenizer.eos_token
    if not isinstance(template, str) or not isinstance(end_of_turn, str):
        raise ValueError(f"{folder}: a chat template and an eos_token are needed; is it an instruct model?")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
    use_packed_attention(model)
    tokenizer_json = tokenizer.backend_tokenizer.to_str().encode()
    return LoadedModel(model, tokenizer, tokenizer_json, template, end_of_turn)
