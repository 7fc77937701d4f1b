"""Each check of the preflight passes in a healthy run, and fails by the fault that it is there for.

Faults are planted where they would be made: in what samples, lays out, scores, learns, renders, opens and grades.
"""

import asyncio
import copy
import io
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from gym_contract.v1 import gym_pb2 as pb
from rich.console import Console
from torch import Tensor

from gym_service import episodes as episodes_module
from gym_service import play as play_module
from gym_service.grading import check as check_module
from gym_service.grading.grader import Grader
from gym_service.tokens.tokenizer import ChatTokenizer
from gym_service.values import VerdictStatus
from tests.runs import folder_with_gym
from trainer_client import collate as collate_module
from trainer_client import run as run_module
from trainer_client import update as update_module
from trainer_client.checkpoint import state_hash
from trainer_client.config import RunConfig
from trainer_client.console import RunConsole
from trainer_client.credit import turn_advantages
from trainer_client.distributed import ALONE
from trainer_client.gym import GymClient
from trainer_client.models import generation, tiny
from trainer_client.models.packed import SharedPrefix, attend_causally
from trainer_client.models.tiny import build_tiny, build_tokenizer
from trainer_client.preflight import __main__ as preflight_command
from trainer_client.preflight import of_trainer
from trainer_client.preflight.check import FAULTS, PreflightFailed, Report, table
from trainer_client.preflight.gate import preflight
from trainer_client.run import FINISHED, INTERRUPTED, run
from trainer_client.run_folder import RUNS
from trainer_client.session import Session, list_task_ids, prepare
from trainer_client.step import play_step
from trainer_client.trajectory import Trajectory

CONFIG = RunConfig(
    steps=2,
    tasks_per_step=2,
    group_size=3,
    validate_every=2,
    validation_episodes=1,
    test_episodes=1,
    cohort_size=3,
    max_new_tokens=6,
    max_turns=3,
    epochs=1,
    mask_truncated=False,
)
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
"""Of two groups of three. Random weights solve nothing, so that what did well is made up."""


@pytest.fixture(autouse=True)
def deterministic() -> Any:
    """As in a run."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
async def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunConfig]:
    """Settings of a small run in a folder of its own, with a gym that its client finds."""
    build_tiny(tmp_path / "start")
    async with folder_with_gym(tmp_path, monkeypatch):
        yield replace(CONFIG, model=str(tmp_path / "start"), name="x")


def console(file: io.StringIO | None = None) -> RunConsole:
    """Returns a console that writes to a file."""
    return RunConsole(2, Console(file=file or io.StringIO(), highlight=False, soft_wrap=True))


@asynccontextmanager
async def prepared(config: RunConfig) -> AsyncIterator[Session]:
    """Gives a run that is ready for step 1."""
    async with GymClient.connect() as gym:
        yield await prepare(config, False, gym, console(), ALONE)


async def first_step(session: Session) -> tuple[list[Trajectory], list[tuple[float, ...]]]:
    """Plays step 1; returns its episodes and advantages."""
    played = await play_step(session, await list_task_ids(session, "train"), 1, session.model, 0)
    return played.trajectories, turn_advantages(played.trajectories, REWARDS, session.config)


async def try_out(session: Session, reference: Any = None) -> Report:
    """Carries out all checks on step 1."""
    return await preflight(session, *await first_step(session), reference)


def failed(report: Report) -> set[str]:
    """Returns the names of what does not hold."""
    return {check.name for check in report.failed}


@pytest.mark.parametrize("advantage", ["mean", "mean_std", "leave_one_out"])
async def test_in_a_healthy_run_every_check_passes(config: RunConfig, advantage: str) -> None:
    async with prepared(replace(config, advantage=advantage)) as session:
        report = await try_out(session)

    assert not report.failed, table(report.checks)
    assert {check.name for check in report.checks} == FAULTS.keys()
    assert str(report).startswith("preflight: 14 checks passed, gap ")


async def test_a_preflight_changes_nothing(config: RunConfig) -> None:
    async with prepared(config) as session:
        episodes, advantages = await first_step(session)
        model, rng = session.model, torch.get_rng_state()
        before = state_hash(model), copy.deepcopy(session.optimizer.state_dict()), model.training

        await preflight(session, episodes, advantages)

        assert (state_hash(model), session.optimizer.state_dict(), model.training) == before
        assert all(parameter.grad is None for parameter in model.parameters())
        assert torch.equal(torch.get_rng_state(), rng)


async def test_where_no_group_teaches_advantages_are_made_up_and_that_is_said(config: RunConfig) -> None:
    async with prepared(config) as session:
        episodes, _ = await first_step(session)
        report = await preflight(session, episodes, [(0.0,) * len(each.turns) for each in episodes])

    assert not report.failed, table(report.checks)
    assert "made up" in report.figure("direction")


# Faults of the trainer


Plant = Callable[[pytest.MonkeyPatch], None]


def shifted_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is trained that follows one that was sampled."""
    right = Trajectory.mask.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Trajectory, "mask", property(lambda self: [False, *right(self)[:-1]]))


