"""What sampling costs, beside plain `generate`, and sampling and update together, beside TRL.

No gym here: prompts and observations are ids drawn at random, because the time of a forward pass does not depend on
what they say. Contenders take turns, and each figure is the median over the rounds.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.trajectories import collate_episodes, make_trajectory
from trainer_client.config import RunConfig
from trainer_client.models.load import load_model
from trainer_client.models.policy import Row
from trainer_client.models.sampler import Sampler
from trainer_client.models.tiny import build_tiny
from trainer_client.objective import group_advantages
from trainer_client.update import make_optimizer, update_policy

_LEAST_ROUNDS = 3

TURNS = 4
PROMPT_IDS = 240
"""Of a prompt; all but the last quarter is the same for all, as instructions are, and the rest for a group."""
OBSERVATION_IDS = (8, 80)
MAX_NEW_TOKENS = 64
STOP_RATE = 0.05
"""The share of the vocabulary that ends a turn. A random share, so that turns end at random times."""
GROUPS, GROUP_SIZE = 8, 8
COMPLETION_IDS = 24


@dataclass(frozen=True)
class Work:
    """Episodes to sample: which prompts, which observations, and what ends a turn."""

    vocabulary: int
    rows: int
    stop_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Draws the ids that end a turn."""
        stops = Random("stops").sample(range(self.vocabulary), round(self.vocabulary * STOP_RATE))
        object.__setattr__(self, "stop_ids", stops)

    def start(self, seed: int) -> list[Row]:
        """Gives the rows with their prompts; those of the next seed draw other turns."""
        shared = self._ids("shared", PROMPT_IDS * 3 // 4)
        return [
            Row(shared + self._ids(f"group/{row // GROUP_SIZE}", PROMPT_IDS // 4), Random(f"{seed}/{row}"))
            for row in range(self.rows)
        ]

    def observation(self, row: int, turn: int) -> list[int]:
        """Gives what the policy is answered."""
        return self._ids(f"{row}/{turn}", Random(f"length/{row}/{turn}").randint(*OBSERVATION_IDS))

    def _ids(self, name: str, count: int) -> list[int]:
        return Random(name).choices(range(self.vocabulary), k=count)


async def sampling_rates(folder: Path, rows: int, threads: int, seconds: float) -> dict[str, float]:
    """Gives new tokens per second in lock-step, continuously, and by `generate`."""
    model = load_model(folder).model
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    work = Work(model.config.vocab_size, rows)
    seeds = itertools.count()

    async def in_lock_step() -> int:
        return await play_in_lock_step(_sampler(model, work.stop_ids), work, next(seeds))

    async def continuously() -> int:
        sampler = _sampler(model, work.stop_ids, continuous=True)
        return await play_continuously(sampler, work, next(seeds))

    async def by_generate() -> int:
        return await asyncio.to_thread(play_by_generate, plain, work, next(seeds))

    contenders = {"lock_step": in_lock_step, "continuous": continuously, "generate": by_generate}
    with using_threads(threads):
        return await median_rates(contenders, seconds)


async def median_rates(
    contenders: dict[str, Callable[[], Awaitable[int]]], seconds: float
) -> dict[str, float]:
    """Has the contenders take turns, each for about so many seconds; gives medians of what they made per second."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    stop = time.monotonic() + seconds * len(contenders)
    while time.monotonic() < stop or len(rates["generate"]) < _LEAST_ROUNDS:
        for name, play in contenders.items():
            begin = time.perf_counter()
            made = await play()
            rates[name].append(made / (time.perf_counter() - begin))
    return {name: statistics.median(each) for name, each in rates.items()}


async def play_in_lock_step(sampler: Sampler, work: Work, seed: int) -> int:
    """Plays all turns of all rows, each turn in one batch; gives how many tokens were sampled."""
    rows, sampled = work.start(seed), 0
    for turn in range(TURNS):
        for number, (row, each) in enumerate(zip(rows, await sampler.sample_turn(rows), strict=True)):
            row.ids += [*each.token_ids, *work.observation(number, turn)]
            sampled += len(each.token_ids)
    return sampled


async def play_continuously(sampler: Sampler, work: Work, seed: int) -> int:
    """Plays the same with no row waiting for another."""

    async def play(number: int, row: Row) -> int:
        sampled = 0
        for turn in range(TURNS):
            (each,) = await sampler.sample_turn([row])
            row.ids += [*each.token_ids, *work.observation(number, turn)]
            sampled += len(each.token_ids)
        return sampled

    return sum(await asyncio.gather(*(play(*each) for each in enumerate(work.start(seed)))))


def play_by_generate(model: PreTrainedModel, work: Work, seed: int) -> int:
    """Plays the same by `generate`: padded on the left, everything passed again each turn, no log-probabilities."""
    torch.manual_seed(seed)
    rows, sampled = work.start(seed), 0
    for turn in range(TURNS):
        width = max(len(row.ids) for row in rows)
        padding = [width - len(row.ids) for row in rows]
        input_ids = torch.tensor([[0] * pad + row.ids for pad, row in zip(padding, rows, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        output = model.generate(
            input_ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=work.stop_ids,
            pad_token_id=0,
        )
        stops = set(work.stop_ids)
        for number, (row, new) in enumerate(zip(rows, output[:, width:].tolist(), strict=True)):
            length = next((place + 1 for place, token in enumerate(new) if token in stops), len(new))
            row.ids += [*new[:length], *work.observation(number, turn)]
            sampled += length
    return sampled


class Trainer:
    """Our side of a training step without a gym: 8 prompts, 8 completions of each, one update."""

    def __init__(self, folder: Path, prompts: Sequence[list[int]], stop_ids: Sequence[int]) -> None:
        """Opens the model."""
        self._model = load_model(folder).model
        self._config = RunConfig(epochs=1, max_new_tokens=COMPLETION_IDS)
        self._optimizer = make_optimizer(self._model, self._config)
        self._prompts = prompts
        self._stop_ids = stop_ids
        self._steps = itertools.count()

    async def step(self) -> int:
        """Samples and updates; gives how many tokens were trained on."""
        step = next(self._steps)
        rows = [
            Row(prompt[:], Random(f"{step}/{group}/{index}"))
            for group, prompt in enumerate(self._prompts)
            for index in range(GROUP_SIZE)
        ]
        sampler = _sampler(self._model, self._stop_ids, COMPLETION_IDS)
        turns = await sampler.sample_turn(rows)
        names = [f"group-{number // GROUP_SIZE}" for number in range(len(rows))]
        trajectories = [
            make_trajectory(group=name, prompt=row.ids, turns=[(turn.token_ids, ())], logprobs=turn.logprobs)
            for name, row, turn in zip(names, rows, turns, strict=True)
        ]
        advantages = group_advantages([reward(turn.token_ids) for turn in turns], names, "mean_std")
        batch = collate_episodes(trajectories, advantages)
        return update_policy(self._model, self._optimizer, batch, self._config).tokens


def reward(completion: Sequence[int]) -> float:
    """Anything that differs inside of a group."""
    return sum(token % 2 for token in completion) / len(completion)


def step_seconds(seconds: float) -> tuple[float, float, float]:
    """Trains the tiny model by us and by TRL, step by step in turns.

    Gives the median seconds of a step of ours and of one of theirs, and the tokens that ours trained on. One update
    for each batch on both sides, in float32, without a reference model, dropout or gradient checkpointing.

    Raises ImportError where TRL is not installed.
    """
    import datasets
    import trl
    from datasets.table import InMemoryTable
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

    ours: list[float] = []
    theirs: list[float] = []
    tokens: list[int] = []
    with tempfile.TemporaryDirectory() as name, using_threads(1):
        folder = Path(name) / "model"
        build_tiny(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        words = sorted(
            word[1:] for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha()
        )
        texts = [
            "".join(f" {word}" for word in Random(group).choices(words, k=48)) for group in range(GROUPS)
        ]
        trainer = Trainer(folder, [tokenizer(text)["input_ids"] for text in texts], [tokenizer.eos_token_id])
        stop = time.monotonic() + 2 * seconds

        class Turns(TrainerCallback):  # type: ignore[misc]
            """Times a step of theirs, and has one of ours follow it."""

            begin = 0.0

            def on_train_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
                self.begin = time.perf_counter()

            def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
                theirs.append(time.perf_counter() - self.begin)
                begin = time.perf_counter()
                tokens.append(asyncio.run(trainer.step()))
                ours.append(time.perf_counter() - begin)
                control.should_training_stop = time.monotonic() > stop and len(ours) > _LEAST_ROUNDS
                self.begin = time.perf_counter()

        config = trl.GRPOConfig(
            output_dir=str(Path(name) / "trl"),
            per_device_train_batch_size=GROUPS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=COMPLETION_IDS,
            max_steps=100_000,
            learning_rate=RunConfig().learning_rate,
            lr_scheduler_type="constant",
            temperature=1.0,
            top_k=0,
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        other = trl.GRPOTrainer(
            model=model,
            args=config,
            processing_class=tokenizer,
            # With a name of its own: datasets would pickle everything to make one up.
            train_dataset=datasets.Dataset(InMemoryTable.from_pydict({"prompt": texts}), fingerprint="bench"),
            reward_funcs=lambda completion_ids, **_: [reward(each) for each in completion_ids],
            callbacks=[Turns()],
        )
        other.remove_callback(PrinterCallback)  # Only results go to stdout.
        other.train()
    # The first step of each warms it up.
    return statistics.median(ours[1:]), statistics.median(theirs[1:]), statistics.median(tokens[1:])


def _sampler(
    model: PreTrainedModel,
    stop_ids: Sequence[int],
    max_new_tokens: int = MAX_NEW_TOKENS,
    continuous: bool = False,
) -> Sampler:
    return Sampler(model, stop_ids=stop_ids, max_new_tokens=max_new_tokens, continuous=continuous)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Has torch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
