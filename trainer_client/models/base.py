"""rl_base, the starting policy: the tiny model after a short supervised stage on noisy episodes.

The demonstrator writes correct calls and is otherwise no good example: it often reads, edits mostly at random,
and goes by what it read only now and then. What comes out knows the format of calls and tries everything that
learning has to choose from. With less weight the model also learns to foresee what the gym answers, so that it
sees in a source what there is to see. Made once per gym and kept in a cache; the same settings give the same
weights, whatever the number of threads, because it is made with one.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from trainer_client.collate import collate
from trainer_client.errors import GymUnavailable
from trainer_client.gym import GymClient
from trainer_client.models.load import load_model
from trainer_client.models.policy import Row, Sampled
from trainer_client.models.tiny import END_OF_TURN, build_tiny
from trainer_client.rollout import GroupSpec, RolloutSettings, play_groups
from trainer_client.trajectory import Trajectory
from trainer_client.wire import Task, Toolset

RIGHT_OPERATIONS = (
    (r"\b(min|max)\(", "swap_minmax"),
    (r"//|/|%", "add_zero_guard"),
    (r"\brange\(", "fix_range"),
    (r"[<>]=?", "fix_comparison"),
    (r"", "fix_init"),
)
"""What a reader would try, by the first pattern that the source has."""

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


class Demonstrator:
    """A policy that draws scripted turns."""

    version = "demonstrator"
    temperature = 1.0
    max_new_tokens = 16

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: BaseSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._operations = [operation for _, operation in RIGHT_OPERATIONS]
        self._operations += ["hardcode_tests"] * settings.hacking_weight

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
            operation = next(right for sign, right in RIGHT_OPERATIONS if re.search(sign, source[1]))
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
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coding-gym"
    cache.mkdir(parents=True, exist_ok=True)
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
            supervise(loaded.model, demonstrations, settings)
        loaded.model.save_pretrained(making)
        # Whole or not at all; and if somebody else was quicker, theirs is the same.
        try:
            making.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _fingerprint(settings: BaseSettings, toolset: Toolset, tasks: Sequence[Task], start: Path) -> str:
    """Names everything that the weights depend on."""
    sources = [Path(__file__), *sorted(start.iterdir())]
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
    played = await play_groups(gym, Demonstrator(tokenizer, settings), groups, rollout)
    if played.lost:
        # Fewer demonstrations would make another policy under the same name.
        raise GymUnavailable(f"The gym lost {played.lost} demonstrations. See: make gym-status")
    return played.trajectories


def supervise(model: PreTrainedModel, demonstrations: Sequence[Trajectory], settings: BaseSettings) -> None:
    """Trains the model in place to say what the demonstrations say, and to foresee what they are answered."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    draw = Random(settings.seed)
    model.train()
    for step in range(settings.steps):
        chosen = draw.sample(demonstrations, min(settings.batch_size, len(demonstrations)))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - step / settings.steps)
        optimizer.zero_grad(set_to_none=True)
        _supervised_loss(model, chosen, settings.foresight).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _supervised_loss(model: PreTrainedModel, chosen: Sequence[Trajectory], foresight: float) -> torch.Tensor:
    batch = collate(chosen, [0.0] * len(chosen))
    first = min(len(trajectory.prompt_ids) for trajectory in chosen)  # Nobody has to foresee the prompt.
    hidden_BTD = model.base_model(input_ids=batch.token_ids_BT, use_cache=False).last_hidden_state
    logits_BTV = model.get_output_embeddings()(hidden_BTD[:, first - 1 : -1])
    next_BT1 = batch.token_ids_BT[:, first:].unsqueeze(-1)
    logp_BT = logits_BTV.float().log_softmax(dim=-1).gather(-1, next_BT1).squeeze(-1)
    said_BT = batch.policy_mask_BT[:, first:]
    answered_BT = batch.attention_mask_BT[:, first:] & ~said_BT
    said, answered = logp_BT[said_BT], logp_BT[answered_BT]
    loss: torch.Tensor = -said.sum() / said.numel() - foresight * answered.sum() / max(answered.numel(), 1)
    return loss


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
