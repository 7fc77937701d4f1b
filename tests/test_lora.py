"""Adapters that learn in place of the model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.runs import SMALL, place_of_runs, run_whole, run_with_a_break
from tests.test_update import CONFIG, make_batch, make_model
from trainer_client.checkpoint import latest_checkpoint, load_optimizer, save_checkpoint, state_hash
from trainer_client.metrics import read_history
from trainer_client.models.lora import add_adapters, load_adapters
from trainer_client.models.packed import SharedPrefix, hidden_states, use_packed_attention
from trainer_client.models.tiny import build_tiny
from trainer_client.update import make_optimizer, update_policy

peft = pytest.importorskip("peft", reason="the extra lora is not installed")
IDS = torch.tensor([[3, 4, 5, 6, 7]])


def adapted(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = make_model().to(dtype)
    add_adapters(model, rank=4, alpha=8, seed=0)
    return model


def taught(dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    """Returns a model after two updates, and its optimizer."""
    model = adapted(dtype)
    optimizer = make_optimizer(model, CONFIG)
    for _ in range(2):
        update_policy(model, optimizer, make_batch(), CONFIG)
    return model, optimizer


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def test_fresh_adapters_change_nothing() -> None:
    assert torch.equal(logits(adapted()), logits(make_model()))


def test_the_adapters_learn_and_nothing_else_does() -> None:
    before = dict(adapted().named_parameters())
    model, _ = taught()

    moved = {name for name, each in model.named_parameters() if not torch.equal(each, before[name])}
    assert moved == {name for name in before if ".lora_" in name}


def test_adapters_are_drawn_from_the_seed_and_leave_other_draws_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    assert state_hash(adapted()) == state_hash(adapted())
    torch.manual_seed(5)
    add_adapters(make_model(), rank=4, alpha=8, seed=1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), expected)


def test_a_checkpoint_is_a_model_that_any_tool_can_load(tmp_path: Path) -> None:
    """With the adapters worked in; as adapters of the model below, peft itself loads them."""
    model, optimizer = taught()
    folder = save_checkpoint(tmp_path, 2, model, optimizer, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    beside = peft.PeftModel.from_pretrained(make_model(), folder / "adapter").eval()

    assert {name for name, _ in plain.named_parameters()} == {n for n, _ in make_model().named_parameters()}
    assert not torch.allclose(logits(plain), logits(make_model()), atol=1e-4)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)
    assert torch.equal(logits(beside), logits(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_going_on_from_a_checkpoint_gives_the_same_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    model, optimizer = taught(dtype)
    save_checkpoint(tmp_path, 2, model, optimizer, tmp_path)
    update_policy(model, optimizer, make_batch(), CONFIG)

    _, folder = latest_checkpoint(tmp_path)
    again = adapted(dtype)
    load_adapters(again, folder)
    resumed = make_optimizer(again, CONFIG)
    load_optimizer(folder, resumed)
    update_policy(again, resumed, make_batch(), CONFIG)

    assert state_hash(again) == state_hash(model)


def test_adapters_of_another_rank_are_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 2, *taught(), tmp_path)
    other = make_model()
    add_adapters(other, rank=2, alpha=8, seed=0)

    with pytest.raises(ValueError, match="not of this model and rank"):
        load_adapters(other, folder)


def test_packed_passes_see_the_adapters() -> None:
    model, _ = taught()
    use_packed_attention(model)
    line = IDS[0]
    with torch.no_grad():
        hidden = hidden_states(model, line, torch.arange(5), SharedPrefix(2, (3,)))
        packed = model.get_output_embeddings()(hidden)

    torch.testing.assert_close(packed, logits(model)[0], rtol=1e-4, atol=1e-5)


def test_adapters_of_a_model_in_bfloat16_are_float32() -> None:
    trained = [each for each in adapted(torch.bfloat16).parameters() if each.requires_grad]

    assert {each.dtype for each in trained} == {torch.float32}


async def test_a_run_samples_from_what_it_learned_and_goes_on_to_the_same_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler's log-probabilities are the trainer's after the first update, too."""
    build_tiny(tmp_path / "start")
    config = replace(SMALL, model=str(tmp_path / "start"), lora_rank=4, learning_rate=1e-2)
    async with place_of_runs(tmp_path, monkeypatch):
        whole, broken = await run_whole(config, "whole"), await run_with_a_break(config, "broken")

    adapters = [
        (folder.checkpoints / "step-002" / "adapter" / "adapter_model.safetensors").read_bytes()
        for folder in (whole, broken)
    ]
    assert adapters[0] == adapters[1]
    rows = read_history(whole.metrics).steps
    assert rows[0].update.kl > 1e-6
    assert rows[1].update.sampler_gap < 1e-5
