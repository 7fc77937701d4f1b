"""TRL's GRPOTrainer on the menu tasks: `python -m trainer_client.adapters.trl_example`, with a gym and TRL there.

Sampling is ours and everything else TRL's: advantages, loss, optimizer. The settings are those of the default run of
this project as far as TRL has them. Two optimizer steps are one batch of 8 tasks x 8 episodes.
"""

import argparse
import json
from pathlib import Path

import datasets
import torch
from datasets.table import InMemoryTable
from trl import GRPOConfig, GRPOTrainer

from trainer_client.adapters.trl import GymRollouts, rewards
from trainer_client.blocking import BlockingGym
from trainer_client.models.start import find_start_policy


def main() -> None:
    """Trains, and writes what TRL logged."""
    parser = argparse.ArgumentParser(description="Trains the built-in policy with TRL.")
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps, two to a batch of episodes")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/trl"), help="folder for the log and the model"
    )
    parser.add_argument("--seed", type=int, default=0, help="TRL's seed: the order of tasks")
    arguments = parser.parse_args()
    with BlockingGym.connect(on_notice=print) as gym:
        start = gym.run(lambda client: find_start_policy(client, "rl_base"))
        rollouts = GymRollouts(gym, start, max_turns=4)
        trainer = GRPOTrainer(
            model=str(start),
            reward_funcs=rewards,
            rollout_func=rollouts,
            # One column, the name of a task.
            train_dataset=datasets.Dataset(
                InMemoryTable.from_pydict({"prompt": rollouts.task_ids}), fingerprint="tasks"
            ),
            args=GRPOConfig(
                output_dir=str(arguments.output),
                max_steps=arguments.steps,
                seed=arguments.seed,
                per_device_train_batch_size=64,
                num_generations=8,
                num_iterations=2,
                learning_rate=2e-3,
                lr_scheduler_type="constant",
                adam_beta2=0.95,
                adam_epsilon=1e-3,
                beta=0.0,
                scale_rewards="none",
                temperature=1.0,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                bf16=False,
                use_cpu=not torch.cuda.is_available(),
            ),
        )
        trainer.train()
    trainer.save_model()
    log = [row for row in trainer.state.log_history if "reward" in row]
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "log.json").write_text(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()
