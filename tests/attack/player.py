"""A policy that plays by hand: whole turns of tool calls over gRPC, against a service in a process of its own."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

TASK = "bugfix/zero/share"
REPAIRED = "def {name}(total, count):\n    return total // count if count else 0\n"
_CALL_SECONDS = 60.0
CENSUS = """
import os
names = [name for name in os.listdir("/proc") if name.isdigit() and os.stat("/proc/" + name).st_uid > 1000]
print(*(name.replace(str(os.getpid()), "itself") for name in names))
"""
"""Lists the processes that are not the sandbox's own, which have UIDs of their own below 1000."""
_names = itertools.count()


def bash(command, **arguments):
    """A call of Bash; `timeout` is in milliseconds."""
    return _call("Bash", command=command, **arguments)


def read(file_path, **arguments):
    """A call of Read."""
    return _call("Read", file_path=file_path, **arguments)


def write(file_path, content):
    """A call of Write."""
    return _call("Write", file_path=file_path, content=content)


def edit(file_path, old_string, new_string, **arguments):
    """A call of Edit."""
    return _call("Edit", file_path=file_path, old_string=old_string, new_string=new_string, **arguments)


def program(source, *, timeout=10_000, name="program.py"):
    """The two calls that run a program of the policy's own."""
    return write(name, source), bash(f"python {name}", timeout=timeout)


def _call(tool, **arguments):
    return pb.ToolCall(tool=tool, arguments_json=json.dumps(arguments))


@dataclass(frozen=True)
class Service:
    """A service that runs, as a client and as its operator see it."""

    stub: gym_pb2_grpc.GymServiceStub
    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]
    process_id: int
    log: Path
    containers: Callable[[], list[str]]
    """The ids of its containers."""
    opened: "list[Player]" = field(default_factory=list)
    """The episodes that were opened, whatever became of them."""

    def open(self, task_id=TASK, **fields):
        """Opens an episode."""
        name = f"attack-{next(_names)}"
        request = pb.CreateEpisodeRequest(
            request_id=name,
            task_id=task_id,
            toolset="coding",
            seed=pb.EpisodeSeed(run_seed=7, group=name),
            **fields,
        )
        player = Player(self, request, self.ask("CreateEpisode", request))
        self.opened.append(player)
        return player

    def ask(self, method, request):
        """Calls a method and waits for its answer."""
        return getattr(self.stub, method)(request, metadata=self.metadata, timeout=_CALL_SECONDS)

    def resident_bytes(self):
        """The memory that the service holds."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10


class Player:
    """One episode and the turns that are played in it."""

    def __init__(self, service, request, created):
        self._service = service
        self.request = request
        self.episode_id = created.episode_id
        self.module = created.messages[1].content.split("Repair ")[1].split(".py")[0]
        """The name of the faulty module, and of its function."""
        self.turns_left = created.max_turns
        self.prompt = created.prompt
        self.outcome = None
        """How the episode ended; None while it goes on."""
        self._turn = 0

    def begin(self, action):
        """Sends a turn without waiting for its answer."""
        request = pb.StepEpisodeRequest(episode_id=self.episode_id, turn=self._turn, action=action)
        self._turn += 1
        self.turns_left -= 1
        stub, metadata = self._service.stub, self._service.metadata
        return stub.StepEpisode.future(request, metadata=metadata, timeout=_CALL_SECONDS)

    def finish(self, turn):
        """Waits for the answer to a turn; one that the service does not take is not counted."""
        try:
            answer = turn.result()
        except grpc.RpcError:
            self._turn -= 1
            self.turns_left += 1
            raise
        self.outcome = answer.outcome if answer.HasField("outcome") else None
        return answer.observation

    def play(self, *calls):
        """Plays a turn of calls and gives their results."""
        return list(self.finish(self.begin(pb.Action(tool_calls=pb.ToolCalls(calls=calls)))).tool_results)

    def run(self, source, *, timeout=10_000):
        """Runs a program of the policy's own in a turn and gives what came of it."""
        return self.play(*program(source, timeout=timeout))[-1]

    def end(self):
        """Ends the episode as it is and gives its verdict."""
        request = pb.EndEpisodeRequest(episode_id=self.episode_id, stop_reason=pb.STOP_REASON_CANCELLED)
        self.outcome = self._service.ask("EndEpisode", request).outcome
        return self._service.ask("GradeEpisode", pb.GradeEpisodeRequest(episode_id=self.episode_id)).verdict

    def hand_in(self, source):
        """Writes the module that is graded, ends the episode and gives its verdict."""
        (written,) = self.play(write(f"{self.module}.py", source.replace("FUNCTION", self.module)))
        assert not written.is_error, written
        return self.end()

    def solve(self):
        """Repairs the fault, ends the episode and gives its verdict."""
        return self.hand_in(REPAIRED.format(name=self.module))
