"""Named settings, for runs with real models: what they set is what those flags have by default under their name."""

from collections.abc import Mapping
from typing import Any

_QWEN3: Mapping[str, Any] = {
    "model": "Qwen/Qwen3-0.6B",
    "thinking": False,
    "dtype": "float32",
    "tasks_per_step": 8,
    "group_size": 8,
    "epochs": 1,
    "learning_rate": 1e-6,
    "adam_epsilon": 1e-8,
    "mask_truncated": False,
}
_SMOLLM2: Mapping[str, Any] = {
    "model": "smollm2",
    "threads": 2,
    "tasks_per_step": 4,
    "group_size": 8,
    "demonstrations": 4,
    "cold_start_batch": 8,
    "cold_start_learning_rate": 1e-4,
    "cohort_size": 16,
    "continuous_batching": True,
    "epochs": 1,
    "learning_rate": 1e-5,
    "adam_epsilon": 1e-8,
    "mask_truncated": False,
    "validation_episodes": 8,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # For one large GPU.
    "qwen3-0.6b-menu": {
        **_QWEN3,
        "toolset": "menu",
        "steps": 30,
        "max_turns": 6,
        "max_new_tokens": 64,
        "max_context_tokens": 2048,
        "cohort_size": 64,
        "microbatch_tokens": 8192,
    },
    "qwen3-0.6b-coding": {
        **_QWEN3,
        "toolset": "coding",
        "steps": 18,
        "validate_every": 6,
        "max_turns": 6,
        "max_new_tokens": 256,
        "max_context_tokens": 8192,
        "cohort_size": 16,
        "microbatch_tokens": 4096,
    },
    # For two cores.
    "smollm2-menu": {
        **_SMOLLM2,
        "toolset": "menu",
        "cold_start_steps": 40,
        "steps": 24,
        "validate_every": 8,
        "test_episodes": 16,
        "max_turns": 6,
        "max_new_tokens": 24,
    },
    "smollm2-coding": {
        **_SMOLLM2,
        "toolset": "coding",
        "cold_start_steps": 12,
        "steps": 16,
        "validate_every": 8,
        "test_episodes": 8,
        "max_new_tokens": 96,
    },
}


def described() -> str:
    """Returns the presets with what they set, one a paragraph."""
    lines = (
        f"  {name}: " + " ".join(f"{field}={value}" for field, value in preset.items())
        for name, preset in PRESETS.items()
    )
    return "\n".join(("presets, and what they set:", *lines))
