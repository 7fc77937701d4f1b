"""Plays many episodes, hostile ones among them, and looks for what grows: `make soak`.

Honest episodes repair their function or leave it as it is, and each verdict has to say which. The hostile ones
leave it too, so that none of them may pass, nor be called a failure of the gym. What the service and the engine
hold is counted three times, each time with no episode alive and the pool full: after a tenth of the episodes,
when everything has been used once; in the middle; and at the end. Growth is the end against the start, except for
memory, which is the end against the middle: a service keeps the records of its last 4,096 episodes, and until it
has that many it grows by what it is told to keep. Only a soak of twice as many tells records from leaks. What the
engine holds is judged only where others have started and removed nothing on it meanwhile.

Prints one JSON object per line; ends with status 1 when a verdict is wrong or something grew.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gym_service.config import ServiceConfig
from gym_service.tasks.bugfix import TASKS
from gym_service.tasks.model import PLACEHOLDER, FunctionTask
from tests.bench.episodes import Player, function_name, tool_call
from tests.bench.footprint import Footprint
from tests.bench.hostile import ATTACKS
from tests.bench.results import show
from tests.bench.services import real_service, say
from trainer_client.errors import GymError
from trainer_client.wire import Created

_HOSTILE_SHARE = 0.15
_ATTACK_MILLISECONDS = 500
_HONEST = ("menu_repaired", "menu_untouched", "coding_repaired", "coding_untouched")
_MOMENTS = ("start", "middle", "end")

_MORE_DESCRIPTORS = 16
"""Connections to the engine are kept open, as many as there were threads that asked it at once."""
_MORE_SERVICE_MIB = 16
_RECORD_MIB = 1 / 16
"""What the record of one episode may take."""
_MORE_ENGINE_DESCRIPTORS = 32
_MORE_ENGINE_MIB = 64
"""The engine's own garbage comes and goes in steps of this size."""


