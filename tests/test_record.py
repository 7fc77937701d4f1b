"""Records: any change shows, and a disk that fails changes no verdict."""

import asyncio
import base64
import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service.config import ServiceConfig
from gym_service.episode import Creation, Episode, EpisodeSeed, Step, StepResult
from gym_service.grading.certificate import Signer
from gym_service.record import START, Link, Sealer, canonical, make_record, seal_line
from gym_service.record_check import check_record
from gym_service.record_folder import RecordFolder
from gym_service.sandbox.policy import SandboxLimits
from gym_service.tasks.model import instantiate
from gym_service.tasks.suites import built_in
from gym_service.tokens import ChatTokenizer
from gym_service.toolsets.base import Progress
from gym_service.toolsets.menu import Menu
from gym_service.values import Delta, Observation, StopReason, Submission, ToolResult, Verdict, VerdictStatus
from trainer_client.models.tiny import build_tokenizer

SEED = b"s" * 32
SEALER = Sealer(SEED)
VERDICT = Verdict(VerdictStatus.UNRESOLVED, reason="some hidden test fails", evidence=("input [0]",))


async def done(value):
    return value


async def record_of(
    verdict=VERDICT,
    texts=("\u2028é\udcff", "b"),
    submission=None,
    tokenizer=None,
    action=pb.Action(text="<call> read </call>"),  # noqa: B008 - not changed
):
    """The record of an episode of as many turns as there are texts of results."""
    task = built_in().task("bugfix/zero/share")
    instance, toolset = instantiate(task, "seed"), Menu()
    seed = EpisodeSeed(1, "g", 0)
    episode = Episode(
        episode_id="e-1",
        creation=Creation("r", task.task_id, "menu", seed, "", 0, 0, 0, (("cpus", 0.5),)),
        task=task,
        instance=instance,
        toolset=toolset,
        progress=Progress(None, ""),
        tokenizer=tokenizer,
        sandbox=None,
        limits=SandboxLimits(),
        messages=toolset.opening(instance),
        prompt=None,
        max_turns=6,
        lease_seconds=1,
        expires_at=0,
        submission=submission or Submission({"a\udcff.py": b"\xff\0", "b.py": b"x = 1"}),
    )
    for text in texts:
        observation = Observation((ToolResult("read", text),), Delta((7, 8), 5))
        turn = asyncio.create_task(done(StepResult(observation, None)))
        episode.steps.append(Step(action.SerializeToString(), turn))
        await episode.steps[-1].played
    episode.ending = asyncio.create_task(done(StopReason.SUBMITTED))
    await episode.ending
    certificate = Signer("image", "seccomp", SEED).sign(verdict, task.sha256, "seed", "function-1")
    return await make_record(episode, replace(verdict, certificate=certificate), SEALER.gym)


def file_of(links, sealer=SEALER):
    return b"".join(link.line for link in links) + seal_line(sealer.seal(links[-1].sha256))


@pytest.fixture
async def data():
    return file_of(await record_of())


def contents(data):
    return [json.loads(line).get("content") for line in data.splitlines()]


async def test_a_record_that_nobody_touched_is_intact(data):
    head = json.loads(data.splitlines()[-2])["sha256"]

    assert check_record(data, SEED).summary == f"intact: 5 events, head {head}, seal valid"
    assert check_record(data, SEED, head).vouched


async def test_a_record_says_what_was_sent_answered_and_left(data):
    created, turn, _, ended, graded, _ = contents(data)

    assert created["limits"] == {"cpus": 0.5}
    assert turn["action"]["text"] == "<call> read </call>"
    assert (
        pb.Action.FromString(base64.b64decode(turn["action"]["sent_base64"])).text == turn["action"]["text"]
    )
    assert turn["observation"]["tool_results"][0]["text"] == "\u2028é\udcff"
    assert turn["observation"]["delta"] == {"position": 5, "token_ids": [7, 8]}
    assert [file["path"] for file in ended["submission"]["files"]] == ["a\udcff.py", "b.py"]
    assert base64.b64decode(ended["submission"]["files"][0]["base64"]) == b"\xff\0"
    assert ended["submission"]["files"][1]["text"] == "x = 1"
    assert graded["evidence"] == ["input [0]"]


async def test_sampled_ids_are_kept_as_they_were_sent_and_as_text():
    built = build_tokenizer()
    tokenizer = ChatTokenizer(built.backend_tokenizer.to_str().encode(), built.chat_template, "<|end|>")
    ids = pb.TokenIds(ids=built.encode("<call> read </call>", add_special_tokens=False))
    sent = pb.Action(token_ids=ids, logprobs=[-0.5] * len(ids.ids), policy_version="x/step-1")

    action = contents(file_of(await record_of(tokenizer=tokenizer, action=sent)))[1]["action"]

    assert "call> read </call>" in action["text"]
    assert pb.Action.FromString(base64.b64decode(action["sent_base64"])) == sent


