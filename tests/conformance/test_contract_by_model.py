"""The contract against a model of it: whatever order calls come in, and however often, answers are what they must be.

A client may repeat a call because its answer was lost, send what is not due, and give up in the middle of a call. The
model says for each call what must come back; the gym runs in this process over sandboxes that isolate nothing.
"""

import os
from dataclasses import dataclass, field
from uuid import uuid4

import grpc
from gym_contract.v1 import gym_pb2 as pb
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.conformance.target import Target

RUN = uuid4().hex
STEPS_AT_A_TIME = 50
MAX_TURNS = 6
RIGHT = {"bugfix/zero/share": "edit add_zero_guard", "bugfix/minmax/larger": "edit swap_minmax"}
CALLS = ("read", "test", "edit add_zero_guard", "edit swap_minmax", "edit hardcode_tests", "submit", "dance")
CLIENT_ENDS = (pb.STOP_REASON_CANCELLED, pb.STOP_REASON_MAX_TOKENS)


@dataclass
class Attempt:
    """What the model knows of an episode."""

    request: pb.CreateEpisodeRequest
    created: pb.CreateEpisodeResponse
    edit: str = ""
    """The one edit that counted."""
    turns: list[tuple[str, bytes]] = field(default_factory=list)
    """What was said and what was answered."""
    stop_reason: int = pb.STOP_REASON_UNSPECIFIED
    verdict: bytes = b""


