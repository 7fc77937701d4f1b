"""What a verdict costs: on episodes that are solved already, and on a repository beside plain runs of its tests."""

import asyncio
import os
import time

from gym_service.proof import open_grounds
from gym_service.sandbox.base import Execute, Job, RunTests
from gym_service.sandbox.docker import DockerEngine
from gym_service.sandbox.policy import SandboxLimits
from gym_service.tasks.repository import RepositoryInstance
from gym_service.values import Submission, VerdictStatus
from sandbox_images.build import image_reference
from tests import ledger
from tests.bench.rates import Contender, Rate, busy_seconds, measure
from tests.bench.services import Service

_AT_ONCE = 2


async def grading_rate(service: Service, at_once: int, seconds: float) -> Rate:
    """Ends and grades so many episodes at once; nothing else is measured, and nothing of it is left out."""
    player = service.player
    graded, elapsed, busy = 0, 0.0, 0.0
    while elapsed < seconds:
        episodes = await asyncio.gather(*(player.solve() for _ in range(at_once)))
        begin, busy_before = time.monotonic(), busy_seconds()
        await asyncio.gather(*map(player.hand_in, episodes))
        await service.settle()
        elapsed += time.monotonic() - begin
        busy += busy_seconds() - busy_before
        graded += at_once
    return Rate(graded / elapsed, busy * 1000 / graded)


async def repository_rates(seconds: float) -> tuple[Rate, Rate, Rate]:
    """Verdicts on a repaired repository; its tests by pytest in a new interpreter; and by the prepared pytest.

    All three in sandboxes of the same pool, each with the whole tree placed in it.
    """
    engine = DockerEngine(image_reference(), SandboxLimits(), f"bench-{os.getpid()}", reuse=True)
    try:
        async with open_grounds(engine) as grounds:
            (task,) = await ledger.make_tasks(
                ledger.REQUIREMENT, ledger.archive(), 1, grounds, lambda line: None
            )
            instance, gold = RepositoryInstance(task), Submission(dict(task.gold))
            files = {**task.base, **task.gold, **task.test_files}

            async def grade() -> None:
                verdict = await grounds.grader.grade(instance, gold, "bench")
                assert verdict.status is VerdictStatus.RESOLVED, verdict

            async def run(job: Job) -> None:
                async with grounds.pool.lend() as sandbox:
                    writes = (sandbox.write_file(path, content) for path, content in files.items())
                    await asyncio.gather(*writes)
                    done = await sandbox.run(job, 30)
                    assert done.exit_status == 0, done

            anew = Execute(("/usr/bin/python3", "-m", "pytest", "-q", *task.test_files))
            prepared = RunTests(tuple(task.test_files), task.roots)
            ours, by_interpreter, by_session = await measure(
                [
                    Contender(grade, _AT_ONCE),
                    Contender(lambda: run(anew), _AT_ONCE),
                    Contender(lambda: run(prepared), _AT_ONCE),
                ],
                seconds,
            )
            return ours, by_interpreter, by_session
    finally:
        engine.remove_leftovers()
