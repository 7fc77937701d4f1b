"""The sampler over vLLM, as far as a machine without a GPU allows.

The engine is a stand-in that answers as the documentation of vLLM says. Where vLLM itself can be imported, the
arguments are also given to its own classes.
"""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from trainer_client.models.policy import Row, Sampled
from trainer_client.models.vllm import VllmSampler, _Client, engine_settings, request_settings, turn_of

STOP = 2


@dataclass
class Logprob:
    logprob: float


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str | None


def make_completion(ids: list[int], finish_reason: str = "stop") -> Completion:
    # The most likely id may come with the sampled one.
    return Completion(ids, [{7: Logprob(-0.1), each: Logprob(-each / 8)} for each in ids], finish_reason)


def make_model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    )


@dataclass
class StandIn:
    """Answers what vLLM's AsyncLLM is asked, the shorter prompts later."""

    called: list[str] = field(default_factory=list)
    asked: dict[str, tuple[list[int], Any]] = field(default_factory=dict)

    async def generate(self, prompt: dict[str, list[int]], settings: Any, name: str) -> AsyncIterator[Any]:
        assert name not in self.asked
        self.asked[name] = prompt["prompt_token_ids"], settings
        await asyncio.sleep(0.01 / len(prompt["prompt_token_ids"]))
        yield SimpleNamespace(outputs=[make_completion([*prompt["prompt_token_ids"], STOP])], finished=True)

    def __getattr__(self, name: str) -> Any:
        async def answer(*_: object, **__: object) -> None:
            self.called.append(name)

        return answer


def test_a_turn_has_the_id_that_stopped_it_and_the_logprob_of_each_id() -> None:
    assert turn_of(make_completion([4, STOP])) == Sampled((4, STOP), (-0.5, -0.25))
    assert turn_of(make_completion([4, 6], "length")) == Sampled((4, 6), (-0.5, -0.75))


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_what_the_engine_gave_up_is_no_turn(reason: str | None) -> None:
    with pytest.raises(RuntimeError, match="gave a turn up"):
        turn_of(Completion([4], [{4: Logprob(-1.0)}], reason))


def test_requests_are_seeded_by_the_row_alone() -> None:
    first, again, other = (request_settings(Random(name), [STOP], 5, 1.0) for name in ("a", "a", "b"))

    assert first == again
    assert first["seed"] != other["seed"]
    one = Random("a")
    assert request_settings(one, [STOP], 5, 1.0)["seed"] != request_settings(one, [STOP], 5, 1.0)["seed"]


def test_without_vllm_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)

    with pytest.raises(ValueError, match=r"pip install '\.\[vllm\]'"):
        VllmSampler.start(Path("model"), make_model(), stop_ids=[STOP], max_new_tokens=5)


@pytest.fixture
def own_classes() -> None:
    pytest.importorskip("vllm.sampling_params", reason="vllm cannot be imported")


@pytest.mark.usefixtures("own_classes")
async def test_each_row_gets_its_own_turn() -> None:
    engine = StandIn()
    sampler = VllmSampler(engine, stop_ids=[STOP], max_new_tokens=9, temperature=1.0)
    rows = [Row([3], Random("a")), Row([5, 6, 7], Random("b"))]

    turns = [*await sampler.sample_turn(rows), *await sampler.sample_turn(rows)]

    assert [turn.token_ids for turn in turns] == [(3, STOP), (5, 6, 7, STOP)] * 2
    assert [row.ids for row in rows] == [[3], [5, 6, 7]]
    assert len({settings.seed for _, settings in engine.asked.values()}) == 4


@pytest.mark.usefixtures("own_classes")
def test_vllm_takes_the_requests_and_draws_from_the_whole_distribution() -> None:
    from vllm import SamplingParams

    settings = SamplingParams(**request_settings(Random(0), [STOP], 5, 0.7))

    assert (settings.temperature, settings.top_p, settings.top_k, settings.min_p) == (0.7, 1.0, 0, 0.0)
    assert (settings.stop_token_ids, settings.max_tokens, settings.num_logprobs) == ([STOP], 5, 0)
    settings.update_from_generation_config({"eos_token_id": [8, 9]}, eos_token_id=7)
    assert settings.stop_token_ids == [STOP]
    assert settings.eos_token_id is None


@pytest.mark.usefixtures("own_classes")
def test_vllm_knows_the_settings_of_the_engine() -> None:
    from vllm import AsyncEngineArgs

    settings = engine_settings(Path("model"), make_model())
    arguments = AsyncEngineArgs(**settings)

    assert arguments.dtype == "float32"
    assert arguments.weight_transfer_config.backend == "ipc"
    assert arguments.logprobs_mode == "processed_logprobs"


@pytest.mark.usefixtures("own_classes")
def test_a_turn_is_read_off_what_vllm_answers() -> None:
    from vllm import CompletionOutput
    from vllm.logprobs import Logprob as Theirs

    answer = CompletionOutput(
        index=0,
        text="",
        token_ids=[4, STOP],
        cumulative_logprob=-0.75,
        logprobs=[{4: Theirs(-0.5)}, {STOP: Theirs(-0.25)}],
        finish_reason="stop",
    )

    assert turn_of(answer) == Sampled((4, STOP), (-0.5, -0.25))


@pytest.mark.usefixtures("own_classes")
def test_vllm_has_every_method_of_the_engine_that_is_called() -> None:
    engine = pytest.importorskip("vllm.v1.engine.async_llm", exc_type=ImportError).AsyncLLM

    inspect.signature(engine.pause_generation).bind(None, mode="abort", clear_cache=True)
    inspect.signature(engine.generate).bind(None, {"prompt_token_ids": [1]}, None, "turn-0")
    for name in ("init_weight_transfer_engine", "update_weights", "finish_weight_update"):
        inspect.signature(getattr(engine, name)).bind(None, None)
    for name in ("resume_generation", "start_weight_update", "shutdown"):
        inspect.signature(getattr(engine, name)).bind(None)


@pytest.mark.usefixtures("own_classes")
async def test_weights_are_sent_by_blocking_calls_from_a_thread() -> None:
    engine = StandIn()
    client = _Client(engine, asyncio.get_running_loop())

    def send() -> None:
        client.init_weight_transfer_engine({"packed": True})
        client.start_weight_update()
        client.update_weights({"names": []})
        client.finish_weight_update()

    await asyncio.to_thread(send)

    assert engine.called == [
        "init_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
    ]
