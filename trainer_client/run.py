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
import copy
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from trainer_client.behaviour import observe
from trainer_client.checkpoint import (
    checkpoint_folder,
    latest_checkpoint,
    save_checkpoint,
    state_hash,
)
from trainer_client.cold_start import play_demonstrations, supervised_settings
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.credit import credited
from trainer_client.distributed import ALONE, PeerLost, World, joined
from trainer_client.errors import GymError
from trainer_client.evaluation import evaluate
from trainer_client.exit_codes import FAILED, FINISHED, INTERRUPTED, exit_code
from trainer_client.flags import parse_flags
from trainer_client.gym import GymClient
from trainer_client.live import LiveReport
from trainer_client.metrics import (
    ColdStart,
    History,
    Row,
    Seconds,
    StepRow,
    choose,
)
from trainer_client.models.demonstrator import Demonstrator
from trainer_client.models.load import load_weights
from trainer_client.preflight.gate import gate
from trainer_client.report import write_report
from trainer_client.result import CHOSEN, LAST, RAW, START, result_of
from trainer_client.rollout import Played
from trainer_client.run_folder import (
    name_run,
    open_run,
    write_result,
)
from trainer_client.session import (
    Session,
    find_start,
    keep_episodes,
    keep_failures,
    keep_row,
    list_task_ids,
    list_tasks,
    load_step,
    make_repeatable,
    prepare,
    sampler,
)
from trainer_client.step import learn_step, play_step
from trainer_client.stopping import read_rules, stopping_line
from trainer_client.supervised import supervise
from trainer_client.tracking import SteadyLog, open_tracker
from trainer_client.trajectory import Trajectory


