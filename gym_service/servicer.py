"""One method per RPC: decode, call, encode. Unary calls and the Rollout stream share the same handlers."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import __version__, wire
from gym_service.admission import TOOLSETS
from gym_service.callers import CALLER
from gym_service.episodes import Episodes
from gym_service.errors import AtCapacity, GymError, InvalidRequest, TooLarge, Unavailable
from gym_service.evaluation.evaluator import Evaluator
from gym_service.fairness import FairSemaphore, Turnstile
from gym_service.rollout import CommandStream
from gym_service.sandbox.isolation import Assurance
from gym_service.sandbox.pool import Pool
from gym_service.tasks.suites import Task, environment_of
from gym_service.tokens import ChatTokenizer, parse_template_arguments

logger = logging.getLogger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request")
Response = TypeVar("Response")

MAX_PAGE_SIZE = 1000
ERROR_DOMAIN = "gym.v1"
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MAX_COMMAND_ID_CHARACTERS = 128
_MAX_TASK_ID_CHARACTERS = 256
_MOST_SUBMISSIONS = 16
"""Unanswered ones of a stream: they are kept until a grader is free, and each may have megabytes."""
_MOST_STREAMS = 64
"""Of one caller: far more than it needs, because a stream carries any number of episodes."""


class GymServicer(gym_pb2_grpc.GymServiceServicer):
    """The gym's side of the contract."""

    def __init__(
        self,
        episodes: Episodes,
        evaluator: Evaluator,
        pool: Pool,
        assurance: Assurance,
        turnstile: Turnstile,
        max_message_bytes: int,
    ) -> None:
        self._episodes = episodes
        self._evaluator = evaluator
        self._turnstile = turnstile
        self._streams: Counter[str] = Counter()
        """The open streams, by their callers."""
        self._registering = FairSemaphore(1)
        self._running: set[asyncio.Task[Any]] = set()
        """What answers calls and commands."""
        self._pool = pool
        self._assurance = assurance
        self._isolation = wire.isolation_to(assurance.isolation)
        self._max_message_bytes = max_message_bytes

    # --- unary ---

    async def GetGymInfo(self, request: pb.GetGymInfoRequest, context: Context) -> pb.GetGymInfoResponse:
        """Describes the gym."""
        return await self._answer(self._info(request), context)

    async def ListTasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:
        """Lists tasks."""
        return await self._answer(self._tasks(request), context)

    async def RegisterTokenizer(
        self, request: pb.RegisterTokenizerRequest, context: Context
    ) -> pb.RegisterTokenizerResponse:
        """Makes a tokenizer known."""
        return await self._answer(self._register(request), context)

    async def CreateEpisode(
        self, request: pb.CreateEpisodeRequest, context: Context
    ) -> pb.CreateEpisodeResponse:
        """Opens an episode."""
        return await self._answer(self._create(request), context)

    async def StepEpisode(self, request: pb.StepEpisodeRequest, context: Context) -> pb.StepEpisodeResponse:
        """Plays a turn."""
        return await self._answer(self._step(request), context)

    async def EndEpisode(self, request: pb.EndEpisodeRequest, context: Context) -> pb.EndEpisodeResponse:
        """Ends an episode."""
        return await self._answer(self._end(request), context)

    async def GradeEpisode(
        self, request: pb.GradeEpisodeRequest, context: Context
    ) -> pb.GradeEpisodeResponse:
        """Grades an episode."""
        return await self._answer(self._grade(request), context)

    async def GetEpisode(self, request: pb.GetEpisodeRequest, context: Context) -> pb.GetEpisodeResponse:
        """Returns the record of an episode."""
        return await self._answer(self._get(request), context)

    async def CheckTask(self, request: pb.CheckTaskRequest, context: Context) -> pb.CheckTaskResponse:
        """Grades what is known of a task."""
        return await self._answer(self._check(request), context)

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: Context) -> pb.RenewLeasesResponse:
        """Renews leases."""
        return await self._answer(self._renew(request), context)

    # --- streamed ---

    async def Rollout(
        self, requests: AsyncIterator[pb.RolloutRequest], context: Context
    ) -> AsyncIterator[pb.RolloutResponse]:
        """Carries out commands side by side and sends results as they come."""
        stream: CommandStream[pb.RolloutRequest, pb.RolloutCommand, pb.RolloutResult, pb.RolloutResponse]
        stream = CommandStream(
            lambda request: request.commands,
            lambda command: self._keep(self._perform(command)),
            lambda results: pb.RolloutResponse(results=results),
            self._turnstile,
            longest_silence_seconds=self._episodes.max_lease_seconds,
            goes_on=True,
            batch_bytes=self._max_message_bytes // 8,
        )
        async for response in self._stream(stream, requests, context):
            yield response

    async def EvaluateSubmissions(
        self, requests: AsyncIterator[pb.EvaluateSubmissionsRequest], context: Context
    ) -> AsyncIterator[pb.EvaluateSubmissionsResponse]:
        """Grades submissions side by side and sends answers as they come."""
        stream: CommandStream[
            pb.EvaluateSubmissionsRequest,
            pb.EvaluateSubmissionsRequest,
            pb.EvaluateSubmissionsResponse,
            pb.EvaluateSubmissionsResponse,
        ]
        stream = CommandStream(
            lambda request: (request,),
            lambda request: asyncio.create_task(self._evaluate(request)),
            lambda results: results[0],
            self._turnstile,
            longest_silence_seconds=self._episodes.max_lease_seconds,
            goes_on=False,
            most_unanswered=_MOST_SUBMISSIONS,
        )
        async for response in self._stream(stream, requests, context):
            yield response

    async def _stream(
        self,
        stream: CommandStream[Request, Any, Any, Response],
        requests: AsyncIterator[Request],
        context: Context,
    ) -> AsyncIterator[Response]:
        owner = CALLER.get().name
        if self._streams[owner] >= _MOST_STREAMS:
            message = f"{_MOST_STREAMS} streams of {owner} are open, the most of one caller"
            await self._abort(context, AtCapacity(message, "STREAMS_REACHED"))
        self._streams[owner] += 1
        try:
            async for response in stream.answer(requests):
                yield response
        except GymError as error:
            await self._abort(context, error)
        finally:
            self._streams[owner] -= 1

    async def _perform(self, command: pb.RolloutCommand) -> pb.RolloutResult:
        result = pb.RolloutResult(command_id=command.command_id[:_MAX_COMMAND_ID_CHARACTERS])
        try:
            if len(command.command_id) > _MAX_COMMAND_ID_CHARACTERS:
                message = f"command_id must have at most {_MAX_COMMAND_ID_CHARACTERS} characters"
                raise InvalidRequest(message, "COMMAND_ID_INVALID")
            match command.WhichOneof("command"):
                case "create":
                    result.created.CopyFrom(await self._create(command.create))
                case "step":
                    result.stepped.CopyFrom(await self._step(command.step))
                case "end":
                    result.ended.CopyFrom(await self._end(command.end))
                case "grade":
                    result.graded.CopyFrom(await self._grade(command.grade))
                case "renew":
                    result.renewed.CopyFrom(await self._renew(command.renew))
                case _:
                    raise InvalidRequest("the command is empty", "COMMAND_EMPTY")
        except GymError as error:
            result.error.CopyFrom(self._told(error))
        except Exception:
            result.error.CopyFrom(self._told(_defect("a command")))
        return result

    async def _evaluate(self, request: pb.EvaluateSubmissionsRequest) -> pb.EvaluateSubmissionsResponse:
        answer = pb.EvaluateSubmissionsResponse(
            task_id=request.task_id[:_MAX_TASK_ID_CHARACTERS], sample_index=request.sample_index
        )
        try:
            if self._episodes.draining:
                raise Unavailable("the gym is about to stop", "DRAINING", retry_delay_seconds=1.0)
            content = wire.content_from(request)
            task = self._episodes.catalogue.task(request.task_id)
            evaluated = await self._evaluator.evaluate(task, content)
            return wire.evaluated_to(request, evaluated, self._isolation_of(task))
        except GymError as error:
            answer.error.CopyFrom(self._told(error))
        except Exception:
            answer.error.CopyFrom(self._told(_defect("a submission")))
        return answer

    async def _answer(self, work: Coroutine[Any, Any, Response], context: Context) -> Response:
        """Awaits a handler and turns its error into the call's status. The handler goes on without its client."""
        try:
            return await asyncio.shield(self._keep(work))
        except GymError as error:
            await self._abort(context, error)
        except Exception:
            await self._abort(context, _defect("a call"))

    async def _abort(self, context: Context, error: GymError) -> NoReturn:
        self._episodes.accounts.errors[error.reason] += 1
        await abort(context, error)

    def _told(self, error: GymError) -> pb.Error:
        self._episodes.accounts.errors[error.reason] += 1
        return wire.error_to(error)

    def _keep(self, work: Coroutine[Any, Any, Response]) -> asyncio.Task[Response]:
        """Does something to its end, even if nobody waits for it any more."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # Who waits is told; that nobody does is no error.

    # --- handlers ---

    async def _info(self, request: pb.GetGymInfoRequest) -> pb.GetGymInfoResponse:
        catalogue = self._episodes.catalogue
        response = pb.GetGymInfoResponse(
            service_version=__version__,
            toolsets=map(wire.toolset_to, TOOLSETS.values()),
            suites=[
                pb.Suite(
                    name=name,
                    task_count=len(tasks),
                    toolsets=_toolsets_of(tasks),
                    unproven_count=catalogue.unproven.get(name, 0),
                )
                for name, tasks in catalogue.suites.items()
            ],
            tokenizers=map(wire.tokenizer_to, self._episodes.tokenizers.facts),
            isolation=self._isolation,
            capacity=self._episodes.capacity_of(CALLER.get()),
            live_episodes=self._episodes.live,
            max_message_bytes=self._max_message_bytes,
            warm_sandboxes=self._pool.warm,
            pool=wire.pool_to(self._pool.status),
            grading=wire.grading_to(self._episodes.grading),
            self_tests=map(wire.self_test_to, self._assurance.self_tests),
            profile=self._assurance.profile,
            gaps=self._assurance.gaps,
        )
        response.max_lease.FromMilliseconds(round(self._episodes.max_lease_seconds * 1000))
        return response

    async def _tasks(self, request: pb.ListTasksRequest) -> pb.ListTasksResponse:
        split = wire.split_from(request.split)
        tasks = [
            task for task in self._episodes.catalogue.suite(request.suite) if split in (None, task.split)
        ]
        try:
            first = int(request.page_token or 0)
        except ValueError:
            first = -1
        if not 0 <= first <= len(tasks):
            raise InvalidRequest("page_token is not one of this list", "PAGE_TOKEN_INVALID")
        if request.page_size < 0:
            raise InvalidRequest("page_size must not be negative", "PAGE_SIZE_INVALID")
        last = first + min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)
        return pb.ListTasksResponse(
            tasks=map(wire.task_to, tasks[first:last]),
            next_page_token=str(last) if last < len(tasks) else "",
        )

    async def _register(self, request: pb.RegisterTokenizerRequest) -> pb.RegisterTokenizerResponse:
        async with self._registering:
            tokenizer = await asyncio.to_thread(
                ChatTokenizer,
                request.tokenizer_json,
                request.chat_template,
                request.end_of_turn,
                parse_template_arguments(request.template_arguments_json),
                tuple(request.stop_token_ids),
            )
        self._episodes.tokenizers.add(tokenizer, CALLER.get())
        return pb.RegisterTokenizerResponse(tokenizer=wire.tokenizer_to(tokenizer.facts))

    async def _create(self, request: pb.CreateEpisodeRequest) -> pb.CreateEpisodeResponse:
        episode = await self._episodes.create(wire.creation_from(request))
        return wire.created_to(episode, reuse=self._pool.reuses(episode.limits))

    async def _step(self, request: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        # What nobody reads would be kept without measure.
        request.action.DiscardUnknownFields()
        action = wire.action_from(request.action)
        sent = request.action.SerializeToString(deterministic=True)
        return wire.stepped_to(*await self._episodes.step(request.episode_id, request.turn, action, sent))

    async def _end(self, request: pb.EndEpisodeRequest) -> pb.EndEpisodeResponse:
        reason = await self._episodes.end(request.episode_id, wire.stop_reason_from(request.stop_reason))
        return pb.EndEpisodeResponse(outcome=wire.outcome_to(reason))

    async def _grade(self, request: pb.GradeEpisodeRequest) -> pb.GradeEpisodeResponse:
        verdict, episode = await self._episodes.grade(request.episode_id)
        return wire.graded_to(verdict, episode, self._isolation_of(episode.task))

    async def _get(self, request: pb.GetEpisodeRequest) -> pb.GetEpisodeResponse:
        episode = self._episodes.read(request.episode_id)
        record = wire.record_to(episode, self._isolation_of(episode.task))
        if record.ByteSize() > self._max_message_bytes:
            message = f"the record has more than {self._max_message_bytes} bytes; the gym writes it with --records all"
            raise TooLarge(message, "RECORD_TOO_LARGE")
        return record

    async def _check(self, request: pb.CheckTaskRequest) -> pb.CheckTaskResponse:
        return wire.checked_to(await self._episodes.check(request.task_id))

    async def _renew(self, request: pb.RenewLeasesRequest) -> pb.RenewLeasesResponse:
        return pb.RenewLeasesResponse(episode_ids=self._episodes.renew(request.episode_ids))

    def _isolation_of(self, task: Task) -> pb.Isolation:
        measured = self._pool.isolation_of(environment_of(task))
        return wire.isolation_to(measured) if measured else self._isolation


def _toolsets_of(tasks: Iterable[Task]) -> list[str]:
    """The toolsets that every task can be played with."""
    return sorted(name for name, toolset in TOOLSETS.items() if all(map(toolset.plays, tasks)))


async def abort(context: Context, error: GymError) -> NoReturn:
    """Ends a call with an error, in the standard's form and in the contract's own."""
    message = wire.error_to(error)
    details = [ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)]
    if message.HasField("retry_delay"):
        details.append(RetryInfo(retry_delay=message.retry_delay))
    status = Status(code=error.code, message=error.message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    await context.abort(
        _STATUS_CODES[int(error.code)],
        error.message,
        (
            ("grpc-status-details-bin", status.SerializeToString()),
            ("gym-error-bin", message.SerializeToString()),
        ),
    )


def _defect(what: str) -> GymError:
    """Logs the exception at hand, and gives the error that tells a client nothing but where in the log it is."""
    number = secrets.token_hex(4)
    logger.exception("%s failed by a defect of the service, number %s", what, number)
    return GymError(f"the service failed; its log says why, at number {number}", "INTERNAL")
