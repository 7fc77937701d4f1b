"""A task is served only when it is proven, and a proof names what does not hold."""

import subprocess
import sys
from dataclasses import replace

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import control
from gym_service.grading import oracle, repository
from gym_service.proof import Proof, ProofBook, prove, prove_all, table
from gym_service.state import StateFolder
from gym_service.tasks.repository import function_of
from gym_service.tasks.store import save_task
from gym_service.tasks.suites import built_in
from tests.ledger import FILES

BUGFIX = built_in().suite("bugfix")
TASK, OTHER = BUGFIX[:2]


# What is written down


@pytest.fixture
def path(tmp_path):
    return tmp_path / "proofs.json"


def test_a_proof_is_kept_and_holds_for_its_own_task(path):
    ProofBook(path, "image").add([Proof(TASK, ())])

    assert ProofBook(path, "image").holds(TASK)
    assert not ProofBook(path, "image").holds(OTHER)
    assert not ProofBook(path, "image").holds(replace(TASK, description=TASK.description + " "))


def test_a_task_that_does_not_hold_any_more_is_struck_out_and_no_other(path):
    book = ProofBook(path, "image")
    book.add([Proof(TASK, ()), Proof(OTHER, ())])
    book.add([Proof(TASK, ("the gold repair does not pass",))])

    for each in (book, ProofBook(path, "image")):
        assert not each.holds(TASK)
        assert each.holds(OTHER)


def test_a_proof_says_nothing_about_another_image(path):
    ProofBook(path, "image").add([Proof(TASK, ())])

    assert not ProofBook(path, "another").holds(TASK)


def test_a_proof_says_nothing_about_another_grader(path, monkeypatch):
    book = ProofBook(path, "image")
    book.add([Proof(TASK, ())])
    monkeypatch.setattr(repository, "GRADER_VERSION", "another")
    assert book.holds(TASK)
    monkeypatch.setattr(oracle, "GRADER_VERSION", "another")

    assert not book.holds(TASK)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"5", b"null", b"\xff\xfe", b'{"a": 1}', b"[" * 100_000]
)
def test_a_damaged_book_proves_nothing_and_is_written_anew(path, content):
    path.write_bytes(content)
    book = ProofBook(path, "image")
    assert not book.holds(TASK)

    book.add([Proof(TASK, ())])

    assert ProofBook(path, "image").holds(TASK)


@pytest.mark.parametrize("known", ["true", "1", '"proven"', "{}", "null"])
def test_a_mark_without_its_conditions_is_no_proof(path, known):
    path.write_text(f'{{"{TASK.content_sha256}": {known}}}')

    assert not ProofBook(path, "image").holds(TASK)


def test_the_table_has_a_line_for_each_task_and_names_every_fault():
    lines = table([Proof(TASK, ()), Proof(OTHER, ("one fault", "another"))]).splitlines()

    assert len(lines) == 4
    assert lines[1].split() == [TASK.task_id, TASK.split, "proven"]
    assert lines[2].endswith("  one fault; another")
    assert lines[3] == "1 of 2 tasks are proven"


# What is found


def with_gold_that_repairs_nothing(task):
    return {"gold": {path: task.base[path] for path in task.gold}}


def with_hidden_tests_in_the_tree(task):
    hidden = {each.partition("::")[0] for each in task.fail_to_pass}
    return {"base": task.base | {path: FILES[path].encode() for path in hidden}}


def with_a_hidden_test_in_another_file(task):
    path, _, name = task.fail_to_pass[0].partition("::")
    text = FILES[path]
    test = text[text.index(f"def {name}") :].partition("\n\n\n")[0]
    return {"base": task.base | {"ledger/notes.txt": test.encode()}}


def with_a_version_history(task):
    return {"base": task.base | {".git/HEAD": b"ref: refs/heads/main\n"}}


def with_a_copy_of_what_is_installed(task):
    return {"base": task.base | {"graphlib.py": b"x = 1\n"}}


def without_its_fault(task):
    return {"base": task.base | dict(task.gold)}


def with_a_second_fault(task):
    return {"base": task.base | {"ledger/book.py": b"x = 1\n"}}


def with_gold_in_a_file_that_stays_behind(task):
    return {"gold": {**task.gold, "conftest.py": b"x = 1\n"}}


def with_a_test_that_no_gold_passes(task):
    return {"fail_to_pass": (*task.fail_to_pass, f"{function_of(task.pass_to_pass[0])}[nothing]")}


