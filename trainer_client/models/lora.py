"""LoRA through peft: beside each linear layer a small one of low rank learns, and the layer itself stays as it was.

The adapters are put into the model in place. It remains the class that it was, with the body and the head where
they were: whatever passes the model, to sample or to learn, sees the adapted weights and need not know of them.

A checkpoint of such a model is an ordinary folder with the adapters worked into the weights, which any tool can
load; the adapters alone lie in its subfolder `adapter`, in the form of peft. Training goes on from them and from
the model that they belong to, so that not even rounding tells it from training in one piece.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"
_WEIGHTS = "adapter_model.safetensors"


def add_adapters(model: PreTrainedModel, rank: int, alpha: float, seed: int) -> None:
    """Adds adapters that change nothing yet to all linear layers but the head, and freezes everything else.

    They are float32 whatever the model is, since there is little of them and they are what learns.

    Raises ModuleNotFoundError when the extra `lora` is not installed.
    """
    peft = _peft()
    settings = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def has_adapters(model: PreTrainedModel) -> bool:
    """Tells whether `add_adapters` was called on the model."""
    return hasattr(model, "peft_config")


def save_adapted(model: PreTrainedModel, folder: Path) -> None:
    """Saves the model with its adapters worked in, and the adapters in the subfolder."""
    model.save_pretrained(folder, state_dict=merged(model))
    adapters = _peft().get_peft_model_state_dict(model)
    (folder / ADAPTER_FOLDER).mkdir()
    # In the names that peft gives to a model of its own, so that its tools can load them.
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in adapters.items()}
    save_file(named, folder / ADAPTER_FOLDER / _WEIGHTS)
    model.peft_config["default"].save_pretrained(folder / ADAPTER_FOLDER)


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Loads the adapters of a checkpoint into a model that has some of the same shapes.

    Raises ValueError when they are of other shapes or for another model.
    """
    named = load_file(folder / ADAPTER_FOLDER / _WEIGHTS)
    # peft's own loading passes over names that it does not know.
    own = dict(model.named_parameters())
    given = {_name_inside(name): tensor for name, tensor in named.items()}
    expected = {name for name, parameter in own.items() if parameter.requires_grad}
    if given.keys() != expected or any(own[name].shape != tensor.shape for name, tensor in given.items()):
        raise ValueError(f"{folder / ADAPTER_FOLDER}: these adapters are not of this model and rank")
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)


def merged(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the weights under the names that they have without adapters, with the adapters worked in."""
    weights: dict[str, Tensor] = {}
    layers: dict[str, Any] = {
        name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")
    }
    for name, tensor in model.state_dict().items():
        layer, inside, rest = name.partition(".base_layer.")
        if inside:
            if rest == "weight":
                # Added in float32, and rounded once.
                tensor = (tensor.float() + layers[layer].get_delta_weight("default").float()).to(tensor.dtype)
            weights[f"{layer}.{rest}"] = tensor
        elif ".lora_" not in name:
            weights[name] = tensor
    return weights


def _name_inside(name: str) -> str:
    """Gives the name of a saved adapter as the parameter of a model has it."""
    start, _, end = name.removeprefix("base_model.model.").rpartition(".")
    return f"{start}.default.{end}"


def _peft() -> Any:
    try:
        import peft
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise ModuleNotFoundError(
            "peft is needed for --lora-rank: pip install '.[lora]'", name="peft"
        ) from None
    return peft
