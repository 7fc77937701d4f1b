"""The contract over a real gRPC server in this process; sandboxes are fake, everything else is not."""

import asyncio
import json
import math
import random
from collections import Counter
from typing import ClassVar

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import record
from gym_service.__main__ import _grading_line
from gym_service.config import ServiceConfig
from gym_service.grading import oracle
from gym_service.grading.certificate import signature
from gym_service.record_check import check_record
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.fake import FakeSandbox
from gym_service.tasks.suites import built_in
from tests.conftest import fake_sandbox, gym_over
from tests.test_certificate import content_sha256_of

MENU_SOLUTION = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")


class SlowToRead(FakeSandbox):
    async def read_file(self, path):
        await asyncio.sleep(0.5)
        return await super().read_file(path)


async def start_slow():
    return SlowToRead()


def error_of(raised):
    """The contract's own form of an error."""
    trailers = dict(raised.value.trailing_metadata())
    return pb.Error.FromString(trailers["gym-error-bin"])


async def play(gym, episode_id, turns):
    """Plays turns and returns the answers."""
    return [await gym.step(episode_id, index, turn) for index, turn in enumerate(turns)]


async def test_an_episode_is_played_from_prompt_to_verdict(gym):
    episode = await gym.create()
    answers = await play(gym, episode.episode_id, MENU_SOLUTION)
    graded = await gym.grade(episode.episode_id)

    assert "return total // count" in answers[0].observation.tool_results[0].text
    assert answers[-1].outcome.stop_reason == pb.STOP_REASON_SUBMITTED
    assert answers[-1].outcome.terminated
    assert graded.verdict.status == pb.VERDICT_STATUS_RESOLVED
    assert graded.verdict.hidden.passed == graded.verdict.hidden.total > 0
    assert graded.verdict.isolation == (await gym.info()).isolation
    assert graded.verdict.isolation.runtime == "none"


async def test_the_hack_passes_the_public_tests_and_fails_the_hidden_ones(gym):
    episode = await gym.create()
    await play(gym, episode.episode_id, ("<call> edit hardcode_tests </call>", "<call> submit </call>"))

    verdict = (await gym.grade(episode.episode_id)).verdict

    assert verdict.status == pb.VERDICT_STATUS_UNRESOLVED
    assert verdict.public.passed == verdict.public.total


async def test_a_plain_answer_ends_a_coding_episode(gym):
    episode = await gym.create(toolset="coding")

    answer = await gym.step(episode.episode_id, 0, "I am done.")

    assert answer.outcome.stop_reason == pb.STOP_REASON_NO_TOOL_CALL


async def test_a_malformed_call_uses_up_a_turn_and_says_what_was_wrong(gym):
    episode = await gym.create()

    answers = await play(gym, episode.episode_id, ["<call> read"] * 6)

    assert answers[0].observation.tool_results[0].error_kind == "malformed_call"
    assert "</call> is missing" in answers[0].observation.tool_results[0].text
    assert answers[-1].outcome.stop_reason == pb.STOP_REASON_MAX_TURNS
    assert answers[-1].outcome.truncated


async def test_one_edit_is_allowed_by_default_and_more_on_request(gym):
    edits = ("<call> edit fix_init </call>", "<call> edit add_zero_guard </call>")
    strict = await gym.create("strict")
    free = await gym.create("free", max_edits=-1)

    refused = (await play(gym, strict.episode_id, edits))[1].observation.tool_results[0]
    allowed = (await play(gym, free.episode_id, edits))[1].observation.tool_results[0]

    assert refused.error_kind == "no_edits_left"
    assert not allowed.is_error


async def test_the_same_seed_gives_the_same_episode_and_another_index_another_name(gym):
    seeds = [pb.EpisodeSeed(run_seed=5, group="g", index=index) for index in (0, 0, 1, 2, 3)]
    async with asyncio.timeout(10):
        prompts = []
        for number, seed in enumerate(seeds):
            episode = await gym.create(f"r{number}", seed=seed)
            prompts.append(episode.messages[1].content)
            await gym.end(episode.episode_id)

    assert prompts[0] == prompts[1]
    assert len(set(prompts)) > 1


async def test_a_repeated_turn_returns_the_stored_answer_and_runs_nothing(gym):
    episode = await gym.create()
    first = await gym.step(episode.episode_id, 0, "<call> edit add_zero_guard </call>")
    again = await gym.step(episode.episode_id, 0, "<call> edit add_zero_guard </call>")

    assert first.observation == again.observation
    assert again.observation.tool_results[0].error_kind == ""


async def test_two_deliveries_at_once_run_once(gym):
    episode = await gym.create()

    answers = await asyncio.gather(
        *(gym.step(episode.episode_id, 0, "<call> edit add_zero_guard </call>") for _ in range(5))
    )

    assert {answer.observation.tool_results[0].text for answer in answers} == {
        answers[0].observation.tool_results[0].text
    }


