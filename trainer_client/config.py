"""What a run is made of: every setting that enters its numbers, in one frozen value, and the flags that set it."""

import argparse
import ast
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from trainer_client.presets import PRESETS, described

REWARDS = ("hidden", "public", "fraction")
TOOLSETS = ("menu", "coding")
DTYPES = ("float32", "bfloat16")
SAMPLERS = ("transformers", "vllm")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of one run. Two runs with equal settings over the same gym give the same weights, bit for bit."""

    name: str = ""
    """Name of the run and of its folder below runs/; made up when left out."""
    preset: str = ""
    """Where the settings come from that no flag is given for; left out, from the defaults named here."""
    seed: int = 0
    """Everything random in the run comes from it: the choice of tasks, the episodes, the sampling."""
    threads: int = 1
    """CPU threads of the trainer. Another number changes the order of sums, and with it the run."""
    steps: int = 60
    """Training steps."""
    tasks_per_step: int = 8
    """Training tasks that are drawn for one step."""
    group_size: int = 8
    """Episodes of one task in one step; they share a baseline."""
    validate_every: int = 10
    """Steps between two checkpoints, each evaluated on the validation tasks."""
    validation_episodes: int = 16
    """Episodes per validation task and checkpoint."""
    test_episodes: int = 32
    """Episodes per test task, for the starting policy and for the chosen checkpoint."""
    suite: str = "bugfix"
    """Suite of tasks."""
    toolset: str = "menu"
    """What the policy may call: menu or coding."""
    max_turns: int = 0
    """Turns per episode at most; 0 for the toolset's own."""
    max_edits: int = 0
    """Successful edits per episode at most; 0 for the toolset's own, -1 for any number."""
    model: str = ""
    """Model folder, or the name of a model in the local cache of transformers or on its hub, or smollm2; left out,
    the built-in starting policy is made once and kept."""
    thinking: bool = False
    """Let the model think before it speaks, where its chat template knows of that."""
    dtype: str = "float32"
    """Numbers that pass the model: float32, or bfloat16 with a copy of the weights in float32 that takes the steps."""
    device: str = "auto"
    """Where the model is: auto (the GPU where there is one), cpu, cuda or cuda:N."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, about a third more time in training."""
    lora_rank: int = 0
    """Rank of LoRA adapters, which are then all that is trained; 0 trains the whole model."""
    lora_alpha: float = 32.0
    """What adapters add is scaled by lora_alpha / lora_rank."""
    max_context_tokens: int = 0
    """Tokens that an episode may have in all, so that memory is bounded; 0 for as many as the model can take."""
    demonstrations: int = 0
    """Scripted episodes per training task that the policy learns from before step 1; 0 for no cold start."""
    demonstrations_test_first: bool = False
    """Demonstrations run the tests before they hand in."""
    cold_start_steps: int = 60
    """Steps of supervised learning from the demonstrations."""
    cold_start_batch: int = 16
    """Demonstrations per step of the cold start."""
    cold_start_learning_rate: float = 1e-4
    """Learning rate of AdamW in the cold start: rises over its first tenth, then falls to 0 in a straight line."""
    cold_start_foresight: float = 0.0
    """Weight, in the cold start, of the loss on what the gym answers next to that on what the policy says."""
    max_new_tokens: int = 24
    """Tokens that one turn may sample at most."""
    cohort_size: int = 32
    """Episodes that are sampled in one batch. Another size changes the order of sums, and with it the run."""
    sampler: str = "transformers"
    """What samples: transformers, or vllm, which needs a GPU, is faster on it, and gives runs that cannot be repeated
    to the last bit."""
    continuous_batching: bool = False
    """Let every episode sample as soon as its observation is back, with whatever else is being sampled then. Faster
    where turns are of different lengths, but a run cannot be repeated to the last bit."""
    temperature: float = 1.0
    """Temperature of sampling; the trainer differentiates the same distribution."""
    reward: str = "hidden"
    """What is rewarded: hidden (all hidden tests pass), public (all public tests pass, the control that shows
    hacking) or fraction (share of the hidden tests)."""
    divide_by_std: bool = False
    """Divide each group's advantages by the standard deviation of its rewards."""
    epochs: int = 2
    """Updates per batch of episodes."""
    learning_rate: float = 2e-3
    """Learning rate of AdamW, constant over the run."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.95
    """Decay of AdamW's second moment."""
    adam_epsilon: float = 1e-3
    """Added to the root of AdamW's second moment. As large as the gradients of a batch that teaches little, so that
    noise makes small steps: with the usual 1e-8 it makes full ones, and the entropy of what does not matter for the
    reward grows without end."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW."""
    clip_low: float = 0.2
    """A ratio below 1 - clip_low no longer counts."""
    clip_high: float = 0.2
    """A ratio above 1 + clip_high no longer counts."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    microbatch_tokens: int = 2048
    """Tokens that pass the model at once, with what sequences begin with in common counted once. Bounds memory; no
    influence on the loss beyond rounding."""

    def __post_init__(self) -> None:
        """Raises ValueError that says which field to change, and how."""
        at_least = {
            "threads": 1,
            "steps": 1,
            "tasks_per_step": 1,
            "group_size": 2,
            "validate_every": 1,
            "validation_episodes": 1,
            "test_episodes": 1,
            "max_turns": 0,
            "max_edits": -1,
            "demonstrations": 0,
            "cold_start_steps": 1,
            "cold_start_batch": 1,
            "lora_rank": 0,
            "max_context_tokens": 0,
            "max_new_tokens": 1,
            "cohort_size": 1,
            "epochs": 1,
            "microbatch_tokens": 1,
        }
        for field, least in at_least.items():
            if getattr(self, field) < least:
                raise ValueError(f"{field} is {getattr(self, field)}: set it to {least} or more")
        for field in (
            "lora_alpha",
            "temperature",
            "learning_rate",
            "cold_start_learning_rate",
            "adam_epsilon",
            "clip_low",
            "clip_high",
            "max_grad_norm",
        ):
            value = getattr(self, field)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field} is {value}: set it to a number above 0")
        if self.clip_low >= 1:
            raise ValueError(f"clip_low is {self.clip_low}: set it below 1, ratios are never negative")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}: set it to 0 or more and below 1")
        for field in ("weight_decay", "cold_start_foresight"):
            if not (getattr(self, field) >= 0 and math.isfinite(getattr(self, field))):
                raise ValueError(f"{field} is {getattr(self, field)}: set it to 0 or more")
        if self.demonstrations_test_first and not self.demonstrations:
            raise ValueError("demonstrations_test_first is set and demonstrations is 0: set it to 1 or more")
        if self.sampler == "vllm" and self.lora_rank:
            raise ValueError(
                "sampler is vllm and lora_rank is above 0: vllm is sent whole models; choose one of the two"
            )
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset is {self.preset!r}: choose one of {', '.join(PRESETS)}")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device):
            raise ValueError(f"device is {self.device!r}: choose auto, cpu, cuda or cuda:N")
        for field, choices in {
            "reward": REWARDS,
            "toolset": TOOLSETS,
            "dtype": DTYPES,
            "sampler": SAMPLERS,
        }.items():
            if getattr(self, field) not in choices:
                raise ValueError(f"{field} is {getattr(self, field)!r}: choose one of {', '.join(choices)}")
        if any(character in self.name for character in "/\\\0") or self.name.startswith("."):
            raise ValueError(f"name is {self.name!r}: leave out slashes and a leading dot, it names a folder")


def field_docs() -> dict[str, str]:
    """Returns the docstring under each field of RunConfig, as one line, by name."""
    body = ast.parse(inspect.getsource(RunConfig)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps everything but the presets, which have lines of their own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            super(_HelpFormatter, self)._fill_text(line, width, "  ") for line in text.split("\n")
        )


def parse_flags(argv: Sequence[str] | None = None) -> tuple[dict[str, Any], bool]:
    """Parses the command line.

    Returns the settings that were given, by field, with those of a preset that is named, and whether to go on with
    an earlier run. A setting that was not given is absent, so that --resume can tell it from one that was.
    """
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.run",
        description="Trains a policy in the gym and reports what it learned.",
        epilog=described(),
        formatter_class=_HelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        default=False,
        help="Go on with the run --name from its last checkpoint.",
    )
    docs = field_docs()
    for field in fields(RunConfig):
        shown = f"{docs[field.name]} (default: {field.default})" if field.default != "" else docs[field.name]
        flag, text = "--" + field.name.replace("_", "-"), shown.replace("%", "%%")
        if field.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            assert isinstance(field.type, type)
            parser.add_argument(flag, type=field.type, help=text, metavar=field.type.__name__.upper())
    given = vars(parser.parse_args(argv))
    resume = bool(given.pop("resume"))
    if resume and not given.get("name"):
        parser.error("--resume needs --name, the run to go on with")
    given = {**PRESETS.get(given.get("preset", ""), {}), **given}
    try:
        RunConfig(**given)
    except ValueError as error:
        parser.error(str(error))
    return given, resume


def resumed(config: RunConfig, given: dict[str, Any]) -> RunConfig:
    """Returns the config of an earlier run, after a check that nothing else is asked for now.

    Raises ValueError that names the settings that differ: going on with others gives neither the one run nor the
    other.
    """
    asked = replace(config, **given)
    different = [
        field.name for field in fields(RunConfig) if getattr(asked, field.name) != getattr(config, field.name)
    ]
    if different:
        listed = ", ".join(
            f"{name} {getattr(config, name)}, not {getattr(asked, name)}" for name in different
        )
        raise ValueError(
            f"the run {config.name} was made with {listed}: leave those flags out, or start a new run"
        )
    return config
