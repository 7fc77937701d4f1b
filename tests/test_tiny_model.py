import hashlib
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer_client.models.base import BaseSettings, NoisyDemonstrator
from trainer_client.models.load import LoadedModel, load_model
from trainer_client.models.policy import Row
from trainer_client.models.tiny import build_tiny

CONVERSATION = [
    {"role": "system", "content": "Make calls: <call> read </call> shows the source."},
    {"role": "user", "content": "Repair zorp."},
    {"role": "assistant", "content": "<call> read </call>"},
    {"role": "tool", "content": "def zorp(left, right):\n    return min(left, right)"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny(path)
    return path


@pytest.fixture(scope="module")
def tiny(folder: Path) -> LoadedModel:
    return load_model(folder)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_folder_opens_like_that_of_any_other_model(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)

    assert 155_000 < model.num_parameters() < 161_000
    assert len(tokenizer) == model.config.vocab_size
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_building_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    build_tiny(tmp_path / "again")

    assert digests(tmp_path / "again") == digests(folder)


@pytest.mark.parametrize(
    "text",
    [
        "<call> edit swap_minmax </call>",
        "def zorp(n):\n\ttotal = 0\r\n    for k in range(n):\n\n        total += k  \n",
        'naïve 试 \U0001f600 \x00 \\ \'quotes\' """',
        "fail zorp(2, 2) -> False want True\n2 of 3 passed",
    ],
)
def test_text_survives_encoding(tiny: LoadedModel, text: str) -> None:
    assert tiny.tokenizer.decode(tiny.tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_call_is_a_handful_of_ids(tiny: LoadedModel) -> None:
    ids = tiny.tokenizer.encode("<call> edit fix_comparison </call><|end|>", add_special_tokens=False)

    assert [tiny.tokenizer.decode([token_id]) for token_id in ids] == [
        "<call>",
        " edit",
        " fix_comparison",
        " </call>",
        "<|end|>",
    ]


def test_the_template_only_appends(tiny: LoadedModel) -> None:
    rendered = [
        tiny.tokenizer.apply_chat_template(CONVERSATION[:length], tokenize=False, add_generation_prompt=True)
        for length in (2, 4)
    ]

    assert rendered[1].startswith(rendered[0])
    assert (
        rendered[0]
        == "<|system|>Make calls: <call> read </call> shows the source.<|end|><|user|>Repair zorp.<|end|><|assistant|>"
    )


async def demonstrate(tiny: LoadedModel, conversation: list[dict[str, str]], times: int) -> list[str]:
    text = tiny.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    ids = tiny.tokenizer.encode(text, add_special_tokens=False)
    demonstrator = NoisyDemonstrator(tiny.tokenizer, BaseSettings())
    turns = await demonstrator.sample_turn([Row(list(ids), Random(f"{time}")) for time in range(times)])
    return [tiny.tokenizer.decode(turn.token_ids) for turn in turns]


async def test_the_demonstrator_often_reads_first_and_then_mostly_edits(tiny: LoadedModel) -> None:
    at_start = await demonstrate(tiny, CONVERSATION[:2], 200)
    after_reading = await demonstrate(tiny, CONVERSATION, 200)

    assert 70 < at_start.count("<call> read </call><|end|>") < 130
    assert sum("edit" in call for call in after_reading) > 100


async def test_what_the_demonstrator_read_makes_the_right_edit_likelier(tiny: LoadedModel) -> None:
    right = "<call> edit swap_minmax </call><|end|>"
    blind, reading = (
        await demonstrate(tiny, CONVERSATION[:2], 1000),
        await demonstrate(tiny, CONVERSATION, 1000),
    )

    def share(calls: list[str]) -> float:
        return calls.count(right) / sum("edit" in call for call in calls)

    assert share(blind) < 0.22
    assert 0.22 < share(reading) < 0.6