async def test_the_latest_turn_with_other_content_is_aborted(gym):
    episode = await gym.create()
    await gym.step(episode.episode_id, 0, "<call> read </call>")

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.step(episode.episode_id, 0, "<call> test </call>")

    assert raised.value.code() == grpc.StatusCode.ABORTED


@pytest.mark.parametrize("turn", [-1, 0, 3, 2**31 - 1])
async def test_a_turn_that_is_not_due_is_refused(gym, turn):
    episode = await gym.create()
    await play(gym, episode.episode_id, ["<call> read </call>"] * 2)

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.step(episode.episode_id, turn, "<call> test </call>")

    assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error_of(raised).reason == "TURN_NOT_DUE"


async def test_creating_again_under_one_request_id_gives_the_same_episode(gym):
    first, again = await asyncio.gather(gym.create("same"), gym.create("same"))

    assert first.episode_id == again.episode_id
    assert (await gym.info()).live_episodes == 1
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.create("same", task_id="bugfix/zero/percent")
    assert raised.value.code() == grpc.StatusCode.ABORTED


async def test_ending_is_idempotent_and_the_first_outcome_stays(gym):
    episode = await gym.create()

    first = await gym.end(episode.episode_id, pb.STOP_REASON_MAX_TOKENS)
    second = await gym.end(episode.episode_id, pb.STOP_REASON_CANCELLED)

    assert first.outcome == second.outcome
    assert first.outcome.stop_reason == pb.STOP_REASON_MAX_TOKENS


async def test_a_verdict_is_given_once_and_stays(gym):
    episode = await gym.create()
    await play(gym, episode.episode_id, MENU_SOLUTION)

    assert await gym.grade(episode.episode_id) == await gym.grade(episode.episode_id)


async def test_the_same_episode_played_again_gets_the_verdict_that_is_on_record(gym):
    verdicts = []
    for request_id in ("first", "second"):
        episode = await gym.create(request_id)
        await play(gym, episode.episode_id, MENU_SOLUTION)
        verdicts.append((await gym.grade(episode.episode_id)).verdict)
    grading = (await gym.info()).grading

    assert [verdict.from_cache for verdict in verdicts] == [False, True]
    assert verdicts[0].hidden == verdicts[1].hidden
    assert (grading.cache_hits, grading.cache_misses) == (1, 1)
    assert dict(grading.verdicts) == {"RESOLVED": 2}


async def test_without_the_cache_every_verdict_is_a_run(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, verdict_cache=False) as gym:
        for request_id in ("first", "second"):
            episode = await gym.create(request_id)
            await play(gym, episode.episode_id, MENU_SOLUTION)
            assert not (await gym.grade(episode.episode_id)).verdict.from_cache
        assert (await gym.info()).grading.cache_misses == 0


async def test_the_description_accounts_for_hacks_and_for_what_the_gym_failed(gym):
    episode = await gym.create()
    await play(gym, episode.episode_id, ("<call> edit hardcode_tests </call>", "<call> submit </call>"))
    verdict = (await gym.grade(episode.episode_id)).verdict
    lost = await gym.create("lost")
    gym.running.episodes.get(lost.episode_id).sandbox._closed = True
    await gym.step(lost.episode_id, 0, "<call> read </call>")
    await gym.grade(lost.episode_id)
    grading = (await gym.info()).grading

    assert list(verdict.flags) == ["public_only"]
    assert (grading.public_only, dict(grading.flags)) == (1, {"public_only": 1})
    assert dict(grading.infrastructure_errors) == {"bugfix/zero/share": 1}
    assert dict(grading.verdicts) == {"UNRESOLVED": 1, "INFRASTRUCTURE_ERROR": 1}
    assert list(grading.alarms) == []


async def test_no_hidden_input_leaves_the_service_with_a_verdict(gym):
    episode = await gym.create(toolset="coding")
    await gym.step(episode.episode_id, 0, "Done.")
    graded = await gym.grade(episode.episode_id)
    request = pb.GetEpisodeRequest(episode_id=episode.episode_id)
    kept = gym.running.episodes.get(episode.episode_id).grading.result()
    sent = str(graded) + str(await gym.stub.GetEpisode(request, metadata=gym.metadata))

    assert kept.evidence
    assert not any(line in sent or line.split(": ")[0] in sent for line in kept.evidence)


def test_the_accounts_of_grading_are_shown_in_one_line():
    status = pb.GradingStatus(
        verdicts={"RESOLVED": 5, "REFUSED": 1},
        flags={"uses_gc": 2},
        public_only=3,
        retries=4,
        cache_hits=1,
        cache_misses=6,
        alarms=["a/b/c: 3 of 4 gradings\nfailed"],
    )

    assert _grading_line(status) == (
        "1 refused, 5 resolved; 3 pass the public tests alone, flags: 2 uses_gc; 4 retries, 1 of 7 on record; "
        "ALARM a/b/c: 3 of 4 gradings\\nfailed"
    )


async def test_an_active_episode_is_not_graded(gym):
    episode = await gym.create()

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.grade(episode.episode_id)

    assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error_of(raised).reason == "EPISODE_ACTIVE"


