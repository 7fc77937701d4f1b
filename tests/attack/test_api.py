"""The port itself: whoever can send bytes to it gets an error and nothing else, and nobody beside them notices.

The service runs in this process over sandboxes that isolate nothing: what is attacked is everything before a sandbox.
Floods of frames and the fuzz of frames are in `tests/test_frames.py`, on a service in a process of its own.
"""

import asyncio
import hashlib
import json
import re
import struct
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym_service import episodes
from gym_service.__main__ import _OneLine
from gym_service.callers import TokenBook
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.policy import BOUNDS
from gym_service.state import TOKENS_FILE
from tests import frames
from tests.conftest import gym_over

READ, REPAIR, SUBMIT = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")
CODES = {code.value[0]: code for code in grpc.StatusCode}
UNAUTHENTICATED, NOT_FOUND = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND
EXHAUSTED, INVALID = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT
METHODS = {
    "StepEpisode": lambda name: pb.StepEpisodeRequest(episode_id=name, action=pb.Action(text=READ)),
    "EndEpisode": lambda name: pb.EndEpisodeRequest(episode_id=name, stop_reason=pb.STOP_REASON_CANCELLED),
    "GradeEpisode": lambda name: pb.GradeEpisodeRequest(episode_id=name),
    "GetEpisode": lambda name: pb.GetEpisodeRequest(episode_id=name),
}


class Paced(FakeSandbox):
    """Reads as slowly as it is told, and counts."""

    seconds = 0.0
    done: ClassVar[Counter[str]] = Counter()
    timeouts: ClassVar[list[float]] = []

    def __init__(self):
        super().__init__()
        Paced.done["start"] += 1

    async def read_file(self, path):
        Paced.done["read"] += 1
        await asyncio.sleep(Paced.seconds)
        return await super().read_file(path)

    async def run(self, job, timeout_seconds):
        Paced.timeouts.append(timeout_seconds)
        return await super().run(job, timeout_seconds)


async def paced(limits=None):
    return Paced()


@pytest.fixture
async def gym(tmp_path):
    Paced.seconds = 0.0
    Paced.done.clear()
    Paced.timeouts.clear()
    async with gym_over(paced, tmp_path, capacity=8, records="all") as gym:
        yield gym


@pytest.fixture
def book(tmp_path):
    return TokenBook(tmp_path / TOKENS_FILE)


def calling(gym, token):
    return replace(gym, metadata=(("authorization", f"Bearer {token}"),))


async def finish(gym, episode_id):
    for turn, said in enumerate((READ, REPAIR, SUBMIT)):
        await gym.step(episode_id, turn, said)
    return (await gym.grade(episode_id)).verdict.status


@pytest.fixture(autouse=True)
async def nobody_notices(gym, book, caplog):
    """An episode of somebody else goes on and another one begins; no secret and no stack trace is in the log."""
    bystander = calling(gym, book.issue("bystander", "train", 1))
    begun = await bystander.create("begun")
    yield
    Paced.seconds = 0.0
    assert await finish(bystander, begun.episode_id) == pb.VERDICT_STATUS_RESOLVED
    after = await bystander.create("after")
    assert await finish(bystander, after.episode_id) == pb.VERDICT_STATUS_RESOLVED
    assert gym.running.token not in caplog.text
    assert not [record for record in caplog.records if record.exc_info and "a defect" not in record.message]


