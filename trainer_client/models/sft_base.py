"""sft_base, the other starting policy: rl_base after a few supervised steps on demonstrations without a mistake.

One demonstration per training task, by the demonstrator that reads, repairs and hands in; learned from is what it
said, and nothing of what the gym answered. Few steps, so that the policy reads before it edits and is still far from
certain of what to edit: there is more to learn from than with rl_base, and less left to learn. Made once per gym and
kept in a cache as rl_base is, and like it with one thread, so that the same settings give the same weights.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from inspect import getfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from trainer_client.checkpoint import TOKENIZER_FILES
from trainer_client.cold_start import play_demonstrations
from trainer_client.distributed import ALONE
from trainer_client.errors import GymUnavailable
from trainer_client.gym import GymClient
from trainer_client.models.base import BaseSettings, make_rl_base
from trainer_client.models.cache import cache_folder, keep
from trainer_client.models.demonstrator import Demonstrator
from trainer_client.models.load import LoadedModel, load_model
from trainer_client.models.packed import use_packed_attention
from trainer_client.rollout import RolloutSettings
from trainer_client.supervised import SupervisedSettings, supervise
from trainer_client.trajectory import Trajectory
from trainer_client.wire import Task

MAX_NEW_TOKENS = 16
MAX_CONTEXT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class SftSettings:
    """What sft_base is made of, beside rl_base."""

    seed: int = 0
    demonstrations_per_task: int = 1
    steps: int = 10
    batch_size: int = 20
    """Demonstrations per step: with the built-in suite all there are."""
    learning_rate: float = 2e-3
    """At the first step, as with rl_base; falls to 0 in a straight line."""


async def make_sft_base(
    gym: GymClient,
    cache: Path | None = None,
    settings: SftSettings | None = None,
    base: BaseSettings | None = None,
) -> Path:
    """Returns the model folder of sft_base, made now unless the cache has it; rl_base, too, where it is missing.

    Args:
        gym: Where the demonstrations are played.
        cache: The folder of model folders; None for the user's.
        settings: What to make; None for the defaults.
        base: The rl_base to begin with; None for the default one.

    Raises:
        GymUnavailable: The gym went away, or did not find all demonstrations resolved.
    """
    settings, base = settings or SftSettings(), base or BaseSettings()
    cache = cache or cache_folder()
    start = await make_rl_base(gym, cache, base)
    tasks = await gym.list_tasks(base.suite, "train")
    folder = cache / f"sft_base-{_fingerprint(settings, tasks, start)}"
    if folder.is_dir():
        return folder
    loaded = load_model(start)
    shown = await _demonstrate(gym, loaded, tasks, settings)
    _learn(loaded.model, shown, settings)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as made:
        making = Path(made) / "model"
        loaded.model.save_pretrained(making)
        for name in TOKENIZER_FILES:
            if (start / name).exists():
                shutil.copy(start / name, making / name)
        keep(making, folder)
    return folder


def _fingerprint(settings: SftSettings, tasks: Sequence[Task], start: Path) -> str:
    """Names everything that the weights depend on; the folder of rl_base is named for all that it depends on."""
    code = (make_sft_base, play_demonstrations, Demonstrator, supervise, use_packed_attention)
    digests = [hashlib.sha256(Path(getfile(each)).read_bytes()).hexdigest() for each in code]
    names = [task.task_id for task in tasks]
    everything = json.dumps([asdict(settings), names, start.name, torch.__version__, digests])
    return hashlib.sha256(everything.encode()).hexdigest()[:12]


async def _demonstrate(
    gym: GymClient, loaded: LoadedModel, tasks: Sequence[Task], settings: SftSettings
) -> list[Trajectory]:
    tokenizer = await gym.register_tokenizer(loaded.tokenizer_json, loaded.chat_template, loaded.end_of_turn)
    demonstrator = Demonstrator(
        loaded.tokenizer,
        loaded.end_of_turn,
        toolset="menu",
        tests_first=False,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    rollout = RolloutSettings(
        run_seed=settings.seed,
        toolset="menu",
        fingerprint=tokenizer.fingerprint,
        max_context_tokens=MAX_CONTEXT_TOKENS,
        # A script samples nothing, so that the size of its batches does not matter.
        cohort_size=min(32, (await gym.get_info()).capacity),
    )
    shown = await play_demonstrations(
        ALONE,
        gym,
        demonstrator,
        [task.task_id for task in tasks],
        rollout,
        settings.demonstrations_per_task,
    )
    if shown.rejected:
        # Fewer demonstrations would make another policy under the same name.
        raise GymUnavailable(
            f"not all demonstrations for sft_base are resolved ({shown.rejected}). See: make gym-status"
        )
    return shown.kept


def _learn(model: PreTrainedModel, shown: Sequence[Trajectory], settings: SftSettings) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    learning = SupervisedSettings(
        seed=settings.seed,
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
    )
    try:
        for _ in supervise(model, shown, learning):
            pass
    finally:
        torch.set_num_threads(threads)
