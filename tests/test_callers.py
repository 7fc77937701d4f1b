"""Tokens with roles: who may call what, and whose episodes are whose."""

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from gym_contract.v1 import gym_pb2 as pb

from gym_service.callers import ROLES, Caller, TokenBook
from gym_service.errors import Unauthenticated
from gym_service.state import TOKENS_FILE
from tests.conftest import Gym, fake_sandbox, gym_over
from tests.tokenizers import files
from trainer_client.endpoint import find_endpoint
from trainer_client.errors import NoGym

TRAIN, TEST = "bugfix/zero/share", "bugfix/zero/speed"


@pytest.fixture
async def gym(tmp_path: Path):
    async with gym_over(fake_sandbox, tmp_path, capacity=16) as gym:
        yield gym


@pytest.fixture
def book(tmp_path: Path) -> TokenBook:
    return TokenBook(tmp_path / TOKENS_FILE)


def calling(gym: Gym, token: str) -> Gym:
    """The same gym for who brings this token."""
    return replace(gym, metadata=(("authorization", f"Bearer {token}"),))


async def refused(work) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await work
    error = pb.Error.FromString(dict(raised.value.trailing_metadata())["gym-error-bin"])
    return raised.value.code(), error.reason, error.message


async def test_a_token_is_good_as_soon_as_it_is_issued_and_no_longer_when_it_is_revoked(gym, book) -> None:
    stranger = calling(gym, book.issue("ann", "observe", 1))
    assert (await stranger.info()).capacity == 16

    book.revoke("ann")

    assert (await refused(stranger.info()))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID")


async def test_a_token_that_has_come_to_its_end_is_refused_by_that_name(gym, book) -> None:
    stranger = calling(gym, book.issue("ann", "train", 1e-9))
    await asyncio.sleep(0.01)

    code, reason, message = await refused(stranger.info())

    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_EXPIRED")
    assert "ann" in message


async def test_a_training_token_cannot_open_test_tasks(gym, book) -> None:
    """By no way, the stream and the check of a task included; one for evaluation can."""
    trainer, judge = (calling(gym, book.issue(role, role, 1)) for role in ("train", "evaluate"))
    await trainer.create("a", task_id=TRAIN)
    assert (await judge.create("a", task_id=TEST)).episode_id

    creation = pb.CreateEpisodeRequest(request_id="b", task_id=TEST, toolset="menu")
    code, reason, message = await refused(trainer.create("b", task_id=TEST))
    stream = trainer.stub.Rollout(metadata=trainer.metadata)
    await stream.write(pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="c", create=creation)]))
    (result,) = (await stream.read()).results
    check = trainer.stub.CheckTask(pb.CheckTaskRequest(task_id=TEST), metadata=trainer.metadata)

    assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_FORBIDS")
    assert "it takes a token with the role evaluate" in message
    assert result.error.reason == "ROLE_FORBIDS"
    assert (await refused(check))[1] == "ROLE_FORBIDS"


async def test_an_observer_reads_and_changes_nothing(gym, book) -> None:
    observer = calling(gym, book.issue("eve", "observe", 1))
    episode = await gym.create("a")
    request = pb.GetEpisodeRequest(episode_id=episode.episode_id)

    record = await observer.stub.GetEpisode(request, metadata=observer.metadata)

    assert record.task.task_id == TRAIN
    for work in (
        observer.create("b"),
        observer.step(episode.episode_id, 0, "<call> read </call>"),
        observer.end(episode.episode_id),
        observer.grade(episode.episode_id),
    ):
        assert (await refused(work))[:2] == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_FORBIDS")