def observed_token_in_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the last sampled token, the first one that the gym appended is trained."""

    def wrong(self: Trajectory) -> list[bool]:
        mask = [sampled for ids, sampled in self.spans() for _ in ids]
        first = len(self.prompt_ids)
        length = len(self.turns[0].action_ids)
        if self.turns[0].observation_ids:
            mask[first + length - 1], mask[first + length] = False, True
        return mask

    monkeypatch.setattr(Trajectory, "mask", property(wrong))


def shifted_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is predicted from itself."""
    right = collate_module._lay_out

    def wrong(*arguments: Any) -> Any:
        line = right(*arguments)
        return replace(line, sources_M=line.sources_M + 1)

    monkeypatch.setattr(collate_module, "_lay_out", wrong)


def wrong_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler draws from a distribution that is a little flatter."""
    right = generation.draw
    monkeypatch.setattr(generation, "draw", lambda logits, t, randoms: right(logits, t * 1.05, randoms))


def rounded_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single token in each pass is off by a hundredth of a nat."""
    right = generation.draw

    def wrong(*arguments: Any) -> tuple[list[int], list[float]]:
        ids, logprobs = right(*arguments)
        return ids, [logprobs[0] + 1e-2, *logprobs[1:]]

    monkeypatch.setattr(generation, "draw", wrong)


def _with_surrogate(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]) -> None:
    right = update_module.clipped_surrogate
    monkeypatch.setattr(update_module, "clipped_surrogate", lambda *given: wrong(right, *given))


def stale_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old log-probabilities are of weights that were a little worse."""

    def wrong(right: Any, logp_N: Tensor, old_logp_N: Tensor, *rest: Any) -> Any:
        return right(logp_N, old_logp_N - 1e-6, *rest)

    _with_surrogate(monkeypatch, wrong)


def normaliser_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is a mean of its own."""

    def wrong(right: Any, logp_N: Tensor, *rest: Any) -> Any:
        loss, clipped = right(logp_N, *rest)
        return loss / len(logp_N), clipped

    _with_surrogate(monkeypatch, wrong)


def turned_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """What did well is lowered."""

    def wrong(right: Any, *given: Any) -> Any:
        loss, clipped = right(*given)
        return -loss, clipped

    _with_surrogate(monkeypatch, wrong)


def leaked_companions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention goes over the whole line."""

    def wrong(self: Any, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return attend_causally(query, key, value, scale)

    monkeypatch.setattr(SharedPrefix, "attend", wrong)


def rounded_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rewards of 0.1 have a mean that is not 0.1, and what is left is divided by nearly nothing."""

    def wrong(rewards: Sequence[float], groups: Sequence[str], advantage: str) -> list[float]:
        members = {group: [r for r, g in zip(rewards, groups, strict=True) if g == group] for group in groups}
        mean = {group: sum(values) / len(values) for group, values in members.items()}
        return [(r - mean[g]) / 1e-6 for r, g in zip(rewards, groups, strict=True)]

    monkeypatch.setattr(of_trainer, "group_advantages", wrong)


