"""Whether repository-level tasks can be solved, and are not solved by doing nothing: `python -m tests.bench.oracle`.

Plays every task of the stored suites twice against the gym that runs on this machine, through the coding tools: once
by a script that has the gold patch, once by one that answers at once. It reads the suites from the service's own
state folder, so it runs where the service runs. `oracle.SUITE` is how many the first solves, `no_op` the second.
"""

import argparse
import asyncio
import difflib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from gym_service.config import default_state_folder
from gym_service.state import StateFolder
from gym_service.tasks.repository import RepositoryTask
from gym_service.tasks.store import known_suites
from tests.bench.episodes import tool_call
from tests.bench.results import show
from tests.bench.services import say
from trainer_client.gym import GymClient
from trainer_client.trajectory import Verdict

_AT_ONCE = 8

Script = Callable[[GymClient, RepositoryTask], Awaitable[Verdict]]


def edit_of(before: str, after: str) -> tuple[str, str]:
    """Gives the text to replace, which occurs once, and the text in its place: whole lines around all changes."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changes = [
        change for change in difflib.SequenceMatcher(None, old, new).get_opcodes() if change[0] != "equal"
    ]
    first, last = changes[0][1], changes[-1][2]
    behind = len(old) - last
    while before.count("".join(old[first:last])) != 1:
        first, behind = max(first - 1, 0), max(behind - 1, 0)
        last = len(old) - behind
    return "".join(old[first:last]), "".join(new[first : len(new) - behind])


async def play_oracle(gym: GymClient, task: RepositoryTask) -> Verdict:
    """Reads and edits what the gold patch changes, runs the tests that are there, and answers."""
    episode = await gym.create(task.task_id, "coding", run_seed=0, group="oracle", index=0)
    turn = 0
    for path, repaired in task.gold.items():
        old, new = edit_of(task.base[path].decode(), repaired.decode())
        for call in (
            tool_call("Read", file_path=path),
            tool_call("Edit", file_path=path, old_string=old, new_string=new),
        ):
            (result,) = (await gym.step_calls(episode.episode_id, turn, [call])).tool_results
            if result.error_kind:
                say(f"{task.task_id}: {result.text}")
            turn += 1
    tests = [tool_call("Bash", command=task.test_command)]
    (result,) = (await gym.step_calls(episode.episode_id, turn, tests)).tool_results
    if result.error_kind or " passed" not in result.text or " failed" in result.text:
        last_line = result.text.rpartition("\n")[2]
        say(f"{task.task_id}: with the gold patch `{task.test_command}` ends with {last_line}")
    await gym.step_text(episode.episode_id, turn + 1, "Done.")
    return (await gym.grade(episode.episode_id)).verdict


async def play_no_op(gym: GymClient, task: RepositoryTask) -> Verdict:
    """Answers at once."""
    episode = await gym.create(task.task_id, "coding", run_seed=0, group="no-op", index=0)
    await gym.step_text(episode.episode_id, 0, "There is nothing to repair.")
    return (await gym.grade(episode.episode_id)).verdict


async def play_suite(gym: GymClient, name: str, tasks: Sequence[RepositoryTask]) -> bool:
    """Plays the tasks that the gym serves of a suite and prints the result; says whether it is as it should be."""
    served = {task.task_id for task in await gym.list_tasks(name)}
    chosen = [task for task in tasks if task.task_id in served]
    places = asyncio.Semaphore(_AT_ONCE)

    async def solves(script: Script, task: RepositoryTask) -> bool:
        async with places:
            verdict = await script(gym, task)
        solved = verdict.status == "resolved"
        if solved is not (script is play_oracle):
            say(f"{task.task_id}: {script.__name__} is {verdict.status}: {verdict.reason}")
        return solved

    begin = time.monotonic()
    oracle = sum(await asyncio.gather(*(solves(play_oracle, task) for task in chosen)))
    no_op = sum(await asyncio.gather(*(solves(play_no_op, task) for task in chosen)))
    seconds = round(time.monotonic() - begin, 1)
    show(
        f"oracle.{name}",
        oracle,
        "tasks solved",
        tasks=len(chosen),
        no_op=no_op,
        not_served=len(tasks) - len(chosen),
        seconds=seconds,
    )
    return bool(chosen) and oracle == len(chosen) and no_op == 0


async def play_suites(names: Sequence[str]) -> bool:
    """Plays suites one after the other; those that are stored where none is named."""
    stored = known_suites(StateFolder(default_state_folder()).suites)
    suites = {
        name: [task for task in tasks if isinstance(task, RepositoryTask)]
        for name, tasks in stored.suites.items()
    }
    chosen = names or [name for name, tasks in suites.items() if tasks]
    if unknown := [name for name in chosen if not suites.get(name)]:
        say(f"no stored suite {', '.join(unknown)}; `python -m gym_service tasks synthesize` makes them")
        return False
    async with GymClient.connect(on_notice=say) as gym:
        as_it_should_be = [await play_suite(gym, name, suites[name]) for name in chosen]
    return bool(chosen) and all(as_it_should_be)


def main() -> int:
    """Parses the command line and plays; the exit status says whether all is as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.oracle", description="Plays gold patches and no-ops against the gym."
    )
    parser.add_argument("--suite", nargs="+", default=[], metavar="NAME", help="all that are stored if none")
    suites = parser.parse_args().suite
    return 0 if asyncio.run(play_suites(suites)) else 1


if __name__ == "__main__":
    sys.exit(main())