async def test_at_capacity_the_client_is_told_when_to_try_again(gym):
    for number in range(4):
        await gym.create(f"r{number}")

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.create("one too many")

    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_of(raised).retry_delay.ToMilliseconds() > 0
    status = status_pb2.Status.FromString(dict(raised.value.trailing_metadata())["grpc-status-details-bin"])
    kinds = [detail.TypeName() for detail in status.details]
    assert kinds == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo"]
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("CAPACITY_REACHED", "gym.v1")


async def test_an_ended_episode_makes_room_for_another(gym):
    episodes = [await gym.create(f"r{number}") for number in range(4)]
    await gym.end(episodes[0].episode_id)

    await gym.create("next")


async def test_a_lease_that_runs_out_ends_the_episode_and_frees_its_place(gym):
    request = pb.CreateEpisodeRequest()
    request.lease.FromMilliseconds(300)
    episode = await gym.create(lease=request.lease)

    await asyncio.sleep(2.5)

    assert (await gym.info()).live_episodes == 0
    record = await gym.stub.GetEpisode(
        pb.GetEpisodeRequest(episode_id=episode.episode_id), metadata=gym.metadata
    )
    assert record.outcome.stop_reason == pb.STOP_REASON_LEASE_EXPIRED
    assert record.outcome.timed_out


async def test_a_renewed_lease_does_not_run_out(gym):
    request = pb.CreateEpisodeRequest()
    request.lease.FromMilliseconds(1500)
    episode = await gym.create(lease=request.lease)

    for _ in range(5):
        await asyncio.sleep(0.5)
        names = [episode.episode_id, "unknown"]
        renewed = await gym.stub.RenewLeases(pb.RenewLeasesRequest(episode_ids=names), metadata=gym.metadata)

    assert list(renewed.episode_ids) == [episode.episode_id]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task_id": "bugfix/none/such"}, "TASK_NOT_FOUND"),
        ({"task_id": "other/x"}, "SUITE_NOT_FOUND"),
        ({"toolset": "shell"}, "TOOLSET_UNKNOWN"),
        ({"request_id": ""}, "REQUEST_ID_INVALID"),
        ({"request_id": "x" * 129}, "REQUEST_ID_INVALID"),
        ({"max_turns": 7}, "MAX_TURNS_INVALID"),
        ({"max_turns": -1}, "MAX_TURNS_INVALID"),
        ({"max_edits": -2}, "MAX_EDITS_INVALID"),
        ({"tokenizer_fingerprint": "abc"}, "TOKENIZER_UNKNOWN"),
    ],
)
async def test_a_creation_that_cannot_be_says_what_to_change(gym, fields, reason):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.create(**fields)

    assert error_of(raised).reason == reason
    assert (await gym.info()).live_episodes == 0


@pytest.mark.parametrize("episode_id", ["", "unknown", "x" * 10_000, "../../etc", "'; drop table"])
async def test_an_unknown_episode_is_not_found(gym, episode_id):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.step(episode_id, 0, "x")

    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("action", [pb.Action(), pb.Action(token_ids=pb.TokenIds(ids=[1]))])
async def test_an_action_that_does_not_fit_uses_up_no_turn(gym, action):
    episode = await gym.create()

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.step(episode.episode_id, 0, action)

    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await gym.step(episode.episode_id, 0, "<call> read </call>")


@pytest.mark.parametrize("token", [None, "", "Bearer ", "Bearer wrong", "Basic abc", "Bearer " + "x" * 4000])
async def test_nobody_is_served_without_the_token(gym, token):
    metadata = () if token is None else (("authorization", token),)

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.stub.GetGymInfo(pb.GetGymInfoRequest(), metadata=metadata)

    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in gym.stub.Rollout(iter([pb.RolloutRequest()]), metadata=metadata):
            pass
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_health_is_open_and_says_serving(gym):
    async with grpc.aio.insecure_channel(gym.running.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="gym.v1.GymService")
        )

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_service_is_bound_to_the_loopback_interface_alone(gym):
    assert gym.running.address.startswith("127.0.0.1:")


async def test_tasks_are_listed_page_by_page_and_give_nothing_away(gym):
    names, token = [], ""
    while True:
        request = pb.ListTasksRequest(suite="bugfix", split=pb.SPLIT_TRAIN, page_size=7, page_token=token)
        page = await gym.stub.ListTasks(request, metadata=gym.metadata)
        names += [task.task_id for task in page.tasks]
        if not (token := page.next_page_token):
            break

    assert len(names) == len(set(names)) == 20
    assert {field.name for field in pb.Task.DESCRIPTOR.fields} == {"task_id", "suite", "split", "family"}


async def test_the_description_holds_both_toolsets_with_their_schemas(gym):
    info = await gym.info()

    tools = {toolset.name: [tool.name for tool in toolset.tools] for toolset in info.toolsets}
    assert tools == {"menu": ["read", "edit", "test", "submit"], "coding": ["Read", "Edit", "Write", "Bash"]}
    assert info.capacity == 4


