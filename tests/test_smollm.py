"""SmolLM2, if it is in the cache or its package can be had."""

import hashlib
from pathlib import Path

import pytest
import torch

from trainer_client.checkpoint import state_hash
from trainer_client.models import smollm
from trainer_client.models.find import find_model
from trainer_client.models.load import LoadedModel, load_model
from trainer_client.models.smollm import STATE_HASH, make_smollm2


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return make_smollm2()
    except (OSError, ModuleNotFoundError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def smollm2(folder: Path) -> LoadedModel:
    return load_model(folder)


def test_the_name_leads_to_the_weights_that_were_recorded(folder: Path, smollm2: LoadedModel) -> None:
    model = smollm2.model

    assert find_model("smollm2") == folder
    assert state_hash(model) == STATE_HASH
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_it_answers_and_ends_its_turn(smollm2: LoadedModel) -> None:
    """Weights, tokenizer and template belong together, or this does not come out."""
    tokenizer = smollm2.tokenizer
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    ids = prompt["input_ids"]
    with torch.inference_mode():
        said = smollm2.model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]

    assert tokenizer.decode(said) == "The capital of France is Paris.<|im_end|>"
    assert smollm2.stop_ids == (int(said[-1]),)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x = 120\n", ["x", " =", " ", "1", "2", "0", "\n"]),
        ("line 1\n 2", ["line", " ", "1", "\n ", "2"]),
        ("\tnaïve 试 \U0001f600 \x00\r\n", None),
    ],
)
def test_every_digit_stands_alone_and_text_comes_back(
    smollm2: LoadedModel, text: str, pieces: list[str] | None
) -> None:
    """As in the file, whose pre-tokenizer transformers does not know."""
    ids = smollm2.tokenizer.encode(text, add_special_tokens=False)

    assert smollm2.tokenizer.decode(ids) == text
    assert pieces is None or [smollm2.tokenizer.decode([each]) for each in ids] == pieces


def test_what_the_vocabulary_lacks_vanishes(smollm2: LoadedModel) -> None:
    """Known, and said in the module."""
    assert smollm2.tokenizer.encode("\x04\x06\x13\x14\x16\x1d", add_special_tokens=False) == []


def test_another_file_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="the extra smollm is not installed")
    pytest.importorskip("accelerate", reason="the extra smollm is not installed")
    package = tmp_path / "packages" / smollm.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / smollm.GGUF).write_bytes(b"other")
    monkeypatch.syspath_prepend(package.parent)

    with pytest.raises(ValueError, match=hashlib.sha256(b"other").hexdigest()):
        make_smollm2(tmp_path)
    assert not list(tmp_path.glob("smollm2-*"))