class Contract(RuleBasedStateMachine):
    """A client that does anything, beside the model."""

    attempts = Bundle("attempts")
    target: Target
    machines = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).machines += 1
        self.all: list[Attempt] = []

    @property
    def live(self) -> int:
        return sum(not attempt.stop_reason for attempt in self.all)

    @rule(target=attempts, task_id=st.sampled_from(sorted(RIGHT)), index=st.integers(0, 3))
    def create(self, task_id: str, index: int) -> Attempt:
        request = pb.CreateEpisodeRequest(
            request_id=f"{RUN}/{self.machines}/{len(self.all)}",
            task_id=task_id,
            toolset="menu",
            seed=pb.EpisodeSeed(run_seed=0, group="g", index=index),
        )
        if self.live == self.target.capacity:
            self.target.refused("CreateEpisode", request, grpc.StatusCode.RESOURCE_EXHAUSTED)
            # Somebody has to make room, else nothing more would happen.
            self.end(next(attempt for attempt in self.all if not attempt.stop_reason), CLIENT_ENDS[0])
        attempt = Attempt(request, self.target.call("CreateEpisode", request))
        self.all.append(attempt)
        return attempt

    @rule(attempt=attempts)
    def create_again(self, attempt: Attempt) -> None:
        assert self.target.call("CreateEpisode", attempt.request).episode_id == attempt.created.episode_id

    @rule(attempt=attempts, said=st.sampled_from(CALLS), gives_up=st.booleans())
    def step(self, attempt: Attempt, said: str, gives_up: bool) -> None:
        turn = len(attempt.turns)
        request = self.turn(attempt, turn, said)
        if attempt.stop_reason:
            self.target.refused("StepEpisode", request, grpc.StatusCode.FAILED_PRECONDITION, "EPISODE_ENDED")
            return
        if gives_up:
            # The answer is lost, whether or not the turn was begun.
            self.target.stub.StepEpisode.future(request, metadata=self.target.metadata).cancel()
        response = self.target.call("StepEpisode", request)
        attempt.turns.append((said, response.observation.SerializeToString(deterministic=True)))
        (result,) = response.observation.tool_results
        second = said.startswith("edit") and bool(attempt.edit)
        assert result.is_error == (second or said == "dance")
        if said.startswith("edit") and not attempt.edit:
            attempt.edit = said
        if said == "submit":
            attempt.stop_reason = pb.STOP_REASON_SUBMITTED
        elif turn + 1 == MAX_TURNS:
            attempt.stop_reason = pb.STOP_REASON_MAX_TURNS
        assert response.outcome.stop_reason == attempt.stop_reason

    @rule(attempt=attempts)
    def repeat_the_latest_turn(self, attempt: Attempt) -> None:
        if attempt.turns:
            said, answer = attempt.turns[-1]
            response = self.target.call("StepEpisode", self.turn(attempt, len(attempt.turns) - 1, said))
            assert response.observation.SerializeToString(deterministic=True) == answer

    @rule(attempt=attempts)
    def say_something_else_in_the_latest_turn(self, attempt: Attempt) -> None:
        if attempt.turns:
            request = self.turn(attempt, len(attempt.turns) - 1, f"{attempt.turns[-1][0]} ")
            self.target.refused("StepEpisode", request, grpc.StatusCode.ABORTED, "TURN_CONTENT_DIFFERS")

    @rule(attempt=attempts, ahead=st.integers(1, 5))
    def play_a_turn_that_is_not_due(self, attempt: Attempt, ahead: int) -> None:
        request = self.turn(attempt, len(attempt.turns) + ahead, "read")
        reason = "EPISODE_ENDED" if attempt.stop_reason else "TURN_NOT_DUE"
        self.target.refused("StepEpisode", request, grpc.StatusCode.FAILED_PRECONDITION, reason)

    @rule(attempt=attempts, reason=st.sampled_from(CLIENT_ENDS))
    def end(self, attempt: Attempt, reason: int) -> None:
        request = pb.EndEpisodeRequest(episode_id=attempt.created.episode_id, stop_reason=reason)
        attempt.stop_reason = attempt.stop_reason or reason
        assert self.target.call("EndEpisode", request).outcome.stop_reason == attempt.stop_reason

    @rule(attempt=attempts)
    def grade(self, attempt: Attempt) -> None:
        request = pb.GradeEpisodeRequest(episode_id=attempt.created.episode_id)
        if not attempt.stop_reason:
            self.target.refused(
                "GradeEpisode", request, grpc.StatusCode.FAILED_PRECONDITION, "EPISODE_ACTIVE"
            )
            return
        graded = self.target.call("GradeEpisode", request)
        resolved = attempt.edit == RIGHT[attempt.request.task_id]
        assert graded.verdict.status == (
            pb.VERDICT_STATUS_RESOLVED if resolved else pb.VERDICT_STATUS_UNRESOLVED
        )
        told = graded.SerializeToString(deterministic=True)
        assert attempt.verdict in (b"", told)
        attempt.verdict = told

    @rule(attempt=attempts)
    def read_the_record(self, attempt: Attempt) -> None:
        request = pb.GetEpisodeRequest(episode_id=attempt.created.episode_id)
        assert len(self.target.call("GetEpisode", request).turns) == len(attempt.turns)

    @rule(episode_id=st.text(max_size=30))
    def step_an_episode_that_is_not_there(self, episode_id: str) -> None:
        request = pb.StepEpisodeRequest(episode_id=f"x{episode_id}", turn=0, action=pb.Action(text="read"))
        self.target.refused("StepEpisode", request, grpc.StatusCode.NOT_FOUND, "EPISODE_NOT_FOUND")

    def turn(self, attempt: Attempt, turn: int, said: str) -> pb.StepEpisodeRequest:
        action = pb.Action(text=f"<call> {said} </call>")
        return pb.StepEpisodeRequest(episode_id=attempt.created.episode_id, turn=turn, action=action)

    def teardown(self) -> None:
        for attempt in self.all:
            self.end(attempt, CLIENT_ENDS[0])


def test_answers_are_those_of_the_model(target: Target) -> None:
    """CONTRACT_STEPS says how many rules are played, 1,000 unless told otherwise."""
    steps = int(os.environ.get("CONTRACT_STEPS", "1000"))
    Contract.target = target
    run_state_machine_as_test(
        Contract,
        settings=settings(
            max_examples=max(1, steps // STEPS_AT_A_TIME),
            stateful_step_count=STEPS_AT_A_TIME,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
