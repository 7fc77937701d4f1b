"""Checkpoints: ordinary model folders that any tool can load, with what the trainer needs to go on.

    checkpoints/step-010/   config.json, model.safetensors, tokenizer files, trainer.pt; with LoRA, adapter/

A folder is written under another name and renamed when it is complete, so a folder that is there can be trusted.
Only the newest one keeps trainer.pt, the state of the optimizer: it is twice the size of the weights.
"""

import hashlib
import os
import shutil
from pathlib import Path

import torch
from transformers import PreTrainedModel

from trainer_client.models.lora import has_adapters, save_adapted

TRAINER_FILE = "trainer.pt"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def state_hash(model: PreTrainedModel) -> str:
    """Returns SHA-256 over names, types, shapes and bytes of all parameters in the order of their names, in hex."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        tensor = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Returns the folder of the checkpoint of a step, whether or not it exists."""
    return checkpoints / f"step-{step:03d}"


def save_checkpoint(
    checkpoints: Path, step: int, model: PreTrainedModel, optimizer: torch.optim.Optimizer, tokenizer: Path
) -> Path:
    """Saves a checkpoint and returns its folder. One that is already there is left as it is.

    The tokenizer's files are copied byte for byte from the folder `tokenizer`: written anew they might differ, and
    with them the fingerprint.
    """
    folder = checkpoint_folder(checkpoints, step)
    if folder.exists():
        return folder
    partial = folder.with_name(f"partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    if has_adapters(model):
        save_adapted(model, partial)
    else:
        model.save_pretrained(partial)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, partial / name)
    torch.save({"step": step, "optimizer": optimizer.state_dict()}, partial / TRAINER_FILE)
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    partial.rename(folder)
    _sync(checkpoints)
    for earlier in checkpoints.glob(f"step-*/{TRAINER_FILE}"):
        if earlier.parent != folder:
            earlier.unlink()
    return folder


def latest_checkpoint(checkpoints: Path) -> tuple[int, Path]:
    """Returns step and folder of the newest checkpoint that can be gone on from.

    Raises FileNotFoundError when there is none.
    """
    folders = [path.parent for path in checkpoints.glob(f"step-*/{TRAINER_FILE}")]
    found = [(int(folder.name.removeprefix("step-")), folder) for folder in folders]
    if not found:
        raise FileNotFoundError(f"no checkpoint to go on from in {checkpoints}")
    return max(found)


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Loads the state of the optimizer from a checkpoint, in place."""
    saved = torch.load(folder / TRAINER_FILE, map_location="cpu", weights_only=True)
    optimizer.load_state_dict(saved["optimizer"])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
