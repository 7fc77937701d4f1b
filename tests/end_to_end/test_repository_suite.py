"""A repository-level suite as it is used: a service process, its gRPC, the coding tools, hidden grading."""

import asyncio

import pytest

from gym_service import control
from gym_service.proof import Proof, ProofBook
from gym_service.state import StateFolder
from gym_service.tasks.store import save_task
from tests.bench.oracle import edit_of, play_no_op, play_oracle, play_suites
from trainer_client.gym import GymClient


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nx\nc\n"),
        ("a\nb\n", "a\nx\nb\n"),
        ("a\nb\n", "a\n"),
        ("a\na\nb\na\na\n", "a\na\nx\na\na\n"),
        ("a\na\na\na\n", "a\na\na\na\na\n"),
        ("a\nb\na\nc\n", "x\nb\nx\nc\n"),
        ("a\nb", "a\nx"),
    ],
)
def test_an_edit_replaces_a_text_that_occurs_once(before, after):
    old, new = edit_of(before, after)

    assert before.count(old) == 1
    assert before.replace(old, new) == after


@pytest.fixture(scope="module")
def state(engine, ledger_tasks, tmp_path_factory):
    """The state folder of a service that runs and serves the ledger suite."""
    state = StateFolder(tmp_path_factory.mktemp("service") / "state")
    for task in ledger_tasks:
        save_task(state.suites / "ledger", task)
    ProofBook(state.proofs, engine.facts.image_digest).add([Proof(task, ()) for task in ledger_tasks])
    control.up(state.folder, ("--capacity", "4", "--graders", "4"))
    yield state
    control.down(state.folder)


@pytest.fixture(autouse=True)
def _found(request, monkeypatch):
    if "state" in request.fixturenames:
        monkeypatch.setenv("GYM_STATE_DIR", str(request.getfixturevalue("state").folder))


@pytest.mark.docker
async def test_the_gold_patch_solves_every_task_and_doing_nothing_solves_none(state, ledger_tasks):
    async with GymClient.connect() as gym:
        served = await gym.list_tasks("ledger")
        solved = await asyncio.gather(*(play_oracle(gym, task) for task in ledger_tasks))
        left = await asyncio.gather(*(play_no_op(gym, task) for task in ledger_tasks))

    assert {task.task_id for task in served} == {task.task_id for task in ledger_tasks}
    for verdict in solved:
        assert verdict.status == "resolved"
        assert verdict.hidden_passed == verdict.hidden_total > 0
        assert verdict.public_passed == verdict.public_total > 0
    for verdict in left:
        assert verdict.status == "unresolved"
        assert verdict.hidden_passed == 0
        assert verdict.public_passed == verdict.public_total


@pytest.mark.docker
async def test_the_command_prints_a_line_for_each_suite(state, ledger_tasks, capsys):
    assert await play_suites([])
    assert not await play_suites(["nowhere"])

    (line,) = capsys.readouterr().out.splitlines()
    assert '"name": "oracle.ledger", "value": 5.0' in line
    assert '"no_op": 0' in line