async def test_an_episode_of_another_does_not_exist(gym, book) -> None:
    """In the same words as one that is not there at all; the owner sees all of them."""
    ann, bob = (calling(gym, book.issue(name, "train", 1)) for name in ("ann", "bob"))
    episode = await ann.create("same")
    # Two callers may happen to choose one id.
    other = await bob.create("same")
    assert other.episode_id != episode.episode_id

    for act in (
        lambda gym, name: gym.step(name, 0, "<call> read </call>"),
        lambda gym, name: gym.end(name),
        lambda gym, name: gym.grade(name),
        lambda gym, name: gym.stub.GetEpisode(pb.GetEpisodeRequest(episode_id=name), metadata=gym.metadata),
    ):
        assert await refused(act(bob, episode.episode_id)) == await refused(act(bob, "nowhere"))
    renewal = pb.RenewLeasesRequest(episode_ids=[episode.episode_id, other.episode_id])
    renewed = await bob.stub.RenewLeases(renewal, metadata=bob.metadata)
    assert list(renewed.episode_ids) == [other.episode_id]
    assert (await gym.end(episode.episode_id)).outcome.stop_reason == pb.STOP_REASON_CANCELLED


async def test_a_token_has_no_more_live_episodes_than_it_allows(gym, book) -> None:
    """Which leaves the rest of the gym to others, and is told as capacity is: try again."""
    ann, bob = (calling(gym, book.issue(name, "train", 1, quota=2)) for name in ("ann", "bob"))
    episodes = [await ann.create(f"{number}") for number in range(2)]

    assert (await refused(ann.create("2")))[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_REACHED")
    await bob.create("0")
    await ann.end(episodes[0].episode_id)
    await ann.create("2")


async def test_a_client_is_told_of_as_many_places_as_its_token_has(gym, book) -> None:
    """Else it opens a batch of episodes half, and waits for itself."""
    ann, bob = (calling(gym, book.issue(f"a{quota}", "train", 1, quota=quota)) for quota in (2, 99))
    assert [(await each.info()).capacity for each in (ann, bob, gym)] == [2, 16, 16]


async def test_a_stream_ends_with_the_token_that_opened_it(gym, book) -> None:
    ann = calling(gym, book.issue("ann", "train", 1))
    stream = ann.stub.Rollout(metadata=ann.metadata)
    creation = pb.CreateEpisodeRequest(request_id="a", task_id=TRAIN, toolset="menu")
    command = pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="c", create=creation)])
    await stream.write(command)
    assert (await stream.read()).results[0].created.episode_id

    book.revoke("ann")
    await stream.write(command)

    assert (await refused(stream.read()))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID")


async def test_one_caller_cannot_take_all_places_for_tokenizers(gym, book) -> None:
    ann, bob = (calling(gym, book.issue(name, "train", 1)) for name in ("ann", "bob"))

    async def register(caller: Gym, number: int) -> None:
        tokenizer_json, chat_template, end_of_turn = files("tiny")
        request = pb.RegisterTokenizerRequest(
            tokenizer_json=tokenizer_json,
            chat_template=chat_template,
            end_of_turn=end_of_turn,
            template_arguments_json=f'{{"number": {number}}}',
        )
        await caller.stub.RegisterTokenizer(request, metadata=caller.metadata)

    for number in range(8):
        await register(ann, number)
    code, reason, _ = await refused(register(ann, 8))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_TOKENIZERS")
    await register(ann, 0)
    await register(bob, 8)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """Else a token that was taken back could come back."""
    path = tmp_path / TOKENS_FILE
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: TokenBook(path).issue(f"n{number}", "train", 1), range(24)))

    assert len(TokenBook(path).issued) == 24


def test_a_change_shows_also_where_the_clock_did_not_move(book: TokenBook, tmp_path: Path) -> None:
    token = book.issue("ann", "train", 1)
    assert book.caller_of(token).name == "ann"
    path = tmp_path / TOKENS_FILE
    before = path.stat().st_mtime_ns

    TokenBook(path).revoke("ann")
    os.utime(path, ns=(before, before))

    with pytest.raises(Unauthenticated):
        book.caller_of(token)


@pytest.mark.parametrize(
    "change", [{"role": "king"}, {"sha256": "é"}, {"sha256": 1}, {"expires_at": "soon"}, {"expires_at": None}]
)
async def test_a_row_that_makes_no_sense_lets_nobody_in(gym, book, tmp_path: Path, change: dict) -> None:
    stranger = calling(gym, book.issue("ann", "admin", 1))
    path = tmp_path / TOKENS_FILE
    (row,) = json.loads(path.read_text())
    path.write_text(json.dumps([row | change]))

    assert (await refused(stranger.info()))[0] == grpc.StatusCode.UNAUTHENTICATED


