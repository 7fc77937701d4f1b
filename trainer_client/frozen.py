"""A policy that plays and does not learn: opened from a model folder, known to the gym, with a run's settings.

It samples by transformers whatever the settings say: what a policy is does not depend on the engine.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from trainer_client.config import RunConfig
from trainer_client.distributed import ALONE
from trainer_client.gym import GymClient
from trainer_client.models.load import LoadedModel
from trainer_client.models.sampler import Sampler
from trainer_client.rollout import RolloutSettings
from trainer_client.session import load, register, rollout_settings


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """What it takes to play a policy."""

    loaded: LoadedModel
    policy: Sampler
    settings: RolloutSettings


async def open_policy(gym: GymClient, config: RunConfig, folder: Path, version: str) -> FrozenPolicy:
    """Opens the policy of a model folder. Raises ValueError and OSError as `load_model` does."""
    config = replace(config, sampler="transformers", gym_share=1)
    loaded = load(config, folder)
    tokenizer = await register(gym, loaded)
    policy = Sampler(
        loaded.model,
        stop_ids=tokenizer.stop_token_ids,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        version=version,
        continuous=config.continuous_batching,
    )
    return FrozenPolicy(loaded, policy, rollout_settings(config, loaded.model, tokenizer, ALONE))