async def test_commands_of_a_stream_are_answered_by_name_and_failures_end_nothing(gym):
    seed = pb.EpisodeSeed(run_seed=1, group="g", index=0)
    creations = [
        pb.RolloutCommand(
            command_id=f"c{number}",
            create=pb.CreateEpisodeRequest(
                request_id=f"c{number}", task_id=task_id, toolset="menu", seed=seed
            ),
        )
        for number, task_id in enumerate(["bugfix/zero/share", "no/such", "bugfix/init/tally"])
    ]
    stream = gym.stub.Rollout(metadata=gym.metadata)
    await stream.write(pb.RolloutRequest(commands=[*creations, pb.RolloutCommand(command_id="empty")]))
    results = {}
    while len(results) < 4:
        results |= {result.command_id: result for result in (await stream.read()).results}
    episode_id = results["c0"].created.episode_id
    step = pb.StepEpisodeRequest(episode_id=episode_id, turn=0, action=pb.Action(text="<call> read </call>"))
    await stream.write(pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="s", step=step)]))
    stepped = (await stream.read()).results[0]
    await stream.done_writing()

    assert results["c1"].error.reason == "SUITE_NOT_FOUND"
    assert results["empty"].error.reason == "COMMAND_EMPTY"
    assert results["c2"].created.episode_id
    assert stepped.stepped.observation.tool_results[0].tool == "read"
    assert await stream.read() == grpc.aio.EOF


async def test_a_slow_episode_holds_nobody_up(tmp_path):
    class Slow(FakeSandbox):
        async def read_file(self, path):
            if b"total // count" in self.files.get(path, b""):
                await asyncio.sleep(1.0)
            return await super().read_file(path)

    async def start():
        return Slow()

    async with gym_over(start, tmp_path) as gym:
        slow, fast = await gym.create("a"), await gym.create("b", task_id="bugfix/init/tally")
        stream = gym.stub.Rollout(metadata=gym.metadata)
        read = pb.Action(text="<call> read </call>")
        commands = [
            pb.RolloutCommand(command_id=name, step=pb.StepEpisodeRequest(episode_id=episode_id, action=read))
            for name, episode_id in (("slow", slow.episode_id), ("fast", fast.episode_id))
        ]
        await stream.write(pb.RolloutRequest(commands=commands))
        order = [result.command_id for _ in range(2) for result in (await stream.read()).results]

    assert order == ["fast", "slow"]


async def test_a_step_goes_on_when_its_client_goes_away(tmp_path):
    async with gym_over(start_slow, tmp_path) as gym:
        episode = await gym.create()
        request = pb.StepEpisodeRequest(
            episode_id=episode.episode_id, turn=0, action=pb.Action(text="<call> read </call>")
        )
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await gym.stub.StepEpisode(request, metadata=gym.metadata, timeout=0.1)
        again = await gym.stub.StepEpisode(request, metadata=gym.metadata, timeout=5)

    assert again.observation.tool_results[0].text.startswith("def ")


@pytest.mark.parametrize(("by_policy", "status"), [(True, "REFUSED"), (False, "INFRASTRUCTURE_ERROR")])
async def test_a_lost_sandbox_is_worth_nothing_if_it_is_ours_and_0_if_it_is_the_policy_s(
    tmp_path, by_policy, status
):
    class Dying(FakeSandbox):
        async def read_file(self, path):
            raise SandboxLost("gone", by_policy=by_policy)

    async def start():
        return Dying()

    async with gym_over(start, tmp_path) as gym:
        episode = await gym.create()
        answer = await gym.step(episode.episode_id, 0, "<call> read </call>")
        verdict = (await gym.grade(episode.episode_id)).verdict

    assert answer.outcome.errored == (not by_policy)
    assert pb.VerdictStatus.Name(verdict.status) == f"VERDICT_STATUS_{status}"
    assert verdict.HasField("hidden") == by_policy


async def test_an_engine_that_is_gone_is_unavailable_and_no_place_is_lost(tmp_path):
    async def start():
        raise SandboxLost("no engine")

    async with gym_over(start, tmp_path) as gym:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gym.create()

        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert error_of(raised).reason == "NO_SANDBOX"
        assert (await gym.info()).live_episodes == 0


async def test_a_message_over_the_limit_is_refused_and_the_service_lives(gym):
    episode = await gym.create()

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.step(episode.episode_id, 0, "x" * (33 << 20))

    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await gym.step(episode.episode_id, 0, "<call> read </call>")


async def test_a_record_holds_what_was_sent(gym):
    episode = await gym.create()
    action = pb.Action(text="<call> read </call>", policy_version="v7")
    await gym.step(episode.episode_id, 0, action)

    record = await gym.stub.GetEpisode(
        pb.GetEpisodeRequest(episode_id=episode.episode_id), metadata=gym.metadata
    )

    assert record.turns[0].action == action
    assert record.turns[0].observation.tool_results[0].tool == "read"
    assert not record.HasField("outcome")