async def refusal(work):
    """The code, the reason and the text of a call that has to be refused."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await work
    trailers = dict(raised.value.trailing_metadata() or ())
    reason = pb.Error.FromString(trailers["gym-error-bin"]).reason if "gym-error-bin" in trailers else ""
    return raised.value.code(), reason, raised.value.details()


async def commanded(gym, *commands):
    """Sends commands in one message of a stream of their own; gives the results in the order of the commands."""
    stream = gym.stub.Rollout(metadata=gym.metadata)
    for number, command in enumerate(commands):
        command.command_id = f"{number}"
    await stream.write(pb.RolloutRequest(commands=commands))
    results = {}
    while len(results) < len(commands):
        results |= {result.command_id: result for result in (await stream.read()).results}
    stream.cancel()
    return [results[f"{number}"] for number in range(len(commands))]


def raw(gym, method, data=b"", metadata=None, **options):
    call = gym.channel.unary_unary(f"/gym.v1.GymService/{method}")
    return call(data, metadata=gym.metadata if metadata is None else metadata, **options)


async def sent(gym, data, seconds=5.0):
    """Sends frames by hand; gives the status that comes back."""
    number = frames.status_of(await asyncio.to_thread(frames.exchange, gym.running.address, data, seconds))
    return None if number is None else CODES[number]


EMPTY = frames.message(b"")


def by_hand(gym, body=EMPTY, more=(), method="GetGymInfo"):
    bearer = [(b"authorization", f"Bearer {gym.running.token}".encode())]
    return frames.call(1, f"{frames.SERVICE}/{method}", body, [*bearer, *more])


# --- tokens ---

TOKENS = {
    "none": lambda token: (),
    "empty": lambda token: (("authorization", ""),),
    "scheme_alone": lambda token: (("authorization", "Bearer"),),
    "no_token": lambda token: (("authorization", "Bearer "),),
    "wrong": lambda token: (("authorization", f"Bearer {'x' * len(token)}"),),
    "truncated": lambda token: (("authorization", f"Bearer {token[:-1]}"),),
    "extended": lambda token: (("authorization", f"Bearer {token}="),),
    "other_case": lambda token: (("authorization", f"Bearer {token.swapcase()}"),),
    "doubled": lambda token: (("authorization", f"Bearer {token}{token}"),),
    "its_hash": lambda token: (("authorization", f"Bearer {hashlib.sha256(token.encode()).hexdigest()}"),),
    "blank_before": lambda token: (("authorization", f"Bearer  {token}"),),
    "blank_after": lambda token: (("authorization", f"Bearer {token} "),),
    "long": lambda token: (("authorization", f"Bearer {token * 100}"),),
}
MISPLACED = {
    "bare": lambda token: (("authorization", token),),
    "basic": lambda token: (("authorization", f"Basic {token}"),),
    "lower_case_scheme": lambda token: (("authorization", f"bearer {token}"),),
    "other_header": lambda token: (("x-authorization", f"Bearer {token}"),),
    "proxy": lambda token: (("proxy-authorization", f"Bearer {token}"),),
    "cookie": lambda token: (("cookie", f"authorization=Bearer {token}"),),
    "binary": lambda token: (("authorization-bin", f"Bearer {token}".encode()),),
    "two_the_same": lambda token: (("authorization", f"Bearer {token}"),) * 2,
    "wrong_then_right": lambda token: (("authorization", "Bearer x"), ("authorization", f"Bearer {token}")),
    "right_then_wrong": lambda token: (("authorization", f"Bearer {token}"), ("authorization", "Basic x")),
    "two_in_one": lambda token: (("authorization", f"Bearer x, Bearer {token}"),),
}


@pytest.mark.parametrize(
    "brought",
    [
        pytest.param(make, id=f"{case}_{name}")
        for case, kind in (("A01", TOKENS), ("A02", MISPLACED))
        for name, make in kind.items()
    ],
)
async def test_A01_A02_what_is_no_token_in_its_place_opens_nothing(gym, caplog, brought):
    metadata = brought(gym.running.token)
    creation = pb.CreateEpisodeRequest(request_id="a", task_id="bugfix/zero/share", toolset="menu")
    live = (await gym.info()).live_episodes

    assert (await refusal(raw(gym, "GetGymInfo", metadata=metadata)))[:2] == (
        UNAUTHENTICATED,
        "TOKEN_INVALID",
    )
    assert (await refusal(gym.stub.CreateEpisode(creation, metadata=metadata)))[0] == UNAUTHENTICATED
    assert (await refusal(gym.stub.Rollout(metadata=metadata).read()))[0] == UNAUTHENTICATED
    assert (await gym.info()).live_episodes == live
    assert caplog.records == []


@pytest.mark.parametrize(
    "token",
    [
        b"\xff\xfe",
        "é".encode(),
        b"a\x00b",
        b"a\r\nx: y",
        b"\x7f" * 100,
        b"\xed\xa0\x80",
        bytes(range(1, 256)),
    ],
)
async def test_A01_bytes_that_are_no_text_are_no_token_and_are_not_logged(gym, caplog, token):
    """GRPC would log them with a stack trace."""
    data = frames.call(
        1, f"{frames.SERVICE}/GetGymInfo", frames.message(b""), [(b"authorization", b"Bearer " + token)]
    )

    assert await sent(gym, data) == UNAUTHENTICATED
    assert caplog.records == []


@pytest.mark.parametrize("size", [17_000, 1 << 20])
async def test_A01_a_token_without_measure_is_refused_before_it_is_taken_in(gym, caplog, size):
    metadata = (("authorization", "Bearer " + "x" * size),)

    assert (await refusal(raw(gym, "GetGymInfo", metadata=metadata)))[0] == EXHAUSTED
    assert caplog.records == []


async def test_A01_a_stranger_is_refused_before_the_message_is_taken_in(gym):
    """Else calls that are never finished would fill the memory, with no token at all."""
    head = frames.headers(f"{frames.SERVICE}/CreateEpisode")
    begun = frames.frame(frames.HEADERS, head, 1, frames.END_HEADERS)

    assert (
        await sent(gym, begun + frames.frame(frames.DATA, frames.message(b"x", length=32 << 20), 1))
        == UNAUTHENTICATED
    )


# --- ids ---

IDS = {
    "empty": "",
    "unknown": "nowhere",
    "long": "x" * 10_000,
    "quoted": "'; drop table episodes; --",
    "path": "../../../etc/passwd",
    "absolute": "/proc/self/environ",
    "format": "%s%s%n{0.__class__}",
    "control": "a\n\x1b[31m\0",
    "blank": " ",
    "wild": "*",
    "number": "-1",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", IDS)
async def test_A04_an_id_of_no_episode_is_not_found(gym, method, name):
    asked = getattr(gym.stub, method)(METHODS[method](IDS[name]), metadata=gym.metadata)

    assert (await refusal(asked))[:2] == (NOT_FOUND, "EPISODE_NOT_FOUND")


async def test_A03_an_episode_of_another_is_told_apart_from_none_by_nothing(gym, book):
    """By no word of the answer, in a call and in a stream; a renewal passes over both."""
    ann, bob = (calling(gym, book.issue(name, "train", 1)) for name in ("ann", "bob"))
    theirs = (await ann.create("a")).episode_id
    unknown = theirs[:-1] + "9999"

    for method, make in METHODS.items():
        answers = [
            await refusal(getattr(bob.stub, method)(make(name), metadata=bob.metadata))
            for name in (theirs, unknown)
        ]
        assert answers[0] == answers[1]
    for kind, method in (("step", "StepEpisode"), ("end", "EndEpisode"), ("grade", "GradeEpisode")):
        of_theirs, of_none = await commanded(
            bob, *(pb.RolloutCommand(**{kind: METHODS[method](name)}) for name in (theirs, unknown))
        )
        assert of_theirs.error == of_none.error
        assert of_none.error.reason == "EPISODE_NOT_FOUND"
    (renewed,) = await commanded(
        bob, pb.RolloutCommand(renew=pb.RenewLeasesRequest(episode_ids=[theirs, unknown]))
    )
    assert list(renewed.renewed.episode_ids) == []
    assert await finish(ann, theirs) == pb.VERDICT_STATUS_RESOLVED


async def test_A03_a_request_id_of_another_opens_an_episode_of_ones_own(gym, book):
    ann, bob = (calling(gym, book.issue(name, "train", 1)) for name in ("ann", "bob"))
    seed = pb.EpisodeSeed(run_seed=9, group="secret")

    first = await ann.create("same", seed=seed)
    second = await bob.create("same")

    assert first.episode_id != second.episode_id
    record = await bob.stub.GetEpisode(
        pb.GetEpisodeRequest(episode_id=second.episode_id), metadata=bob.metadata
    )
    assert record.seed.group == "g"


# --- replays, order, interruptions ---


def same(answer):
    """An answer without its time."""
    if hasattr(answer, "expire_time"):
        answer.ClearField("expire_time")
    return answer


async def test_A05_whatever_is_sent_again_runs_nothing_again(gym):
    """Whether by call or by stream, before or after the end of the episode."""
    created = await gym.create("a")
    name = created.episode_id
    first = [same(await gym.step(name, turn, said)) for turn, said in enumerate((READ, REPAIR, SUBMIT))]
    verdict = await gym.grade(name)
    done = Paced.done.copy()

    assert (await gym.create("a")).episode_id == name
    for turn, said in enumerate((READ, REPAIR, SUBMIT)):
        step = pb.StepEpisodeRequest(episode_id=name, turn=turn, action=pb.Action(text=said))
        assert same(await gym.step(name, turn, said)) == first[turn]
        assert [
            same(each.stepped)
            for each in await commanded(gym, pb.RolloutCommand(step=step), pb.RolloutCommand(step=step))
        ] == [first[turn]] * 2
    assert (await gym.end(name)).outcome == first[-1].outcome
    assert await gym.grade(name) == verdict
    assert Paced.done == done


@pytest.mark.parametrize("turn", [-(2**31), -1, 0, 3, 100, 2**31 - 1])
async def test_A06_a_turn_that_is_over_or_not_yet_due_takes_nothing_else(gym, turn):
    name = (await gym.create("a")).episode_id
    await gym.step(name, 0, READ)
    await gym.step(name, 1, REPAIR)

    assert (await refusal(gym.step(name, turn, SUBMIT)))[:2] == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "TURN_NOT_DUE",
    )
    assert not (await gym.step(name, 2, READ)).HasField("outcome")


async def test_A06_the_latest_turn_with_other_content_is_a_conflict(gym):
    """Also where only what is kept beside the turn differs."""
    name = (await gym.create("a")).episode_id
    await gym.step(name, 0, READ)

    for action in (
        pb.Action(text=SUBMIT),
        pb.Action(text=READ, policy_version="2"),
        pb.Action(text=READ + " "),
    ):
        assert (await refusal(gym.step(name, 0, action)))[:2] == (
            grpc.StatusCode.ABORTED,
            "TURN_CONTENT_DIFFERS",
        )


async def test_A09_of_turns_that_come_at_once_one_is_played(gym):
    Paced.seconds = 0.1
    name = (await gym.create("a")).episode_id
    actions = [pb.Action(text=READ, policy_version=f"{number}") for number in range(8)]

    answers = await asyncio.gather(*(gym.step(name, 0, each) for each in actions), return_exceptions=True)
    codes = Counter(each.code() if isinstance(each, grpc.aio.AioRpcError) else "played" for each in answers)

    assert codes == {"played": 1, grpc.StatusCode.ABORTED: 7}
    assert Paced.done["read"] == 1
    (played,) = (
        await gym.stub.GetEpisode(pb.GetEpisodeRequest(episode_id=name), metadata=gym.metadata)
    ).turns
    assert (
        played.action == actions[next(n for n, each in enumerate(answers) if not isinstance(each, Exception))]
    )
    early = await asyncio.gather(gym.step(name, 1, READ), refusal(gym.step(name, 2, READ)))
    assert early[1][1] == "TURN_NOT_DUE"


@pytest.mark.parametrize("way", ["cancel", "deadline", "connection"])
async def test_A10_a_client_that_vanishes_in_a_turn_finds_its_answer_when_it_comes_back(gym, way):
    Paced.seconds = 0.3
    name = (await gym.create("a")).episode_id
    step = pb.StepEpisodeRequest(episode_id=name, action=pb.Action(text=READ))
    async with grpc.aio.insecure_channel(gym.running.address) as channel:
        stub = gym_pb2_grpc.GymServiceStub(channel)
        call = stub.StepEpisode(step, metadata=gym.metadata, timeout=0.1 if way == "deadline" else None)
        await asyncio.sleep(0.15)
        if way == "cancel":
            call.cancel()
    again = await gym.step(name, 0, READ)

    assert again.observation.tool_results[0].text.startswith("def ")
    assert Paced.done["read"] == 1


async def test_A10_a_client_that_never_comes_back_loses_its_sandbox(gym):
    live = (await gym.info()).live_episodes
    Paced.seconds = 0.2
    created = await gym.create("a", lease={"nanos": 300_000_000})
    gym.stub.StepEpisode(
        pb.StepEpisodeRequest(episode_id=created.episode_id, action=pb.Action(text=READ)),
        metadata=gym.metadata,
    ).cancel()

    for _ in range(100):
        await asyncio.sleep(0.1)
        if (await gym.info()).live_episodes == live:
            return
    pytest.fail("the episode still lives")


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ("0n", {grpc.StatusCode.DEADLINE_EXCEEDED}),
        ("1n", {grpc.StatusCode.DEADLINE_EXCEEDED}),
        ("50m", {grpc.StatusCode.DEADLINE_EXCEEDED}),
        ("99999999H", {grpc.StatusCode.OK}),
        ("-1S", {grpc.StatusCode.INTERNAL}),
        ("1", {grpc.StatusCode.INTERNAL}),
        ("soon", {grpc.StatusCode.INTERNAL}),
        ("", {grpc.StatusCode.INTERNAL}),
        ("9" * 400 + "S", {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL}),
    ],
)
async def test_A11_a_deadline_is_kept_or_refused_whatever_it_says(gym, caplog, said, codes):
    Paced.seconds = 0.3
    name = (await gym.create("a")).episode_id
    step = pb.StepEpisodeRequest(episode_id=name, action=pb.Action(text=READ)).SerializeToString()
    data = by_hand(gym, frames.message(step), [(b"grpc-timeout", said.encode())], "StepEpisode")

    assert await sent(gym, data) in codes
    assert caplog.records == []
    # A turn that was begun is played once, whatever became of the call.
    assert (await gym.step(name, 0, READ)).observation.tool_results[0].text.startswith("def ")
    assert Paced.done["read"] == 1


async def test_A11_a_long_deadline_gives_a_command_no_more_time(gym):
    created = await gym.create("a", toolset="coding")
    call = pb.ToolCall(tool="Bash", arguments_json='{"command": "pytest", "timeout": 600000}')
    step = pb.StepEpisodeRequest(
        episode_id=created.episode_id, action=pb.Action(tool_calls=pb.ToolCalls(calls=[call]))
    )

    await gym.stub.StepEpisode(step, metadata=gym.metadata, timeout=86_400)

    assert all(each <= created.limits.command_timeout.ToNanoseconds() / 1e9 for each in Paced.timeouts)


async def test_A25_a_stream_that_is_delivered_twice_and_out_of_order_plays_each_turn_once(gym):
    name = (await gym.create("a")).episode_id
    steps = [
        pb.RolloutCommand(step=pb.StepEpisodeRequest(episode_id=name, turn=turn, action=pb.Action(text=said)))
        for turn, said in enumerate((READ, REPAIR))
    ]

    late, early, again = await commanded(gym, steps[1], steps[0], pb.RolloutCommand(step=steps[0].step))
    assert late.error.reason == "TURN_NOT_DUE"
    assert same(early.stepped) == same(again.stepped)
    assert Paced.done["read"] == 1
    twice = await commanded(gym, steps[1], pb.RolloutCommand(step=steps[1].step))
    assert not any(each.stepped.observation.tool_results[0].is_error for each in twice)
    assert (await gym.step(name, 2, SUBMIT)).outcome.terminated


async def test_A26_a_restart_in_a_turn_is_unavailable_and_everything_can_be_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "_CLOSING_SECONDS", 0.1)
    folder = tmp_path / "restarted"
    folder.mkdir()
    async with gym_over(paced, folder) as before:
        old = await before.create("a")
        Paced.seconds = 60.0
        request = pb.StepEpisodeRequest(episode_id=old.episode_id, action=pb.Action(text=READ))
        channel = grpc.aio.insecure_channel(before.running.address)
        stub = gym_pb2_grpc.GymServiceStub(channel)
        cut_off = asyncio.ensure_future(refusal(stub.StepEpisode(request, metadata=before.metadata)))
        await asyncio.sleep(0.2)
    code, *_ = await cut_off
    await channel.close()
    Paced.seconds = 0.0
    assert code == grpc.StatusCode.UNAVAILABLE
    async with gym_over(paced, folder) as after:
        assert (await after.info()).live_episodes == 0
        assert (await refusal(after.step(old.episode_id, 0, READ)))[:2] == (NOT_FOUND, "EPISODE_NOT_FOUND")
        new = await after.create("a")
        assert new.episode_id != old.episode_id
        assert await finish(after, new.episode_id) == pb.VERDICT_STATUS_RESOLVED


# --- sizes ---


async def test_A12_a_request_over_the_limit_is_refused_in_a_call_and_in_a_stream(gym):
    name = (await gym.create("a")).episode_id
    step = pb.StepEpisodeRequest(episode_id=name, action=pb.Action(text="x" * (33 << 20)))
    stream = gym.stub.Rollout(metadata=gym.metadata)

    assert (await refusal(gym.stub.StepEpisode(step, metadata=gym.metadata)))[0] == EXHAUSTED
    await stream.write(pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="a", step=step)]))
    assert (await refusal(stream.read()))[0] == EXHAUSTED
    assert (await gym.step(name, 0, READ)).observation.tool_results[0].text.startswith("def ")


@pytest.mark.parametrize("length", [(32 << 20) + 1, 2**31, 2**32 - 1])
async def test_A12_a_message_that_only_says_that_it_is_long_is_refused_as_well(gym, length):
    assert await sent(gym, by_hand(gym, frames.message(b"", length=length))) == EXHAUSTED


async def test_A12_an_answer_over_the_limit_is_an_error_of_its_call_alone(gym, caplog):
    """A record may grow beyond what a message holds."""
    wide = "\U0001f600" * 950_000
    source = f"#{wide}\nprint('\U0001f600' * 990_000)\n"
    calls = [
        pb.ToolCall(tool=tool, arguments_json=json.dumps(arguments, ensure_ascii=False))
        for tool, arguments in (
            ("Write", {"file_path": "p.py", "content": source}),
            ("Bash", {"command": "python p.py"}),
        )
    ]
    created = await gym.create("a", toolset="coding")
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(gym.running.address, options=options) as channel:
        wider = replace(gym, stub=gym_pb2_grpc.GymServiceStub(channel))
        for turn in range(5):
            await wider.step(created.episode_id, turn, pb.Action(tool_calls=pb.ToolCalls(calls=calls)))
        asked = wider.stub.GetEpisode(
            pb.GetEpisodeRequest(episode_id=created.episode_id), metadata=gym.metadata
        )
        assert (await refusal(asked))[:2] == (EXHAUSTED, "RECORD_TOO_LARGE")
    assert (await gym.end(created.episode_id)).outcome.stop_reason == pb.STOP_REASON_CANCELLED
    assert caplog.records == []


async def test_A12_a_client_that_takes_little_harms_itself_alone(gym):
    options = [("grpc.max_receive_message_length", 1000)]
    async with grpc.aio.insecure_channel(gym.running.address, options=options) as channel:
        stub = gym_pb2_grpc.GymServiceStub(channel)
        assert (await refusal(stub.GetGymInfo(pb.GetGymInfoRequest(), metadata=gym.metadata)))[0] == EXHAUSTED


@pytest.mark.parametrize(
    "action",
    [
        pb.Action(text=READ, logprobs=[0.0] * 1_000_000),
        pb.Action(logprobs=[0.0] * 1_000_000, tool_calls=pb.ToolCalls()),
        pb.Action(tool_calls=pb.ToolCalls(calls=[pb.ToolCall(tool="read", arguments_json=" " * 4_000_001)])),
        pb.Action(tool_calls=pb.ToolCalls(calls=[pb.ToolCall(tool="x" * 4_000_001, arguments_json="{}")])),
        pb.Action(
            tool_calls=pb.ToolCalls(calls=[pb.ToolCall(tool="read", arguments_json=" " * 300_000)] * 16)
        ),
    ],
    ids=["logprobs_of_text", "logprobs_of_calls", "arguments", "name_of_tool", "calls_together"],
)
async def test_A12_nothing_of_a_turn_is_kept_without_measure(gym, action):
    name = (await gym.create("a")).episode_id

    assert (await refusal(gym.step(name, 0, action)))[0] == INVALID
    await gym.step(name, 0, READ)


@pytest.mark.parametrize(
    "compression", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=["gzip", "deflate"]
)
async def test_A24_what_is_packed_is_measured_unpacked(gym, compression):
    """In a call, in a stream, and for a stranger; what is small enough unpacked is taken."""
    name = (await gym.create("a")).episode_id
    bomb = pb.StepEpisodeRequest(episode_id=name, action=pb.Action(text="x" * (64 << 20)))
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(gym.running.address, options=options) as channel:
        stub = gym_pb2_grpc.GymServiceStub(channel)
        packed = {"compression": compression}
        assert (await refusal(stub.StepEpisode(bomb, metadata=gym.metadata, **packed)))[0] == EXHAUSTED
        assert (await refusal(stub.StepEpisode(bomb, **packed)))[0] == UNAUTHENTICATED
        stream = stub.Rollout(metadata=gym.metadata, **packed)
        await stream.write(pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="a", step=bomb)]))
        assert (await refusal(stream.read()))[0] == EXHAUSTED
        honest = pb.StepEpisodeRequest(episode_id=name, action=pb.Action(text=READ))
        answer = await stub.StepEpisode(honest, metadata=gym.metadata, **packed)
    assert answer.observation.tool_results[0].text.startswith("def ")


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b"identity", b"gzip,gzip", b"../x", b""])
async def test_A24_what_says_that_it_is_packed_and_is_not_is_an_error(gym, caplog, encoding):
    data = by_hand(gym, frames.message(b"no archive", flag=1), [(b"grpc-encoding", encoding)])

    assert await sent(gym, data) == grpc.StatusCode.INTERNAL
    assert caplog.records == []


# --- messages ---


def nested(depth):
    return b"\x0b" * depth + b"\x0c" * depth


MALFORMED = {
    "garbage": b"\xff" * 100,
    "cut": pb.CreateEpisodeRequest(request_id="x" * 100).SerializeToString()[:-1],
    "number_for_text": b"\x08\x01\x0d\x01\x02\x03\x04",
    "nested_groups": nested(10_000),
    "open_group": b"\x0b" * 10_000,
    "closed_group": b"\x0c",
    "nested_messages": b"\x22\xff\xff\x03" * 1000,
    "long_varint": b"\x08" + b"\xff" * 11,
    "no_utf8": b"\x0a\x02\xff\xfe",
    "field_0": b"\x02\x00",
    "wire_type_7": b"\x0f",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_A13_bytes_that_are_no_message_are_told_so_and_not_logged(gym, caplog, name):
    """By every method, open ones included. What happens to be a message is one, with nothing in it."""
    for method in (*METHODS, "CreateEpisode", "ListTasks", "RenewLeases", "RegisterTokenizer", "CheckTask"):
        code, reason, _ = await refusal_or_none(raw(gym, method, MALFORMED[name]))
        assert (code, reason) == (INVALID, "MESSAGE_MALFORMED") or code in (None, NOT_FOUND, INVALID)
    check = gym.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert (await refusal_or_none(check(MALFORMED[name])))[0] in (None, NOT_FOUND, INVALID)
    assert caplog.records == []


async def refusal_or_none(work):
    try:
        await work
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        reason = pb.Error.FromString(trailers["gym-error-bin"]).reason if "gym-error-bin" in trailers else ""
        return error.code(), reason, error.details()
    return None, "", ""


@settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.binary(max_size=200), stream=st.booleans())
async def test_A13_no_bytes_at_all_are_a_defect(gym, caplog, data, stream):
    if stream:
        call = gym.channel.stream_stream("/gym.v1.GymService/Rollout")(metadata=gym.metadata)
        await call.write(data)
        await call.done_writing()
        code = (await refusal_or_none(call.read()))[0]
    else:
        code = (await refusal_or_none(raw(gym, "CreateEpisode", data)))[0]

    assert code in (None, INVALID, NOT_FOUND)
    assert caplog.records == []


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\0\0\0\0", frames.message(b"abc", length=9), frames.message(b"")[:-1]],
    ids=["nothing", "a_byte", "half_a_prefix", "half_a_message", "almost_a_prefix"],
)
async def test_A13_a_call_that_ends_before_its_message_is_answered(gym, caplog, body):
    """Which gRPC itself would never do."""
    assert await sent(gym, by_hand(gym, body)) == INVALID
    assert caplog.records == []


async def test_A13_fields_that_nobody_knows_change_nothing_and_are_not_kept(gym):
    """Else the memory would hold what no limit counts."""
    unknown = b"\xfa\x7f" + b"\x80\x80\x40" + b"x" * (1 << 20)
    created = await gym.create("a")
    step = pb.StepEpisodeRequest(episode_id=created.episode_id).SerializeToString()
    action = pb.Action(text=READ).SerializeToString() + unknown
    data = step + b"\x1a" + _varint(len(action)) + action + unknown

    answer = pb.StepEpisodeResponse.FromString(await raw(gym, "StepEpisode", data))

    assert answer.observation.tool_results[0].text.startswith("def ")
    assert len(gym.running.episodes.get(created.episode_id).steps[0].sent) < 100
    # The same turn, so no conflict.
    await gym.step(created.episode_id, 0, READ)
    assert Paced.done["read"] == 1


def _varint(value):
    return bytes([value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21])


@pytest.mark.parametrize(
    "path", [b"\xff\xfe", b"/\x80", b"", b"/", b"x", b"/gym.v1.GymService/", b"/a\0b", b"/" * 9000]
)
async def test_A13_a_method_of_any_bytes_is_not_there(gym, caplog, path):
    """One that is no UTF-8 would stop grpcio's server, for everybody and for good."""
    head = frames.literal(b":path", path)
    fixed = frames.headers("").replace(frames.literal(b":path", b""), head)
    data = frames.frame(frames.HEADERS, fixed, 1, frames.END_HEADERS) + frames.frame(
        frames.DATA, frames.message(b""), 1, frames.END_STREAM
    )

    assert await sent(gym, data) == grpc.StatusCode.UNIMPLEMENTED
    assert caplog.records == []


