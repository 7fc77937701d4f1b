"""The main job: `python -m trainer_client.run`.

Starts from a policy that knows how to call tools and sometimes repairs a fault, if need be after a cold start on
demonstrations; lets it play groups of episodes in the gym; moves it towards what did better than its group; keeps a
checkpoint every few steps; chooses one on the validation tasks and reports it on the test tasks.

Everything random comes from the seed and the place in the run, and an update is made in one piece between two
awaits. So a run can be stopped anywhere (Ctrl-C once) and gone on with (--resume) to the same weights.

torchrun makes one run of several processes (`trainer_client.distributed`). They all go through what is below and
have equal models and histories; what is written and said is written and said by the first one.
"""

import asyncio
import inspect
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from trainer_client.behaviour import observe
from trainer_client.checkpoint import (
    checkpoint_folder,
    latest_checkpoint,
    load_optimizer,
    save_checkpoint,
    state_hash,
)
from trainer_client.cold_start import play_demonstrations, supervised_settings
from trainer_client.collate import collate
from trainer_client.config import RunConfig, parse_flags
from trainer_client.console import RunConsole
from trainer_client.distributed import ALONE, PeerLost, World, joined, play_together
from trainer_client.errors import GymError, GymUnavailable
from trainer_client.evaluate import evaluate
from trainer_client.gym import GymClient
from trainer_client.metrics import (
    ColdStart,
    Evaluation,
    History,
    Seconds,
    StepRow,
    append_row,
    choose,
    rewind,
)
from trainer_client.models.base import make_rl_base
from trainer_client.models.demonstrator import Demonstrator
from trainer_client.models.find import find_model
from trainer_client.models.load import LoadedModel, choose_device, load_model, load_weights
from trainer_client.models.lora import add_adapters, load_adapters
from trainer_client.models.sampler import Sampler
from trainer_client.objective import group_advantages, reward_of, zero_advantage_share
from trainer_client.report import write_report
from trainer_client.result import CHOSEN, RAW, START, result_of
from trainer_client.rollout import GroupSpec, Played, RolloutSettings
from trainer_client.run_folder import (
    RUNS,
    RunFolder,
    append_episodes,
    changes,
    make_run,
    name_run,
    open_run,
    record_of,
    write_result,
)
from trainer_client.supervised import supervise
from trainer_client.trajectory import Trajectory
from trainer_client.update import make_optimizer, update_policy
from trainer_client.wire import Tokenizer

