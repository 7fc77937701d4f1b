"""The environments for TRL: alone over a gym in this process, and with TRL's own trainer where it is installed."""

import asyncio
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema

from tests.conftest import fake_sandbox, gym_over
from trainer_client.adapters.trl_environment import OVER, GymEnvironment, environments, rows
from trainer_client.blocking import BlockingGym
from trainer_client.endpoint import Endpoint
from trainer_client.wire import Task

ZERO, INIT = "bugfix/zero/share", "bugfix/init/tally"
REPAIR = [("read", {}), ("edit", {"operation": "add_zero_guard"}), ("submit", {})]


@pytest.fixture
async def endpoint(tmp_path: Path):
    async with gym_over(fake_sandbox, tmp_path, capacity=16) as gym:
        yield Endpoint(gym.running.address, gym.running.token)


@contextmanager
def environment(endpoint: Endpoint, toolset: str = "menu") -> Iterator[tuple[BlockingGym, Any]]:
    with BlockingGym.connect(endpoint) as gym:
        yield gym, environments(gym, toolset)()


def tools_of(env: GymEnvironment) -> list[Any]:
    """What TRL finds."""
    names = [name for name in dir(type(env)) if not name.startswith("_")]
    return [getattr(env, name) for name in names if name not in ("reset", "get_reward")]


@pytest.mark.parametrize("toolset", ["menu", "coding"])
async def test_its_tools_are_described_as_the_gym_describes_them(endpoint: Endpoint, toolset: str) -> None:
    def use() -> None:
        with environment(endpoint, toolset) as (gym, env):
            found = {
                schema["name"]: schema for schema in (get_json_schema(t)["function"] for t in tools_of(env))
            }
            known = next(each.tools for each in gym.get_info().toolsets if each.name == toolset)
            assert found.keys() == {tool.name for tool in known}
            for tool in known:
                theirs, ours = found[tool.name]["parameters"], json.loads(tool.parameters_json)
                assert theirs.get("required", []) == ours["required"]
                assert theirs["properties"].keys() == ours["properties"].keys()
                for name, each in ours["properties"].items():
                    assert theirs["properties"][name]["type"] == each["type"]
                    assert theirs["properties"][name].get("enum") == each.get("enum")

    await asyncio.to_thread(use)


async def test_a_repair_is_worth_1_and_what_comes_after_the_end_is_told_so(endpoint: Endpoint) -> None:
    def use() -> None:
        with environment(endpoint) as (_, env):
            assert env.reset(task_id=ZERO, prompt=[]).startswith("Repair ")
            said = [getattr(env, name)(**arguments) for name, arguments in REPAIR]
            assert "//" in said[0]
            assert said[-1].endswith(OVER)
            assert env.read() == OVER
            assert env.get_reward() == 1.0

    await asyncio.to_thread(use)


async def test_an_answer_without_a_call_is_graded_as_it_stands(endpoint: Endpoint) -> None:
    """TRL says nothing of it: the episode ends when its reward is asked for."""

    def use() -> None:
        with environment(endpoint) as (_, env):
            env.reset(task_id=ZERO)
            env.edit(operation="add_zero_guard")
            assert env.get_reward() == 1.0
            env.reset(task_id=ZERO)
            assert env.get_reward() == 0.0

    await asyncio.to_thread(use)


async def test_wrong_calls_are_the_policys_and_are_answered(endpoint: Endpoint) -> None:
    def use() -> None:
        with environment(endpoint, "coding") as (_, env):
            env.reset(task_id=ZERO)
            assert "file_path" in env.Read(file="solution.py")
            assert "must be of type" in env.Bash(command=3)

    await asyncio.to_thread(use)


