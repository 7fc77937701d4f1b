"""Samples turns by vLLM, on a GPU that the trainer shares with it.

Written against the documented interfaces of vLLM 0.33.0 and tested against its own classes, but not yet run on a
GPU. The engine is a process of its own, so that the trainer's settings of torch (determinism, threads) do not reach
it. It starts without weights and is given those of the model by its weight transfer over CUDA IPC, before anything
is sampled and again whenever others are to play; what it had kept of sequences is dropped with the old ones.

Prefix caching keeps what a sequence has seen from turn to turn, in whole blocks. Turns join what is under way. A
row's ids come from its own random numbers, but the last bits of the logits depend on what shares a batch, so a run
cannot be repeated to the last bit.
"""

import asyncio
import itertools
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel

from trainer_client.models.policy import Row, Sampled

MEMORY_SHARE = 0.4
"""Of the GPU's memory, for vLLM's weights, keys and values; the rest is the trainer's."""
_TRANSFER_BYTES = 2**30
"""Bounds the memory that a transfer of weights takes; no one parameter may be larger."""


class VllmSampler:
    """A policy that samples by vLLM, with no top-k and no top-p: what is recorded is what was drawn from."""

    def __init__(
        self, engine: Any, *, stop_ids: Sequence[int], max_new_tokens: int, temperature: float
    ) -> None:
        """Makes a sampler over an engine (vllm's AsyncLLM, started as `start` does) that has no weights yet.

        Args:
            engine: The engine.
            stop_ids: The ids that end a turn.
            max_new_tokens: The ids that a turn has at most.
            temperature: What logits are divided by.
        """
        self.version = ""
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self._engine = engine
        self._stop_ids = list(stop_ids)
        self._names = itertools.count()

    @classmethod
    def start(
        cls,
        folder: Path,
        model: PreTrainedModel,
        *,
        stop_ids: Sequence[int],
        max_new_tokens: int,
        temperature: float = 1.0,
    ) -> "VllmSampler":
        """Starts an engine for models like the one in a folder; `close` ends it.

        Raises:
            ValueError: vLLM is not installed, or the model is not on a GPU.
        """
        # The handles of a transfer are pickled; they pass between this process and its child alone.
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        # A fork of a process with threads, such as those of gRPC, may hang.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        try:
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ValueError(
                f"sampling by vllm needs what is not installed ({error}): "
                "pip install '.[vllm]', or choose --sampler transformers"
            ) from error
        if model.device.type != "cuda":
            raise ValueError(
                f"the model is on {model.device}: vllm needs a GPU; choose one, or --sampler transformers"
            )
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_settings(folder, model)))
        return cls(engine, stop_ids=stop_ids, max_new_tokens=max_new_tokens, temperature=temperature)

    async def play_weights(self, model: PreTrainedModel, version: str) -> None:
        """Has the engine sample from the weights of a model, as they are now."""
        # Whatever nobody waits for any more ends here, and with it what was kept of sequences under other weights.
        await self._engine.pause_generation(mode="abort", clear_cache=True)
        await asyncio.to_thread(_send_weights, model, _Client(self._engine, asyncio.get_running_loop()))
        await self._engine.resume_generation()
        self.version = version

    async def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        """Samples one turn for each row, until a stop id or max_new_tokens."""
        return list(await asyncio.gather(*(self._sample(row) for row in rows)))

    async def _sample(self, row: Row) -> Sampled:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = request_settings(row.random, self._stop_ids, self.max_new_tokens, self.temperature)
        answers = self._engine.generate(
            {"prompt_token_ids": row.ids[:]},
            SamplingParams(**settings, output_kind=RequestOutputKind.FINAL_ONLY),
            f"turn-{next(self._names)}",
        )
        (answer,) = [answer async for answer in answers]
        return turn_of(answer.outputs[0])

    def close(self) -> None:
        """Ends the engine."""
        self._engine.shutdown()


def engine_settings(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """Returns the arguments of the engine for models like the one in a folder."""
    return {
        "model": str(folder),
        "skip_tokenizer_init": True,  # Ids go in and come out.
        "load_format": "dummy",  # The weights are sent.
        "weight_transfer_config": {"backend": "ipc"},
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.config.get_text_config().max_position_embeddings,
        "generation_config": "vllm",  # Not the model folder's: it may have a top-k, or other ids that stop.
        "logprobs_mode": "processed_logprobs",  # Those of the distribution that is drawn from: after the temperature.
        "enable_prefix_caching": True,
        "gpu_memory_utilization": MEMORY_SHARE,
        "disable_log_stats": True,
    }


def request_settings(
    random: Random, stop_ids: Sequence[int], max_new_tokens: int, temperature: float
) -> dict[str, Any]:
    """Returns the sampling parameters of one turn, seeded by a draw from the row's own random numbers."""
    return {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": random.getrandbits(63),
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,  # The stop ids are all that ends a turn.
        "max_tokens": max_new_tokens,
        "logprobs": 0,  # That of the sampled id, and no others.
        "detokenize": False,
    }


def turn_of(completion: Any) -> Sampled:
    """Returns the turn of a finished completion; an id that stopped it is among its ids.

    Raises RuntimeError for one that the engine gave up: it is no turn of the policy.
    """
    if completion.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vllm gave a turn up: {completion.finish_reason}")
    ids = tuple(completion.token_ids)
    logprobs = tuple(
        place[token_id].logprob for token_id, place in zip(ids, completion.logprobs, strict=True)
    )
    return Sampled(ids, logprobs)


def _send_weights(model: PreTrainedModel, client: "_Client") -> None:
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    with torch.inference_mode():
        WeightTransferTrainerFactory.trainer_init(
            init_info=IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=_TRANSFER_BYTES),
            client=client,
            source=ModuleSource(model),
        ).send_weights()


class _Client:
    """What vLLM's sender of weights talks to (its VLLMWeightSyncClient): blocking calls, made from a thread."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._wait_for(
            self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))
        )

    def start_weight_update(self) -> None:
        self._wait_for(self._engine.start_weight_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._wait_for(self._engine.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait_for(self._engine.finish_weight_update(weight_version))