FINISHED, FAILED, INTERRUPTED = 0, 1, 130
"""Exit codes; 130 is 128 + SIGINT, as shells have it."""


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
    optimizer: torch.optim.Optimizer
    first: int
    """The step that the run goes on from; 0 for a new one."""
    console: RunConsole

    @property
    def model(self) -> PreTrainedModel:
        """The policy's model, as it learns."""
        return self.loaded.model

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a turn: that which the gym appends to one that was cut, then the model's own."""
        return tuple(dict.fromkeys((*self.tokenizer.stop_token_ids, *self.loaded.stop_ids)))

    @property
    def warm(self) -> bool:
        """Whether the policy is ready for step 1: there is no cold start, or it is over."""
        return not self.config.demonstrations or self.history.cold_start is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the main job and returns its exit code."""
    given, resume = parse_flags(argv)
    try:
        disable_progress_bar()
        with joined() as world:
            config = open_run(given)[1] if resume else RunConfig(**given)
            if not resume:
                # The name may be made up, so one process does it for all.
                config = asyncio.run(world.from_first(name_run(config) if world.is_first else config))
            console = RunConsole(config.steps, None if world.is_first else Console(quiet=True))
            torch.set_num_threads(config.threads)
            # What cuBLAS asks for; read when the first GPU is used.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            return asyncio.run(run(config, resume, console, world))
    except (GymError, PeerLost, OSError, ValueError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED


async def run(config: RunConfig, resume: bool, console: RunConsole, world: World = ALONE) -> int:
    """Trains, evaluates and reports; returns the exit code."""
    with console.live():
        console.doing("connecting to the gym")
        async with GymClient.connect(on_notice=console.notice) as gym:
            session = await prepare(config, resume, gym, console, world)
            try:
                await start_cold(session)
                await learn(session)
                await test(session)
                if world.is_first:
                    finish(session)
                return FINISHED
            # asyncio turns the first Ctrl-C into a cancellation of this task, the second into KeyboardInterrupt.
            except asyncio.CancelledError:
                console.notice("Stopping: the last finished step is being saved. Ctrl-C again gives it up.")
                if world.is_first:
                    break_off(session)
                return INTERRUPTED
            except GymError as error:
                if not world.is_first:
                    raise
                console.notice(str(error))
                break_off(session)
                return FAILED


async def prepare(
    config: RunConfig, resume: bool, gym: GymClient, console: RunConsole, world: World
) -> Session:
    """Makes the folder, the policy and the optimizer of a run, or opens those of an earlier one."""
    if resume:
        folder, config, earlier = open_run({"name": config.name})
    # Until its cold start is over a run has no checkpoint.
    if resume and (not config.demonstrations or any(folder.checkpoints.glob("step-*"))):
        first, start = latest_checkpoint(folder.checkpoints)
    else:
        first, start = 0, await find_start(config, gym, console, world)
    # Adapters go on from the model that they belong to, and a whole model from what it has become.
    base = await find_start(config, gym, console, world) if resume and config.lora_rank else start
    loaded = load(config, base)
    base_hash = state_hash(loaded.model) if config.lora_rank else ""
    if config.lora_rank:
        add_adapters(loaded.model, config.lora_rank, config.lora_alpha, config.seed)
        if resume:
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
    if resume:
        begun = start.parent == folder.checkpoints
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
        folder, history = RunFolder(RUNS / config.name), History()
        if world.is_first:
            make_run(config, record)
        if world.is_first and not config.demonstrations:
            save_checkpoint(folder.checkpoints, 0, loaded.model, optimizer, start)
        console.say(
            f"{folder.path}: {config.steps} steps of {config.tasks_per_step} x {config.group_size} episodes"
        )
    settings = RolloutSettings(
        run_seed=config.seed,
        toolset=config.toolset,
        fingerprint=tokenizer.fingerprint,
        max_context_tokens=context_tokens(config, loaded.model),
        max_turns=config.max_turns,
        max_edits=config.max_edits,
        cohort_size=config.cohort_size,
        continuous_batching=config.continuous_batching,
    )
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
    )


async def find_start(config: RunConfig, gym: GymClient, console: RunConsole, world: World) -> Path:
    """Returns the model folder that a run starts from."""
    console.doing("making the starting policy")
    if not world.is_first:
        return await world.from_first(Path())
    # In a thread: fetching or converting takes a while, and the connection wants to be kept up.
    found = await asyncio.to_thread(find_model, config.model) if config.model else await make_rl_base(gym)
    return await world.from_first(found)


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
    known = inspect.signature(gym.register_tokenizer).parameters
    arguments: dict[str, Any] = (
        {"template_arguments": loaded.template_arguments} if "template_arguments" in known else {}
    )
    return await gym.register_tokenizer(
        loaded.tokenizer_json, loaded.chat_template, loaded.end_of_turn, **arguments
    )


def name_device(device: torch.device) -> str:
    """Returns what kind of device it is, to be compared."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def context_tokens(config: RunConfig, model: PreTrainedModel) -> int:
    """Returns the tokens that an episode may have: what the model can take, or less where that is asked for."""
    most = int(model.config.get_text_config().max_position_embeddings)
    return min(most, config.max_context_tokens or most)


async def start_cold(session: Session) -> None:
    """Lets the policy learn from demonstrations and makes it checkpoint 0, unless that is done or not asked for."""
    if session.warm:
        return
    config, console = session.config, session.console
    started = perf_counter()
    task_ids = await list_task_ids(session, "train")
    total = config.demonstrations * len(task_ids)
    demonstrator = Demonstrator(
        session.loaded.tokenizer,
        session.loaded.end_of_turn,
        toolset=config.toolset,
        tests_first=config.demonstrations_test_first,
        max_new_tokens=config.max_new_tokens,
    )

    def on_progress(kept: int, played: Sequence[Trajectory]) -> None:
        keep_episodes(session, played)
        console.doing(f"cold start: {kept} of {total} demonstrations kept")

    console.doing(f"cold start: playing {total} demonstrations")
    shown = await play_demonstrations(
        session.world,
        session.gym,
        demonstrator,
        task_ids,
        session.settings,
        config.demonstrations,
        on_progress,
    )
    console.demonstrations(len(shown.kept), shown.rejected)
    waited = perf_counter() - started
    losses = []
    for step in supervise(session.model, shown.kept, supervised_settings(config), session.world):
        losses.append(step.loss)
        console.cold_step(step, config.cold_start_steps)
        # Where the run can be stopped.
        await asyncio.sleep(0)
    row = ColdStart(
        played=total,
        kept=len(shown.kept),
        rejected=shown.rejected,
        tokens=sum(len(episode.token_ids) for episode in shown.kept),
        said=sum(sum(episode.mask) for episode in shown.kept),
        behaviour=observe(shown.kept),
        losses=tuple(losses),
        seconds=Seconds(waiting=waited, learning=perf_counter() - started - waited),
    )
    # In this order: a checkpoint says that there is nothing left to do here.
    keep_row(session, row)
    if session.world.is_first:
        save_checkpoint(session.folder.checkpoints, 0, session.model, session.optimizer, session.opened)


