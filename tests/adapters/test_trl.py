"""The rollouts for TRL: alone over a gym in this process, and with TRL's own trainer where it is installed."""

import asyncio
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import fake_sandbox, gym_over
from trainer_client.adapters.trl import GymRollouts, rewards
from trainer_client.blocking import BlockingGym
from trainer_client.endpoint import Endpoint
from trainer_client.models.load import load_model
from trainer_client.models.tiny import build_tiny

ZERO, INIT = "bugfix/zero/share", "bugfix/init/tally"


def trainer_of(model: Any, process_index: int = 0) -> Any:
    """What the rollouts want of a trainer."""
    accelerator = SimpleNamespace(
        unwrap_model=lambda each: each, process_index=process_index, num_processes=process_index + 1
    )
    return SimpleNamespace(model=model, accelerator=accelerator, args=SimpleNamespace(temperature=1.0))


async def test_rows_are_in_the_order_of_the_prompts_and_only_sampled_ids_are_learned_from(
    tmp_path: Path,
) -> None:
    build_tiny(tmp_path / "start")
    model = load_model(tmp_path / "start").model

    async with gym_over(fake_sandbox, tmp_path) as gym:

        def use() -> tuple[GymRollouts, list[dict[str, list[Any]]]]:
            with BlockingGym.connect(Endpoint(gym.running.address, gym.running.token)) as blocking:
                rollouts = GymRollouts(
                    blocking, tmp_path / "start", max_turns=2, max_new_tokens=3, learn_from_truncated=True
                )
                prompts = [ZERO, ZERO, INIT, ZERO, INIT]
                batches = [rollouts(prompts, trainer_of(model))]
                rollouts._learn_from_truncated = False
                return rollouts, [*batches, rollouts(prompts, trainer_of(model))]

        rollouts, (batch, unlearned) = await asyncio.to_thread(use)

    assert ZERO in rollouts.task_ids
    assert rewards(**batch) == [0.0] * 5
    lengths = [[len(row) for row in batch[name]] for name in ("completion_ids", "logprobs", "env_mask")]
    assert lengths[0] == lengths[1] == lengths[2]
    assert [sum(row) for row in batch["env_mask"]] == [6] * 5
    for mask, logprobs in zip(batch["env_mask"], batch["logprobs"], strict=True):
        assert all((value < 0) == bool(sampled) for sampled, value in zip(mask, logprobs, strict=True))
    # The same task has the same instructions, and each episode names and draws of its own.
    assert len({tuple(ids) for ids in batch["completion_ids"]}) == 5
    assert [sum(row) for row in unlearned["env_mask"]] == [0] * 5
    assert batch["prompt_ids"] != unlearned["prompt_ids"]


async def test_the_weights_of_the_trainer_play(tmp_path: Path) -> None:
    """What was recorded is what they say of it."""
    build_tiny(tmp_path / "start")
    model = load_model(tmp_path / "start").model
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(3.0)

    async with gym_over(fake_sandbox, tmp_path) as gym:

        def use() -> dict[str, list[Any]]:
            with BlockingGym.connect(Endpoint(gym.running.address, gym.running.token)) as blocking:
                rollouts = GymRollouts(
                    blocking, tmp_path / "start", max_turns=2, max_new_tokens=3, learn_from_truncated=True
                )
                return rollouts([ZERO], trainer_of(model))

        batch = await asyncio.to_thread(use)

    ids = [*batch["prompt_ids"][0], *batch["completion_ids"][0]]
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    start = len(batch["prompt_ids"][0])
    said = [
        logp[start + place - 1, ids[start + place]].item()
        for place, sampled in enumerate(batch["env_mask"][0])
        if sampled
    ]
    recorded = [value for value in batch["logprobs"][0] if value]
    assert said == pytest.approx(recorded, abs=1e-4)


async def test_episodes_of_a_group_differ_also_where_processes_share_it(tmp_path: Path) -> None:
    build_tiny(tmp_path / "start")
    model = load_model(tmp_path / "start").model

    async with gym_over(fake_sandbox, tmp_path) as gym:

        def use() -> list[list[int]]:
            with BlockingGym.connect(Endpoint(gym.running.address, gym.running.token)) as blocking:
                played = []
                for process in range(2):
                    rollouts = GymRollouts(blocking, tmp_path / "start", max_turns=2, max_new_tokens=3)
                    played += rollouts([ZERO, ZERO], trainer_of(model, process))["completion_ids"]
                model.peft_config = {}
                with pytest.raises(ValueError, match="without peft_config"):
                    rollouts([ZERO], trainer_of(model))
                return played

        played = await asyncio.to_thread(use)

    assert len({tuple(ids) for ids in played}) == 4


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed: make test-adapters")
async def test_its_own_trainer_takes_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore")
    import datasets
    from datasets.table import InMemoryTable
    from trl import GRPOConfig, GRPOTrainer

    build_tiny(tmp_path / "start")
    async with gym_over(fake_sandbox, tmp_path) as gym:

        def use() -> list[dict[str, Any]]:
            with BlockingGym.connect(Endpoint(gym.running.address, gym.running.token)) as blocking:
                rollouts = GymRollouts(
                    blocking, tmp_path / "start", max_turns=2, max_new_tokens=3, learn_from_truncated=True
                )
                table = InMemoryTable.from_pydict({"prompt": rollouts.task_ids})
                trainer = GRPOTrainer(
                    model=str(tmp_path / "start"),
                    reward_funcs=rewards,
                    rollout_func=rollouts,
                    train_dataset=datasets.Dataset(table, fingerprint="tasks"),
                    args=GRPOConfig(
                        output_dir=str(tmp_path / "out"),
                        per_device_train_batch_size=4,
                        num_generations=2,
                        max_steps=2,
                        logging_steps=1,
                        report_to=[],
                        save_strategy="no",
                        use_cpu=True,
                        disable_tqdm=True,
                    ),
                )
                trainer.train()
                return trainer.state.log_history

        log = await asyncio.to_thread(use)

    assert [row["reward"] for row in log if "reward" in row] == [0.0, 0.0]
    assert all(row["completions/mean_length"] > 0 for row in log if "reward" in row)