async def test_reflection_takes_an_admin(gym, book) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(gym.channel)
    for role in ROLES:
        token = book.issue(role, role, 1)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = stub.ServerReflectionInfo(iter([request]), metadata=(("authorization", f"Bearer {token}"),))
        if role == "admin":
            assert (await answers.read()).list_services_response.service
        else:
            assert (await refused(answers.read()))[0] == grpc.StatusCode.PERMISSION_DENIED


def test_every_role_may_what_those_before_it_may() -> None:
    callers = [Caller(role, role) for role in ROLES]
    for method in ("GetGymInfo", "CreateEpisode", "Rollout"):
        allowed = [not _raises(caller, method) for caller in callers]
        assert allowed == sorted(allowed)
    assert [caller.role for caller in callers if not _raises(caller, "CreateEpisode")] == list(ROLES[1:])


def _raises(caller: Caller, method: str) -> bool:
    try:
        caller.check_method("gym.v1.GymService", method)
    except Exception:
        return True
    return False


def test_the_file_has_no_token_in_it_and_is_its_owners_alone(book: TokenBook, tmp_path: Path) -> None:
    token = book.issue("ann", "train", 1)

    path = tmp_path / TOKENS_FILE
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert book.caller_of(token) == Caller("ann", "train")
    with pytest.raises(Unauthenticated):
        book.caller_of(token[:-1])


@pytest.mark.parametrize(
    ("name", "role", "days", "said"),
    [
        ("owner", "train", 1, "no name for a caller"),
        ("a b", "train", 1, "no name for a caller"),
        ("ann", "king", 1, "no role king"),
        ("ann", "train", 0, "--days"),
        ("bob", "train", 1, "bob has a token"),
    ],
)
def test_what_cannot_be_issued_is_refused(
    book: TokenBook, name: str, role: str, days: float, said: str
) -> None:
    book.issue("bob", "train", 1)
    with pytest.raises(ValueError, match=said):
        book.issue(name, role, days)


async def test_with_a_broken_file_the_owner_alone_is_served(gym, book, tmp_path: Path, caplog) -> None:
    stranger = calling(gym, book.issue("ann", "admin", 1))
    (tmp_path / TOKENS_FILE).write_text("{")

    for _ in range(5):
        assert (await refused(stranger.info()))[0] == grpc.StatusCode.UNAUTHENTICATED
    assert (await gym.info()).capacity == 16
    assert sum("tokens.json" in line for line in caplog.messages) == 1


def test_the_command_issues_lists_and_revokes(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "gym_service", "--state-folder", str(tmp_path), "token", *arguments)
        return subprocess.run(command, capture_output=True, text=True)

    token = run("issue", "ann", "--role", "evaluate", "--days", "2").stdout.strip()
    assert TokenBook(tmp_path / TOKENS_FILE).caller_of(token).role == "evaluate"
    assert "ann" in (listed := run("list").stdout)
    assert "2.0 days left" in listed
    assert run("revoke", "ann").returncode == 0
    assert run("list").stdout == ""
    assert "has no token" in run("revoke", "ann").stderr


def test_a_client_finds_the_gym_that_it_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token is in a file that others cannot read."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    monkeypatch.setenv("GYM_ADDRESS", "127.0.0.1:5")
    monkeypatch.setenv("GYM_TOKEN_FILE", str(path))

    endpoint = find_endpoint()

    assert (endpoint.address, endpoint.token) == ("127.0.0.1:5", "secret")
    path.write_bytes(b"\xff")
    with pytest.raises(NoGym, match="GYM_TOKEN_FILE"):
        find_endpoint()
    path.chmod(0o644)
    with pytest.raises(NoGym, match="can be read by others"):
        find_endpoint()
    monkeypatch.setenv("GYM_ADDRESS", "gym.example.org:5")
    with pytest.raises(NoGym, match="in the clear"):
        find_endpoint()
    monkeypatch.setenv("GYM_ADDRESS", "127.0.0.1:5")
    monkeypatch.setenv("GYM_TOKEN_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(NoGym, match="GYM_TOKEN_FILE"):
        find_endpoint()
