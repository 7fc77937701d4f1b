"""What a policy is worth before anything is learned: `python -m trainer_client.describe rl_base`.

Plays so many episodes of each task of a split, learns nothing and leaves no folder behind. Whether there is something
to learn from shows in the share of groups with a gradient: those of whose episodes some pass and some do not. It is the
expectation for groups drawn from each task's episodes without replacement, as pass@k is, and not that of the few groups
that these episodes would make.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from trainer_client.config import RunConfig
from trainer_client.console import WIDTH_WITHOUT_TERMINAL
from trainer_client.distributed import ALONE
from trainer_client.errors import GymError
from trainer_client.evaluation import evaluate
from trainer_client.flags import add_settings
from trainer_client.frozen import open_policy
from trainer_client.gym import GymClient
from trainer_client.models.start import find_start_policy
from trainer_client.portrait import Portrait, score, show
from trainer_client.presets import PRESETS
from trainer_client.session import make_repeatable
from trainer_client.trajectory import Trajectory

SPLITS = ("train", "validation")
"""Not test: those tasks are for what is reported, and `trainer_client.evaluate` keeps count of who looked."""
SETTINGS = (
    "preset",
    "seed",
    "threads",
    "group_size",
    "suite",
    "toolset",
    "max_turns",
    "max_edits",
    "thinking",
    "dtype",
    "device",
    "max_context_tokens",
    "max_new_tokens",
    "cohort_size",
    "continuous_batching",
    "temperature",
    "microbatch_tokens",
)
"""Those settings of a run that matter for a policy that only plays."""


def main(argv: Sequence[str] | None = None) -> int:
    """Describes the policy and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.describe",
        description="Plays a policy on the tasks of a split and says what it does.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "policy",
        help="rl_base, sft_base, smollm2, a model folder (such as a checkpoint of a run) or the name of a model.",
    )
    parser.add_argument("--split", choices=SPLITS, default="train", help="Tasks that are played (train).")
    parser.add_argument("--episodes", type=int, default=16, help="Episodes of each task (16).")
    parser.add_argument("--json", action="store_true", default=False, help="Print one JSON object.")
    add_settings(parser, SETTINGS)
    given = vars(parser.parse_args(argv))
    policy, split, episodes, as_json = (given.pop(name) for name in ("policy", "split", "episodes", "json"))
    try:
        if episodes < 1:
            raise ValueError(f"episodes is {episodes}: set it to 1 or more")
        preset = PRESETS.get(given.get("preset", ""), {})
        config = RunConfig(**{**preset, **given, "model": policy})
        disable_progress_bar()
        make_repeatable(config)
        portrait = asyncio.run(describe(config, split, episodes))
    except (GymError, OSError, ValueError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(portrait.figures(), indent=2))
    else:
        show(portrait, console())
    return 0


async def describe(config: RunConfig, split: str, episodes: int) -> Portrait:
    """Plays config.model and returns what was seen."""
    async with GymClient.connect() as gym:
        folder = await find_start_policy(gym, config.model)
        frozen = await open_policy(gym, config, folder, config.model)
        tasks = await gym.list_tasks(config.suite, split)
        if not tasks:
            raise ValueError(f"the suite {config.suite} has no task in the split {split}")
        played: list[Trajectory] = []
        row = await evaluate(
            ALONE,
            gym,
            frozen.policy,
            frozen.settings,
            tasks,
            frozen.loaded.decode,
            label=f"describe/{split}",
            step=0,
            episodes=episodes,
            stream=f"describe/{split}",
            on_played=played.extend,
        )
    tokens = score(frozen.loaded, played, config)
    return Portrait(config.model, config.suite, split, row, tokens, config.group_size)


def console() -> Console:
    """Returns the terminal, or what stands in its place, with room for the tables."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)


if __name__ == "__main__":
    sys.exit(main())
