"""A workflow of AReaL that plays in the gym. It was run against a stub of AReaL only, never with AReaL itself.

    trainer.train(workflow="trainer_client.adapters.examples.areal.GymWorkflow", workflow_kwargs={...})

A row of the data set has the name of a task as `task_id`. The engine samples from the ids that it is given; what it
sampled and what the gym appends make up the trajectory, and nothing is encoded again.
"""

from typing import Any
from uuid import uuid4

import torch
from areal.api.io_struct import ModelRequest
from areal.api.workflow_api import RolloutWorkflow

from trainer_client.blocking import process_gym
from trainer_client.episode import open_with_ids

_OF_THE_GYM = -1
"""The version of ids that no policy sampled."""


class GymWorkflow(RolloutWorkflow):
    """Plays one episode for each call."""

    def __init__(
        self, gconfig: Any, tokenizer: Any, toolset: str = "coding", max_tokens: int = 16384
    ) -> None:
        """Takes AReaL's settings of sampling, a tokenizer of transformers, and the longest trajectory."""
        self._gconfig = gconfig.new(n_samples=1)
        self._tokenizer = tokenizer
        self._toolset = toolset
        self._max_tokens = max_tokens

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        """Plays to the end; None, which AReaL rejects, where the gym could not tell whether it is right."""
        gym, request_id = process_gym(), uuid4().hex
        episode = await open_with_ids(self._tokenizer, data["task_id"], self._toolset)
        versions = [_OF_THE_GYM] * episode.prompt_length
        try:
            while episode.outcome is None and len(episode.token_ids) < self._max_tokens:
                answer = await engine.agenerate(
                    ModelRequest(
                        rid=request_id,
                        input_ids=list(episode.token_ids),
                        gconfig=self._gconfig,
                        tokenizer=self._tokenizer,
                    )
                )
                ids, logprobs = answer.output_tokens, answer.output_logprobs
                await gym.do(episode.sampled(ids, logprobs))
                versions += answer.output_versions
                versions += [_OF_THE_GYM] * (len(episode.token_ids) - len(versions))
            reward = await gym.do(episode.reward())
        finally:
            await gym.do(episode.close())
        if reward is None:
            return None
        sequence = {
            "input_ids": torch.tensor(episode.token_ids),
            "loss_mask": torch.tensor(episode.mask),
            "logprobs": torch.tensor(episode.logprobs),
            "versions": torch.tensor(versions),
            "attention_mask": torch.ones(len(versions), dtype=torch.bool),
            "rewards": torch.tensor(reward),
        }
        return {name: tensor.unsqueeze(0) for name, tensor in sequence.items()}
