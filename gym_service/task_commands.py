"""`python -m gym_service tasks`: lists, proves and makes tasks."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from gym_service.errors import NotFound
from gym_service.state import StateFolder
from gym_service.tasks.store import DamagedSuite, known_suites, save_task

if TYPE_CHECKING:
    from gym_service.sandbox.docker import DockerEngine


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
    made = actions.add_parser(
        "synthesize",
        help="make repository-level tasks out of a package's source distribution",
        description="Downloads a source distribution by version and hash, puts one fault at a time into its sources, "
        "hides the tests that fail by it, proves each task, and keeps them as the suite NAME. Nothing of the package "
        "is executed outside a sandbox.",
    )
    made.add_argument("--sdist", required=True, metavar="NAME==VERSION", help="the distribution")
    made.add_argument("--count", type=int, default=12, help="tasks to make; 12 by default")
    made.add_argument(
        "--sha256", help="the hash of the archive; known for the packages that the README names"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries out an action and returns the exit status."""
    state = StateFolder(arguments.state_folder)
    try:
        if arguments.action == "synthesize":
            return _synthesize(arguments, state)
        suite = known_suites(state.suites).suite(arguments.suite)
        if arguments.action == "list":
            for task in suite:
                print(f"{task.task_id:30} {task.split}")
            return 0
        return _check(suite, state)
    except (NotFound, DamagedSuite) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _check(suite: Any, state: StateFolder) -> int:
    from gym_service import proof

    async def check(engine: "DockerEngine") -> int:
        async with proof.open_grounds(engine) as grounds:
            proofs = await proof.prove_all(suite, grounds)
        proof.ProofBook(state.proofs, engine.facts.image_digest).add(proofs)
        print(proof.table(proofs))
        return 1 if any(each.faults for each in proofs) else 0

    return _with_engine(check, state)


def _synthesize(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import proof, synthesis
    from gym_service.tasks.sdist import SdistError, fetch

    async def make(engine: "DockerEngine") -> int:
        archive = fetch(arguments.sdist, arguments.sha256, state.folder / "downloads")
        async with proof.open_grounds(engine) as grounds:
            tasks = await synthesis.synthesize(arguments.sdist, archive, arguments.count, grounds, print)
        for task in tasks:
            save_task(state.suites / task.suite, task)
        # Each was proven as it was made.
        proof.ProofBook(state.proofs, engine.facts.image_digest).add(
            [proof.Proof(task, ()) for task in tasks]
        )
        print(f"{len(tasks)} proven tasks in {state.suites}; a gym serves them from its next start")
        return 0 if len(tasks) >= arguments.count else 1

    if not 1 <= arguments.count <= 1000:
        print(f"error: --count must be from 1 to 1000, not {arguments.count}", file=sys.stderr)
        return 2
    try:
        return _with_engine(make, state)
    except SdistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _with_engine(action: Any, state: StateFolder) -> int:
    from gym_service.sandbox.base import SandboxLost
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.sandbox.policy import SandboxLimits
    from sandbox_images.build import image_reference

    try:
        # Not the service's own containers, which would be cleared away when it starts.
        engine = DockerEngine(image_reference(), SandboxLimits(), f"{state.owner}-tasks", reuse=True)
        engine.remove_leftovers()
        try:
            return int(asyncio.run(action(engine)))
        finally:
            engine.remove_leftovers()
    except SandboxLost as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
