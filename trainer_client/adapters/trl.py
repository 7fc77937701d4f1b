"""The gym for TRL: a `rollout_func` of its `GRPOTrainer` (pip install 'trl==1.16.0').

    with BlockingGym.connect() as gym:
        rollouts = GymRollouts(gym, "path/to/model")
        GRPOTrainer(
            model="path/to/model",
            reward_funcs=rewards,
            rollout_func=rollouts,
            train_dataset=Dataset.from_list([{"prompt": task_id} for task_id in rollouts.task_ids]),
            args=GRPOConfig(num_generations=8, temperature=1.0, ...),
        ).train()

The prompt of a row is the name of a task. Episodes are sampled by this project's sampler from a copy of the trainer's
weights, so that TRL learns from the ids that were sampled and those that the gym appended, never from text that was
encoded again. What the gym could not grade has no reward, and TRL leaves it out of the baseline.
"""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from trainer_client.blocking import BlockingGym
from trainer_client.models.load import load_model
from trainer_client.models.sampler import Sampler
from trainer_client.rollout import GroupSpec, RolloutSettings, play_groups
from trainer_client.trajectory import Trajectory


class GymRollouts:
    """Plays an episode for each prompt. Is given to `GRPOTrainer` as its `rollout_func`."""

    def __init__(
        self,
        gym: BlockingGym,
        model: str | Path,
        *,
        suite: str = "bugfix",
        toolset: str = "menu",
        max_turns: int = 0,
        max_new_tokens: int = 24,
        learn_from_truncated: bool = False,
        run_seed: int = 0,
    ) -> None:
        """Opens a model folder to sample from; its weights are replaced by the trainer's before each batch.

        Args:
            gym: A connected gym.
            model: The folder of the model that the trainer learns.
            suite: The suite whose training tasks are in `task_ids`.
            toolset: menu or coding.
            max_turns: Turns per episode at most; 0 for the toolset's own.
            max_new_tokens: Tokens that one turn may sample at most.
            learn_from_truncated: Whether episodes that a limit cut off are learned from.
            run_seed: The seed that the gym draws episodes from.
        """
        self._gym = gym
        self._copy = load_model(Path(model))
        copy = self._copy
        self._tokenizer = gym.register_tokenizer(
            copy.tokenizer_json,
            copy.chat_template,
            copy.end_of_turn,
            template_arguments=copy.template_arguments,
            stop_token_ids=copy.stop_ids,
        )
        self._toolset, self._max_turns, self._max_new_tokens = toolset, max_turns, max_new_tokens
        self._learn_from_truncated, self._run_seed = learn_from_truncated, run_seed
        self._batches = count()
        self.task_ids = [task.task_id for task in gym.list_tasks(suite, "train")]
        """The training tasks of the suite."""

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Plays a batch; `prompts` has each task as often as it has generations."""
        policy = self._copy.model
        learned = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(learned, "peft_config"):
            raise ValueError("GymRollouts samples from whole weights: train without peft_config")
        policy.load_state_dict(learned.state_dict())
        accelerator = trainer.accelerator
        batch = f"{next(self._batches)}"
        if accelerator.process_index:
            # A group may be spread over processes, and its episodes must still differ.
            batch += f".{accelerator.process_index}"
        sizes = {task_id: prompts.count(task_id) for task_id in prompts}
        groups = [GroupSpec(task_id, f"trl/{batch}/{task_id}", size) for task_id, size in sizes.items()]
        settings = RolloutSettings(
            self._run_seed,
            self._toolset,
            self._tokenizer.fingerprint,
            max_context_tokens=policy.config.get_text_config().max_position_embeddings,
            max_turns=self._max_turns,
            cohort_size=min(32, len(prompts), self._gym.get_info().capacity // accelerator.num_processes),
            trainers=accelerator.num_processes,
        )
        sampler = Sampler(
            policy,
            stop_ids=self._tokenizer.stop_token_ids,
            max_new_tokens=self._max_new_tokens,
            temperature=trainer.args.temperature,
        )
        played = self._gym.run(lambda client: play_groups(client, sampler, groups, settings))
        found = {(each.task_id, each.index): each for each in played.trajectories}
        if not found:
            raise RuntimeError("The gym lost every episode of this batch. See: make gym-status")
        places = {task_id: count() for task_id in sizes}
        rows = [self._row(found, task_id, next(places[task_id])) for task_id in prompts]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, found: dict[tuple[str, int], Trajectory], task_id: str, index: int) -> dict[str, Any]:
        episode = found.get((task_id, index))
        # One that the gym lost: any other in its place, without a reward and with nothing to learn from.
        shown = episode or next(iter(found.values()))
        start = len(shown.prompt_ids)
        mask = shown.mask[start:]
        logprobs = iter(shown.logprobs)
        learned = episode is not None and (self._learn_from_truncated or not episode.outcome.truncated)
        return {
            "prompt_ids": list(shown.prompt_ids),
            "completion_ids": shown.token_ids[start:],
            "logprobs": [next(logprobs) if sampled else 0.0 for sampled in mask],
            "env_mask": [int(sampled and learned) for sampled in mask],
            "gym_reward": float(episode.verdict.status == "resolved") if episode else None,
        }


def rewards(gym_reward: list[float | None], **_: Any) -> list[float | None]:
    """Is given to `GRPOTrainer` as its reward function: 1 where every hidden test passes, else 0."""
    return gym_reward
