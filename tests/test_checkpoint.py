"""Checkpoints: model folders that training can go on from."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.test_update import CONFIG, make_batch, make_model
from trainer_client.checkpoint import (
    TRAINER_FILE,
    checkpoint_folder,
    latest_checkpoint,
    load_optimizer,
    save_checkpoint,
    state_hash,
)
from trainer_client.models.packed import use_packed_attention
from trainer_client.update import make_optimizer, update_policy


def test_going_on_from_a_checkpoint_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two updates, a checkpoint and two more are four updates, the state of the optimizer included."""
    model = make_model()
    optimizer = make_optimizer(model, CONFIG)
    for step in range(4):
        if step == 2:
            save_checkpoint(tmp_path, step, model, optimizer, tmp_path)
        update_policy(model, optimizer, make_batch(), CONFIG)

    step, folder = latest_checkpoint(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    use_packed_attention(again)
    optimizer = make_optimizer(again, CONFIG)
    load_optimizer(folder, optimizer)
    for _ in range(2):
        update_policy(again, optimizer, make_batch(), CONFIG)

    assert step == 2
    assert state_hash(again) == state_hash(model)


def test_a_checkpoint_carries_the_tokenizer_byte_for_byte(tmp_path: Path) -> None:
    """Its fingerprint must not change through a checkpoint."""
    tokenizer, checkpoints = tmp_path / "start", tmp_path / "checkpoints"
    tokenizer.mkdir()
    checkpoints.mkdir()
    (tokenizer / "tokenizer.json").write_bytes(b'{"odd":   "spacing"}')
    (tokenizer / "chat_template.jinja").write_bytes(b"{{ messages }}")

    folder = _save(checkpoints, 0, tokenizer)

    assert (folder / "tokenizer.json").read_bytes() == b'{"odd":   "spacing"}'
    assert (folder / "chat_template.jinja").read_bytes() == b"{{ messages }}"


def test_only_the_newest_keeps_the_state_of_the_optimizer(tmp_path: Path) -> None:
    """Models of all checkpoints stay, for choosing among them."""
    folders = [_save(tmp_path, step, tmp_path) for step in (0, 10)]

    assert [(folder / TRAINER_FILE).exists() for folder in folders] == [False, True]
    assert all((folder / "model.safetensors").exists() for folder in folders)
    assert latest_checkpoint(tmp_path) == (10, checkpoint_folder(tmp_path, 10))


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    """What was being written when the machine stopped is not gone on from, and is in nobody's way."""
    partial = tmp_path / "partial-step-010"
    partial.mkdir()
    (partial / TRAINER_FILE).write_bytes(b"torn")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        latest_checkpoint(tmp_path)

    _save(tmp_path, 10, tmp_path)

    assert latest_checkpoint(tmp_path)[0] == 10
    assert not partial.exists()


def test_a_checkpoint_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    """The checkpoint of a step is written once."""
    folder = _save(tmp_path, 0, tmp_path)
    written = (folder / "model.safetensors").stat().st_mtime_ns

    assert _save(tmp_path, 0, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_the_hash_sees_one_changed_weight() -> None:
    """And is the same for the same weights."""
    model = make_model()
    before = state_hash(model)
    assert state_hash(make_model()) == before

    with torch.no_grad():
        next(iter(model.parameters()))[0, 0] += 1e-6

    assert state_hash(model) != before


def _save(checkpoints: Path, step: int, tokenizer: Path) -> Path:
    model = make_model()
    return save_checkpoint(checkpoints, step, model, make_optimizer(model, CONFIG), tokenizer)