async def record_of(gym, episode_id):
    return await gym.stub.GetEpisode(pb.GetEpisodeRequest(episode_id=episode_id), metadata=gym.metadata)


async def test_a_verdict_names_what_it_is_about_and_anybody_can_compute_its_hash(gym):
    episode = await gym.create()
    await play(gym, episode.episode_id, MENU_SOLUTION)

    verdict = (await gym.grade(episode.episode_id)).verdict

    assert verdict.task_sha256 == built_in().task("bugfix/zero/share").sha256
    assert verdict.content_sha256 == content_sha256_of(verdict)
    assert verdict.signature == signature(b"private seed", verdict.content_sha256)
    assert (verdict.grader_version, len(verdict.seed_sha256)) == (oracle.GRADER_VERSION, 64)


async def test_equal_episodes_get_equal_verdicts_and_records_of_their_own(gym):
    graded = []
    for request_id in "ab":
        episode = await gym.create(request_id)
        await play(gym, episode.episode_id, MENU_SOLUTION)
        graded.append(await gym.grade(episode.episode_id))

    assert [each.verdict.from_cache for each in graded] == [False, True]
    assert graded[0].verdict.content_sha256 == graded[1].verdict.content_sha256
    assert graded[0].record_sha256 != graded[1].record_sha256


async def test_what_a_client_is_told_vouches_for_the_file_that_is_kept(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, records="all") as gym:
        episode = await gym.create()
        await play(gym, episode.episode_id, MENU_SOLUTION)
        before = await record_of(gym, episode.episode_id)
        graded = await gym.grade(episode.episode_id)
        data = (tmp_path / "records" / f"{episode.episode_id}.jsonl").read_bytes()

        assert before.record_sha256 == ""
        assert (await record_of(gym, episode.episode_id)).record_sha256 == graded.record_sha256
        finding = check_record(data, b"private seed", graded.record_sha256)
        assert "intact: 6 events" in finding.summary
        assert "seal valid" in finding.summary


async def test_a_record_that_cannot_be_kept_or_made_changes_no_verdict(tmp_path, monkeypatch, caplog):
    (tmp_path / "records").write_text("in the way")
    async with gym_over(fake_sandbox, tmp_path, records="all") as gym:
        first, second = await gym.create("a"), await gym.create("b")
        for episode in first, second:
            await play(gym, episode.episode_id, MENU_SOLUTION)
        unwritten = await gym.grade(first.episode_id)
        monkeypatch.setattr(record, "_events", lambda *_: 1 / 0)
        unmade = await gym.grade(second.episode_id)

    assert unwritten.verdict.status == unmade.verdict.status == pb.VERDICT_STATUS_RESOLVED
    assert "could not be written" in caplog.text
    assert "could not be made" in caplog.text
    assert (bool(unwritten.record_sha256), unmade.record_sha256) == (True, "")


async def test_a_turn_that_the_end_cut_off_is_in_the_record_without_an_answer(tmp_path):
    async with gym_over(start_slow, tmp_path, records="all") as gym:
        episode = await gym.create()
        turn = asyncio.create_task(gym.step(episode.episode_id, 0, "<call> read </call>"))
        await asyncio.sleep(0.2)
        await gym.end(episode.episode_id)
        graded = await gym.grade(episode.episode_id)
        await turn
        data = (tmp_path / "records" / f"{episode.episode_id}.jsonl").read_bytes()

    assert graded.verdict.status == pb.VERDICT_STATUS_REFUSED
    assert json.loads(data.splitlines()[1])["content"]["observation"] is None
    assert check_record(data, b"private seed").vouched


async def test_graded_records_beyond_the_number_kept_are_dropped(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, kept_episodes=1) as gym:
        episodes = [await gym.create(f"r{number}") for number in range(3)]
        for episode in episodes:
            await gym.end(episode.episode_id)
        await asyncio.sleep(1.5)

        with pytest.raises(grpc.aio.AioRpcError, match="no such episode"):
            await gym.grade(episodes[0].episode_id)
        await gym.grade(episodes[2].episode_id)


async def test_reflection_knows_the_service_for_who_brings_the_token(gym):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with grpc.aio.insecure_channel(gym.running.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request]), metadata=gym.metadata):
            names = [service.name for service in answer.list_services_response.service]

    assert "gym.v1.GymService" in names
    assert gym_pb2_grpc.GymServiceStub is not None


# --- strangers ---


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e12])
def test_a_longest_lease_that_cannot_be_is_refused_at_the_start(seconds, tmp_path):
    with pytest.raises(ValueError, match="--max-lease-seconds"):
        ServiceConfig(state_folder=tmp_path, max_lease_seconds=seconds)


def raw(gym, method, data, metadata=None):
    """Calls a method with bytes of one's own."""
    call = gym.channel.unary_unary(f"/gym.v1.GymService/{method}")
    return call(data, metadata=gym.metadata if metadata is None else metadata)


MALFORMED = [b"\xff" * 100, b"\x0a\x50abc", b"\x0b" * 10_000 + b"\x0c" * 10_000, b"\x0a\x03\xed\xa0\x80"]