async def learn(session: Session) -> None:
    """Takes all steps that are left, with a checkpoint and a validation every few."""
    config, console = session.config, session.console
    task_ids = await list_task_ids(session, "train")
    await validate(session, session.first)
    for step in range(session.first + 1, config.steps + 1):
        console.doing(f"step {step}: playing {config.tasks_per_step} x {config.group_size} episodes")
        groups = choose_groups(task_ids, config, step)
        policy = sampler(session, session.model, step - 1)
        played = await play_together(session.world, session.gym, policy, groups, session.settings)
        keep_episodes(session, played.trajectories)
        console.doing(f"step {step}: learning")
        row = learn_step(session, step, played)
        keep_row(session, row)
        console.step(row)
        if is_due(config, step):
            save(session, step)
            await validate(session, step)


def learn_step(session: Session, step: int, played: Played) -> StepRow:
    """Moves the policy towards the episodes that did better than their group.

    Raises GymUnavailable when the gym lost every episode.
    """
    config, trajectories = session.config, played.trajectories
    if not trajectories:
        raise GymUnavailable(f"The gym lost every episode of step {step}. See: make gym-status")
    started = perf_counter()
    names = [trajectory.group for trajectory in trajectories]
    rewards = [reward_of(trajectory.verdict, config.reward) for trajectory in trajectories]
    advantages = group_advantages(rewards, names, config.divide_by_std)
    batch = collate(trajectories, advantages)
    update = update_policy(session.model, session.optimizer, batch, config, session.world)
    return StepRow(
        step=step,
        reward=sum(rewards) / len(rewards),
        pass_rate=sum(trajectory.verdict.status == "resolved" for trajectory in trajectories)
        / len(trajectories),
        zero_advantage_share=zero_advantage_share(advantages, names),
        behaviour=observe(trajectories),
        update=update,
        episodes=len(trajectories),
        lost=played.lost,
        replayed=played.replayed,
        seconds=Seconds(
            sampling=played.timing.sampling_seconds,
            waiting=played.timing.waiting_seconds,
            learning=perf_counter() - started,
        ),
    )


def choose_groups(task_ids: Sequence[str], config: RunConfig, step: int) -> list[GroupSpec]:
    """Draws the tasks of a step, each at most once, from nothing but the seed and the step."""
    count = min(config.tasks_per_step, len(task_ids))
    chosen = Random(f"{config.seed}/tasks/{step}").sample(sorted(task_ids), count)
    return [GroupSpec(task_id, f"train/step-{step}/{task_id}", config.group_size) for task_id in chosen]


async def validate(session: Session, step: int) -> None:
    """Evaluates the policy on the validation tasks, unless that is not due or is done already."""
    label = f"validation/step-{step}"
    if is_due(session.config, step) and session.history.evaluation(label) is None:
        episodes = session.config.validation_episodes
        await evaluate_on(session, "validation", session.model, label, step, episodes, stream=label)


async def test(session: Session) -> None:
    """Plays the test tasks once with each policy that is reported, the same episodes.

    These are the policy before the cold start, where there is one, that before step 1, and the chosen checkpoint.
    """
    history, episodes = session.history, session.config.test_episodes
    chosen = choose(history.validations).step
    if history.cold_start and history.evaluation(RAW) is None:
        folder = await find_start(session.config, session.gym, session.console, session.world)
        raw = load_weights(folder, getattr(torch, session.config.dtype), session.model.device)
        await evaluate_on(session, "test", raw, RAW, 0, episodes, stream="test")
    if history.evaluation(START) is None:
        await evaluate_on(session, "test", load_step(session, 0), START, 0, episodes, stream="test")
    if history.evaluation(CHOSEN) is None and chosen > 0:
        await evaluate_on(
            session, "test", load_step(session, chosen), CHOSEN, chosen, episodes, stream="test"
        )