@exit_code(PeerLost)
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the main job and returns its exit code."""
    given, resume = parse_flags(argv)
    disable_progress_bar()
    with joined() as world:
        config = open_run(given)[1] if resume else RunConfig(**given)
        if not resume:
            # The name may be made up, so one process does it for all.
            config = asyncio.run(world.from_first(name_run(config) if world.is_first else config))
        console = RunConsole(config.steps, None if world.is_first else Console(quiet=True))
        make_repeatable(config)
        return asyncio.run(run(config, resume, console, world))


async def run(config: RunConfig, resume: bool, console: RunConsole, world: World = ALONE) -> int:
    """Trains, evaluates and reports; returns the exit code."""
    with console.live():
        console.doing("connecting to the gym")
        async with GymClient.connect(on_notice=console.notice) as gym:
            session = await prepare(config, resume, gym, console, world)
            if not resume:
                size = f"{config.tasks_per_step} x {config.group_size}"
                console.say(f"{session.folder.path}: {config.steps} steps of {size} episodes")
            try:
                with watched(session) as session, telling_of_a_stop(console):
                    await start_cold(session)
                    await learn(session)
                    await test(session)
                if world.is_first:
                    finish(session)
                return FINISHED
            # asyncio turns the first Ctrl-C into a cancellation of this task, the second into KeyboardInterrupt.
            except asyncio.CancelledError:
                if world.is_first:
                    break_off(session)
                return INTERRUPTED
            except GymError as error:
                if not world.is_first:
                    raise
                console.notice(str(error))
                break_off(session)
                return FAILED
            except Exception as error:
                if not world.is_first:
                    raise
                if session.history.rows:
                    # Its page says that the run is on.
                    with suppress(Exception):
                        write_report(session.folder.path, config, session.record, session.history, None)
                elif isinstance(error, ValueError) and not resume:
                    # Settings that cannot work: nothing has come of them, and nothing can. The name is free again.
                    shutil.rmtree(session.folder.path)
                raise
            finally:
                if session.vllm:
                    session.vllm.close()


@contextmanager
def watched(session: Session) -> Iterator[Session]:
    """Keeps the report fresh while the block runs, and the log up to date that the settings ask for."""
    if not session.world.is_first:
        yield session
        return
    config, history, console = session.config, session.history, session.console
    with ExitStack() as stack:
        tracker = open_tracker(session.folder.path, config, history.rows)
        watchers: list[Callable[[Row], object]] = []
        if tracker:
            log = SteadyLog(tracker, console.notice)
            stack.callback(log.close)
            watchers.append(log.log)
            console.say(f"Tracked by  {tracker.shown_by}")

        def write(history: History) -> object:
            return write_report(session.folder.path, config, session.record, history, None, is_on=True)

        live = LiveReport(write, console.notice)
        stack.callback(live.close)
        watchers.append(lambda row: live.update(row, history))
        yield replace(session, watchers=watchers)


@contextmanager
def telling_of_a_stop(console: RunConsole) -> Iterator[None]:
    """Says at once that Ctrl-C was heard: a report that is being drawn is waited for before anything is saved."""
    try:
        yield
    except asyncio.CancelledError:
        console.notice("Stopping: the last finished step is being saved. Ctrl-C again gives it up.")
        raise


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

    seen = 0

    def on_progress(kept: int, played: Sequence[Trajectory]) -> None:
        keep_episodes(session, played)
        nonlocal seen
        seen += len(played)
        console.doing(f"cold start: {kept} demonstrations kept", seen, total)

    console.doing(f"cold start: playing {total} demonstrations", 0, total)
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
    session.optimizer.read_weights()
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
    """Takes all steps that are left, with a checkpoint and a validation every few.

    Raises PreflightFailed before step 1 where something does not hold that a run stands on.
    """
    config, console = session.config, session.console
    task_ids = await list_task_ids(session, "train")
    await session.world.from_first(None)  # Checkpoint 0 is written.
    reference = load_step(session, 0).requires_grad_(False) if config.kl_coefficient else None
    first: Played | None = None
    if session.first == 0:
        # Before anything is evaluated, on what step 1 then learns from.
        first = await play_step(session, task_ids, 1, session.model, 0)
        await gate(session, first.trajectories, credited(first.trajectories, config)[1], reference)
    await validate(session, session.first)
    ahead: asyncio.Task[Played] | None = None
    try:
        for step in range(session.first + 1, config.steps + 1):
            played = first or await (ahead or play_step(session, task_ids, step, session.model, step - 1))
            first = ahead = None
            # Not across checkpoints: what begins at one must not depend on how it was reached.
            if config.sample_ahead and not is_due(config, step):
                model = copy.deepcopy(session.model)
                ahead = asyncio.create_task(play_step(session, task_ids, step + 1, model, step - 1))
            console.doing(f"step {step}: learning", step - 1, config.steps)
            row = await in_one_piece(partial(learn_step, session, step, played, reference), aside=bool(ahead))
            keep_row(session, row)
            console.step(row)
            if is_due(config, step):
                save(session, step)
                await validate(session, step)
    finally:
        if ahead:
            ahead.cancel()


async def in_one_piece(update: Callable[[], StepRow], aside: bool) -> StepRow:
    """Carries out an update, if need be in a thread beside what is sampled meanwhile, and to its end in any case."""
    if not aside:
        return update()
    work = asyncio.create_task(asyncio.to_thread(update))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def validate(session: Session, step: int) -> None:
    """Evaluates the policy on the validation tasks, unless that is not due or is done already."""
    label = f"validation/step-{step}"
    wanted = session.config.report == "chosen" and is_due(session.config, step)
    if wanted and session.history.evaluation(label) is None:
        episodes = session.config.validation_episodes
        await evaluate_on(session, ("validation",), session.model, label, step, episodes, stream=label)


async def test(session: Session) -> None:
    """Plays the test tasks once with each policy that is reported, the same episodes.

    These are the policy before the cold start, where there is one, that before step 1, and the chosen checkpoint or
    the last one, which has the validation tasks too because they chose nothing.
    """
    config, history = session.config, session.history
    if config.report == "chosen":
        splits, label = ["test"], CHOSEN
    else:
        splits, label = ["validation", "test"], LAST
    step = reported_step(session)
    play = partial(evaluate_on, session, splits, episodes=config.test_episodes, stream="test")
    if history.cold_start and history.evaluation(RAW) is None:
        folder = await find_start(config, session.gym, session.console, session.world)
        raw = load_weights(folder, getattr(torch, config.dtype), session.model.device)
        await play(raw, RAW, 0)
    if history.evaluation(START) is None:
        await play(load_step(session, 0), START, 0)
    if history.evaluation(label) is None and step > 0:
        await play(load_step(session, step), label, step)


def reported_step(session: Session) -> int:
    """Returns the step of the checkpoint that is reported."""
    return (
        choose(session.history.validations).step
        if session.config.report == "chosen"
        else session.config.steps
    )


async def evaluate_on(
    session: Session,
    splits: Sequence[str],
    model: PreTrainedModel,
    label: str,
    step: int,
    episodes: int,
    stream: str,
) -> None:
    """Evaluates a model on the tasks of some splits and adds the row to the history."""
    tasks = [task for split in splits for task in await list_tasks(session, split)]
    total = episodes * len(tasks)
    graded = 0

    def on_graded() -> None:
        nonlocal graded
        # Each process plays its share, and a cohort that is played again counts again.
        graded = min(total, graded + session.world.size)
        session.console.doing(f"{label}: playing {episodes} episodes per task", graded, total)

    def on_played(played: Sequence[Trajectory]) -> None:
        keep_episodes(session, played)
        if label.startswith("test/"):
            keep_failures(session, label, played)

    session.console.doing(f"{label}: playing {episodes} episodes per task", 0, total)
    row = await evaluate(
        session.world,
        session.gym,
        await sampler(session, model, step),
        replace(session.settings, on_graded=on_graded),
        tasks,
        session.loaded.decode,
        label=label,
        step=step,
        episodes=episodes,
        stream=stream,
        on_played=on_played,
    )
    keep_row(session, row)
    session.console.evaluation(row)


def is_due(config: RunConfig, step: int) -> bool:
    """Tells whether a checkpoint of this step is kept and evaluated."""
    return step % config.validate_every == 0 or step == config.steps


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


def finish(session: Session) -> None:
    """Writes the report of a run that is complete, and prints its summary."""
    session.console.doing("writing the report")
    history, folder = session.history, session.folder
    result = result_of(history, state_hash(load_step(session, reported_step(session))))
    # The figures first: they are there even where the picture cannot be drawn.
    write_result(folder, result)
    report = write_report(folder.path, session.config, session.record, history, result)
    session.console.summary(result, history.seconds, report)
    if rules := read_rules(folder.path):
        session.console.say(f"Stopping    {stopping_line(history, rules)}")


def break_off(session: Session) -> None:
    """Saves the last finished step, writes the report so far, and says how to go on."""
    session.console.doing("saving")
    history, folder, console = session.history, session.folder, session.console
    step = history.steps[-1].step if history.steps else session.first
    if session.config.sample_ahead:
        # The batch of the next step is of weights that are not kept, so the run goes on from where it had none.
        step = latest_checkpoint(folder.checkpoints)[0] if session.warm else 0
    elif session.warm:
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
