"""Plays a checkpoint of a run once more: `python -m trainer_client.evaluate RUN --split train --step 40`.

What comes of it is added to the record of the run, and to its report. Training and validation tasks may be played at
any time: these rows choose nothing. The tasks that the run reports on (test; without a choice on validation, those too)
were played once by the run itself. Whoever looks at them again can choose by them, knowingly or not, so that is refused
unless it is forced, and then the record, the report and result.json say that it was done.

A look plays the very episodes that the run's own test played, as far as they are as many. So the same checkpoint gives
the same counts, and another one can be paired with it.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from transformers.utils.logging import disable_progress_bar

from trainer_client.checkpoint import checkpoint_folder
from trainer_client.config import RunConfig
from trainer_client.describe import console
from trainer_client.distributed import ALONE
from trainer_client.evaluation import evaluate
from trainer_client.exit_codes import FINISHED, exit_code
from trainer_client.frozen import open_policy
from trainer_client.gym import GymClient
from trainer_client.metrics import Evaluation, History, append_row, choose, read_history
from trainer_client.portrait import Portrait, score, show
from trainer_client.report import write_report
from trainer_client.result import CHOSEN, LAST, LOOK, START, later_looks, result_of
from trainer_client.run_folder import RunFolder, append_episodes, find_run, read_settings, write_result
from trainer_client.session import make_repeatable
from trainer_client.trajectory import Trajectory
from trainer_client.transcripts import keep_transcripts, transcribe_failures

SPLITS = ("train", "validation", "test")


class SecondLook(Exception):
    """The tasks that a run reports on would be looked at again."""


@exit_code(SecondLook)
def main(argv: Sequence[str] | None = None) -> int:
    """Plays the checkpoint and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.evaluate",
        description="Plays a checkpoint of a run on the tasks of a split and adds the figures to its record.",
    )
    parser.add_argument("run", help="Name of the run, or its folder.")
    parser.add_argument(
        "--split", choices=SPLITS, default="validation", help="Tasks that are played (validation)."
    )
    parser.add_argument("--step", type=int, help="The checkpoint; left out, the one that the run reports.")
    parser.add_argument(
        "--episodes", type=int, help="Episodes of each task; left out, as many as the run's test had."
    )
    parser.add_argument(
        "--force", action="store_true", help="Look at test tasks again, and have the record say so."
    )
    given = parser.parse_args(argv)
    if given.episodes is not None and given.episodes < 1:
        raise ValueError(f"episodes is {given.episodes}: set it to 1 or more")
    folder = find_run(given.run)
    config, record = read_settings(folder)
    disable_progress_bar()
    make_repeatable(config)
    portrait = asyncio.run(look(folder, config, record, given.split, given.step, given.episodes, given.force))
    show(portrait, console())
    return FINISHED


async def look(
    folder: RunFolder,
    config: RunConfig,
    record: dict[str, str],
    split: str,
    step: int | None,
    episodes: int | None,
    force: bool,
) -> Portrait:
    """Plays a checkpoint on a split, adds the row to the run's record and writes its report anew.

    Raises:
        SecondLook: The tasks are those that the run reports on, and it is not forced.
        ValueError: There is no such checkpoint, or nothing to choose one by.
    """
    history = read_history(folder.metrics)
    step = _reported_step(config, history) if step is None else step
    checkpoint = checkpoint_folder(folder.checkpoints, step)
    if not checkpoint.is_dir():
        kept = ", ".join(sorted(path.name for path in folder.checkpoints.glob("step-*"))) or "none"
        raise ValueError(f"there is no {checkpoint}: choose a --step of which there is a checkpoint ({kept})")
    reported_on = split == "test" or (split == "validation" and config.report == "last")
    if reported_on and not force:
        raise SecondLook(_refusal(config, history, split, step))
    label, stream = f"extra/{split}/step-{step}", f"extra/{split}"
    if reported_on:
        # The run's own look, finished or still to come, is the first.
        place = "" if split == "test" else f"{split}/"
        label, stream = f"{LOOK}{2 + len(later_looks(history))}/{place}step-{step}", "test"
    played: list[Trajectory] = []
    async with GymClient.connect() as gym:
        frozen = await open_policy(gym, config, checkpoint, f"{config.name}/step-{step}")
        row = await evaluate(
            ALONE,
            gym,
            frozen.policy,
            frozen.settings,
            await gym.list_tasks(config.suite, split),
            frozen.loaded.decode,
            label=label,
            step=step,
            episodes=episodes or config.test_episodes,
            stream=stream,
            on_played=played.extend,
        )
    append_row(folder.metrics, row)
    append_episodes(folder, played)
    if reported_on:
        keep_transcripts(folder.transcripts, label, transcribe_failures(label, played, frozen.loaded.decode))
    _report_anew(folder, config, record)
    tokens = score(frozen.loaded, played, config)
    return Portrait(f"{config.name}/step-{step}", config.suite, split, row, tokens, config.group_size)


def _reported_step(config: RunConfig, history: History) -> int:
    if config.report == "last":
        return config.steps
    if not history.validations:
        raise ValueError(f"the run {config.name} has not validated anything yet: say which --step to play")
    return choose(history.validations).step


def _refusal(config: RunConfig, history: History, split: str, step: int) -> str:
    why = f"the {split} tasks of the run {config.name}"
    own = _own_looks(history)
    if step in {row.step for row in own}:
        labels = ", ".join(row.label for row in own if row.step == step)
        reason = f"were played by step {step} already ({labels}, pass@1 is in its report)"
    elif own and step != (reported := _reported_step(config, history)):
        reason = f"are reported for step {reported}; playing step {step} on them would be choosing by them"
    else:
        finish = f"python -m trainer_client.run --resume --name {config.name}"
        reason = f"are played once, when the run is finished: {finish}"
    return (
        f"{why} {reason}. Nothing was played. With --force they are, and the record and every report say so"
    )


def _own_looks(history: History) -> list[Evaluation]:
    return [row for label in (START, CHOSEN, LAST) if (row := history.evaluation(label))]


def _report_anew(folder: RunFolder, config: RunConfig, record: dict[str, str]) -> None:
    """Writes the report, and result.json where the run has come to a result."""
    history, path = read_history(folder.metrics), folder.path / "result.json"
    result = None
    if path.exists():
        result = result_of(history, json.loads(path.read_text(encoding="utf-8"))["weights_sha256"])
        write_result(folder, result)
    write_report(folder.path, config, record, history, result)


if __name__ == "__main__":
    sys.exit(main())
