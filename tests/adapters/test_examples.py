"""The examples for trainers that need a GPU, each against a stub of what it is plugged into, over a real gym."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.adapters.place import machine_with_a_gym
from trainer_client.blocking import BlockingGym
from trainer_client.errors import EpisodeLost
from trainer_client.gym import GymClient
from trainer_client.models.tiny import build_tokenizer

ZERO = "bugfix/zero/share"
REPAIR = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")
LOGPROB = -0.5


class Sampler:
    """Says the next line of a script, and sees to it that each prompt continues the one before."""

    def __init__(self, script: Sequence[str] = REPAIR) -> None:
        self.tokenizer = build_tokenizer()
        self.script = iter(script)
        self.sequence: list[int] = []
        self.said: list[list[int]] = []
        self.before_each: Callable[[], object] = lambda: None

    def __call__(self, prompt_ids: list[int]) -> list[int]:
        assert prompt_ids[: len(self.sequence)] == self.sequence
        self.before_each()
        ids = [
            *self.tokenizer.encode(next(self.script), add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]
        self.sequence = [*prompt_ids, *ids]
        self.said.append(ids)
        return ids

    def check(self, ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]) -> None:
        """The sequence is what was sampled from, the mask has what was sampled, and no more."""
        assert list(ids) == self.sequence
        sampled = [token for token, one in zip(ids, mask, strict=True) if one]
        assert sampled == [token for turn in self.said for token in turn]
        assert list(logprobs) == [LOGPROB * one for one in mask]


@pytest.fixture
async def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BlockingGym]:
    async with machine_with_a_gym(tmp_path, monkeypatch) as gym:
        yield gym


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads an example, where a library has these names in these modules and nothing else."""

    def load(example: str, **stubs: dict[str, Any]) -> Any:
        for path, names in stubs.items():
            parts = path.split("__")
            for length in range(1, len(parts) + 1):
                name = ".".join(parts[:length])
                if name not in sys.modules:
                    monkeypatch.setitem(sys.modules, name, ModuleType(name))
            sys.modules[name].__dict__.update(names)
        name = f"trainer_client.adapters.examples.{example}"
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.fixture
def ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every verdict get lost."""

    async def lost(*_: Any) -> Any:
        raise EpisodeLost("NOT_FOUND")

    monkeypatch.setattr(GymClient, "grade", lost)


def lose(gym: BlockingGym) -> None:
    """Has the gym not know its only episode any more."""
    (episode_id,) = gym._client._live
    gym.end(episode_id, "cancelled")


async def run_apart(work: Callable[[], Any]) -> Any:
    """Runs a coroutine in an event loop of its own: the gym has this one."""
    return await asyncio.to_thread(lambda: asyncio.run(work()))


def verl_loop(load: Callable[..., Any], sampler: Sampler, response_length: int = 4096) -> Any:
    class AgentLoopBase:
        tokenizer = sampler.tokenizer
        rollout_config = SimpleNamespace(response_length=response_length)

        class server_manager:
            @staticmethod
            async def generate(
                request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
            ) -> Any:
                ids = sampler(prompt_ids)
                return SimpleNamespace(token_ids=ids, log_probs=[LOGPROB] * len(ids))

    stubs = {
        "AgentLoopBase": AgentLoopBase,
        "AgentLoopOutput": SimpleNamespace,
        "register": lambda name: lambda made: made,
    }
    return load("verl", verl__experimental__agent_loop__agent_loop=stubs).GymAgentLoop()


async def test_verl_gets_the_ids_that_were_sampled_and_those_of_the_gym(gym: BlockingGym, load: Any) -> None:
    sampler = Sampler()
    loop = verl_loop(load, sampler)
    row = {"extra_info": {"task_id": ZERO, "toolset": "menu"}}

    output = await run_apart(lambda: loop.run({}, **row))

    assert output.reward_score == 1.0
    assert output.extra_fields == {"stop_reason": "submitted"}
    mask = [0] * len(output.prompt_ids) + output.response_mask
    logprobs = [0.0] * len(output.prompt_ids) + output.response_logprobs
    sampler.check(output.prompt_ids + output.response_ids, mask, logprobs)


async def test_verl_is_given_no_more_than_its_response_can_have(gym: BlockingGym, load: Any) -> None:
    loop = verl_loop(load, Sampler(), response_length=8)

    output = await run_apart(lambda: loop.run({}, extra_info={"task_id": ZERO, "toolset": "menu"}))

    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs) == 8
    assert (output.reward_score, output.extra_fields["stop_reason"]) == (0.0, "max_tokens")
    assert (await asyncio.to_thread(gym.get_info)).live_episodes == 0


async def test_verl_is_told_of_an_episode_that_was_lost(gym: BlockingGym, load: Any) -> None:
    sampler = Sampler()
    sampler.before_each = lambda: lose(gym)
    loop = verl_loop(load, sampler)

    with pytest.raises(EpisodeLost):
        await run_apart(lambda: loop.run({}, extra_info={"task_id": ZERO, "toolset": "menu"}))


def slime_parts(load: Callable[..., Any], sampler: Sampler) -> tuple[Any, Any, Any]:
    async def post(url: str, request: dict[str, Any]) -> dict[str, Any]:
        assert url == "http://host:1/generate"
        told = [(LOGPROB, token, None) for token in sampler(request["input_ids"])]
        return {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": told}}

    status = SimpleNamespace(COMPLETED="completed", TRUNCATED="truncated", ABORTED="aborted")
    state = SimpleNamespace(tokenizer=sampler.tokenizer)
    example = load(
        "slime",
        slime__rollout__sglang_rollout={"GenerateState": lambda args: state},
        slime__utils__http_utils={"post": post},
        slime__utils__types={"Sample": SimpleNamespace(Status=status)},
    )
    args = SimpleNamespace(sglang_router_ip="host", sglang_router_port=1, rollout_max_context_len=4096)
    sample = SimpleNamespace(metadata={"task_id": ZERO, "toolset": "menu"}, group_index=3, index=24)
    return example, args, sample


async def test_slime_gets_the_ids_that_were_sampled_and_those_of_the_gym(gym: BlockingGym, load: Any) -> None:
    sampler = Sampler()
    example, args, sample = slime_parts(load, sampler)

    await run_apart(lambda: example.generate(args, sample, {}))

    assert (sample.reward, sample.status, sample.remove_sample) == (1.0, "completed", False)
    prompt = len(sample.tokens) - sample.response_length
    sampler.check(sample.tokens, [0] * prompt + sample.loss_mask, [0.0] * prompt + sample.rollout_log_probs)
    assert example.keep_group(args, [sample])


async def test_slime_is_told_what_was_cut_off(gym: BlockingGym, load: Any) -> None:
    example, args, sample = slime_parts(load, Sampler())
    args.rollout_max_context_len = 1

    await run_apart(lambda: example.generate(args, sample, {}))

    assert (sample.reward, sample.status, sample.response_length) == (0.0, "truncated", 0)


async def test_slime_drops_a_group_with_what_could_not_be_graded(
    gym: BlockingGym, load: Any, ungraded: None
) -> None:
    example, args, sample = slime_parts(load, Sampler())

    await run_apart(lambda: example.generate(args, sample, {}))

    assert (sample.reward, sample.remove_sample) == (None, True)
    assert not example.keep_group(args, [sample])


def areal_parts(load: Callable[..., Any], sampler: Sampler) -> tuple[Any, Any]:
    class Engine:
        async def agenerate(self, request: Any) -> Any:
            ids = sampler(request.input_ids)
            return SimpleNamespace(
                output_tokens=ids, output_logprobs=[LOGPROB] * len(ids), output_versions=[7] * len(ids)
            )

    example = load(
        "areal",
        areal__api__io_struct={"ModelRequest": SimpleNamespace},
        areal__api__workflow_api={"RolloutWorkflow": object},
    )
    gconfig = SimpleNamespace(new=lambda n_samples: {"n_samples": n_samples})
    return example.GymWorkflow(gconfig, sampler.tokenizer, "menu"), Engine()


async def test_areal_gets_the_ids_that_were_sampled_and_those_of_the_gym(gym: BlockingGym, load: Any) -> None:
    sampler = Sampler()
    workflow, engine = areal_parts(load, sampler)

    got = await run_apart(lambda: workflow.arun_episode(engine, {"task_id": ZERO}))

    assert got["rewards"].tolist() == [1.0]
    mask = got["loss_mask"][0].tolist()
    sampler.check(got["input_ids"][0].tolist(), mask, got["logprobs"][0].tolist())
    assert got["versions"][0].tolist() == [7 if one else -1 for one in mask]
    assert {tensor.shape for name, tensor in got.items() if name != "rewards"} == {torch.Size([1, len(mask)])}


async def test_areal_rejects_what_could_not_be_graded(gym: BlockingGym, load: Any, ungraded: None) -> None:
    workflow, engine = areal_parts(load, Sampler())

    assert await run_apart(lambda: workflow.arun_episode(engine, {"task_id": ZERO})) is None


def openrlhf_executor(load: Callable[..., Any], sampler: Sampler) -> tuple[Any, Any]:
    """With the loop of OpenRLHF in short: prompt and feedback are texts that it encodes. Its limit is one of turns."""

    class MultiTurnAgentExecutor:
        def __init__(self, agent_class: Any) -> None:
            self.agent_class = agent_class

        async def execute(
            self,
            prompt: str,
            label: str,
            sampling_params: Any,
            max_length: int,
            hf_tokenizer: Any,
            engine: Any,
        ) -> Any:
            agent = self.agent_class()
            text = (await agent.reset({"observation": prompt, "label": label}))["observation"]
            ids, reward, ranges = hf_tokenizer.encode(text, add_special_tokens=False), 0.0, []
            while len(ranges) < max_length:
                action = engine(ids)
                said = hf_tokenizer.decode(action)
                step = await agent.step({"observation_text": text, "action_text": said, "label": label})
                reward += step["rewards"].item()
                text += said + step["environment_feedback"]
                ranges.append((len(ids), len(ids) + len(action)))
                ids = ids + action
                ids = ids + hf_tokenizer.encode(step["environment_feedback"], add_special_tokens=False)
                if step["done"]:
                    break
            return {"reward": reward, "scores": reward, "observation_tokens": ids, "action_ranges": ranges}

    stubs = {"AgentInstanceBase": object, "MultiTurnAgentExecutor": MultiTurnAgentExecutor}
    example = load("openrlhf", openrlhf__utils__agent=stubs)
    example.TOOLSET = "menu"
    return example.AgentExecutor(), sampler


async def test_openrlhf_encodes_what_it_is_told_to_the_ids_of_the_gym(gym: BlockingGym, load: Any) -> None:
    sampler = Sampler()
    executor, engine = openrlhf_executor(load, sampler)

    got = await run_apart(lambda: executor.execute(ZERO, "", None, 4096, sampler.tokenizer, engine))

    assert got["reward"] == 1.0
    ids = got["observation_tokens"]
    mask = [
        int(any(start <= place < end for start, end in got["action_ranges"])) for place in range(len(ids))
    ]
    sampler.check(ids, mask, [LOGPROB * one for one in mask])


async def test_openrlhf_grades_what_it_cut_off_itself(gym: BlockingGym, load: Any) -> None:
    sampler = Sampler(REPAIR[1:])
    executor, engine = openrlhf_executor(load, sampler)

    got = await run_apart(lambda: executor.execute(ZERO, "", None, 1, sampler.tokenizer, engine))

    assert (got["reward"], got["scores"]) == (1.0, 1.0)
    assert (await asyncio.to_thread(gym.get_info)).live_episodes == 0
