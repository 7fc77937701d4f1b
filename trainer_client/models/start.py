"""The policies that a run can start from, by name."""

import asyncio
from pathlib import Path

from trainer_client.gym import GymClient
from trainer_client.models.base import make_rl_base
from trainer_client.models.find import find_model
from trainer_client.models.sft_base import make_sft_base


async def find_start_policy(gym: GymClient, name: str) -> Path:
    """Returns the model folder of a policy: of `rl_base`, which no name means too, of `sft_base`, or of a model.

    Raises what `make_rl_base`, `make_sft_base` and `find_model` raise.
    """
    match name:
        case "" | "rl_base":
            return await make_rl_base(gym)
        case "sft_base":
            return await make_sft_base(gym)
        case _:
            # In a thread: fetching or converting takes a while, and the connection wants to be kept up.
            return await asyncio.to_thread(find_model, name)