@dataclass
class Soak:
    """What came of it."""

    sandboxes: int
    """What the pool holds."""
    played: Counter[str] = field(default_factory=Counter)
    """Episodes by kind."""
    wrong: list[str] = field(default_factory=list)
    """A sentence for each episode that did not come out as it should."""
    seconds: float = 0.0
    footprints: list[Footprint] = field(default_factory=list)
    """At the start, in the middle and at the end."""

    @property
    def growth(self) -> list[str]:
        """Gives a sentence for each thing of which there is more than there was."""
        start, middle, end = self.footprints
        episodes = self.played.total()
        recorded = max(0, min(episodes, ServiceConfig().kept_episodes) - episodes // 2)
        checks: list[tuple[str, float, float, float]] = [
            ("containers", self.sandboxes, end.containers, 0),
            ("processes in containers", start.processes, end.processes, 0),
            (
                "descriptors of the service",
                start.service.descriptors,
                end.service.descriptors,
                _MORE_DESCRIPTORS,
            ),
            (
                "MiB of the service",
                middle.service.rss_mib,
                end.service.rss_mib,
                _MORE_SERVICE_MIB + recorded * _RECORD_MIB,
            ),
        ]
        # What an engine holds for others comes and goes with them.
        undisturbed = start.strangers == middle.strangers == end.strangers
        if undisturbed and start.engine and middle.engine and end.engine:
            checks += [
                (
                    "descriptors of the engine",
                    start.engine.descriptors,
                    end.engine.descriptors,
                    _MORE_ENGINE_DESCRIPTORS,
                ),
                ("MiB of the engine", middle.engine.rss_mib, end.engine.rss_mib, _MORE_ENGINE_MIB),
            ]
        return [
            f"{what}: {after:.0f} at the end, {before:.0f} before, {more:.0f} more are allowed"
            for what, before, after, more in checks
            if after > before + more
        ]


async def soak(episodes: int, at_once: int, on_episode: Callable[[], None] = lambda: None) -> Soak:
    """Plays episodes against a service of its own, so many at once."""
    async with real_service(at_once) as service:
        result = Soak(service.sandboxes)
        # One for each sandbox before the first count, if there are so many: what is made at first use is no growth.
        middle = episodes // 2
        moments = (0, min(max(episodes // 10, at_once), middle), middle, episodes)
        for first, until in pairwise(moments):
            begin = time.monotonic()
            numbers = iter(range(first, until))
            async with asyncio.TaskGroup() as workers:
                for _ in range(at_once):
                    workers.create_task(_play_each(numbers, service.player, result, on_episode))
            result.seconds += time.monotonic() - begin
            await service.settle()
            result.footprints.append(await asyncio.to_thread(Footprint.take, service))
    return result


async def _play_each(
    numbers: Iterator[int], player: Player, result: Soak, on_episode: Callable[[], None]
) -> None:
    for number in numbers:
        rng = random.Random(number)
        hostile = rng.random() < _HOSTILE_SHARE
        kind = rng.choice(tuple(ATTACKS) if hostile else _HONEST)
        task = rng.choice(TASKS)
        try:
            problem = await _play(player, kind, task)
        except (GymError, AssertionError) as error:
            problem = repr(error)
        if problem:
            result.wrong.append(f"episode {number}, {kind} of {task.task_id}: {problem}")
        result.played[kind] += 1
        on_episode()


async def _play(player: Player, kind: str, task: FunctionTask) -> str:
    """Plays an episode; gives what is wrong with it, or an empty text."""
    toolset = "menu" if kind.startswith("menu") else "coding"
    episode = await player.create(toolset, task.task_id)
    if kind in ATTACKS:
        await _attack(player, episode, ATTACKS[kind])
    elif toolset == "menu":
        edit = (f"edit {task.gold_operation}",) if kind == "menu_repaired" else ()
        for turn, call in enumerate(("read", *edit, "test", "submit")):
            await player.gym.step_text(episode.episode_id, turn, f"<call> {call} </call>")
    elif disturbed := await _code(player, episode, task, repair=kind == "coding_repaired"):
        return disturbed
    verdict = (await player.gym.grade(episode.episode_id)).verdict
    if kind in ATTACKS:
        right = verdict.valid and verdict.status != "resolved"
    else:
        right = verdict.status == ("resolved" if kind.endswith("_repaired") else "unresolved")
    return "" if right else str(verdict)


async def _code(player: Player, episode: Created, task: FunctionTask, *, repair: bool) -> str:
    name = function_name(episode)
    answers = [await player.call(episode, 0, "Read", file_path=f"{name}.py")]
    if repair:
        content = task.gold_source.replace(PLACEHOLDER, name)
        answers.append(await player.call(episode, 1, "Write", file_path=f"{name}.py", content=content))
    tested = await player.call(episode, len(answers), "Bash", command="pytest")
    answers.append(tested)
    await player.gym.step_text(episode.episode_id, len(answers), "Done.")
    for answer in answers:
        if answer.tool_results[0].error_kind:
            return str(answer)
    fails = " failed" in tested.tool_results[0].text
    return str(tested) if fails == repair else ""


async def _attack(player: Player, episode: Created, program: str) -> None:
    """Runs the program and answers, if the episode has survived it."""
    calls = (
        tool_call("Write", file_path="attack.py", content=program),
        tool_call("Bash", command="python attack.py", timeout=_ATTACK_MILLISECONDS),
    )
    for turn, call in enumerate(calls):
        answer = await player.gym.step_calls(episode.episode_id, turn, [call])
        if answer.outcome is not None:
            return
    await player.gym.step_text(episode.episode_id, len(calls), "Done.")


def show_soak(result: Soak) -> None:
    """Prints the figures."""
    total = result.played.total()
    hostile = sum(result.played[kind] for kind in ATTACKS)
    show("soak.episodes", total, "episodes", hostile=hostile, kinds=dict(sorted(result.played.items())))
    show("soak.rate", total / result.seconds, "episodes/s")
    show("soak.wrong", len(result.wrong), "episodes")
    for moment, footprint in zip(_MOMENTS, result.footprints, strict=True):
        show(f"soak.containers.{moment}", footprint.containers, "containers")
        show(f"soak.processes.{moment}", footprint.processes, "processes")
        show(f"soak.strangers.{moment}", len(footprint.strangers), "containers")
        for who, process in (("service", footprint.service), ("engine", footprint.engine)):
            if process is not None:
                show(f"soak.{who}_descriptors.{moment}", process.descriptors, "descriptors")
                show(f"soak.{who}_rss.{moment}", process.rss_mib, "MiB")


def main() -> int:
    """Parses the command line, plays and tells."""
    parser = argparse.ArgumentParser(
        prog="make soak", description="Plays many episodes and looks for growth."
    )
    parser.add_argument("--episodes", type=int, default=10_000, help="how many, at least 2")
    parser.add_argument("--at-once", type=int, default=64, help="how many live at a time")
    options = parser.parse_args()
    if options.episodes < 2 or options.at_once < 1:
        parser.error("there is nothing to compare with fewer than 2 episodes, or fewer than 1 at once")
    columns = TextColumn("soak"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=options.episodes)
        result = asyncio.run(soak(options.episodes, options.at_once, lambda: progress.advance(bar)))
    show_soak(result)
    problems = [*result.wrong, *result.growth]
    for problem in problems:
        say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
