"""What a run works with: its folder, its policy and optimizer, the gym, and what has come of it so far."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from trainer_client.checkpoint import (
    checkpoint_folder,
    latest_checkpoint,
    load_optimizer,
    save_checkpoint,
    state_hash,
)
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.distributed import World
from trainer_client.gym import GymClient
from trainer_client.metrics import (
    History,
    Row,
    append_row,
    rewind,
)
from trainer_client.models.load import LoadedModel, choose_device, load_model, load_weights
from trainer_client.models.lora import add_adapters, load_adapters
from trainer_client.models.policy import Policy
from trainer_client.models.sampler import Sampler
from trainer_client.models.start import find_start_policy
from trainer_client.models.vllm import VllmSampler
from trainer_client.optimizer import MasterAdamW
from trainer_client.rollout import RolloutSettings
from trainer_client.run_folder import (
    RUNS,
    RunFolder,
    append_episodes,
    changes,
    make_run,
    open_run,
    record_of,
)
from trainer_client.stopping import rules_of, write_rules
from trainer_client.tracking import require
from trainer_client.trajectory import Trajectory
from trainer_client.transcripts import keep_transcripts, transcribe_failures
from trainer_client.update import make_optimizer
from trainer_client.wire import Task, Tokenizer


@dataclass(frozen=True, slots=True)
class Session:
    """What one run works with."""

    config: RunConfig
    world: World
    folder: RunFolder
    record: dict[str, str]
    history: History
    gym: GymClient
    tokenizer: Tokenizer
    settings: RolloutSettings
    opened: Path
    """The model folder that the policy was opened from."""
    loaded: LoadedModel
    optimizer: MasterAdamW
    first: int
    """The step that the run goes on from; 0 for a new one."""
    console: RunConsole
    vllm: VllmSampler | None
    """Samples in place of transformers, where that is asked for."""
    watchers: Sequence[Callable[[Row], object]] = ()
    """Are shown each row, once it is written down."""

    @property
    def model(self) -> PreTrainedModel:
        """The policy's model, as it learns."""
        return self.loaded.model

    @property
    def warm(self) -> bool:
        """Whether the policy is ready for step 1: there is no cold start, or it is over."""
        return not self.config.demonstrations or self.history.cold_start is not None


def make_repeatable(config: RunConfig) -> None:
    """Has everything that follows in this process compute the same each time."""
    torch.set_num_threads(config.threads)
    # What cuBLAS asks for; read when the first GPU is used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


async def prepare(
    config: RunConfig, resume: bool, gym: GymClient, console: RunConsole, world: World, runs: Path = RUNS
) -> Session:
    """Makes the folder, the policy and the optimizer of a run, or opens those of an earlier one."""
    if resume:
        folder, config, earlier = open_run({"name": config.name}, runs)
    require(config.track)
    # Until its cold start is over, or checkpoint 0 is written, there is nothing to go on from.
    begun = resume and any(folder.checkpoints.glob("step-*"))
    if begun:
        first, start = latest_checkpoint(folder.checkpoints)
    else:
        first, start = 0, await find_start(config, gym, console, world)
    # Adapters go on from the model that they belong to, and a whole model from what it has become.
    base = await find_start(config, gym, console, world) if begun and config.lora_rank else start
    loaded = load(config, base)
    base_hash = state_hash(loaded.model) if config.lora_rank else ""
    if config.lora_rank:
        add_adapters(loaded.model, config.lora_rank, config.lora_alpha, config.seed)
        if begun:
            load_adapters(loaded.model, start)
    tokenizer = await register(gym, loaded)
    optimizer = make_optimizer(loaded.model, config)
    info = await gym.get_info()
    facts = {
        "gym service": info.service_version,
        "gym image": info.image_digest,
        "gym runtime": info.runtime,
        "tokenizer": tokenizer.fingerprint,
        "device": name_device(loaded.model.device),
        "processes": str(world.size),
        **({"weights under the adapters": base_hash} if base_hash else {}),
    }
    record = record_of(config, facts)
    # Whatever is wrong with the settings should be found before there is a folder of the run's name.
    train = await gym.list_tasks(config.suite, "train")
    if config.curriculum != "uniform" and len(train) <= config.tasks_per_step:
        raise ValueError(
            f"curriculum is {config.curriculum} and a step plays all {len(train)} training tasks of {config.suite}: "
            "set tasks_per_step below that, or curriculum to uniform"
        )
    if config.sample_ahead and world.size > 1:
        raise ValueError(
            f"sample_ahead is set in a run of {world.size} processes: use one process, or unset it"
        )
    vllm = start_vllm(config, base, loaded, tokenizer, console) if config.sampler == "vllm" else None
    if resume:
        if begun:
            load_optimizer(start, optimizer)
        rows = rewind(folder.metrics, first if begun else -1) if world.is_first else History()
        history = await world.from_first(rows)
        console.say(
            f"{folder.path}: going on from step {first}" if begun else f"{folder.path}: starting over"
        )
        for change in changes(earlier, record):
            console.notice(f"{change}: the result may differ from that of a run in one piece")
    else:
        folder, history = RunFolder(runs / config.name), History()
        if world.is_first:
            make_run(config, record, runs)
            write_rules(folder.path, rules_of(config))
    if world.is_first and not begun and not config.demonstrations:
        save_checkpoint(folder.checkpoints, 0, loaded.model, optimizer, start)
    settings = rollout_settings(config, loaded.model, tokenizer, world)
    return Session(
        config,
        world,
        folder,
        record,
        history,
        gym,
        tokenizer,
        settings,
        base,
        loaded,
        optimizer,
        first,
        console,
        vllm,
    )


