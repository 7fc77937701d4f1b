"""For which share of a batch of episodes the policy waits for the gym, by how episodes are put together."""

import itertools
import statistics
import time
from collections.abc import Mapping

from tests.bench.sampling import using_threads
from tests.bench.services import Service
from trainer_client.models.base import make_rl_base
from trainer_client.models.load import load_model
from trainer_client.models.sampler import Sampler
from trainer_client.rollout import GroupSpec, RolloutSettings, Timing, play_groups

GROUPS, GROUP_SIZE = 8, 8
LAYOUTS: Mapping[str, tuple[int, bool]] = {
    "one_cohort": (64, True),
    "two_cohorts": (32, True),
    "continuous": (32, False),
}
"""How many episodes a cohort has and whether it plays in lock-step. Each has 64 episodes at a time."""
_LEAST_ROUNDS = 3


async def waiting_shares(service: Service, seconds: float) -> list[tuple[float, float]]:
    """Plays batches of 64 `menu` episodes with the starting policy, each layout in turns.

    Gives for each layout the median share of waiting, and the median seconds of a batch.
    """
    gym = service.player.gym
    loaded = load_model(await make_rl_base(gym))
    tokenizer = await gym.register_tokenizer(loaded.tokenizer_json, loaded.chat_template, loaded.end_of_turn)
    tasks = (await gym.list_tasks("bugfix", "train"))[:GROUPS]
    numbers = itertools.count()

    async def play(cohort_size: int, lock_step: bool) -> Timing:
        number = next(numbers)
        groups = [GroupSpec(task.task_id, f"{number}/{task.task_id}", GROUP_SIZE) for task in tasks]
        sampler = Sampler(
            loaded.model,
            stop_ids=tokenizer.stop_token_ids,
            max_new_tokens=24,
            continuous=not lock_step,
        )
        settings = RolloutSettings(
            run_seed=0,
            toolset="menu",
            fingerprint=tokenizer.fingerprint,
            max_context_tokens=loaded.model.config.max_position_embeddings,
            cohort_size=cohort_size,
            lock_step=lock_step,
        )
        played = await play_groups(gym, sampler, groups, settings)
        assert played.lost == 0
        return played.timing

    timings: dict[str, list[Timing]] = {name: [] for name in LAYOUTS}
    with using_threads(1):
        stop = time.monotonic() + seconds * len(LAYOUTS)
        while time.monotonic() < stop or len(timings["one_cohort"]) < _LEAST_ROUNDS:
            for name, layout in LAYOUTS.items():
                await service.settle()
                timings[name].append(await play(*layout))
    return [
        (
            statistics.median(each.waiting_seconds / _whole(each) for each in played),
            statistics.median(map(_whole, played)),
        )
        for played in timings.values()
    ]


def _whole(timing: Timing) -> float:
    return timing.sampling_seconds + timing.waiting_seconds
