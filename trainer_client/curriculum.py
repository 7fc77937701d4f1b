"""Which tasks a step plays, and in groups of what size: from the seed, the place in the run and earlier rows alone."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from trainer_client.config import RunConfig
from trainer_client.metrics import StepRow
from trainer_client.rollout import GroupSpec

RECENT_GROUPS = 3
"""A task's pass rate is taken over so many of the last groups of it: older ones were played by another policy."""
WANTED_CHANCE = 0.9
"""The chance of an advantage that an adaptive group is made large enough for."""


def choose_groups(
    task_ids: Sequence[str],
    config: RunConfig,
    step: int,
    earlier: Sequence[StepRow] = (),
    *,
    count: int = 0,
    refill: int = 0,
    played: Iterable[str] = (),
) -> list[GroupSpec]:
    """Draws the groups of a step, each of another task.

    Args:
        task_ids: The training tasks, in any order.
        config: The settings of the run.
        step: The step, from 1.
        earlier: The rows of earlier steps, for the pass rates of tasks.
        count: How many groups; 0 for config.tasks_per_step.
        refill: Which round of replacing silent groups it is; 0 for the first groups of the step.
        played: Tasks that the step has played already: the others come first.
    """
    rates = pass_rates(earlier)
    before = set(played)
    rest = sorted(set(task_ids) - before) or sorted(task_ids)
    wanted = min(count or config.tasks_per_step, len(rest))
    place = f"{step}/refill-{refill}" if refill else f"{step}"
    random = Random(f"{config.seed}/tasks/{place}")
    if config.curriculum == "uniform":
        chosen = random.sample(rest, wanted)
    else:
        chosen = draw_weighted(rest, [teaching_weight(rates.get(task, 0.5)) for task in rest], wanted, random)
    return [
        GroupSpec(task, f"train/step-{place}/{task}", group_size(config, rates.get(task, 0.5)))
        for task in chosen
    ]


def pass_rates(earlier: Sequence[StepRow]) -> dict[str, float]:
    """Returns the pass rate of each task in its most recent groups, one passed and one failed episode added.

    With these two (Laplace's rule of succession) a task that always passed so far may still fail.
    """
    recent: dict[str, list[tuple[int, int]]] = {}
    for row in earlier:
        for task in row.tasks:
            recent.setdefault(task.task_id, []).append((task.passed, task.episodes))
    return {task: _succession(groups[-RECENT_GROUPS:]) for task, groups in recent.items()}


def _succession(groups: Sequence[tuple[int, int]]) -> float:
    return (sum(passed for passed, _ in groups) + 1) / (sum(episodes for _, episodes in groups) + 2)


def teaching_weight(rate: float) -> float:
    """Returns p (1 - p), the variance of a reward that is passed with the rate p: what a group of it can teach."""
    return rate * (1.0 - rate)


def draw_weighted(names: Sequence[str], weights: Sequence[float], count: int, random: Random) -> list[str]:
    """Draws so many different names, each next one with a chance in proportion to its weight, which is above 0.

    By the largest of random() ** (1 / weight) (Efraimidis and Spirakis, 2006).
    """
    keys: Mapping[str, float] = {
        name: random.random() ** (1.0 / weight) for name, weight in zip(names, weights, strict=True)
    }
    return sorted(names, key=lambda name: (-keys[name], name))[:count]


def group_size(config: RunConfig, rate: float) -> int:
    """Returns how many episodes a group has whose task is passed with a rate, between 0 and 1, both excluded.

    Of n episodes some pass and some fail with the chance 1 - p^n - (1 - p)^n. With config.largest_group, n is the
    least for which that is WANTED_CHANCE, between config.group_size and config.largest_group.
    """
    size = config.group_size
    while size < config.largest_group and 1.0 - rate**size - (1.0 - rate) ** size < WANTED_CHANCE:
        size += 1
    return size