async def test_calls_that_a_client_parsed_are_readable():
    calls = [pb.ToolCall(tool="Read", arguments_json='{"file_path": "a"}')]

    links = await record_of(action=pb.Action(tool_calls=pb.ToolCalls(calls=calls)))

    assert contents(file_of(links))[1]["action"]["calls"] == [["Read", '{"file_path": "a"}']]


async def test_a_record_can_be_followed_with_nothing_but_json_and_sha256(data):
    previous = "0" * 64
    for index, line in enumerate(data.splitlines()[:-1]):
        fields = json.loads(line)
        assert fields["previous"] == previous
        previous = fields.pop("sha256")
        hashed = json.dumps({**fields, "index": index}, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(hashed.encode()).hexdigest() == previous


async def test_any_byte_that_is_changed_is_found(data):
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ (1, 0x20, 0x80)[place % 3]]) + data[place + 1 :]
        assert not check_record(changed, SEED).vouched, place


async def test_a_blank_that_changes_no_meaning_is_found(data):
    for place in (*range(1, len(data), 7), *range(len(data) - 100, len(data) + 1)):
        assert not check_record(data[:place] + b" " + data[place:], SEED).vouched, place


async def test_wherever_a_record_is_cut_off_is_found(data):
    for length in (*range(0, len(data), 5), *range(len(data) - 200, len(data))):
        assert not check_record(data[:length], SEED).vouched, length


async def test_lines_that_are_gone_swapped_or_twice_are_found(data):
    lines = data.splitlines(keepends=True)
    for place in range(len(lines)):
        without = lines[:place] + lines[place + 1 :]
        twice = [*lines[: place + 1], lines[place], *lines[place + 1 :]]
        swapped = [*without[: place - 1], lines[place], *without[place - 1 :]] if place else without
        for changed in (without, twice, swapped):
            assert not check_record(b"".join(changed), SEED).vouched, place


def rechained(data, change):
    """A record whose contents were changed and which was then chained anew."""
    links, previous = [], START
    for index, line in enumerate(data.splitlines()[:-1]):
        fields = json.loads(line)
        change(fields["kind"], fields["content"])
        links.append(Link.after(previous, index, fields["kind"], canonical(fields["content"])))
        previous = links[-1].sha256
    return links


async def test_a_chain_that_was_made_anew_without_the_key_has_no_seal(data):
    def resolve(kind, content):
        if kind == "ended":
            content["stop_reason"] = "STOP_REASON_MAX_TURNS"

    links = rechained(data, resolve)
    old_seal = data.splitlines(keepends=True)[-1]

    finding = check_record(b"".join(link.line for link in links) + old_seal, SEED)
    assert finding.summary == "the seal does not match: the record was made anew without the key"
    assert "the head is" in check_record(file_of(links), SEED, head="0" * 64).summary


async def test_a_record_of_another_gym_is_not_taken_for_ours(data):
    def claim(kind, content):
        if kind == "created":
            content["gym"] = "0" * 16

    links = rechained(data, claim)
    finding = check_record(file_of(links, Sealer(b"other")), SEED)

    assert not finding.vouched
    assert "the grading seed is of another gym" in finding.summary


async def test_a_verdict_that_was_changed_under_a_good_seal_is_found(data):
    def resolve(kind, content):
        if kind == "graded":
            content["verdict"]["status"] = "VERDICT_STATUS_RESOLVED"

    def sign(kind, content):
        if kind == "graded":
            content["verdict"]["signature"] = "0" * 64

    assert "content_sha256" in check_record(file_of(rechained(data, resolve)), SEED).summary
    assert "signature" in check_record(file_of(rechained(data, sign)), SEED).summary


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b"<call>", b"<CALL>"), *lines[3:]], "line 3 (turn): content"),
        (lambda lines: [*lines[:2], *lines[3:]], "the chain is broken between lines 2 and 3"),
        (lambda lines: lines[1:], "the chain is broken before line 1"),
        (lambda lines: lines[:-1], "the seal is missing: the file was cut off after line 5"),
        (lambda lines: [*lines, lines[-1]], "line 7 follows the seal"),
        (lambda lines: lines[-1:], "the events are not those of an episode"),
        (lambda lines: [b"[" * 100_000 + b"\n"], "line 1: it is no JSON"),
        (lambda lines: [b'{"kind":5}\n'], "line 1: it is no event"),
        (lambda lines: [], "the seal is missing"),
    ],
)  # fmt: skip
async def test_what_does_not_hold_is_named(data, change, found):
    assert check_record(b"".join(change(data.splitlines(keepends=True))), SEED).summary.startswith(found)


