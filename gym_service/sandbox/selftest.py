"""The self-test of a runtime: throwaway sandboxes try to get through every wall, before the service trusts one.

Two sandboxes of `policy.host_config` with small limits are started. Each check runs a program in the first, as an
episode would, and compares what is seen with what is seen when the wall holds. What is seen is what the program
printed and how it ended, so that a program that was stopped too early, or too late, does not pass for one that was
stopped in time. A check that does not hold is named, with what to do, and nothing is served on that runtime.
"""

import asyncio
import re
import secrets
from collections.abc import Awaitable
from dataclasses import fields

from gym_service.sandbox.base import Completed, Execute, FileRefused, RunPython, SandboxLost
from gym_service.sandbox.docker import DockerEngine, DockerSandbox
from gym_service.sandbox.isolation import CheckResult, Isolation, RuntimeResult, check_facts
from gym_service.sandbox.selftest_checks import CHECKS, CPU_QUOTA, LIMITS, NEIGHBORS, Check

_FIRST_UID = 2_100_000_000
_UIDS = 40_000_000
"""Far from those that the pool gives to episodes."""


def draw_uids() -> tuple[int, int]:
    """Draws two UIDs at random, so that two self-tests on one machine do not meet."""
    first = _FIRST_UID + 2 * secrets.randbelow(_UIDS // 2)
    return first, first + 1


async def try_runtime(engine: DockerEngine) -> RuntimeResult:
    """Runs the self-test on the runtime of an engine.

    A sandbox that cannot be started, or is lost, is a wall that does not hold.
    """
    results: list[CheckResult] = []
    sandboxes: list[DockerSandbox] = []
    try:
        started = await asyncio.gather(engine.start(LIMITS), engine.start(LIMITS), return_exceptions=True)
        sandboxes = [sandbox for sandbox in started if isinstance(sandbox, DockerSandbox)]
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure
        for sandbox, uid in zip(sandboxes, draw_uids(), strict=True):
            sandbox.uid = uid
        results += check_facts(await sandboxes[0].probe(), LIMITS)
        first, second = sandboxes
        files = await _try_files(first)
        results.append(files)

        async def in_turn() -> None:
            for check in CHECKS:
                results.append(await _try(check, first, second, by_file=files.holds))

        # The quota takes a second of processor time, in the second sandbox, while the first is tried.
        _, quota = await asyncio.gather(in_turn(), _try(CPU_QUOTA, second, first, by_file=files.holds))
        results += [quota, await _try(NEIGHBORS, first, second, by_file=files.holds)]
    except (SandboxLost, FileRefused) as error:
        remedy = "look for the reason in the message and in the log of the engine"
        results.append(CheckResult("sandbox_serves", False, str(error), remedy))
    finally:
        for sandbox in sandboxes:
            await sandbox.close()
    return RuntimeResult(engine.facts.runtime, tuple(results))


async def require_walls(engine: DockerEngine) -> tuple[RuntimeResult, Isolation]:
    """Tries every wall, and measures a sandbox that serves. Raises SandboxLost, naming what does not hold."""
    result = await try_runtime(engine)
    if not result.offered:
        failures = [f"{check.name}: {check.observed}; {check.remedy}" for check in result.failures]
        raise SandboxLost(f"the runtime {result.runtime} does not hold:\n  " + "\n  ".join(failures))
    sandbox = await engine.start()
    try:
        sandbox.uid, _ = draw_uids()
        return result, await sandbox.measure()
    finally:
        await sandbox.close()


async def _try_files(sandbox: DockerSandbox) -> CheckResult:
    content = b"\xff\r\n"
    try:
        await sandbox.write_file("folder/file", content)
        holds, seen = await sandbox.read_file("folder/file") == content, "read as written"
    except (SandboxLost, FileRefused) as error:
        holds, seen = False, str(error)
    return CheckResult(
        "file_tools", holds, seen, "" if holds else "use a runtime with setfsuid and openat2 (runc)"
    )


async def _try(check: Check, first: DockerSandbox, second: DockerSandbox, *, by_file: bool) -> CheckResult:
    def run(sandbox: DockerSandbox, program: str) -> Awaitable[Completed]:
        return _run(sandbox, program, check.timeout_seconds, by_file=by_file)

    for program in check.programs[:-1]:
        await run(first, program)
    attempt = run(first, check.programs[-1])
    if check.neighbor:
        _, done = await asyncio.gather(attempt, run(second, check.neighbor))
    else:
        done = await attempt
    seen = _describe(done)
    # The programs clean up after themselves where they can; what they cannot remove must not fail the next check.
    await first.scrub()
    if re.fullmatch(check.expected, seen, re.DOTALL):
        return CheckResult(check.name, True, seen)
    return CheckResult(check.name, False, seen, check.remedy)


async def _run(sandbox: DockerSandbox, program: str, timeout_seconds: float, *, by_file: bool) -> Completed:
    limits = "".join(f"{field.name} = {getattr(LIMITS, field.name)}\n" for field in fields(LIMITS))
    if not by_file:
        # Such a sandbox serves nobody, but what else it lets through is worth knowing.
        return await sandbox.run(Execute(("/usr/bin/python3", "-c", limits + program)), timeout_seconds)
    await sandbox.write_file("check.py", (limits + program).encode())
    return await sandbox.run(RunPython(("check.py",)), timeout_seconds)


def _describe(done: Completed) -> str:
    """Says in a line what is to be seen of a program that has ended."""
    ends = {
        f"output cut at {len(done.output)} bytes": done.output_truncated,
        "timed out": done.timed_out,
        "out of memory": done.out_of_memory,
        f"exit status {done.exit_status}": done.exit_status > 0,
    }
    printed = "" if done.output_truncated else " ".join(done.output.decode(errors="replace").split())[:300]
    return ", ".join([*filter(None, [printed]), *(end for end, came in ends.items() if came)]) or "nothing"
