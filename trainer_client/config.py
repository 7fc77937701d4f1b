"""What a run is made of: every setting, in one frozen value."""

import ast
import inspect
import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any

from trainer_client.presets import PRESETS

REWARDS = ("hidden", "public", "fraction")
TOOLSETS = ("menu", "coding")
DTYPES = ("float32", "bfloat16")
SAMPLERS = ("transformers", "vllm")
ADVANTAGES = ("mean", "mean_std", "leave_one_out")
CREDITS = ("episode", "turn")
AGGREGATIONS = ("token", "sequence", "constant")
KL_ESTIMATORS = ("k1", "k2", "k3")
IMPORTANCE = ("none", "truncated", "masked")
CURRICULA = ("uniform", "pass_rate")
REPORTED = ("chosen", "last")
TRACKERS = ("", "tensorboard", "trackio")
MENU_TURNS = 4
"""Turns of an episode in the menu, where nothing else is asked for: read, edit, test, submit."""


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
    report: str = "chosen"
    """What is reported in the end: chosen (the checkpoint that is best on the validation tasks, on the test tasks) or
    last (the last one, without any choice, on validation and test tasks; nothing is validated on the way)."""
    gym_share: int = 1
    """Trainers that share the gym: each takes its part of the capacity. No influence on the numbers."""
    track: str = ""
    """Where rows of metrics also go: tensorboard or trackio (extras of the same names); left out, to the run folder
    alone."""
    max_turns: int = 0
    """Turns per episode at most; 0 for 4 in the menu, one of each call, and for the toolset's own in coding."""
    max_edits: int = 0
    """Successful edits per episode at most; 0 for the toolset's own, -1 for any number."""
    model: str = ""
    """Model folder, or the name of a model in the local cache of transformers or on its hub, or smollm2, or one
    of the built-in policies rl_base and sft_base, which are made once and kept; left out, rl_base."""
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
    public_weight: float = 0.0
    """Share of the reward that is the share of public tests that pass; the rest is what `reward` says."""
    turn_cost: float = 0.0
    """Subtracted from the reward for each turn of the episode."""
    length_free_tokens: int = 0
    """Sampled tokens that an episode may have before its length costs: from there to length_limit_tokens a penalty
    rises in a straight line from 0 to 1 and stays there (the soft overlong punishment of DAPO); with both at 0 none."""
    length_limit_tokens: int = 0
    """Sampled tokens of an episode from which on the whole penalty of 1 is subtracted from its reward."""
    mask_truncated: bool = True
    """Learn nothing from episodes that a limit cut off; they still count in the baseline of their group. What such an
    episode did after its repair has no part in its reward, and learned from it grows at random."""
    advantage: str = "mean"
    """How an episode is compared with its group: mean (reward less the mean of the group), mean_std (that divided by
    the standard deviation of the group) or leave_one_out (reward less the mean of the others)."""
    credit: str = "episode"
    """What the advantage of a turn comes from: episode (that of its episode), or turn (what was still to come from
    that turn on, compared with the other episodes of the group that got as far)."""
    aggregation: str = "token"
    """What the loss is a mean over: token (all sampled tokens of the batch), sequence (episodes, each the mean of its
    tokens) or constant (sum over tokens divided by the number of episodes times aggregation_tokens)."""
    aggregation_tokens: int = 0
    """Sampled tokens that an episode counts as under the aggregation constant, for example as many as it may have."""
    curriculum: str = "uniform"
    """How the tasks of a step are drawn: uniform, or pass_rate (the more often, the more evenly their last training
    episodes passed and failed)."""
    refill_rounds: int = 0
    """How often groups without advantage are replaced by those of further tasks before a step is learned from (dynamic
    sampling); what is still without advantage then is left out. 0 learns from the first groups as they are."""
    largest_group: int = 0
    """Episodes that a group may have at most where its task passes or fails almost always: group_size grows until nine
    groups in ten would have an advantage. 0 for groups of one size."""
    sample_ahead: bool = False
    """Sample the next batch while the last one is learned from, by the policy before that update; not across
    checkpoints. Takes a copy of the weights."""
    importance: str = "none"
    """Weights for tokens that another policy sampled than the one that learns: none, truncated (the ratio of trainer
    to sampler, at most importance_cap) or masked (1 where the ratio is within importance_cap and its inverse, else
    0)."""
    importance_cap: float = 2.0
    """The largest ratio of trainer to sampler that counts in full."""
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
    dual_clip: float = 0.0
    """Where the advantage is negative, a ratio above this no longer counts; 0 for no such bound."""
    kl_coefficient: float = 0.0
    """Weight, in the loss, of the KL divergence from the policy before step 1; 0 keeps no such reference."""
    kl_estimator: str = "k3"
    """How that divergence is estimated from sampled tokens: k1, k2 or k3."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy on sampled tokens, which is added to the objective."""
    entropy_target: float = 0.0
    """Entropy in nats to be held: entropy_bonus grows by entropy_step after each step with less and falls by as much,
    not below 0, after each with more. 0 leaves entropy_bonus as it is."""
    entropy_step: float = 1e-3
    """By how much entropy_bonus moves in a step towards entropy_target."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    microbatch_tokens: int = 2048
    """Tokens that pass the model at once, with what sequences begin with in common counted once. Bounds memory; no
    influence on the loss beyond rounding."""

    @property
    def turn_limit(self) -> int:
        """Turns per episode at most; 0 for the toolset's own."""
        return self.max_turns or (MENU_TURNS if self.toolset == "menu" else 0)

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
            "gym_share": 1,
            "length_free_tokens": 0,
            "length_limit_tokens": 0,
            "aggregation_tokens": 0,
            "refill_rounds": 0,
            "largest_group": 0,
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
            "entropy_step",
        ):
            value = getattr(self, field)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field} is {value}: set it to a number above 0")
        if self.clip_low >= 1:
            raise ValueError(f"clip_low is {self.clip_low}: set it below 1, ratios are never negative")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}: set it to 0 or more and below 1")
        for field in (
            "weight_decay",
            "cold_start_foresight",
            "turn_cost",
            "dual_clip",
            "kl_coefficient",
            "entropy_bonus",
            "entropy_target",
        ):
            if not (getattr(self, field) >= 0 and math.isfinite(getattr(self, field))):
                raise ValueError(f"{field} is {getattr(self, field)}: set it to 0 or more")
        self._check_choices()
        self._check_effects()
        if self.sampler == "vllm" and self.lora_rank:
            raise ValueError(
                "sampler is vllm and lora_rank is above 0: vllm is sent whole models; choose one of the two"
            )
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset is {self.preset!r}: choose one of {', '.join(PRESETS)}")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device):
            raise ValueError(f"device is {self.device!r}: choose auto, cpu, cuda or cuda:N")
        if any(character in self.name for character in "/\\\0") or self.name.startswith("."):
            raise ValueError(f"name is {self.name!r}: leave out slashes and a leading dot, it names a folder")

    def _check_choices(self) -> None:
        for field, choices in {
            "reward": REWARDS,
            "toolset": TOOLSETS,
            "dtype": DTYPES,
            "sampler": SAMPLERS,
            "advantage": ADVANTAGES,
            "credit": CREDITS,
            "aggregation": AGGREGATIONS,
            "kl_estimator": KL_ESTIMATORS,
            "importance": IMPORTANCE,
            "curriculum": CURRICULA,
            "report": REPORTED,
            "track": TRACKERS,
        }.items():
            if getattr(self, field) not in choices:
                raise ValueError(f"{field} is {getattr(self, field)!r}: choose one of {', '.join(choices)}")

    def _check_effects(self) -> None:
        """Refuses what would have no effect beside the other settings, or would contradict them."""
        if not 0 <= self.public_weight < 1:
            raise ValueError(f"public_weight is {self.public_weight}: set it to 0 or more and below 1")
        if self.public_weight and self.reward == "public":
            raise ValueError("public_weight is set and reward is public: choose hidden or fraction")
        if 0 < self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip is {self.dual_clip}: set it above 1 + clip_high, or to 0 for none")
        if self.importance_cap <= 1 or not math.isfinite(self.importance_cap):
            raise ValueError(f"importance_cap is {self.importance_cap}: set it above 1")
        if 0 < self.length_free_tokens >= self.length_limit_tokens:
            raise ValueError(
                f"length_limit_tokens is {self.length_limit_tokens} and length_free_tokens "
                f"{self.length_free_tokens}: set the limit above the tokens that are free"
            )
        if (self.aggregation == "constant") != (self.aggregation_tokens > 0):
            raise ValueError(
                f"aggregation is {self.aggregation} and aggregation_tokens {self.aggregation_tokens}: the aggregation "
                "constant, and no other, needs it above 0"
            )
        if 0 < self.largest_group <= self.group_size:
            raise ValueError(
                f"largest_group is {self.largest_group}: set it above group_size, {self.group_size}, or to 0"
            )
        if self.entropy_target and self.entropy_bonus:
            raise ValueError(
                "entropy_target and entropy_bonus are set: a target finds its own bonus; choose one"
            )
        stale = self.sample_ahead or self.sampler == "vllm" or self.dtype == "bfloat16"
        if self.importance != "none" and not stale:
            raise ValueError(
                f"importance is {self.importance}, and every token is sampled by the very policy that learns from it: "
                "set it to none, or set sample_ahead, sampler vllm or dtype bfloat16"
            )
        if self.sample_ahead and self.sampler == "vllm":
            raise ValueError(
                "sample_ahead is set and sampler is vllm, which has one set of weights: choose one"
            )
        needed = {
            "demonstrations_test_first": (self.demonstrations > 0, "demonstrations above 0"),
            "cold_start_steps": (self.demonstrations > 0, "demonstrations above 0"),
            "cold_start_batch": (self.demonstrations > 0, "demonstrations above 0"),
            "cold_start_learning_rate": (self.demonstrations > 0, "demonstrations above 0"),
            "cold_start_foresight": (self.demonstrations > 0, "demonstrations above 0"),
            "lora_alpha": (self.lora_rank > 0, "lora_rank above 0"),
            "kl_estimator": (self.kl_coefficient > 0, "kl_coefficient above 0"),
            "entropy_step": (self.entropy_target > 0, "entropy_target above 0"),
            "importance_cap": (self.importance != "none", "importance truncated or masked"),
            # In the first update on a batch every ratio is exactly 1.
            "clip_low": (self.epochs > 1, "epochs above 1"),
            "clip_high": (self.epochs > 1, "epochs above 1"),
            "dual_clip": (self.epochs > 1, "epochs above 1"),
            "validation_episodes": (self.report == "chosen", "report chosen"),
        }
        defaults = {field.name: field.default for field in fields(self)}
        for name, (fulfilled, condition) in needed.items():
            if getattr(self, name) != defaults[name] and not fulfilled:
                raise ValueError(
                    f"{name} is {getattr(self, name)} and has no effect without {condition}: set that, or leave it out"
                )


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