# Faults of the gym


def failing_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held to be the solution is none."""
    right = check_module.known_submissions
    monkeypatch.setattr(check_module, "known_submissions", lambda instance: (right(instance)[1],) * 2)


def passing_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository has no fault."""
    right = check_module.known_submissions
    monkeypatch.setattr(check_module, "known_submissions", lambda instance: (right(instance)[0],) * 2)


def flaky_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other grading that resolves is taken back."""
    right, resolved = Grader.try_out, itertools.count()

    async def wrong(self: Grader, *given: Any) -> Any:
        verdict = await right(self, *given)
        if verdict.status is VerdictStatus.RESOLVED and next(resolved) % 2:
            return replace(verdict, status=VerdictStatus.UNRESOLVED)
        return verdict

    monkeypatch.setattr(Grader, "try_out", wrong)


def dropped_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind an observation loses a character."""
    right = ChatTokenizer._after_dummy
    monkeypatch.setattr(
        ChatTokenizer, "_after_dummy", lambda self, results: right(self, results).replace("<|end|>", "", 1)
    )


def prompt_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the function depends on how many episodes there were."""
    right, opened = episodes_module.open_task, itertools.count()
    monkeypatch.setattr(
        episodes_module, "open_task", lambda task, seed: right(task, f"{seed} {next(opened)}")
    )


def observation_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer says how many there were."""
    right, answered = episodes_module.act, itertools.count()

    async def wrong(*given: Any) -> Any:
        results, reason = await right(*given)
        return tuple(replace(each, text=f"{each.text} {next(answered)}") for each in results), reason

    monkeypatch.setattr(episodes_module, "act", wrong)
    assert play_module.act is right


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("mask", shifted_mask),
        ("mask", observed_token_in_the_mask),
        ("mask", shifted_lines),
        ("gap", wrong_temperature),
        ("gap", rounded_sampler),
        ("ratios", stale_ratios),
        ("microbatches", normaliser_of_the_line),
        ("direction", turned_sign),
        ("companions", leaked_companions),
        ("silent groups", rounded_baseline),
        ("gold", failing_gold),
        ("untouched", passing_untouched),
        ("regrade", flaky_verdicts),
        ("rendering", dropped_line_break),
        ("seeds", prompt_by_chance),
        ("seeds", observation_by_chance),
    ],
    ids=lambda each: each.__name__ if callable(each) else each.replace(" ", "_"),
)
async def test_a_fault_fails_the_check_that_is_there_for_it(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, name: str, plant: Plant
) -> None:
    async with prepared(config) as session:
        plant(monkeypatch)
        report = await try_out(session)

    assert name in failed(report), table(report.checks)
    assert FAULTS[name] in str(report)


async def test_advantages_from_the_baseline_of_another_group_are_seen(config: RunConfig) -> None:
    async with prepared(config) as session:
        episodes, _ = await first_step(session)
        groups = [episode.group for episode in episodes]
        wrong = [
            replace(episode, group=group)
            for episode, group in zip(episodes, groups[1:] + groups[:1], strict=True)
        ]
        report = await preflight(session, episodes, turn_advantages(wrong, REWARDS, config))

    assert failed(report) == {"advantages"}


async def test_a_reference_is_a_frozen_copy_of_the_policy(config: RunConfig) -> None:
    async with prepared(config) as session:
        kept = copy.deepcopy(session.model).requires_grad_(False)
        moved = copy.deepcopy(kept)
        next(moved.parameters()).mul_(1.01)

        assert not failed(await try_out(session, kept))
        for wrong in (session.model, copy.deepcopy(session.model), moved):
            assert failed(await try_out(session, wrong)) == {"reference"}


async def test_dropout_is_seen(config: RunConfig) -> None:
    """Without a reference the policy is compared with itself."""
    async with prepared(config) as session:
        episodes, advantages = await first_step(session)
        session.model.model.layers[0].mlp.register_forward_hook(
            lambda module, given, output: torch.nn.functional.dropout(output, 0.1)
        )
        report = await preflight(session, episodes, advantages)

    assert "reference" in failed(report)