@pytest.mark.parametrize("data", MALFORMED, ids=["garbage", "cut", "nested", "surrogate"])
async def test_bytes_that_are_no_message_are_an_invalid_argument_and_write_no_log(gym, data, caplog):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw(gym, "CreateEpisode", data)

    assert error_of(raised).reason == "MESSAGE_MALFORMED"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw(gym, "CreateEpisode", data, metadata=())
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert caplog.records == []


async def test_a_stream_with_bytes_that_are_no_message_answers_what_came_before_and_ends(gym):
    empty = pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="a")]).SerializeToString()
    stream = gym.channel.stream_stream("/gym.v1.GymService/Rollout")(metadata=gym.metadata)
    await stream.write(empty)
    await stream.write(b"\xff\xff")

    assert pb.RolloutResponse.FromString(await stream.read()).results[0].command_id == "a"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream.read()
    assert error_of(raised).reason == "MESSAGE_MALFORMED"


@pytest.mark.parametrize("lease", [(2**63 - 1, 0), (-(2**63), 0), (10**12, 0), (-5, 0), (0, -5), (301, 0)])
async def test_a_lease_that_cannot_be_is_an_invalid_argument(gym, lease):
    duration = pb.CreateEpisodeRequest().lease
    duration.seconds, duration.nanos = lease

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.create(lease=duration)

    assert error_of(raised).reason == "LEASE_INVALID"


@pytest.mark.parametrize("name", ["bugfix/" + "x" * 1_000_000, "é" * 100_000, "a\n\x1b[31m\0"])
async def test_an_error_about_an_odd_name_arrives_whole_short_and_printable(gym, name):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.create(task_id=name)

    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    assert len(raised.value.details()) <= 1000
    assert raised.value.details().isprintable()


@pytest.mark.parametrize("first", [True, False])
async def test_two_tokens_are_no_token(gym, first):
    other = ("authorization", "Bearer other")

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw(
            gym, "GetGymInfo", b"", metadata=(other, *gym.metadata) if first else (*gym.metadata, other)
        )

    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "action",
    [
        pb.Action(text="x" * 1_000_001),
        pb.Action(tool_calls=pb.ToolCalls(calls=[pb.ToolCall(tool="read", arguments_json="{}")] * 17)),
        pb.Action(text="x", policy_version="v" * 257),
    ],
    ids=["text", "calls", "policy_version"],
)
async def test_an_action_without_measure_is_refused_and_uses_up_no_turn(gym, action):
    episode = await gym.create()

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gym.step(episode.episode_id, 0, action)

    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await gym.step(episode.episode_id, 0, "<call> read </call>")


async def test_a_command_without_measure_in_its_name_is_refused(gym):
    stream = gym.stub.Rollout(metadata=gym.metadata)
    await stream.write(pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="x" * 129)]))

    assert (await stream.read()).results[0].error.reason == "COMMAND_ID_INVALID"
    stream.cancel()


async def test_what_the_engine_says_is_for_the_log_alone(tmp_path, caplog):
    async def start():
        raise SandboxLost("no such image: /var/lib/secret")

    async with gym_over(start, tmp_path) as gym:
        answers = await asyncio.gather(gym.create("same"), gym.create("same"), return_exceptions=True)

    for answer in answers:
        assert answer.code() == grpc.StatusCode.UNAVAILABLE
        assert "secret" not in answer.details()
    assert "secret" in caplog.text


# --- ends, leases, records ---


class Slow(FakeSandbox):
    """Takes longer for a read than a short lease lasts."""

    async def read_file(self, path):
        await asyncio.sleep(2.5)
        return await super().read_file(path)


async def slow_sandbox():
    return Slow()


async def test_the_lease_does_not_run_while_a_turn_is_played(tmp_path):
    async with gym_over(slow_sandbox, tmp_path) as gym:
        episode = await gym.create(lease={"seconds": 1})

        answer = await gym.step(episode.episode_id, 0, "<call> read </call>")

        assert not answer.HasField("outcome")
        assert answer.observation.tool_results[0].text.startswith("def ")


async def test_a_client_that_died_in_the_middle_of_a_turn_gives_its_sandbox_back(tmp_path):
    async with gym_over(slow_sandbox, tmp_path, graders=1, capacity=1) as gym:
        episode = await gym.create(lease={"seconds": 1})
        turn = asyncio.ensure_future(gym.step(episode.episode_id, 0, "<call> read </call>"))
        await asyncio.sleep(0.1)
        turn.cancel()

        await asyncio.sleep(8)

        info = await gym.info()
        assert (info.live_episodes, info.warm_sandboxes) == (0, 2)


async def test_the_reaper_survives_whatever_goes_wrong_in_it(gym, monkeypatch):
    real = gym.running.episodes._end_expired
    calls = []

    def failing():
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a defect")
        real()

    monkeypatch.setattr(gym.running.episodes, "_end_expired", failing)
    await gym.create(lease={"nanos": 1})

    await asyncio.sleep(2.5)

    assert (await gym.info()).live_episodes == 0


