"""The client of the gym, in values of the trainer."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from gym_contract.v1 import gym_pb2 as pb

from trainer_client import wire
from trainer_client.endpoint import Endpoint, find_endpoint
from trainer_client.errors import EpisodeLost, GymError, GymRefused
from trainer_client.link import Link
from trainer_client.trajectory import Outcome

# NOT_FOUND is also the answer for every episode of a gym that was restarted.
_LOST_CODES = {"NOT_FOUND", "INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED"}
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, for policies that do not sample token ids."""

    tool: str
    arguments_json: str
    """An object in JSON."""

    @classmethod
    def of(cls, tool: str, arguments: Mapping[str, object]) -> Self:
        """Makes a call; an argument that is None is left out."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return cls(tool, json.dumps(given))


class GymClient:
    """Talks to one gym. Made by `connect`; belongs to the event loop in which it was made."""

    def __init__(self, link: Link, lease_seconds: float) -> None:
        self._link = link
        self._lease_seconds = lease_seconds
        self._live: dict[str, str] = {}
        """The episodes that are live, each with its group."""
        self._opening: set[asyncio.Task[wire.Created]] = set()
        self._giving_back: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        endpoint: Endpoint | None = None,
        *,
        on_notice: Callable[[str], None] = lambda _: None,
        reconnect_timeout_seconds: float = 600.0,
        lease_seconds: float = 60.0,
    ) -> AsyncIterator[Self]:
        """Connects to a gym; at the end cancels the episodes that are still live.

        Args:
            endpoint: Where the gym listens; None for the gym of this user on this machine, which is looked up
                again after each break, because a restart changes port and token.
            on_notice: Is told in a sentence when the gym does not answer and when it is back.
            reconnect_timeout_seconds: How long a gym that is away, or has no capacity, is waited for.
            lease_seconds: How long an episode outlives a client that died; renewed three times as often.

        Raises:
            NoGym: No gym runs on this machine.
            GymUnavailable: Nothing answers at the endpoint.
            GymRefused: The gym does not take the credential.
        """
        locate = find_endpoint if endpoint is None else lambda: endpoint
        async with Link.connect(locate, on_notice, reconnect_timeout_seconds) as link:
            client = cls(link, lease_seconds)
            renewing = asyncio.create_task(client._keep_leases())
            try:
                yield client
            finally:
                await client._end_live_episodes()
                renewing.cancel()

    # Unary calls

    async def get_info(self) -> wire.GymInfo:
        """Returns what the gym says about itself."""
        return wire.decode_info(await self._link.call("GetGymInfo", pb.GetGymInfoRequest(), 10))

    async def list_tasks(self, suite: str, split: str = "") -> tuple[wire.Task, ...]:
        """Returns the tasks of a suite in the gym's order, of one split (train, validation, test) or of all.

        Raises:
            GymRefused: There is no such suite.
        """
        tasks: list[wire.Task] = []
        request = pb.ListTasksRequest(suite=suite, split=f"SPLIT_{(split or 'unspecified').upper()}")
        while True:
            page = await self._link.call("ListTasks", request, 30)
            tasks += map(wire.decode_task, page.tasks)
            if not page.next_page_token:
                return tuple(tasks)
            request.page_token = page.next_page_token

    async def register_tokenizer(
        self,
        tokenizer_json: bytes,
        chat_template: str,
        end_of_turn: str,
        *,
        template_arguments: Mapping[str, object] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> wire.Tokenizer:
        """Makes a tokenizer known to the gym, now and after each restart of the gym.

        Args:
            tokenizer_json: The content of tokenizer.json.
            chat_template: The template in Jinja, as in transformers.
            end_of_turn: The text of the token that ends a turn.
            template_arguments: What the template is rendered with beside messages and tools, such as
                {"enable_thinking": False}.
            stop_token_ids: Further ids that end a turn, as in a model's generation_config.

        Raises:
            GymRefused: It is no tokenizer, or the template does not render.
        """
        request = pb.RegisterTokenizerRequest(
            tokenizer_json=tokenizer_json,
            chat_template=chat_template,
            end_of_turn=end_of_turn,
            template_arguments_json=json.dumps(dict(template_arguments)) if template_arguments else "",
            stop_token_ids=stop_token_ids,
        )
        tokenizer = wire.decode_tokenizer(
            (await self._link.call("RegisterTokenizer", request, 120)).tokenizer
        )
        self._link.remember(tokenizer.fingerprint, request)
        return tokenizer

    async def get_episode(self, episode_id: str) -> wire.EpisodeRecord:
        """Returns the gym's record of an episode.

        Raises:
            GymRefused: The gym does not know it, or not any more.
        """
        return wire.decode_record(
            await self._link.call("GetEpisode", pb.GetEpisodeRequest(episode_id=episode_id), 30)
        )

    async def check_task(self, task_id: str) -> wire.TaskCheck:
        """Has the gym grade a task's reference solution, its untouched repository, and the solution again.

        Raises:
            GymRefused: There is no such task.
        """
        # As long as the gradings of a repository take that many others wait for, too.
        return wire.decode_check(
            await self._link.call("CheckTask", pb.CheckTaskRequest(task_id=task_id), 600)
        )

    # Commands of the stream

    async def create(
        self,
        task_id: str,
        toolset: str,
        *,
        run_seed: int,
        group: str,
        index: int,
        fingerprint: str = "",
        max_turns: int = 0,
        max_edits: int = 0,
        limits: Mapping[str, float] | None = None,
    ) -> wire.Created:
        """Opens an episode, and waits for capacity where there is none.

        The same seed (run_seed, group, index) gives the same episode, but each call opens one of its own.

        Args:
            task_id: The task.
            toolset: menu or coding.
            run_seed: The seed of the run.
            group: The name of the group, such as train/12/3.
            index: The place of the episode in its group.
            fingerprint: A registered tokenizer; empty for an episode in text only.
            max_turns: 0 for the toolset's own.
            max_edits: 0 for the toolset's own, -1 for any number.
            limits: Less than the gym allows, by the names of the contract's SandboxLimits, such as
                {"memory_bytes": 256 << 20, "command_timeout_seconds": 10}. Anything but output and time has a
                container started for the episode, for whose start this waits.

        Raises:
            GymRefused: Task, toolset or tokenizer are not known, limits are not below the gym's, or there was no
                capacity for too long.
            ValueError: A limit has a name that there is not.
        """
        request = pb.CreateEpisodeRequest(
            request_id=uuid.uuid4().hex,
            task_id=task_id,
            toolset=toolset,
            seed=pb.EpisodeSeed(run_seed=run_seed, group=group, index=index),
            tokenizer_fingerprint=fingerprint,
            max_turns=max_turns,
            max_edits=max_edits,
            limits=wire.encode_limits(limits) if limits else None,
        )
        request.lease.FromNanoseconds(int(self._lease_seconds * 1e9))
        opening = asyncio.create_task(self._open(request))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Who gives up in the middle must not leave an episode that nobody knows of.
            opening.add_done_callback(self._give_back)
            raise

    async def step(
        self,
        episode_id: str,
        turn: int,
        token_ids: Sequence[int],
        logprobs: Sequence[float] = (),
        *,
        policy_version: str = "",
        temperature: float = 1.0,
    ) -> wire.Stepped:
        """Plays a turn of sampled ids, a sampled end-of-turn included.

        Raises:
            EpisodeLost: The gym has lost the episode.
            GymRefused: The turn is not due, or was played with other content.
        """
        action = pb.Action(
            token_ids=pb.TokenIds(ids=token_ids),
            logprobs=logprobs,
            policy_version=policy_version,
            sampling=pb.Sampling(temperature=temperature, top_p=1.0),
        )
        return await self._step(episode_id, turn, action)

    async def step_text(self, episode_id: str, turn: int, text: str) -> wire.Stepped:
        """Plays a turn given as text, without the template's markup. Raises as `step`."""
        return await self._step(episode_id, turn, pb.Action(text=text))

    async def step_calls(self, episode_id: str, turn: int, calls: Sequence[ToolCall]) -> wire.Stepped:
        """Plays a turn given as calls, carried out in their order. Raises as `step`."""
        messages = [pb.ToolCall(tool=call.tool, arguments_json=call.arguments_json) for call in calls]
        return await self._step(episode_id, turn, pb.Action(tool_calls=pb.ToolCalls(calls=messages)))

    async def end(self, episode_id: str, stop_reason: str) -> Outcome:
        """Ends an episode; the outcome is the first one where it had ended before.

        Args:
            episode_id: The episode.
            stop_reason: max_tokens, context_overflow or cancelled.

        Raises:
            EpisodeLost: The gym has lost the episode.
        """
        request = pb.EndEpisodeRequest(
            episode_id=episode_id, stop_reason=f"STOP_REASON_{stop_reason.upper()}"
        )
        result = await self._episode_command(episode_id, pb.RolloutCommand(end=request))
        self._live.pop(episode_id, None)
        return wire.decode_outcome(result.ended.outcome)

    async def cancel_group(self, group: str) -> int:
        """Ends the live episodes of a group that this client has opened; gives how many there were.

        Those whose creation is still waited for are not among them: cancel the calls of `create`.
        """
        live = [episode_id for episode_id, its_group in self._live.items() if its_group == group]
        await asyncio.gather(*(self._cancel(episode_id) for episode_id in live))
        return len(live)

    async def grade(self, episode_id: str) -> wire.Graded:
        """Grades an ended episode.

        Raises:
            EpisodeLost: The gym has lost the episode.
            GymRefused: The episode has not ended.
        """
        request = pb.GradeEpisodeRequest(episode_id=episode_id)
        result = await self._episode_command(episode_id, pb.RolloutCommand(grade=request))
        return wire.decode_graded(result.graded)

    async def _open(self, request: pb.CreateEpisodeRequest) -> wire.Created:
        created = wire.decode_created((await self._link.send(pb.RolloutCommand(create=request))).created)
        self._live[created.episode_id] = request.seed.group
        return created

    def _give_back(self, opening: asyncio.Task[wire.Created]) -> None:
        """Ends an episode that nobody will play, instead of renewing its lease to the end of the connection."""
        if opening.cancelled() or opening.exception():
            return

        ending = asyncio.create_task(self._cancel(opening.result().episode_id))
        self._giving_back.add(ending)
        ending.add_done_callback(self._giving_back.discard)

    async def _cancel(self, episode_id: str) -> None:
        with suppress(GymError):  # Then its lease ends it.
            await self.end(episode_id, "cancelled")

    async def _step(self, episode_id: str, turn: int, action: pb.Action) -> wire.Stepped:
        request = pb.StepEpisodeRequest(episode_id=episode_id, turn=turn, action=action)
        result = await self._episode_command(episode_id, pb.RolloutCommand(step=request))
        if result.stepped.HasField("outcome"):
            self._live.pop(episode_id, None)
        return wire.decode_stepped(result.stepped)

    async def _episode_command(self, episode_id: str, command: pb.RolloutCommand) -> pb.RolloutResult:
        try:
            return await self._link.send(command)
        except GymRefused as refusal:
            if refusal.code not in _LOST_CODES and refusal.reason != "EPISODE_ENDED":
                raise
            self._live.pop(episode_id, None)
            raise EpisodeLost(f"{refusal.reason or refusal.code}: {refusal.message}") from None

    # Leases

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            if asked := set(self._live):
                # Not on the stream, where it would wait behind commands that wait for their turn.
                request = pb.RenewLeasesRequest(episode_ids=sorted(asked))
                with suppress(GymError):  # Who plays the episode hears of it from the next turn.
                    renewed = await self._link.call("RenewLeases", request, self._lease_seconds)
                    for ended in asked - set(renewed.episode_ids):
                        self._live.pop(ended, None)

    async def _end_live_episodes(self) -> None:
        """Gives the sandboxes back now; what cannot be ended in time is left to its lease."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await asyncio.gather(*self._opening, return_exceptions=True)
                await asyncio.gather(*map(self._cancel, sorted(self._live)), return_exceptions=True)
        for opening in self._opening:
            opening.cancel()