async def test_the_tokenizer_of_another_model_is_seen(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "CORPUS", "other words")
    async with prepared(config) as session:
        other = replace(session, loaded=replace(session.loaded, tokenizer=build_tokenizer()))
        report = await try_out(other)

    assert failed(report) == {"rendering"}


# The gate


async def test_a_run_that_fails_a_check_does_not_start_and_leaves_its_name_free(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned_sign(monkeypatch)

    with pytest.raises(PreflightFailed, match=r"does not start: direction\n  direction: .*sign of the loss"):
        await run(config, False, console(file := io.StringIO()))

    assert "FAILED" in file.getvalue()
    assert not (RUNS / "x").exists()


async def test_a_run_says_in_a_line_that_it_may_start_and_is_not_tried_again(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = console(file := io.StringIO())
    monkeypatch.setattr(first, "step", lambda row: _cancel())
    assert await run(config, False, first) == INTERRUPTED

    async def never(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(run_module, "gate", never)
    assert await run(RunConfig(name="x"), True, console()) == FINISHED

    assert "preflight: 14 checks passed" in file.getvalue()
    written = json.loads((RUNS / "x" / "preflight.json").read_text())
    assert [check["passed"] for check in written["checks"]] == [True] * 14


def _cancel() -> None:
    task: Any = asyncio.current_task()
    task.cancel()


async def test_the_preflight_alone_prints_a_table_and_makes_no_run(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tasks = config.model, "--tasks-per-step 2 --group-size 3 --cohort-size 3 --max-new-tokens 6"
    flags = ["--model", model, *tasks.split()]

    assert await asyncio.to_thread(preflight_command.main, flags) == 0
    assert capsys.readouterr().out.count(" ok\n") == 14
    failing_gold(monkeypatch)
    assert await asyncio.to_thread(preflight_command.main, flags) == 1
    assert FAULTS["gold"] in capsys.readouterr().out
    assert not RUNS.exists()


# What the gym is asked


async def test_a_check_of_a_task_tells_nothing_of_what_was_graded(gym: Any) -> None:
    """Statuses, counts and reasons; and what is counted of episodes stays as it was."""
    answer = await gym.stub.CheckTask(pb.CheckTaskRequest(task_id="bugfix/zero/share"), metadata=gym.metadata)

    assert answer.gold.status == answer.gold_again.status == pb.VERDICT_STATUS_RESOLVED
    assert answer.untouched.status == pb.VERDICT_STATUS_UNRESOLVED
    for verdict in (answer.gold, answer.untouched, answer.gold_again):
        told = {field.name for field, _ in verdict.ListFields()}
        assert told == {"status", "hidden", "public", "reason"}
    assert not (await gym.info()).grading.verdicts


async def test_a_task_that_is_unknown_cannot_be_checked(gym: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gym.stub.CheckTask(pb.CheckTaskRequest(task_id="bugfix/none"), metadata=gym.metadata)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.docker
async def test_in_containers_the_solution_of_a_function_passes(docker_gym: Any) -> None:
    await _check_first_task(docker_gym, "bugfix")


@pytest.mark.docker
async def test_in_containers_the_solution_of_a_repository_passes(repository_gym: Any) -> None:
    await _check_first_task(repository_gym, "ledger")


async def _check_first_task(gym: Any, suite: str) -> None:
    task_id = gym.running.episodes.catalogue.suite(suite)[0].task_id
    answer = await gym.stub.CheckTask(pb.CheckTaskRequest(task_id=task_id), metadata=gym.metadata)

    assert answer.gold == answer.gold_again
    assert answer.gold.status == pb.VERDICT_STATUS_RESOLVED
    assert answer.gold.hidden.passed == answer.gold.hidden.total > 0
    assert answer.untouched.status == pb.VERDICT_STATUS_UNRESOLVED
    assert answer.untouched.hidden.passed < answer.untouched.hidden.total
