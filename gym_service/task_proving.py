"""What the commands over tasks share: an engine to prove them on, and how they tell what was found."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gym_service.state import StateFolder

if TYPE_CHECKING:
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.tasks.suites import Task

Action: TypeAlias = "Callable[[DockerEngine], Coroutine[Any, Any, int]]"
"""What is done on an engine; gives the exit status."""
_PROVEN_AT_ONCE = 20
"""After so many tasks what was found is written down, and told."""
_BAR_CHARACTERS = 40


async def prove(suite: "Sequence[Task]", state: StateFolder, engine: "DockerEngine") -> bool:
    """Proves tasks, keeps what was found and prints it; returns whether all are proven."""
    from gym_service import proof

    book = proof.ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
    proofs: list[proof.Proof] = []
    news = False
    async with proof.open_grounds(engine) as grounds:
        for first in range(0, len(suite), _PROVEN_AT_ONCE):
            found = await proof.prove_all(suite[first : first + _PROVEN_AT_ONCE], grounds)
            news = news or any(book.holds(each.task) is bool(each.faults) for each in found)
            book.add(found)
            proofs += found
            show_progress(len(proofs), len(suite))
    print(proof.table(proofs))
    if news:
        print("A gym goes by this from its next start: make gym-down, make gym-up", file=sys.stderr)
    return not any(each.faults for each in proofs)


def with_engine(action: Action, state: StateFolder) -> int:
    """Has an action done on the engine, while no other `tasks` command is at work; returns the exit status."""
    from gym_service.sandbox.base import SandboxLost
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.sandbox.policy import SandboxLimits
    from sandbox_images.build import image_reference

    if not state.lock("tasks.lock"):
        print(
            f"error: another `tasks` command is at work in {state.folder}; wait for its end", file=sys.stderr
        )
        return 1
    try:
        # Not the service's own containers, which would be cleared away when it starts.
        engine = DockerEngine(image_reference(), SandboxLimits(), f"{state.owner}-tasks", reuse=True)
        engine.remove_leftovers()
        try:
            return asyncio.run(action(engine))
        finally:
            engine.remove_leftovers()
    except SandboxLost as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was made and proven so far is kept", file=sys.stderr)
        return 130


def show_progress(done: int, of: int) -> None:
    """Draws a bar where somebody looks on."""
    if sys.stderr.isatty():
        bar = "#" * (done * _BAR_CHARACTERS // of)
        end = "\n" if done == of else ""
        print(f"\r[{bar:{_BAR_CHARACTERS}}] {done} of {of} tasks", end=end, file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)
