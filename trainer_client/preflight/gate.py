"""Before step 1: everything holds, or the run does not start."""

import asyncio
from collections.abc import Sequence
from time import perf_counter

from transformers import PreTrainedModel

from trainer_client.collate import collate
from trainer_client.preflight.check import Check, PreflightFailed, Report, write_report
from trainer_client.preflight.of_gym import check_gym
from trainer_client.preflight.of_trainer import check_trainer
from trainer_client.session import Session
from trainer_client.trajectory import Trajectory


async def gate(
    session: Session,
    episodes: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    reference: PreTrainedModel | None = None,
) -> None:
    """Tries everything and writes preflight.json. Raises PreflightFailed in each process where something fails."""
    session.console.doing("preflight")
    mine = await preflight(session, episodes, advantages, reference) if session.world.is_first else None
    report = await session.world.from_first(mine)
    assert report is not None
    session.console.say(str(report))
    if session.world.is_first:
        write_report(session.folder.path / "preflight.json", report)
    if report.failed:
        raise PreflightFailed(report.failed)


async def preflight(
    session: Session,
    episodes: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    reference: PreTrainedModel | None = None,
) -> Report:
    """Tries gym and trainer on the episodes of step 1, and changes nothing. By one process alone.

    Args:
        session: The run, before step 1.
        episodes: What step 1 learns from, as it was played.
        advantages: Those of the turns of each, as `collate` is given them.
        reference: The policy that a KL divergence is taken from, where the run has one.

    Raises:
        GymError: The gym does not answer.
    """
    started = perf_counter()
    of_gym, of_trainer = await asyncio.gather(
        check_gym(session.gym, session.loaded, session.tokenizer, session.settings, episodes),
        asyncio.to_thread(_check_trainer, session, episodes, advantages, reference),
    )
    return Report((*of_trainer, *of_gym), perf_counter() - started)


def _check_trainer(
    session: Session,
    episodes: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    reference: PreTrainedModel | None,
) -> list[Check]:
    try:
        batch = collate(episodes, advantages)
    except ValueError as error:
        return [Check("mask", False, str(error), "0")]
    return check_trainer(session.model, episodes, batch, session.config, reference)
