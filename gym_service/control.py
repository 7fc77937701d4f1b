"""Starting, stopping and asking the background service of a state folder, for the command line."""

import http.client
import json
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
from gym_service.state import HELD_STATUS, Endpoint, StateFolder
from sandbox_images.build import image_reference

_START_SECONDS = 90.0
_STOP_SECONDS = 40.0
_KILL_SECONDS = 5.0


class ControlError(Exception):
    """The service could not be started; the message says why and where to look."""


def up(folder: Path, serve_arguments: Sequence[str]) -> pb.GetGymInfoResponse:
    """Starts the service unless it serves already, and returns what it says of itself. Raises ControlError.

    Whoever calls this at the same time gets the same service.
    """
    state = StateFolder(folder)
    info = _ask(state)
    if info is not None and not _is_current(state):
        print("the sandbox image has changed: starting the service again", file=sys.stderr)
        down(folder)
        info = None
    if info is not None and serve_arguments:
        print(
            "serves already: options take effect with the next start, after `make gym-down`", file=sys.stderr
        )
    process: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _START_SECONDS
    while info is None:
        if time.monotonic() > deadline:
            if process is not None:
                process.terminate()
            raise ControlError(f"the service did not serve within {_START_SECONDS:g} s; see {state.log}")
        # Another service that is about to start or to stop is waited for.
        if process is None and state.holder() is None:
            print("starting   every wall of a sandbox is tried first, a few seconds", file=sys.stderr)
            process = _start(state, serve_arguments)
        elif process is not None and process.poll() is not None:
            if process.returncode in (0, -signal.SIGTERM):
                raise ControlError("the service was stopped before it served")
            if process.returncode != HELD_STATUS:
                raise ControlError(f"the service ended at once; the end of {state.log}:\n{_tail(state.log)}")
            process = None
        time.sleep(0.1)
        info = _ask(state)
    return info


def down(folder: Path) -> bool:
    """Stops the service, also one that is about to start; returns whether there was one."""
    state = StateFolder(folder)
    process_id = state.holder()
    if process_id is not None and not _stop(state, process_id, signal.SIGTERM, _STOP_SECONDS):
        print(f"the service did not stop within {_STOP_SECONDS:g} s and was killed; see {state.log}")
        _stop(state, process_id, signal.SIGKILL, _KILL_SECONDS)
    # A service that was killed could not do this. One that starts at this moment does it for itself.
    if state.lock():
        try:
            state.withdraw()
            remove_containers(docker.from_env(timeout=30), state.owner)
        except (DockerException, SandboxLost):
            pass  # Without an engine there are no containers.
        finally:
            state.unlock()
    return process_id is not None


def status(folder: Path) -> pb.GetGymInfoResponse | None:
    """Asks the service; None when there is none that serves."""
    return _ask(StateFolder(folder))


def viewer_link(folder: Path) -> str:
    """Asks the service for a link that opens its page, once. Raises ControlError."""
    endpoint = StateFolder(folder).endpoint()
    if endpoint is None:
        raise ControlError("no gym is running; start it with `python -m gym_service up --viewer-port 0`")
    if not endpoint.viewer:
        raise ControlError(
            "this gym serves no page: stop it (`down`) and start it with `up --viewer-port 0` (0 takes a free port)"
        )
    connection = http.client.HTTPConnection(endpoint.viewer.removeprefix("http://"), timeout=10)
    try:
        connection.request("POST", "/link", headers={"Authorization": f"Bearer {endpoint.token}"})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ControlError(f"{endpoint.viewer} does not answer: {error}") from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise ControlError(content.decode(errors="replace").strip())
    return f"{endpoint.viewer}{json.loads(content)['path']}"


def _start(state: StateFolder, serve_arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    with state.log.open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "gym_service", "--state-folder", str(state.folder), "serve"),
                *serve_arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _stop(state: StateFolder, process_id: int, number: signal.Signals, seconds: float) -> bool:
    """Sends a signal to the service; returns whether it let go of the folder in time."""
    with suppress(ProcessLookupError):
        os.kill(process_id, number)
    deadline = time.monotonic() + seconds
    while state.holder() == process_id:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _is_current(state: StateFolder) -> bool:
    endpoint = state.endpoint()
    return endpoint is not None and endpoint.image == image_reference()


def _ask(state: StateFolder) -> pb.GetGymInfoResponse | None:
    """Asks the service of a folder what it is; None when there is none that serves."""
    endpoint = state.endpoint()
    if endpoint is None:
        return None
    try:
        opened = _channel(endpoint)
    except OSError:
        return None
    with opened as channel:
        try:
            # With the token, so that it does not wait behind strangers.
            metadata = (("authorization", f"Bearer {endpoint.token}"),)
            health = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=2, metadata=metadata
            )
            if health.status != health_pb2.HealthCheckResponse.SERVING:
                return None
            stub = gym_pb2_grpc.GymServiceStub(channel)
            info: pb.GetGymInfoResponse = stub.GetGymInfo(
                pb.GetGymInfoRequest(), timeout=10, metadata=metadata
            )
        except grpc.RpcError:
            return None
        return info


def _channel(endpoint: Endpoint) -> grpc.Channel:
    """Opens a channel as the service asks for it. Raises OSError where its certificates are gone."""
    options = [("grpc.enable_http_proxy", 0)]
    if not endpoint.ca_file:
        return grpc.insecure_channel(endpoint.address, options=options)
    own = [
        Path(name).read_bytes() if name else None for name in (endpoint.key_file, endpoint.certificate_file)
    ]
    credentials = grpc.ssl_channel_credentials(Path(endpoint.ca_file).read_bytes(), *own)
    return grpc.secure_channel(endpoint.address, credentials, options=options)


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) or "(nothing; is the disk full?)"