async def test_what_the_gym_lost_has_no_reward(endpoint: Endpoint) -> None:
    """Which is not the same as 0; the instance goes on with the next episode."""

    def use() -> None:
        with environment(endpoint) as (_, env):
            assert env.get_reward() is None
            env.reset(task_id=ZERO)
            object.__setattr__(env._episode.opened, "episode_id", "gone")
            assert env.read() == OVER
            assert env.get_reward() is None
            env.reset(task_id=ZERO)
            assert "def " in env.read()

    await asyncio.to_thread(use)


async def test_an_instance_gives_up_the_episode_before(endpoint: Endpoint) -> None:
    def use() -> None:
        with environment(endpoint) as (gym, env):
            for _ in range(3):
                env.reset(task_id=ZERO)
                assert gym.get_info().live_episodes == 1

    await asyncio.to_thread(use)


def script(env: Any, task_id: str) -> list[dict[str, Any]]:
    """The conversation of a repair, as TRL would make it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": env.reset(task_id=task_id)}]
    for name, arguments in REPAIR:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        said = getattr(env, name)(**arguments)
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": name, "content": said},
        ]
    return [*messages, {"role": "assistant", "content": "Done."}]


def small_tokenizer(texts: list[str], template: str) -> PreTrainedTokenizerFast:
    """A tokenizer of these texts, with a template that TRL knows how to read calls from."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0], chat_template=template
    )


def model_that_knows(sequences: list[list[int]], tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A small model that has learned the conversations by heart."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=2048,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    starts = tokenizer.encode("<|im_start|>assistant\n")
    for step in range(120):
        ids = sequences[step % len(sequences)]
        labels, said = list(ids), False
        for place, token in enumerate(ids):
            labels[place] = token if said else -100
            said = (said and token != tokenizer.eos_token_id) or ids[place - 2 : place + 1] == starts
        model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.timeout(600)
async def test_its_own_trainer_plays_episodes_to_their_rewards(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that repairs one kind of fault whatever it sees: its tasks are worth 1, others 0."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: make test-adapters")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore")
    import datasets
    from datasets.table import InMemoryTable
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template as template

    def use() -> list[dict[str, Any]]:
        with environment(endpoint) as (gym, env):
            talks = [script(env, task_id) for task_id in (ZERO, INIT) * 30]
            tools = [get_json_schema(tool) for tool in tools_of(env)]
            render = {"tools": tools, "tokenize": False}
            raw = small_tokenizer(["x"], template)
            tokenizer = small_tokenizer([raw.apply_chat_template(talk, **render) for talk in talks], template)
            texts = [tokenizer.apply_chat_template(talk, **render) for talk in talks]
            model = model_that_knows([tokenizer.encode(text) for text in texts], tokenizer)
            tasks = [Task(task_id, "bugfix", "train", "") for task_id in (ZERO, INIT)]
            table = InMemoryTable.from_pydict(
                {name: [row[name] for row in rows(tasks)] for name in ("prompt", "task_id")}
            )
            trainer = trl.GRPOTrainer(
                model=model,
                processing_class=tokenizer,
                environment_factory=environments(gym, "menu"),
                train_dataset=datasets.Dataset(table, fingerprint="tasks"),
                args=trl.GRPOConfig(
                    output_dir=str(tmp_path / "out"),
                    per_device_train_batch_size=8,
                    num_generations=4,
                    max_completion_length=600,
                    max_steps=2,
                    learning_rate=1e-5,
                    temperature=0.5,
                    logging_steps=1,
                    report_to=[],
                    save_strategy="no",
                    use_cpu=True,
                    disable_tqdm=True,
                ),
            )
            trainer.train()
            return [row for row in trainer.state.log_history if "reward" in row]

    log = await asyncio.to_thread(use)

    assert [row["rewards/GymEnvironment/mean"] for row in log] == [row["reward"] for row in log]
    # One of its two tasks is what it knows; sampled, it does not always say what it knows.
    assert all(0.0 < row["reward"] <= 0.5 for row in log)
    assert all(row["tools/call_frequency"] > 1 and row["tools/failure_frequency"] == 0 for row in log)
    assert any(row["grad_norm"] > 0 for row in log)