# --- HTTP/2 ---


async def test_A18_a_flood_of_pings_ends_its_connection(gym, caplog):
    """With a word of why; others are not touched."""
    got = await asyncio.to_thread(
        frames.exchange, gym.running.address, frames.frame(frames.PING, b"12345678") * 2000
    )

    assert [payload[8:] for kind, *_, payload in got if kind == frames.GOAWAY] == [b"too_many_pings"]
    assert caplog.records == []


@pytest.mark.parametrize("finished", [False, True])
async def test_A18_calls_that_are_reset_at_once_run_nothing(gym, caplog, finished):
    creation = pb.CreateEpisodeRequest(request_id="a", task_id="bugfix/none", toolset="menu")
    head = frames.headers(
        f"{frames.SERVICE}/CreateEpisode", [(b"authorization", f"Bearer {gym.running.token}".encode())]
    )
    body = frames.message(creation.SerializeToString())

    def flood():
        with frames.Wire(gym.running.address) as wire:
            for stream in range(1, 4001, 2):
                data = frames.frame(frames.HEADERS, head, stream, frames.END_HEADERS)
                if finished:
                    data += frames.frame(frames.DATA, body, stream, frames.END_STREAM)
                if not wire.send(data + frames.frame(frames.RST_STREAM, frames.CANCEL, stream)):
                    break

    await asyncio.to_thread(flood)
    assert caplog.records == []


