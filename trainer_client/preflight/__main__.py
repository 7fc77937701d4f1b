"""The preflight alone: `python -m trainer_client.preflight`, with the flags of a run.

Prepares what such a run would, in a folder that is gone afterwards, plays the batch of its step 1 and says what holds.
A cold start is left out: the checks are the same for any policy. The exit code is 0 where everything holds, else 1.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.credit import credited
from trainer_client.distributed import ALONE
from trainer_client.exit_codes import FAILED, FINISHED, exit_code
from trainer_client.flags import parse_flags
from trainer_client.gym import GymClient
from trainer_client.preflight.check import Report, table
from trainer_client.preflight.gate import preflight
from trainer_client.session import list_task_ids, load_step, make_repeatable, prepare
from trainer_client.step import play_step


@exit_code()
def main(argv: Sequence[str] | None = None) -> int:
    """Carries out the preflight and returns its exit code."""
    given, resume = parse_flags(argv, "preflight")
    if resume:
        print("a preflight is of a new run: leave out --resume", file=sys.stderr)
        return FAILED
    disable_progress_bar()
    config = RunConfig(**given)
    make_repeatable(config)
    report = asyncio.run(rehearse(config))
    print(table(report.checks))
    return FAILED if report.failed else FINISHED


async def rehearse(config: RunConfig) -> Report:
    """Plays step 1 of a run and tries everything on it."""
    console = RunConsole(config.steps, Console(stderr=True, highlight=False, soft_wrap=True))
    config = replace(config, name=config.name or "preflight")
    with console.live(), tempfile.TemporaryDirectory() as folder:
        async with GymClient.connect(on_notice=console.notice) as gym:
            session = await prepare(config, False, gym, console, ALONE, Path(folder))
            try:
                task_ids = await list_task_ids(session, "train")
                played = await play_step(session, task_ids, 1, session.model, 0)
                console.doing("preflight")
                reference = load_step(session, 0).requires_grad_(False) if config.kl_coefficient else None
                return await preflight(
                    session, played.trajectories, credited(played.trajectories, config)[1], reference
                )
            finally:
                if session.vllm:
                    session.vllm.close()


if __name__ == "__main__":
    sys.exit(main())
