"""A gym in this process, with the contract's manners and no sandbox, for tests of the trainer."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

STOP = 1
SUBMIT = 2
"""A turn with this id ends the episode; so does the fourth turn."""


@dataclass
class FakeEpisode:
    request: pb.CreateEpisodeRequest
    length: int
    answers: dict[int, pb.StepEpisodeResponse] = field(default_factory=dict)
    outcome: pb.Outcome | None = None


class Refusal(Exception):
    def __init__(self, code: grpc.StatusCode, reason: str, retry_seconds: float = 0.0) -> None:
        self.error = pb.Error(code=code.value[0], reason=reason, message=f"because of {reason}")
        if retry_seconds:
            self.error.retry_delay.FromNanoseconds(int(retry_seconds * 1e9))


class FakeGym(gym_pb2_grpc.GymServiceServicer):
    """Everything that a test may look at or set is an attribute."""

    def __init__(self, token: str = "secret", capacity: int = 64) -> None:
        self.token = token
        self.capacity = capacity
        self.episodes: dict[str, FakeEpisode] = {}
        self.batches: list[int] = []
        self.executed: Counter[str] = Counter()
        self.renewed: list[str] = []
        self.tokenizers: set[str] = set()
        self.break_stream_after = -1
        self.lose_steps_of: Counter[tuple[str, int]] = Counter()
        self.fail_gradings_of: Counter[tuple[str, int]] = Counter()
        self.slow_seconds = 0.0
        self.fingerprint_sent = ""
        self.registrations = 0
        self.position_shift = 0

    def live(self) -> list[str]:
        return [name for name, episode in self.episodes.items() if not episode.outcome]

    # RPCs

    async def GetGymInfo(self, request: Any, context: Any) -> pb.GetGymInfoResponse:
        await self._check(context)
        answer = pb.GetGymInfoResponse(
            capacity=self.capacity,
            live_episodes=len(self.live()),
            tokenizers=[pb.Tokenizer(fingerprint=fingerprint) for fingerprint in self.tokenizers],
        )
        answer.max_lease.FromSeconds(600)
        return answer

    async def ListTasks(self, request: Any, context: Any) -> pb.ListTasksResponse:
        await self._check(context)
        if request.suite != "fake":
            error = pb.Error(code=5, reason="SUITE_UNKNOWN", message="no such suite").SerializeToString()
            context.set_trailing_metadata((("gym-error-bin", error),))
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such suite")
        start = int(request.page_token or 0)
        tasks = [
            pb.Task(task_id=f"fake/{n}", suite="fake", split=request.split) for n in range(start, start + 2)
        ]
        return pb.ListTasksResponse(tasks=tasks, next_page_token=str(start + 2) if start < 4 else "")

    async def RegisterTokenizer(self, request: Any, context: Any) -> pb.RegisterTokenizerResponse:
        await self._check(context)
        fingerprint = request.tokenizer_json.decode()
        self.registrations += 1
        self.tokenizers.add(fingerprint)
        tokenizer = pb.Tokenizer(fingerprint=fingerprint, vocabulary_size=40, stop_token_ids=[STOP])
        return pb.RegisterTokenizerResponse(tokenizer=tokenizer)

    async def RenewLeases(self, request: Any, context: Any) -> pb.RenewLeasesResponse:
        await self._check(context)
        return self._renew(request)

    async def Rollout(self, requests: Any, context: Any) -> AsyncIterator[pb.RolloutResponse]:
        await self._check(context)
        results: asyncio.Queue[pb.RolloutResult | None] = asyncio.Queue()

        async def take() -> None:
            async for request in requests:
                self.batches.append(len(request.commands))
                for command in request.commands:
                    asyncio.get_running_loop().create_task(answer(command))
            results.put_nowait(None)

        async def answer(command: pb.RolloutCommand) -> None:
            await asyncio.sleep(self.slow_seconds)
            results.put_nowait(self.carry_out(command))

        taking = asyncio.get_running_loop().create_task(take())
        try:
            while result := await results.get():
                if self.break_stream_after == 0:
                    self.break_stream_after = -1
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
                self.break_stream_after -= 1
                yield pb.RolloutResponse(results=[result])
        finally:
            taking.cancel()

    async def _check(self, context: Any) -> None:
        if ("authorization", f"Bearer {self.token}") not in {
            tuple(pair) for pair in context.invocation_metadata()
        }:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")

    # Commands

    def carry_out(self, command: pb.RolloutCommand) -> pb.RolloutResult:
        result = pb.RolloutResult(command_id=command.command_id)
        kind = command.WhichOneof("command")
        assert kind
        try:
            answer = getattr(self, f"_{kind}")(getattr(command, kind))
            name = {
                "create": "created",
                "step": "stepped",
                "end": "ended",
                "grade": "graded",
                "renew": "renewed",
            }
            getattr(result, name[kind]).CopyFrom(answer)
        except Refusal as refusal:
            result.error.CopyFrom(refusal.error)
        return result

    def _find(self, episode_id: str) -> FakeEpisode:
        if episode_id not in self.episodes:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "EPISODE_UNKNOWN")
        return self.episodes[episode_id]

    def _create(self, request: pb.CreateEpisodeRequest) -> pb.CreateEpisodeResponse:
        episode_id = f"episode-{request.request_id}"
        seed = request.seed
        prompt = [5 + (len(seed.group) + seed.index + n) % 30 for n in range(6 + seed.index % 3)]
        if request.tokenizer_fingerprint and request.tokenizer_fingerprint not in self.tokenizers:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "TOKENIZER_UNKNOWN")
        if episode_id not in self.episodes:
            if len(self.live()) >= self.capacity:
                raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "CAPACITY", retry_seconds=0.02)
            self.executed[f"create {episode_id}"] += 1
            self.episodes[episode_id] = FakeEpisode(request, len(prompt))
        delta = pb.TokenDelta(token_ids=prompt, tokenizer_fingerprint=request.tokenizer_fingerprint)
        return pb.CreateEpisodeResponse(episode_id=episode_id, prompt=delta, max_turns=4)

    def _step(self, request: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        episode = self._find(request.episode_id)
        seed = episode.request.seed
        if self.lose_steps_of[seed.group, seed.index]:
            self.lose_steps_of[seed.group, seed.index] -= 1
            del self.episodes[request.episode_id]
            raise Refusal(grpc.StatusCode.NOT_FOUND, "EPISODE_UNKNOWN")
        if request.turn in episode.answers:
            return episode.answers[request.turn]
        if request.turn != len(episode.answers) or episode.outcome:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, "TURN_NOT_DUE")
        self.executed[f"step {request.episode_id} {request.turn}"] += 1
        ids = list(request.action.token_ids.ids)
        result = pb.ToolResult(tool="read", text=f"turn {request.turn}")
        answer = pb.StepEpisodeResponse(observation=pb.Observation(tool_results=[result]))
        episode.length += len(ids)
        if SUBMIT in ids or request.turn == 3:
            reason = pb.STOP_REASON_SUBMITTED if SUBMIT in ids else pb.STOP_REASON_MAX_TURNS
            episode.outcome = pb.Outcome(
                stop_reason=reason, terminated=SUBMIT in ids, truncated=SUBMIT not in ids
            )
            answer.outcome.CopyFrom(episode.outcome)
        else:
            appended = [*([] if ids[-1] == STOP else [STOP]), *range(5, 8 + sum(ids) % 4)]
            answer.observation.delta.token_ids.extend(appended)
            answer.observation.delta.position = episode.length + self.position_shift
            answer.observation.delta.tokenizer_fingerprint = (
                self.fingerprint_sent or episode.request.tokenizer_fingerprint
            )
            episode.length += len(appended)
        episode.answers[request.turn] = answer
        return answer

    def _end(self, request: pb.EndEpisodeRequest) -> pb.EndEpisodeResponse:
        episode = self._find(request.episode_id)
        episode.outcome = episode.outcome or pb.Outcome(stop_reason=request.stop_reason, truncated=True)
        return pb.EndEpisodeResponse(outcome=episode.outcome)

    def _grade(self, request: pb.GradeEpisodeRequest) -> pb.GradeEpisodeResponse:
        episode = self._find(request.episode_id)
        seed = episode.request.seed
        if not episode.outcome:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, "EPISODE_ACTIVE")
        verdict = pb.Verdict(status=pb.VERDICT_STATUS_RESOLVED, hidden=pb.TestCount(passed=3, total=3))
        if self.fail_gradings_of[seed.group, seed.index]:
            self.fail_gradings_of[seed.group, seed.index] -= 1
            verdict = pb.Verdict(status=pb.VERDICT_STATUS_INFRASTRUCTURE_ERROR, reason="engine gone")
        return pb.GradeEpisodeResponse(verdict=verdict, outcome=episode.outcome)

    def _renew(self, request: pb.RenewLeasesRequest) -> pb.RenewLeasesResponse:
        self.renewed += request.episode_ids
        return pb.RenewLeasesResponse(
            episode_ids=[each for each in request.episode_ids if each in self.live()]
        )


async def serve(gym: FakeGym, state: Path) -> grpc.aio.Server:
    """Starts the gym on a free port and writes its endpoint file."""
    server = grpc.aio.server()
    gym_pb2_grpc.add_GymServiceServicer_to_server(gym, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    path = state / "endpoint.json"
    path.touch(mode=0o600)
    os.chmod(path, 0o600)
    path.write_text(json.dumps({"address": f"127.0.0.1:{port}", "token": gym.token}))
    return server