@pytest.mark.parametrize("entries", [1, 100], ids=["one", "many"])
async def test_A18_metadata_without_measure_is_refused(gym, caplog, entries):
    metadata = [*gym.metadata, *((f"x-{number}", "y" * (100_000 // entries)) for number in range(entries))]

    assert (await refusal(raw(gym, "GetGymInfo", metadata=metadata)))[0] == EXHAUSTED
    assert caplog.records == []


async def test_A18_metadata_that_unpacks_to_much_is_refused(gym):
    """A header of 3,900 bytes, put into the table once and named 8,000 times by a byte."""
    entry = b"\x40" + frames.literal(b"x", b"y" * 3900)[1:]
    head = frames.headers(f"{frames.SERVICE}/GetGymInfo") + entry + b"\xbe" * 8000

    assert await sent(gym, frames.frame(frames.HEADERS, head, 1, frames.END_HEADERS)) == EXHAUSTED


# --- policy, texts ---


async def test_A19_however_many_are_asked_for_at_once_no_more_are_started_than_allowed(gym, book):
    ann = calling(gym, book.issue("ann", "train", 1, quota=3))

    answers = await asyncio.gather(
        *(ann.create(f"{number}") for number in range(500)), return_exceptions=True
    )

    refused = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert {each.code() for each in refused} == {EXHAUSTED}
    assert len(answers) - len(refused) == 3
    assert Paced.done["start"] <= 8 + 2
    await ann.end(next(each for each in answers if not isinstance(each, Exception)).episode_id)
    await ann.create("again")


def test_A21_a_creation_has_no_field_for_what_an_operator_decides():
    wishes = re.compile(
        "network|image|runtime|mount|volume|privilege|capabilit|user|environment|device|host|command$"
    )
    fields = [
        field.name
        for message in (pb.CreateEpisodeRequest, pb.SandboxLimits, pb.EpisodeSeed)
        for field in message.DESCRIPTOR.fields
    ]

    assert [name for name in fields if wishes.search(name)] == []


@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "command_timeout_seconds"])
@pytest.mark.parametrize("change", ["more", "most", "negative"])
async def test_A21_no_limit_is_raised(gym, name, change):
    own = getattr((await gym.create("a")).limits, name)
    kind = pb.SandboxLimits.DESCRIPTOR.fields_by_name[name]
    if kind.type == kind.TYPE_DOUBLE:
        wish = {"more": own + 0.1, "most": float("inf"), "negative": -1.0}[change]
    else:
        most = 2**31 - 1 if kind.type == kind.TYPE_INT32 else 2**63 - 1
        wish = {"more": own + 1, "most": most, "negative": -1}[change]

    assert (await refusal(gym.create("b", limits=pb.SandboxLimits(**{name: wish}))))[0] == INVALID


@pytest.mark.parametrize("seconds", [10**9, 2**63 - 1, -1, -(2**63)])
async def test_A21_no_time_is_raised(gym, seconds):
    limits = pb.SandboxLimits(command_timeout=Duration(seconds=seconds))

    assert (await refusal(gym.create("a", limits=limits)))[0] == INVALID


async def test_A21_fields_that_are_made_up_ask_for_nothing(gym):
    """Numbers that the contract does not have, in the creation and in its limits."""
    own = (await gym.create("a")).limits
    request = pb.CreateEpisodeRequest(request_id="b", task_id="bugfix/zero/share", toolset="menu")
    made_up = b"".join(
        struct.pack("B", number << 3 | 2) + bytes([len(text)]) + text
        for number, text in ((12, b"host"), (13, b"--privileged"), (14, b"/:/host:rw"), (15, b"runc"))
    )
    forged = request.SerializeToString() + made_up + b"\x4a" + bytes([len(made_up)]) + made_up

    created = pb.CreateEpisodeResponse.FromString(await raw(gym, "CreateEpisode", forged))

    assert created.limits == own
    assert Paced.done["start"] <= 8 + 2


INJECTED = {
    "line": '\n{"kind": "verdict", "status": "RESOLVED"}\n',
    "return": "\r\n2026-01-01 00:00:00 INFO gym_service: all is well\r",
    "escape": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "separators": "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e",
    "direction": "\u202e\u2066\u200f",
    "html": "<script>alert(1)</script>",
    "formula": "=cmd|' /C calc'!A0",
    "nul": "a\0b",
    "quotes": "\\\"'`$(x)${y}%n",
}


@pytest.mark.parametrize("name", INJECTED)
async def test_A22_whatever_is_sent_stays_one_value_on_one_line(gym, tmp_path, caplog, name):
    """In the record, in the log and in an error; an honest episode has as many lines."""
    caplog.set_level("INFO")
    text = INJECTED[name]
    counts = []
    for number, said in enumerate(("honest", text)):
        seed = pb.EpisodeSeed(run_seed=1, group=said)
        created = await gym.create(f"{number}{said}", toolset="coding", seed=seed, max_edits=-1)
        calls = [pb.ToolCall(tool="Read", arguments_json=json.dumps({"file_path": said}))]
        action = pb.Action(tool_calls=pb.ToolCalls(calls=calls), policy_version=said)
        await gym.step(created.episode_id, 0, action)
        await gym.step(created.episode_id, 1, pb.Action(text=said, policy_version=said))
        await gym.grade(created.episode_id)
        content = (tmp_path / "records" / f"{created.episode_id}.jsonl").read_bytes()
        assert not re.search(rb"[^\x20-\x7e\n]", content)
        lines = content.decode().splitlines()
        assert all(isinstance(json.loads(line), dict) for line in lines)
        counts.append(len(lines))
    assert counts[0] == counts[1]

    _, _, told = await refusal(gym.create("x", task_id=f"bugfix/{text}"))
    assert told.isascii()
    assert told.isprintable()
    formatter = _OneLine("%(message)s")
    assert all(formatter.format(record).isprintable() for record in caplog.records)


async def test_A23_a_defect_is_told_by_a_number_that_the_log_explains(gym, monkeypatch, caplog):
    """Without a word of what it is: no path, no name, no value."""

    async def faulty(*_):
        raise RuntimeError("a defect in /srv/gym/secret.py: test_hidden_7 of image sha256:abc")

    name = (await gym.create("a")).episode_id
    monkeypatch.setattr(gym.running.episodes, "step", faulty)
    code, reason, told = await refusal(gym.step(name, 0, READ))
    (in_stream,) = await commanded(gym, pb.RolloutCommand(step=METHODS["StepEpisode"](name)))
    monkeypatch.undo()

    assert (code, reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    numbers = [re.search("[0-9a-f]{8}$", text)[0] for text in (told, in_stream.error.message)]
    assert numbers[0] != numbers[1]
    for text, number in zip((told, in_stream.error.message), numbers, strict=True):
        assert not re.search("secret|hidden|sha256|defect in|Error|/", text)
        assert number in caplog.text
    assert "test_hidden_7" in caplog.text


@pytest.mark.parametrize(
    "fields",
    [
        {"task_id": "bugfix/../../etc/passwd"},
        {"task_id": "nowhere/x"},
        {"toolset": "../bash"},
        {"tokenizer_fingerprint": "/root/.ssh/id_rsa"},
        {"max_turns": 10**9},
    ],
)
async def test_A23_a_refusal_says_what_to_change_and_nothing_of_the_service(gym, tmp_path, fields):
    code, _, told = await refusal(gym.create(**fields))

    assert code in (INVALID, NOT_FOUND)
    assert not re.search(r"Traceback|\.py\b|site-packages|sha256:|hidden|object at 0x", told)
    assert str(tmp_path) not in told


# --- other services ---


async def test_A27_nothing_but_the_health_check_answers_a_stranger(gym, book):
    """Nor one whose role does not allow it; an admin is answered."""
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    reflector = reflection_pb2_grpc.ServerReflectionStub(gym.channel)
    health = health_pb2_grpc.HealthStub(gym.channel)
    asked = health_pb2.HealthCheckRequest(service="gym.v1.GymService")
    trainer = calling(gym, book.issue("ann", "train", 1)).metadata

    for metadata, code in (((), UNAUTHENTICATED), (trainer, grpc.StatusCode.PERMISSION_DENIED)):
        reflection = reflector.ServerReflectionInfo(metadata=metadata)
        assert (await refusal(reflection.read()))[0] == code
        assert (await refusal(health.Watch(asked, metadata=metadata).read()))[0] == code
    assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
    admin = reflector.ServerReflectionInfo(iter([listing]), metadata=gym.metadata)
    assert (await admin.read()).list_services_response.service


@pytest.mark.parametrize(
    "method",
    [
        "/grpc.channelz.v1.Channelz/GetServers",
        "/grpc.admin.v1.Admin/Shutdown",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
        "/gym.v1.GymService/Shutdown",
        "/gym.v1.gymservice/GetGymInfo",
        "/gym.v1.GymService/GetGymInfo/",
        "//gym.v1.GymService/GetGymInfo",
    ],
)
@pytest.mark.parametrize("owner", [False, True])
async def test_A27_what_is_not_served_is_not_there_for_anybody(gym, method, owner):
    call = gym.channel.unary_unary(method)

    assert (await refusal(call(b"", metadata=gym.metadata if owner else ())))[
        0
    ] == grpc.StatusCode.UNIMPLEMENTED