@pytest.mark.docker
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (with_gold_that_repairs_nothing, "the gold patch does not pass: some hidden test fails"),
        (with_hidden_tests_in_the_tree, "a hidden test in /workspace/tests/test_money.py"),
        (with_a_hidden_test_in_another_file, "a hidden test in /workspace/ledger/notes.txt"),
        (with_a_version_history, "a version history in /workspace"),
        (with_a_copy_of_what_is_installed, "a second copy of graphlib"),
        (without_its_fault, "an empty patch passes"),
        (with_a_second_fault, "an empty patch fails public tests"),
        (with_gold_in_a_file_that_stays_behind, "the repaired repository is not the gold patch"),
        (with_a_test_that_no_gold_passes, "the gold patch does not pass: some hidden test fails"),
    ],
)
async def test_a_repository_task_that_is_not_what_it_claims_is_named_by_its_fault(
    grounds, ledger_tasks, change, fault
):
    task = next(task for task in ledger_tasks if "ledger/money.py" in task.gold)
    proof = await prove(replace(task, **change(task)), grounds)

    assert fault in proof.faults
    assert fault in table([proof])


@pytest.mark.docker
async def test_every_ledger_task_is_proven_and_a_task_of_the_built_in_suite_beside_it(grounds, ledger_tasks):
    proofs = await prove_all([*ledger_tasks, TASK], grounds)

    assert [proof.faults for proof in proofs] == [()] * 6


@pytest.mark.docker
async def test_a_function_whose_gold_is_wrong_is_named(grounds):
    task = replace(TASK, gold_source=TASK.faulty_source)

    assert "the gold repair does not pass" in (await prove(task, grounds)).faults


# What is served


class _Client:
    """A service of a state folder, asked over gRPC."""

    def __init__(self, state):
        endpoint = state.endpoint()
        self._metadata = (("authorization", f"Bearer {endpoint.token}"),)
        self._channel = grpc.insecure_channel(endpoint.address)
        self._stub = gym_pb2_grpc.GymServiceStub(self._channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    def listed(self):
        request = pb.ListTasksRequest(suite="ledger")
        return [each.task_id for each in self._stub.ListTasks(request, metadata=self._metadata).tasks]

    def refusal_to_list(self):
        with pytest.raises(grpc.RpcError) as refused:
            self.listed()
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        return refused.value.details()

    def suite(self):
        info = self._stub.GetGymInfo(pb.GetGymInfoRequest(), metadata=self._metadata)
        return next(suite for suite in info.suites if suite.name == "ledger")

    def create(self, task_id):
        """The status of an attempt to open an episode."""
        request = pb.CreateEpisodeRequest(
            request_id=task_id,
            task_id=task_id,
            toolset="coding",
            seed=pb.EpisodeSeed(run_seed=1, group="g", index=0),
        )
        try:
            self._stub.CreateEpisode(request, metadata=self._metadata, timeout=30)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


@pytest.mark.docker
@pytest.mark.timeout(180)
def test_a_task_is_served_from_the_start_after_its_proof(tmp_path, ledger_tasks):
    state = StateFolder(tmp_path / "state")
    # One of them can never be proven.
    good, bad = ledger_tasks[0], replace(ledger_tasks[1], gold=dict(ledger_tasks[0].gold))
    for task in (good, bad):
        save_task(state.suites / "ledger", task)
    options = ("--capacity", "2", "--graders", "1")
    try:
        control.up(state.folder, options)
        with _Client(state) as client:
            assert "`python -m gym_service tasks check ledger`" in client.refusal_to_list()
            assert (client.suite().task_count, client.suite().unproven_count) == (0, 2)
            assert client.create(good.task_id) == grpc.StatusCode.NOT_FOUND
        log = state.log.read_text()
        assert "2 tasks of ledger are not proven and not served" in log
        assert "450 tasks of bugfix_large are not proven and not served" in log

        command = [sys.executable, "-m", "gym_service", "--state-folder", str(state.folder)]
        checked = subprocess.run(
            [*command, "tasks", "check", "ledger"], capture_output=True, text=True, timeout=100
        )
        assert checked.returncode == 1, checked.stderr
        assert checked.stdout.splitlines()[-1] == "1 of 2 tasks are proven"
        assert "the gold patch does not pass" in checked.stdout
        assert "from its next start" in checked.stderr
        with _Client(state) as client:
            assert "`python -m gym_service tasks check ledger`" in client.refusal_to_list()

        control.down(state.folder)
        control.up(state.folder, options)
        with _Client(state) as client:
            assert client.listed() == [good.task_id]
            assert (client.suite().task_count, client.suite().unproven_count) == (1, 1)
            assert client.create(good.task_id) == grpc.StatusCode.OK
            assert client.create(bad.task_id) == grpc.StatusCode.NOT_FOUND
    finally:
        control.down(state.folder)