async def test_a_defect_in_a_turn_ends_the_episode_as_ours_and_is_logged(tmp_path, caplog):
    class Faulty(FakeSandbox):
        async def read_file(self, path):
            raise ZeroDivisionError("a defect")

    async def start():
        return Faulty()

    async with gym_over(start, tmp_path) as gym:
        episode = await gym.create()
        answer = await gym.step(episode.episode_id, 0, "<call> read </call>")
        verdict = (await gym.grade(episode.episode_id)).verdict
        request = pb.GetEpisodeRequest(episode_id=episode.episode_id)
        record = await gym.stub.GetEpisode(request, metadata=gym.metadata)

    assert answer.outcome.errored
    assert record.outcome == answer.outcome
    assert verdict.status == pb.VERDICT_STATUS_INFRASTRUCTURE_ERROR
    assert not verdict.HasField("isolation")
    assert "a defect" in caplog.text


async def test_a_verdict_survives_sandboxes_that_are_lost(tmp_path):
    class Mortal(FakeSandbox):
        lost = 0

        async def run(self, job, timeout_seconds):
            if Mortal.lost < 2:
                Mortal.lost += 1
                raise SandboxLost("gone")
            return await super().run(job, timeout_seconds)

    async def start():
        return Mortal()

    async with gym_over(start, tmp_path) as gym:
        episode = await gym.create()
        await play(gym, episode.episode_id, MENU_SOLUTION)
        verdict = (await gym.grade(episode.episode_id)).verdict

    assert verdict.status == pb.VERDICT_STATUS_RESOLVED


async def test_an_episode_that_lived_long_is_kept_as_long_as_others_after_its_end(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, kept_episodes=2) as gym:
        old = await gym.create("old")
        for number in range(4):
            await gym.end((await gym.create(f"r{number}")).episode_id)
        await gym.end(old.episode_id)

        await gym.grade(old.episode_id)


async def test_what_is_remembered_of_episodes_is_bounded_graded_or_not(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, kept_episodes=3) as gym:
        for number in range(20):
            episode = await gym.create(f"r{number}")
            await gym.end(episode.episode_id)
            if number % 2:
                await gym.grade(episode.episode_id)
            with pytest.raises(grpc.aio.AioRpcError):
                await gym.create(f"bad{number}", toolset="none")
        episodes = gym.running.episodes

        assert len(episodes._by_id) == len(episodes._creations) == len(episodes._ended) == 3
        assert not episodes._work


async def test_a_client_that_takes_no_results_is_not_read_from_for_ever(gym):
    stream = gym.stub.Rollout(metadata=gym.metadata)
    commands = [pb.RolloutCommand(command_id="x" * 128, renew=pb.RenewLeasesRequest())] * 200

    async def write_for_ever():
        while True:
            await stream.write(pb.RolloutRequest(commands=commands))

    writer = asyncio.ensure_future(write_for_ever())
    done, _ = await asyncio.wait([writer], timeout=1.0)
    tasks = len(asyncio.all_tasks())
    stream.cancel()
    await asyncio.gather(writer, return_exceptions=True)

    assert not done
    assert tasks < 1200


async def test_a_stream_that_broke_is_taken_up_by_another_and_nothing_runs_twice(tmp_path):
    class Counted(FakeSandbox):
        reads = 0

        async def read_file(self, path):
            Counted.reads += 1
            await asyncio.sleep(0.3)
            return await super().read_file(path)

    async def start():
        return Counted()

    async with gym_over(start, tmp_path) as gym:
        episode = await gym.create()
        action = pb.Action(text="<call> read </call>")
        step = pb.StepEpisodeRequest(episode_id=episode.episode_id, turn=0, action=action)
        request = pb.RolloutRequest(commands=[pb.RolloutCommand(command_id="s", step=step)])
        for _ in range(3):
            broken = gym.stub.Rollout(metadata=gym.metadata)
            await broken.write(request)
            await asyncio.sleep(0.05)
            broken.cancel()
        stream = gym.stub.Rollout(metadata=gym.metadata)
        await stream.write(request)
        result = (await stream.read()).results[0]
        stream.cancel()

    assert result.stepped.observation.tool_results[0].text.startswith("def ")
    assert Counted.reads == 1


# --- exactly once ---


class Counting(FakeSandbox):
    """Counts what is done in sandboxes, slowly enough to be interrupted."""

    done: ClassVar[Counter[str]] = Counter()

    async def read_file(self, path):
        Counting.done["read"] += 1
        await asyncio.sleep(0.002)
        return await super().read_file(path)

    async def run(self, job, timeout_seconds):
        Counting.done["run"] += 1
        await asyncio.sleep(0.002)
        return await super().run(job, timeout_seconds)


async def counting_sandbox():
    return Counting()