def rollout_settings(
    config: RunConfig, model: PreTrainedModel, tokenizer: Tokenizer, world: World
) -> RolloutSettings:
    """Returns how episodes are played under the run's settings."""
    return RolloutSettings(
        run_seed=config.seed,
        toolset=config.toolset,
        fingerprint=tokenizer.fingerprint,
        max_context_tokens=context_tokens(config, model),
        max_turns=config.turn_limit,
        max_edits=config.max_edits,
        cohort_size=config.cohort_size,
        continuous_batching=config.continuous_batching or config.sampler == "vllm",
        trainers=world.size * config.gym_share,
    )


def start_vllm(
    config: RunConfig, folder: Path, loaded: LoadedModel, tokenizer: Tokenizer, console: RunConsole
) -> VllmSampler:
    """Starts the engine of vLLM with the run's settings."""
    console.doing("starting vllm")
    return VllmSampler.start(
        folder,
        loaded.model,
        stop_ids=tokenizer.stop_token_ids,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )


async def find_start(config: RunConfig, gym: GymClient, console: RunConsole, world: World) -> Path:
    """Returns the model folder that a run starts from."""
    console.doing("making the starting policy")
    if not world.is_first:
        return await world.from_first(Path())
    return await world.from_first(await find_start_policy(gym, config.model))


def load(config: RunConfig, folder: Path) -> LoadedModel:
    """Opens a model folder as the run's settings have it."""
    return load_model(
        folder,
        getattr(torch, config.dtype),
        choose_device(config.device),
        gradient_checkpointing=config.gradient_checkpointing,
        thinking=config.thinking,
    )


async def register(gym: GymClient, loaded: LoadedModel) -> Tokenizer:
    """Makes the model's tokenizer known to the gym."""
    return await gym.register_tokenizer(
        loaded.tokenizer_json,
        loaded.chat_template,
        loaded.end_of_turn,
        template_arguments=loaded.template_arguments,
        stop_token_ids=loaded.stop_ids,
    )


def name_device(device: torch.device) -> str:
    """Returns what kind of device it is, to be compared."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def context_tokens(config: RunConfig, model: PreTrainedModel) -> int:
    """Returns the tokens that an episode may have: what the model can take, or less where that is asked for."""
    most = int(model.config.get_text_config().max_position_embeddings)
    return min(most, config.max_context_tokens or most)


async def sampler(session: Session, model: PreTrainedModel, step: int) -> Policy:
    """Returns the policy that samples from a model, as it is now, with the run's settings."""
    version = f"{session.config.name}/step-{step}"
    if session.vllm:
        await session.vllm.play_weights(model, version)
        return session.vllm
    return Sampler(
        model,
        stop_ids=session.tokenizer.stop_token_ids,
        max_new_tokens=session.config.max_new_tokens,
        temperature=session.config.temperature,
        version=version,
        continuous=session.config.continuous_batching,
    )


def load_step(session: Session, step: int) -> PreTrainedModel:
    """Loads the model of a checkpoint."""
    folder = checkpoint_folder(session.folder.checkpoints, step)
    return load_weights(folder, getattr(torch, session.config.dtype), session.model.device)


async def list_tasks(session: Session, split: str) -> list[Task]:
    """Lists the tasks of a split. Raises ValueError where it has none."""
    tasks = await session.gym.list_tasks(session.config.suite, split)
    if not tasks:
        raise ValueError(f"the suite {session.config.suite} has no task in the split {split}")
    return list(tasks)


async def list_task_ids(session: Session, split: str) -> list[str]:
    """Lists the names of the tasks of a split. Raises ValueError where it has none."""
    return [task.task_id for task in await list_tasks(session, split)]


def keep_failures(session: Session, label: str, trajectories: Sequence[Trajectory]) -> None:
    """Keeps a transcript of each kind of failure."""
    if session.world.is_first:
        failures = transcribe_failures(label, trajectories, session.loaded.decode)
        keep_transcripts(session.folder.transcripts, label, failures)


def keep_episodes(session: Session, trajectories: Sequence[Trajectory]) -> None:
    """Writes down what was played."""
    if session.world.is_first:
        append_episodes(session.folder, trajectories)


def keep_row(session: Session, row: Row) -> None:
    """Adds a row to the history and to the file, and shows it to those who watch."""
    session.history.add(row)
    if session.world.is_first:
        append_row(session.folder.metrics, row)
        for watch in session.watchers:
            watch(row)
