"""The tokenizers of three models, from the smallest to one that renders tools, as transformers opens them."""

import json
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gym_service.tokens import ChatTokenizer
from trainer_client.models.smollm import make_smollm2

_QWEN3 = Path(__file__).parent.parent.parent / "shared" / "data" / "qwen3-tokenizer"
NO_THINKING = {"enable_thinking": False}
NO_THOUGHT = "<think>\n\n</think>\n\n"
"""What Qwen3's template opens an answer with when it is not to think, and leaves out of answers of the past."""

# What a test is given: a model, and the arguments of its template.
ALL = [("tiny", {}), ("smollm2", {}), ("qwen3", {}), ("qwen3", NO_THINKING)]
NAMES = ["tiny", "smollm2", "qwen3", "qwen3_no_thinking"]


def qwen3_folder():
    """The files of Qwen3's tokenizer. Skips where they are not here."""
    if not _QWEN3.is_dir():
        pytest.skip("Qwen3's tokenizer is not beside this checkout")
    return _QWEN3


@cache
def transformers_tokenizer(model):
    """The tokenizer as transformers knows it: the reference. Skips where its files are not here."""
    if model == "tiny":
        from trainer_client.models import tiny

        return tiny.build_tokenizer()
    if model == "smollm2":
        try:
            return AutoTokenizer.from_pretrained(make_smollm2())
        except (OSError, ModuleNotFoundError) as error:
            pytest.skip(str(error))
    return AutoTokenizer.from_pretrained(qwen3_folder())


@cache
def files(model):
    """What a client registers: the JSON, the template, the end-of-turn."""
    if model == "qwen3":
        folder = qwen3_folder()
        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        return (folder / "tokenizer.json").read_bytes(), template, "<|im_end|>"
    reference = transformers_tokenizer(model)
    return reference.backend_tokenizer.to_str().encode(), reference.chat_template, reference.eos_token


def gym_tokenizer(model, arguments):
    """The tokenizer as the gym knows it."""
    return _gym_tokenizer(model, json.dumps(arguments))


@cache
def _gym_tokenizer(model, arguments_json):
    return ChatTokenizer(*files(model), json.loads(arguments_json))
