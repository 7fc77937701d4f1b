"""From the name of a model to one that is ready to play."""

import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from tests.test_update import CONFIG, make_batch
from trainer_client.models.find import find_model
from trainer_client.models.load import choose_device, load_model, load_weights
from trainer_client.models.tiny import build_tiny
from trainer_client.update import make_optimizer, update_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached(hub: Path, folder: Path) -> Path:
    """Puts a model folder in the cache as `example/tiny`."""
    kept = hub / "models--example--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    (kept / "snapshots").mkdir()
    return folder.rename(kept / "snapshots" / ("0" * 40))


def test_a_folder_is_taken_as_it_is(folder: Path, hub: Path) -> None:
    assert find_model(str(folder)) == folder


def test_a_name_is_looked_up_in_the_local_cache_first(folder: Path, hub: Path) -> None:
    snapshot = cached(hub, folder)

    assert find_model("example/tiny") == snapshot


def test_half_a_model_in_the_cache_is_none(folder: Path, hub: Path) -> None:
    (folder / "model.safetensors").unlink()
    cached(hub, folder)

    with pytest.raises(FileNotFoundError, match="example/tiny"):
        find_model("example/tiny")


def test_a_model_that_is_nowhere_says_what_was_tried(hub: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        find_model("example/none")

    for place in ("folder example/none", "local cache", "hub", "hf download example/none"):
        assert place in str(caught.value)


def test_a_path_that_is_not_there_is_no_name(hub: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        find_model("/nowhere/at/all")


def test_all_ends_of_the_generation_config_stop_a_turn_and_the_end_of_turn_comes_first(folder: Path) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [0, 1, 7]}))

    assert load_model(folder).stop_ids == (1, 0, 7)


def test_only_a_template_that_knows_thinking_is_told_of_it(folder: Path) -> None:
    assert load_model(folder, thinking=True).template_arguments == {}
    (folder / "chat_template.jinja").write_text("{{ enable_thinking }}")

    assert load_model(folder, thinking=True).template_arguments == {"enable_thinking": True}
    assert load_model(folder).template_arguments == {"enable_thinking": False}


def test_a_device_that_is_not_there_is_said() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="choose auto or cpu"):
        choose_device("cuda:99")


def test_recomputed_activations_give_the_same_update(folder: Path) -> None:
    batch, weights = make_batch(), []
    passes = {True: 0, False: 0}
    for recompute in (True, False):
        model = load_model(folder, gradient_checkpointing=recompute).model

        def count(*_: object, recompute: bool = recompute) -> None:
            passes[recompute] += torch.is_grad_enabled()

        model.base_model.layers[0].mlp.register_forward_pre_hook(count)
        update_policy(model, make_optimizer(model, CONFIG), batch, CONFIG)
        weights.append(torch.nn.utils.parameters_to_vector(model.parameters()))

    assert passes[True] == 2 * passes[False] > 0
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-7)


def test_bfloat16_is_asked_for_and_not_what_the_folder_has(folder: Path) -> None:
    model = load_model(folder, torch.bfloat16).model

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert load_model(folder).model.dtype == torch.float32


def test_a_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    """Body and head alone would be another distribution, and sampler and trainer would agree on it."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    for scale in (1.0, 8.0):
        config = GraniteConfig(vocab_size=40, num_key_value_heads=2, logits_scaling=scale, **sizes)
        GraniteForCausalLM(config).save_pretrained(tmp_path / str(scale))

    load_weights(tmp_path / "1.0", torch.bfloat16, "cpu")
    with pytest.raises(ValueError, match="not those of its head alone"):
        load_weights(tmp_path / "8.0", torch.bfloat16, "cpu")