async def test_without_a_key_only_a_head_vouches(data):
    head = json.loads(data.splitlines()[-2])["sha256"]

    assert not check_record(data, None).vouched
    assert "nothing vouches for it" in check_record(data, None).summary
    finding = check_record(data, None, head)
    assert finding.vouched
    assert "seal not checked: there is no grading seed" in finding.summary


async def test_a_long_record_is_made_alike():
    links = await record_of(texts=["x" * 200_000], submission=Submission({"a.py": b"x" * 200_000}))

    assert check_record(file_of(links), SEED).vouched


def command(tmp_path, *arguments):
    command = [
        sys.executable,
        "-m",
        "gym_service",
        "--state-folder",
        str(tmp_path),
        "verify-record",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_the_command_says_what_it_found_of_each_file(tmp_path, data):
    (tmp_path / "grading.seed").write_bytes(SEED)
    (tmp_path / "good").write_bytes(data)
    (tmp_path / "bad").write_bytes(data[:-1])

    both = command(tmp_path, str(tmp_path / "good"), str(tmp_path / "bad"))
    missing = command(tmp_path, str(tmp_path / "none"), str(tmp_path / "good"))

    good, bad = both.stdout.splitlines()
    assert "good: intact: 5 events" in good
    assert "bad: the seal is missing: the file was cut off in line 6" in bad
    assert both.returncode == missing.returncode == 1
    assert "none: it cannot be read: No such file" in missing.stdout.splitlines()[0]
    assert "good: intact" in missing.stdout.splitlines()[1]
    assert command(tmp_path, str(tmp_path / "good")).returncode == 0
    assert command(tmp_path / "elsewhere", str(tmp_path / "good")).returncode == 1
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("kept", "verdict", "written"),
    [
        ("none", replace(VERDICT, flags=("x",)), False),
        ("flagged", VERDICT, False),
        ("flagged", replace(VERDICT, flags=("x",)), True),
        ("flagged", Verdict(VerdictStatus.TAMPER_SUSPECTED), True),
        ("all", VERDICT, True),
    ],
)
async def test_the_records_that_are_asked_for_are_written_for_their_owner_alone(
    tmp_path, kept, verdict, written
):
    folder = RecordFolder(tmp_path / "records", kept, SEALER)

    await folder.keep("e-1", verdict, await record_of(verdict))

    path = tmp_path / "records" / "e-1.jsonl"
    assert path.exists() == written
    if written:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert check_record(path.read_bytes(), SEED).vouched
        assert os.listdir(path.parent) == ["e-1.jsonl"]


def test_a_kind_of_records_that_is_not_there_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="--records must be one of none, flagged, all, not some"):
        ServiceConfig(state_folder=tmp_path, records="some")


async def test_beyond_their_room_no_records_are_written_and_that_is_said_once(tmp_path, caplog):
    record = await record_of()
    size = len(file_of(record))
    first = RecordFolder(tmp_path, "all", SEALER, max_bytes=3 * size)
    await first.keep("e-0", VERDICT, record)

    later = RecordFolder(tmp_path, "all", SEALER, max_bytes=3 * size)
    for number in range(1, 5):
        await later.keep(f"e-{number}", VERDICT, record)

    assert sorted(os.listdir(tmp_path)) == ["e-0.jsonl", "e-1.jsonl", "e-2.jsonl"]
    assert [entry.message for entry in caplog.records if "no longer written" in entry.message] == [
        caplog.messages[0]
    ]


def test_what_a_service_that_was_killed_was_writing_is_removed(tmp_path):
    (tmp_path / "g-1.new").write_text("half")
    (tmp_path / "g-2.jsonl").write_text("whole")

    RecordFolder(tmp_path, "all", SEALER).close()

    assert [path.name for path in tmp_path.iterdir()] == ["g-2.jsonl"]


async def test_a_record_that_cannot_be_written_is_a_warning_and_leaves_nothing(tmp_path, caplog):
    (tmp_path / "e-1.jsonl").mkdir()
    folder = RecordFolder(tmp_path, "all", SEALER)

    await folder.keep("e-1", VERDICT, await record_of())

    assert "the record of episode e-1 could not be written" in caplog.text
    assert os.listdir(tmp_path) == ["e-1.jsonl"]
