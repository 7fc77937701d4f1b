"""rl_base, the starting policy: the tiny model after a short supervised stage on noisy episodes.

The demonstrator writes correct calls and is otherwise no good example: it often reads, edits mostly at random,
and goes by what it read only now and then. What comes out knows the format of calls and tries everything that
learning has to choose from. With less weight the model also learns to foresee what the gym answers, so that it
sees in a source what there is to see. Made once per gym and kept in a cache; the same settings give the same
weights, whatever the number of threads, because it is made with one.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from inspect import getfile
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from trainer_client.errors import GymUnavailable
from trainer_client.gym import GymClient
from trainer_client.models.cache import cache_folder, keep
from trainer_client.models.demonstrator import OPERATIONS, find_repair
from trainer_client.models.load import load_model
from trainer_client.models.packed import use_packed_attention
from trainer_client.models.policy import Row, Sampled
from trainer_client.models.tiny import END_OF_TURN, build_tiny
from trainer_client.rollout import GroupSpec, RolloutSettings, play_groups
from trainer_client.supervised import SupervisedSettings, supervise
from trainer_client.trajectory import Trajectory
from trainer_client.wire import Task, Toolset

READ = r"<\|assistant\|><call> read </call><\|end\|><\|tool\|>(.*?)<\|end\|>"
"""A read and the source that answered it. The prompt too has the words of a call, but as no turn."""

VERBS = ("read", "edit", "test", "submit")
VERB_WEIGHTS = {
    "start": (50, 27, 13, 10),
    "read": (10, 62, 16, 12),
    "edited": (7, 7, 18, 68),
}
"""How often the demonstrator calls what, by how far it is."""


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """What rl_base is made of."""

    seed: int = 0
    suite: str = "bugfix"
    episodes_per_task: int = 32
    """Demonstrations of each training task."""
    reading_rate: float = 0.3
    """How often an edit that follows a read goes by what was read."""
    hacking_weight: int = 2
    """How often hardcode_tests is drawn, compared with each of the other operations."""
    foresight: float = 0.3
    """Weight of the loss on observations next to that on the demonstrator's own ids, both as means. A model that
    never had to foresee a source sees nothing in it, and then reinforcement learns next to nothing."""
    steps: int = 300
    batch_size: int = 32
    """Episodes per step."""
    learning_rate: float = 2e-3
    """At the first step; falls to 0 in a straight line."""


class NoisyDemonstrator:
    """A policy that draws scripted turns of the menu."""

    version = "noisy demonstrator"
    temperature = 1.0
    max_new_tokens = 16

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: BaseSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._operations = [*OPERATIONS, *["hardcode_tests"] * settings.hacking_weight]

    async def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        """Draws a turn for each row. The log-probabilities are not known and given as 0."""
        turns = []
        for row in rows:
            call = self._choose(str(self._tokenizer.decode(row.ids)), row.random)
            ids = self._tokenizer.encode(f"<call> {call} </call>{END_OF_TURN}", add_special_tokens=False)
            turns.append(Sampled(tuple(ids), (0.0,) * len(ids)))
        return turns

    def _choose(self, conversation: str, random: Random) -> str:
        source = re.search(READ, conversation, re.DOTALL)
        edited = "<|assistant|><call> edit" in conversation
        state = "edited" if edited else "read" if source else "start"
        verb = random.choices(VERBS, VERB_WEIGHTS[state])[0]
        if verb != "edit":
            return verb
        operation = random.choice(self._operations)
        if source and random.random() < self._settings.reading_rate:
            repair = find_repair(source[1])
            operation = repair.operation if repair else operation
        return f"edit {operation}"


async def make_rl_base(
    gym: GymClient, cache: Path | None = None, settings: BaseSettings | None = None
) -> Path:
    """Returns the model folder of rl_base, made now unless the cache has it.

    Args:
        gym: Where the demonstrations are played.
        cache: The folder of model folders; None for the user's.
        settings: What to make; None for the defaults.

    Raises:
        GymUnavailable: The gym went away, or could not play all demonstrations.
    """
    settings = settings or BaseSettings()
    cache = cache or cache_folder()
    info = await gym.get_info()
    toolset = next(toolset for toolset in info.toolsets if toolset.name == "menu")
    tasks = await gym.list_tasks(settings.suite, "train")
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as made:
        making = Path(made) / "model"
        build_tiny(making, settings.seed)
        folder = cache / f"rl_base-{_fingerprint(settings, toolset, tasks, making)}"
        if folder.is_dir():
            return folder
        loaded = load_model(making)
        tokenizer = await gym.register_tokenizer(
            loaded.tokenizer_json, loaded.chat_template, loaded.end_of_turn
        )
        demonstrations = await _demonstrate(
            gym, loaded.tokenizer, tokenizer.fingerprint, tasks, settings, info.capacity
        )
        with _one_thread():
            learning = SupervisedSettings(
                seed=settings.seed,
                steps=settings.steps,
                batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                foresight=settings.foresight,
            )
            for _ in supervise(loaded.model, demonstrations, learning):
                pass
        loaded.model.save_pretrained(making)
        keep(making, folder)
    return folder


def _fingerprint(settings: BaseSettings, toolset: Toolset, tasks: Sequence[Task], start: Path) -> str:
    """Names everything that the weights depend on."""
    code = (make_rl_base, find_repair, supervise, use_packed_attention)
    sources = [*(Path(getfile(each)) for each in code), *sorted(start.iterdir())]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    names = [task.task_id for task in tasks]
    everything = json.dumps([asdict(settings), asdict(toolset), names, torch.__version__, digests])
    return hashlib.sha256(everything.encode()).hexdigest()[:12]


async def _demonstrate(
    gym: GymClient,
    tokenizer: PreTrainedTokenizerFast,
    fingerprint: str,
    tasks: Sequence[Task],
    settings: BaseSettings,
    capacity: int,
) -> list[Trajectory]:
    groups = [
        GroupSpec(task.task_id, f"demonstration/{task.task_id}", settings.episodes_per_task) for task in tasks
    ]
    rollout = RolloutSettings(
        run_seed=settings.seed,
        toolset="menu",
        fingerprint=fingerprint,
        max_context_tokens=1024,
        # A script samples nothing, so that the size of its batches does not matter.
        cohort_size=min(32, capacity),
    )
    played = await play_groups(gym, NoisyDemonstrator(tokenizer, settings), groups, rollout)
    if played.lost:
        # Fewer demonstrations would make another policy under the same name.
        raise GymUnavailable(f"The gym lost {played.lost} demonstrations. See: make gym-status")
    return played.trajectories


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