async def evaluate_on(
    session: Session, split: str, model: PreTrainedModel, label: str, step: int, episodes: int, stream: str
) -> None:
    """Evaluates a model on a split and adds the row to the history."""
    session.console.doing(f"{label}: playing {episodes} episodes per task")
    row = await evaluate(
        session.world,
        session.gym,
        sampler(session, model, step),
        session.settings,
        await list_task_ids(session, split),
        label=label,
        step=step,
        episodes=episodes,
        stream=stream,
        on_played=partial(keep_episodes, session),
    )
    keep_row(session, row)
    session.console.evaluation(row)


async def list_task_ids(session: Session, split: str) -> list[str]:
    """Lists the tasks of a split. Raises ValueError where it has none."""
    tasks = await session.gym.list_tasks(session.config.suite, split)
    if not tasks:
        raise ValueError(f"the suite {session.config.suite} has no task in the split {split}")
    return [task.task_id for task in tasks]


def sampler(session: Session, model: PreTrainedModel, step: int) -> Sampler:
    """Returns the policy that samples from a model with the run's settings."""
    return Sampler(
        model,
        stop_ids=session.stop_ids,
        max_new_tokens=session.config.max_new_tokens,
        temperature=session.config.temperature,
        version=f"{session.config.name}/step-{step}",
        continuous=session.config.continuous_batching,
    )


def is_due(config: RunConfig, step: int) -> bool:
    """Tells whether a checkpoint of this step is kept and evaluated."""
    return step % config.validate_every == 0 or step == config.steps


def keep_episodes(session: Session, trajectories: Sequence[Trajectory]) -> None:
    """Writes down what was played."""
    if session.world.is_first:
        append_episodes(session.folder, trajectories)


def keep_row(session: Session, row: ColdStart | StepRow | Evaluation) -> None:
    """Adds a row to the history, and to the file."""
    session.history.add(row)
    if session.world.is_first:
        append_row(session.folder.metrics, row)


def save(session: Session, step: int) -> None:
    """Saves the checkpoint of a step, and drops the one that an interruption had left."""
    if not session.world.is_first:
        return
    checkpoints = session.folder.checkpoints
    save_checkpoint(
        checkpoints, step, session.model, session.optimizer, tokenizer=checkpoint_folder(checkpoints, 0)
    )
    if step > session.first and not is_due(session.config, session.first):
        shutil.rmtree(checkpoint_folder(checkpoints, session.first), ignore_errors=True)


def load_step(session: Session, step: int) -> PreTrainedModel:
    """Loads the model of a checkpoint."""
    folder = checkpoint_folder(session.folder.checkpoints, step)
    return load_weights(folder, getattr(torch, session.config.dtype), session.model.device)


def finish(session: Session) -> None:
    """Writes the report of a run that is complete, and prints its summary."""
    session.console.doing("writing the report")
    history, folder = session.history, session.folder
    result = result_of(history, state_hash(load_step(session, choose(history.validations).step)))
    report = write_report(folder.path, session.config, session.record, history, result)
    write_result(folder, result)
    session.console.summary(result, history.seconds, report)


def break_off(session: Session) -> None:
    """Saves the last finished step, writes the report so far, and says how to go on."""
    session.console.doing("saving")
    history, folder, console = session.history, session.folder, session.console
    step = history.steps[-1].step if history.steps else session.first
    if session.warm:
        save(session, step)
    report = write_report(folder.path, session.config, session.record, history, None)
    console.say(
        f"Saved       step {step} of {session.config.steps}"
        if session.warm
        else "Saved       nothing: the cold start begins again"
    )
    console.say(f"Report      {report}")
    launcher = f"torchrun --nproc-per-node {session.world.size}" if session.world.size > 1 else "python"
    console.say(f"Go on with  {launcher} -m trainer_client.run --resume --name {session.config.name}")


if __name__ == "__main__":
    sys.exit(main())
