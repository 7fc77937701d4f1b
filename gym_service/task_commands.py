"""`python -m gym_service tasks`: lists, proves and makes tasks."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gym_service import import_commands
from gym_service.errors import NotFound
from gym_service.state import StateFolder
from gym_service.task_proving import prove, say, with_engine
from gym_service.visible import visible

if TYPE_CHECKING:
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.tasks.suites import Task

_MOST_TASKS = 1000
_MOST_SHOWN = 10
"""Up to so many files are shown with what is in them."""
_MOST_SHOWN_BYTES = 4000


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its actions."""
    tasks = commands.add_parser("tasks", help="list, prove or make tasks")
    actions = tasks.add_subparsers(dest="action", required=True)
    listed = actions.add_parser("list", help="list the tasks of a suite")
    checked = actions.add_parser(
        "check", help="prove the tasks of a suite; a gym serves what is proven at its next start"
    )
    for action in (listed, checked):
        action.add_argument("suite", nargs="?", default="bugfix")
    imported = actions.add_parser(
        "import",
        help="take over the tasks of a file, or the task of a folder",
        description="Makes a suite of the tasks in a file, or puts the task of a folder into its suite. All are "
        "proven; what is not proven is not served. Nothing of them is executed outside a sandbox, except that a "
        "folder of Harbor or terminal-bench has the engine build its Dockerfile, whose steps have the network.",
    )
    import_commands.add_options(imported)
    new = actions.add_parser("new", help="write a task to start from, as a folder")
    new.add_argument("path", type=Path, metavar="FOLDER")
    new.add_argument(
        "--command",
        dest="with_command",
        action="store_true",
        help="one in Perl, whose tests are run by a command; so are those of any other language",
    )
    seen = actions.add_parser("show", help="print what the policy will see of a task: messages, tools, files")
    seen.add_argument("task_id", metavar="TASK_ID")
    made = actions.add_parser(
        "synthesize",
        help="make repository-level tasks out of source distributions",
        description="Downloads source distributions by version and hash, puts one fault at a time into the sources, "
        "hides the tests that fail by it, proves each task, and keeps those of NAME as the suite NAME. Nothing of a "
        "package is executed outside a sandbox.",
    )
    made.add_argument(
        "--sdist",
        action="append",
        metavar="NAME==VERSION",
        help="a distribution; may be given again; by default all whose hashes are known here",
    )
    made.add_argument("--count", type=int, default=12, help="tasks to make of each; 12 by default")
    made.add_argument(
        "--sha256", help="the hash of the archive, for one --sdist whose hash is not known here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries out an action and returns the exit status."""
    # Not above: every other command would wait for what these import.
    from gym_service.tasks.commands import CommandRefused
    from gym_service.tasks.importing import ImportRefused
    from gym_service.tasks.sdist import SdistError
    from gym_service.tasks.store import DamagedSuite, known_suites

    state = StateFolder(arguments.state_folder)
    try:
        if arguments.action == "synthesize":
            return _synthesize(arguments, state)
        if arguments.action == "import":
            return import_commands.run(arguments, state)
        if arguments.action == "new":
            return _new(arguments.path, with_command=arguments.with_command)
        if arguments.action == "show":
            return _show(known_suites(state.suites).task(arguments.task_id))
        suite = known_suites(state.suites).suite(arguments.suite)
        if arguments.action == "list":
            for task in suite:
                print(f"{task.task_id:30} {task.split}")
            return 0
        return _check(suite, state)
    except (NotFound, DamagedSuite, SdistError, ImportRefused, CommandRefused) as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 2


def _check(suite: "Sequence[Task]", state: StateFolder) -> int:
    async def check(engine: "DockerEngine") -> int:
        return 0 if await prove(suite, state, engine) else 1

    return with_engine(check, state)


def _new(folder: Path, *, with_command: bool) -> int:
    from gym_service.tasks.scaffold import write_example

    write_example(folder, with_command=with_command)
    say(f"{folder} is an example of a task. `python -m gym_service tasks import {folder}` proves it")
    return 0


def _show(task: "Task") -> int:
    from gym_service.tasks.suites import open_task
    from gym_service.toolsets.coding import Coding

    instance = open_task(task, "show")
    for message in Coding().opening(instance):
        say(f"--- {message.role}\n{visible(message.content)}")
    say("--- tools")
    for tool in Coding().tools_for(task):
        say(f"{tool.name}({', '.join(tool.properties)}): {tool.description}")
    say("--- files")
    for path, content in sorted(instance.tree.items()):
        say(f"{len(content):9}  {visible(path)}")
        if len(instance.tree) <= _MOST_SHOWN and len(content) <= _MOST_SHOWN_BYTES:
            say(visible(content.decode(errors="replace")))
    return 0


def _synthesize(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import proof, synthesis
    from gym_service.tasks.sdist import PINNED, fetch
    from gym_service.tasks.store import drop_other_sources, save_task

    requirements = arguments.sdist or list(PINNED)
    if not 1 <= arguments.count <= _MOST_TASKS:
        print(f"error: --count must be from 1 to {_MOST_TASKS}, not {arguments.count}", file=sys.stderr)
        return 2
    if arguments.sha256 and len(requirements) > 1:
        print("error: --sha256 goes with one --sdist", file=sys.stderr)
        return 2

    async def make(engine: "DockerEngine") -> int:
        book = proof.ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
        wanting = 0
        for requirement in requirements:
            archive = fetch(requirement, arguments.sha256, state.folder / "downloads")
            say(f"{requirement}: {arguments.count} tasks are to be made")
            made = 0
            async with proof.open_grounds(engine) as grounds:
                async for task in synthesis.synthesize(requirement, archive, arguments.count, grounds, say):
                    if made == 0:
                        drop_other_sources(state.suites / task.suite, task.source)
                    save_task(state.suites / task.suite, task)
                    book.add([proof.Proof(task, ())])  # As it was made.
                    made += 1
            wanting += arguments.count - made
            say(f"{requirement}: {made} proven tasks in {state.suites}")
        say("A gym serves them from its next start: make gym-down, make gym-up")
        if wanting:
            print(f"error: {wanting} tasks are wanting; the packages have no more", file=sys.stderr)
        return 1 if wanting else 0

    return with_engine(make, state)