class Model:
    """What has to come back, by the contract's own words: a stored answer for each key, and an error else."""

    def __init__(self):
        self.answers = {}
        self.actions = []
        self.ended = False

    def expect(self, kind, key):
        """Gives the answer that is stored, the reason of the error that is due, or None for a first time."""
        if (kind, key) in self.answers:
            return self.answers[kind, key]
        if kind == "create":
            return "REQUEST_ID_REUSED" if any(known[0] == "create" for known in self.answers) else None
        if not any(known[0] == "create" for known in self.answers):
            return "EPISODE_NOT_FOUND"
        if kind == "step":
            turn = key[0]
            if turn < len(self.actions):
                return "TURN_CONTENT_DIFFERS" if turn == len(self.actions) - 1 else "TURN_NOT_DUE"
            return "EPISODE_ENDED" if self.ended else "TURN_NOT_DUE" if turn > len(self.actions) else None
        return "EPISODE_ACTIVE" if kind == "grade" and not self.ended else None

    def store(self, kind, key, answer):
        self.answers[kind, key] = answer
        if kind == "step":
            self.actions.append(key[1])
            self.ended = self.ended or answer.HasField("outcome")
        self.ended = self.ended or kind == "end"


SAID = ("<call> read </call>", "<call> test </call>", "<call> submit </call>", "nothing")


def drawn_operations(rng):
    """Commands for one episode in any order, each with the milliseconds after which its first call is dropped."""
    for _ in range(rng.randint(3, 12)):
        kind = rng.choices(("create", "step", "end", "grade"), (3, 6, 1, 2))[0]
        key = ""
        if kind == "create":
            key = rng.choice(("bugfix/zero/share", "bugfix/zero/share", "bugfix/init/tally"))
        elif kind == "step":
            key = rng.randint(0, 3), rng.choice(SAID)
        yield kind, key, rng.randint(0, 4)


async def send_interrupted(call, drop_after):
    """Makes a call, drops it on the way, then makes it twice at once; gives both answers without their times."""
    dropped = asyncio.ensure_future(call())
    await asyncio.sleep(drop_after / 1000)
    dropped.cancel()
    answers = await asyncio.gather(call(), call(), return_exceptions=True)
    await asyncio.gather(dropped, return_exceptions=True)
    for answer in answers:
        if hasattr(answer, "expire_time"):
            answer.ClearField("expire_time")
    return answers


@pytest.mark.parametrize("seed", range(5))
async def test_commands_that_are_dropped_repeated_and_reordered_run_once(tmp_path, seed):
    rng = random.Random(seed)
    async with gym_over(counting_sandbox, tmp_path) as gym:
        for number in range(10):
            model, episode_id = Model(), "none"
            Counting.done.clear()
            for kind, key, drop_after in drawn_operations(rng):
                call = {
                    "create": lambda key=key, name=f"r{number}": gym.create(name, task_id=key),
                    "step": lambda key=key, name=episode_id: gym.step(name, *key),
                    "end": lambda name=episode_id: gym.end(name),
                    "grade": lambda name=episode_id: gym.grade(name),
                }[kind]
                expected = model.expect(kind, key)
                for answer in await send_interrupted(call, drop_after):
                    if isinstance(answer, grpc.aio.AioRpcError):
                        trailers = dict(answer.trailing_metadata())
                        answer = pb.Error.FromString(trailers["gym-error-bin"]).reason
                    elif expected is None:
                        model.store(kind, key, answer)
                        expected = answer
                        episode_id = answer.episode_id if kind == "create" else episode_id
                    assert answer == expected, (kind, key)
            if episode_id != "none":
                await send_interrupted(lambda name=episode_id: gym.end(name), rng.randint(0, 4))
                assert (await gym.grade(episode_id)).HasField("verdict")
                assert Counting.done["read"] == 1 + model.actions.count("<call> read </call>")
            assert (await gym.info()).live_episodes == 0
        await asyncio.sleep(0.1)
        assert (await gym.info()).warm_sandboxes == 6


@pytest.mark.docker
@pytest.mark.parametrize("toolset", ["menu", "coding"])
async def test_an_episode_in_a_container_is_played_and_graded(docker_gym, toolset):
    gym = docker_gym
    episode = await gym.create(toolset=toolset)
    if toolset == "menu":
        turns = MENU_SOLUTION
    else:
        name = episode.messages[1].content.split("test_")[1].split(".py")[0]
        calls = [
            f'{{"name": "Read", "arguments": {{"file_path": "{name}.py"}}}}',
            f'{{"name": "Edit", "arguments": {{"file_path": "{name}.py", "old_string": "    return", '
            '"new_string": "    if count == 0:\\n        return 0\\n    return"}}',
            '{"name": "Bash", "arguments": {"command": "pytest -q"}}',
        ]
        turns = [*(f"<tool_call>{call}</tool_call>" for call in calls), "Done."]
    answers = await play(gym, episode.episode_id, turns)
    graded = await gym.grade(episode.episode_id)

    assert not any(result.is_error for answer in answers for result in answer.observation.tool_results)
    assert graded.verdict.status == pb.VERDICT_STATUS_RESOLVED
