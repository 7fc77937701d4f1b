"""Starting, stopping and asking the background service of a state folder, for the command line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import docker
import grpc
from docker.errors import DockerException
from grpc_health.v1 import health_pb2, health_pb2_grpc
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.docker import remove_containers
from gym_service.state import Endpoint, StateFolder
from sandbox_images.build import image_reference

_START_SECONDS = 90.0
_STOP_SECONDS = 40.0


class ControlError(Exception):
    """The service could not be started or stopped; the message says why and where to look."""


def up(folder: Path, serve_arguments: Sequence[str]) -> pb.GetGymInfoResponse:
    """Starts the service unless it serves already, and returns what it says of itself. Raises ControlError."""
    state = StateFolder(folder)
    endpoint = state.endpoint()
    if endpoint and _serves(endpoint):
        if endpoint.image == image_reference():
            return describe(endpoint)
        print("the sandbox image has changed: starting the service again")
        down(folder)
    with state.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gym_service", "--state-folder", str(folder), "serve", *serve_arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        endpoint = state.endpoint()
        if endpoint and endpoint.process_id == process.pid and _serves(endpoint):
            return describe(endpoint)
        if process.poll() is not None:
            raise ControlError(f"the service ended at once; the end of {state.log}:\n{_tail(state.log)}")
        time.sleep(0.1)
    process.terminate()
    raise ControlError(f"the service did not serve within {_START_SECONDS:g} s; see {state.log}")


def down(folder: Path) -> bool:
    """Stops the service; returns whether there was one. Raises ControlError."""
    state = StateFolder(folder)
    endpoint = state.endpoint()
    running = endpoint is not None and _is_service(endpoint.process_id)
    if endpoint is not None and running:
        os.kill(endpoint.process_id, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while _is_service(endpoint.process_id):
            if time.monotonic() > deadline:
                raise ControlError(
                    f"the service (process {endpoint.process_id}) does not stop; see {state.log}"
                )
            time.sleep(0.05)
    state.withdraw()
    # A service that was killed could not remove its containers.
    with suppress(DockerException, SandboxLost):
        remove_containers(docker.from_env(timeout=30), state.owner)
    return running


def status(folder: Path) -> pb.GetGymInfoResponse | None:
    """Asks the service; None when there is none."""
    endpoint = StateFolder(folder).endpoint()
    return describe(endpoint) if endpoint and _serves(endpoint) else None


def describe(endpoint: Endpoint) -> pb.GetGymInfoResponse:
    """Asks a service what it is."""
    with grpc.insecure_channel(endpoint.address) as channel:
        stub = gym_pb2_grpc.GymServiceStub(channel)
        metadata = (("authorization", f"Bearer {endpoint.token}"),)
        info: pb.GetGymInfoResponse = stub.GetGymInfo(pb.GetGymInfoRequest(), timeout=10, metadata=metadata)
        return info


def _serves(endpoint: Endpoint) -> bool:
    with grpc.insecure_channel(endpoint.address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _is_service(process_id: int) -> bool:
    """Says whether a process is a service of ours: its number may have gone to another one."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return b"gym_service" in command and state != "Z"


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
