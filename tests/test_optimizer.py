"""Steps that are smaller than a weight can show."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.runs import SMALL as SMALL_RUN
from tests.runs import place_of_runs, run_whole
from tests.test_update import CONFIG, make_batch, make_model
from trainer_client.checkpoint import latest_checkpoint, load_optimizer, save_checkpoint, state_hash
from trainer_client.models.load import load_weights
from trainer_client.models.tiny import build_tiny
from trainer_client.optimizer import MasterAdamW
from trainer_client.update import make_optimizer, update_policy

SMALL = replace(CONFIG, learning_rate=1e-6, adam_epsilon=1e-8)


def vector(model: PreTrainedModel) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector([each.float() for each in model.parameters()]).detach()


def test_many_small_steps_move_weights_of_bfloat16() -> None:
    """A thousand steps of a millionth are a thousandth, and none of them shows in a weight near 1."""
    weight = torch.nn.Parameter(torch.full((4,), 0.25, dtype=torch.bfloat16))
    optimizer = MasterAdamW([weight], lr=1e-6, weight_decay=0.0)
    plain = torch.nn.Parameter(weight.detach().clone())
    rounded = torch.optim.AdamW([plain], lr=1e-6, weight_decay=0.0)
    for _ in range(1000):
        for parameter, each in ((weight, optimizer), (plain, rounded)):
            each.zero_grad()
            parameter.sum().backward()
            each.step()

    assert plain.tolist() == [0.25] * 4
    torch.testing.assert_close(weight.float(), torch.full((4,), 0.249), rtol=0, atol=5e-4)


def test_gradients_of_bfloat16_are_summed_in_float32() -> None:
    """256 + 1 + 1 is 258, and in bfloat16 it is 256."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    MasterAdamW([weight])
    for factor in (256.0, 1.0, 1.0):
        (weight * factor).sum().backward()

    assert weight.grad is not None
    assert weight.grad.item() == 258.0


def test_float32_is_what_torch_makes_of_it() -> None:
    hashes = []
    for kind in (MasterAdamW, torch.optim.AdamW):
        model = make_model()
        settings = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-3, "weight_decay": 0.0, "foreach": True}
        optimizer = kind(model.parameters(), **settings)
        for _ in range(2):
            update_policy(model, optimizer, make_batch(), CONFIG)
        hashes.append(state_hash(model))

    assert hashes[0] == hashes[1]


def test_an_update_in_bfloat16_goes_where_that_of_float32_goes() -> None:
    moved = []
    for dtype in (torch.bfloat16, torch.float32):
        model = make_model().bfloat16().to(dtype)
        optimizer = make_optimizer(model, CONFIG)
        copies = optimizer.state_dict()["masters"] or list(model.parameters())
        before = torch.cat([copy.detach().flatten().clone() for copy in copies])
        update_policy(model, optimizer, make_batch(), CONFIG)
        moved.append(torch.cat([copy.detach().flatten() for copy in copies]) - before)

    assert torch.cosine_similarity(*moved, dim=0) > 0.95


def test_going_on_in_bfloat16_gives_the_same_bytes(tmp_path: Path) -> None:
    """What the weights do not show is in the checkpoint, too."""
    make_model().save_pretrained(tmp_path / "start")
    model = load_weights(tmp_path / "start", torch.bfloat16, "cpu")
    optimizer = make_optimizer(model, SMALL)
    for step in range(4):
        if step == 2:
            save_checkpoint(tmp_path, step, model, optimizer, tmp_path)
        update_policy(model, optimizer, make_batch(), SMALL)

    _, folder = latest_checkpoint(tmp_path)
    again = load_weights(folder, torch.bfloat16, "cpu")
    resumed = make_optimizer(again, SMALL)
    load_optimizer(folder, resumed)
    for _ in range(2):
        update_policy(again, resumed, make_batch(), SMALL)

    assert state_hash(again) == state_hash(model)
    pairs = zip(resumed.state_dict()["masters"], optimizer.state_dict()["masters"], strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


async def test_what_a_cold_start_taught_in_bfloat16_outlives_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small step ends near where the cold start ended, and not near where it began."""
    build_tiny(tmp_path / "start")
    cold = {"demonstrations": 1, "cold_start_steps": 2, "cold_start_batch": 2, "max_turns": 3}
    config = replace(SMALL_RUN, model=str(tmp_path / "start"), dtype="bfloat16", max_new_tokens=8, **cold)
    config = replace(config, cold_start_learning_rate=1e-2, learning_rate=1e-4, adam_epsilon=1e-8, steps=1)
    async with place_of_runs(tmp_path, monkeypatch):
        checkpoints = (await run_whole(config, "cold")).checkpoints

    folders = (tmp_path / "start", checkpoints / "step-000", checkpoints / "step-001")
    raw, taught, stepped = (vector(load_weights(folder, torch.bfloat16, "cpu")) for folder in folders)
    assert 0 < (stepped - taught).norm() < 0.1 * (taught - raw).norm()
