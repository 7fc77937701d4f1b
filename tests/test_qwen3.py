"""Qwen3 but for the weights: its architecture, its tokenizer and its template, in small and at random."""

import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.runs import SMALL, place_of_runs, run_whole, run_with_a_break
from tests.tokenizers import qwen3_folder
from trainer_client.checkpoint import checkpoint_folder
from trainer_client.config import RunConfig
from trainer_client.flags import parse_flags
from trainer_client.metrics import read_history
from trainer_client.models.load import load_model
from trainer_client.run_folder import RunFolder

END_OF_TURN, END_OF_TEXT = 151645, 151643


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    files = qwen3_folder()
    folder = tmp_path_factory.mktemp("qwen3")
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_id=END_OF_TURN,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [END_OF_TURN, END_OF_TEXT]
    model.save_pretrained(folder)
    for path in files.iterdir():
        shutil.copyfile(path, folder / path.name)
    return folder


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async with place_of_runs(tmp_path, monkeypatch):
        yield


def preset(toolset: str, folder: Path) -> RunConfig:
    """The preset with as few episodes and ids as show that it works."""
    given, _ = parse_flags(["--preset", f"qwen3-0.6b-{toolset}", "--model", str(folder)])
    few = {
        name: getattr(SMALL, name)
        for name in (
            "steps",
            "tasks_per_step",
            "group_size",
            "validate_every",
            "validation_episodes",
            "test_episodes",
            "cohort_size",
            "max_new_tokens",
            "max_turns",
        )
    }
    return replace(RunConfig(**given), **few, learning_rate=1e-3)


def test_it_ends_a_turn_in_two_ways_and_does_not_think_unless_asked(qwen3: Path) -> None:
    loaded = load_model(qwen3)

    assert (loaded.end_of_turn, loaded.stop_ids) == ("<|im_end|>", (END_OF_TURN, END_OF_TEXT))
    assert loaded.template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize("toolset", ["menu", "coding"])
async def test_a_run_by_the_preset_learns_and_can_be_broken_off(
    qwen3: Path, place: None, toolset: str
) -> None:
    folder = await run_with_a_break(preset(toolset, qwen3), "broken")

    assert hash_of(folder, 0) != hash_of(folder, 2)
    rows = read_history(folder.metrics).steps
    assert [row.step for row in rows] == [1, 2]
    assert all(row.update.grad_norm > 0 and row.update.sampler_gap < 1e-5 for row in rows)


async def test_in_bfloat16_with_recomputed_activations_it_goes_on_to_the_same_weights(
    qwen3: Path, place: None
) -> None:
    config = replace(preset("menu", qwen3), dtype="bfloat16", gradient_checkpointing=True)

    whole, broken = await run_whole(config, "whole"), await run_with_a_break(config, "broken")

    assert hash_of(whole, 2) == hash_of(broken, 2) != hash_of(whole, 0)
    rows = read_history(whole.metrics).steps
    assert all(0 < row.update.grad_norm < 100 and row.update.sampler_gap < 0.05 for row in rows)
    assert json.loads((whole.checkpoints / "step-002" / "config.json").read_text())["dtype"] == "bfloat16"


def hash_of(folder: RunFolder, step: int) -> str:
    """The hash of a checkpoint's weights."""
    path = checkpoint_folder(folder.checkpoints, step)
    return hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
