"""Sandboxes in containers of a Docker Engine.

The engine is asked through docker-py in worker threads, only to start and to remove. Everything in between goes
over the line to the warden (`warden_link.py`), on the event loop, in the frames of the warden.

What the engine was told is one thing, what it did another: each start is read back and compared, key by key
(`read_back.py`).
"""

import asyncio
import copy
import hashlib
import json
import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from gym_service.sandbox import policy
from gym_service.sandbox.base import (
    CallFunction,
    Completed,
    EnvironmentRefused,
    Execute,
    FileEntry,
    FileRefused,
    Job,
    RunChecks,
    RunPytest,
    RunPython,
    RunTests,
    SandboxLost,
)
from gym_service.sandbox.isolation import Isolation, check_facts, measured_limits
from gym_service.sandbox.listing import decode_listing
from gym_service.sandbox.peaks import Peaks, read_peaks
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.read_back import EngineFacts, differences, distinct_runtimes, runtime_version
from gym_service.sandbox.warden_link import Answer, WardenLink, open_pipes
from gym_service.tasks.environment import PLAIN, Environment
from sandbox_images import own
from sandbox_images.engine import SetupError
from sandbox_images.warden import frames
from sandbox_images.warden.frames import Operation, Status

logger = logging.getLogger(__name__)

OWNER_LABEL = "coding-gym.owner"
"""Names the service that a container belongs to."""

_ANSWER_MARGIN_SECONDS = 20.0
"""How long beyond its time a request may take before the sandbox counts as lost."""
_START_TIMEOUT_SECONDS = 60.0
RECORDS_BYTES = 2 << 20
"""What the records of one job may take: no policy reads them, and a repository can have thousands of tests."""
_DEFAULT_HOST = "unix:///var/run/docker.sock"

_JOB_KINDS = {Execute: "exec", RunPython: "python", RunPytest: "pytest"}
_IN_IMAGE = "/opt/gym/warden/in_image.py"


class DockerEngine:
    """Starts and removes the sandboxes of one service."""

    def __init__(
        self, image: str, limits: SandboxLimits, owner: str, runtime: str = "", *, reuse: bool = False
    ) -> None:
        """`owner` names this service on the engine, so that it removes only containers of its own.

        `runtime` is the OCI runtime; empty for the engine's default. With `reuse`, a sandbox loads pytest as soon as
        it is there. Raises SandboxLost when no engine answers, the image is missing or the engine does not know the
        runtime.
        """
        self._limits = limits
        self._owner = owner
        self._reuse = reuse
        self._left_over: set[str] = set()
        self.environment = PLAIN
        self._variables = policy.ENVIRONMENT
        """Those of the warden."""
        self._unset: set[str] = set()
        """The variables that the image has and the warden has not."""
        try:
            self._client = docker.from_env(timeout=60)
            version = self._client.version()
            info = self._client.info()
            digest = self._client.images.get(image).id
        except NotFound:
            raise SandboxLost(f"the sandbox image {image} is missing; run `make gym-up`") from None
        except (DockerException, requests.RequestException) as error:
            raise SandboxLost(f"no Docker Engine answers ({error}); run `make gym-up`") from None
        if not self._client.api.base_url.startswith("http+docker://"):
            raise SandboxLost("DOCKER_HOST names a remote engine; a gym needs one on a local unix socket")
        runtime = runtime or info["DefaultRuntime"]
        if runtime not in info["Runtimes"]:
            known = ", ".join(sorted(info["Runtimes"]))
            raise SandboxLost(f"the engine does not know the runtime {runtime!r}; it knows {known}")
        self.runtimes = distinct_runtimes(info, runtime)
        """The runtimes of the engine, the own one first, each under one name."""
        self.facts = EngineFacts(
            runtime=runtime,
            runtime_version=runtime_version(runtime, info, version),
            engine_version=version["Version"],
            kernel_version=version["KernelVersion"],
            image_digest=digest or "",
            socket_path=(os.environ.get("DOCKER_HOST") or _DEFAULT_HOST).removeprefix("unix://"),
        )

    def image_of(self, environment: Environment) -> str:
        """Gives the digest of the image that sandboxes of an environment are of; empty where it is yet to be made."""
        if not environment.image:
            return self.facts.image_digest
        try:
            return own.find(self._client, environment.image)
        except (DockerException, requests.RequestException) as error:
            raise SandboxLost(f"no Docker Engine answers: {error}") from error

    def within(self, environment: Environment) -> "DockerEngine":
        """Gives an engine whose sandboxes are of an environment, and makes the image if need be.

        Raises EnvironmentRefused, SandboxLost.
        """
        if fault := policy.workspace_fault(environment.workspace):
            raise EnvironmentRefused(fault)
        if environment.python and not environment.python.startswith("/"):
            raise EnvironmentRefused(
                f"python is {environment.python!a}: name the image's interpreter by its path"
            )
        try:
            digest = self.facts.image_digest
            if environment.image:
                digest = own.derive(self._client, environment.image, {OWNER_LABEL: self._owner})
            config = self._client.images.get(digest).attrs["Config"]
        except own.ImageRefused as error:
            raise EnvironmentRefused(str(error)) from error
        except (SetupError, DockerException, requests.RequestException) as error:
            raise SandboxLost(f"the engine could not make an image: {error}") from error
        inside = copy.copy(self)
        inside.environment = environment
        inside.facts = replace(self.facts, image_digest=digest)
        inside._variables = policy.ENVIRONMENT | {"GYM_WORKSPACE": environment.workspace}
        inside._unset = {each.partition("=")[0] for each in config["Env"] or ()} - inside._variables.keys()
        return inside

    async def start(self, limits: SandboxLimits | None = None) -> "DockerSandbox":
        """Starts a sandbox, by default with the engine's limits, and waits until its warden answers.

        Raises SandboxLost.
        """
        limits = limits or self._limits
        starting = asyncio.ensure_future(asyncio.to_thread(self._start_container, limits))
        try:
            container_id, process_id, connection = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on, and what it starts would belong to nobody.
            with suppress(Exception):
                container_id, _, connection = await starting
                connection.close()
                await asyncio.to_thread(self.remove, container_id)
            raise
        except (DockerException, requests.RequestException, OSError) as error:
            raise SandboxLost(f"the engine could not start a sandbox: {error}") from error
        sandbox = DockerSandbox(self, container_id, limits)
        try:
            load_pytest = self._reuse and limits is self._limits and not self.environment.python
            await sandbox.connect(connection, process_id, load_pytest=load_pytest)
        except BaseException as error:
            await sandbox.close()
            if not isinstance(error, SandboxLost | OSError):
                raise
            raise SandboxLost(f"the warden of a new sandbox does not answer: {error}") from error
        return sandbox

    def remove(self, container_id: str) -> None:
        """Kills and removes a container; one that cannot be removed now is tried again at the next start."""
        if not _remove(self._client, container_id):
            self._left_over.add(container_id)

    def remove_leftovers(self) -> int:
        """Removes the containers that an earlier life of this service left; returns how many."""
        return remove_containers(self._client, self._owner)

    def blames_policy(self, container_id: str, *, connected: bool) -> bool:
        """Says whose doing it is that a sandbox does not answer; by the engine's evidence alone.

        A container that the kernel cut down for memory, or that still runs and is connected but does not answer,
        was brought there by what ran in it. One that is gone or paused, or an engine that is gone, is ours.
        """
        api = self._client.api
        try:
            if not connected:
                # The stream ends a moment before the engine has written down how the container ended.
                api.wait(container_id, timeout=5, condition="not-running")
            state = api.inspect_container(container_id)["State"]
        except (DockerException, requests.RequestException):
            return False
        return bool(state["OOMKilled"] or (connected and state["Running"] and not state["Paused"]))

    def seccomp_sha256(self, container_id: str) -> str:
        """Gives the hash of the profile that the engine says it applied; empty when it is the engine's own."""
        try:
            options = self._client.api.inspect_container(container_id)["HostConfig"]["SecurityOpt"] or []
        except (DockerException, requests.RequestException) as error:
            raise SandboxLost(f"the engine does not describe a sandbox: {error}") from error
        profiles = [option.removeprefix("seccomp=") for option in options if option.startswith("seccomp=")]
        return hashlib.sha256("".join(profiles).encode()).hexdigest() if profiles else ""

    def _start_container(self, limits: SandboxLimits) -> tuple[str, int, socket.socket]:
        for left_over in list(self._left_over):
            if _remove(self._client, left_over):
                self._left_over.discard(left_over)
        api = self._client.api
        config = api.create_container_config(
            # By digest: what a name means can change while the service runs.
            image=self.facts.image_digest,
            command=[],
            hostname=policy.HOSTNAME,
            user="0:0",
            stdin_open=True,
            tty=False,
            # One without a value is taken away.
            environment=[*(f"{name}={value}" for name, value in self._variables.items()), *self._unset],
            network_disabled=True,
            labels={OWNER_LABEL: self._owner},
            stop_timeout=0,
        )
        config["Healthcheck"] = policy.HEALTHCHECK
        config["HostConfig"] = policy.host_config(limits, self.environment.workspace) | {
            "Runtime": self.facts.runtime
        }
        container_id = api.create_container_from_config(config)["Id"]
        try:
            stream = api.attach_socket(
                container_id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            api.start(container_id)
            found = api.inspect_container(container_id)
            if wrong := differences(config, found):
                raise SandboxLost(
                    f"the engine did not apply {', '.join(wrong)}; see SECURITY.md for what it needs"
                )
        except BaseException:
            self.remove(container_id)
            raise
        # Taken away from docker-py's wrappers: as long as one of them holds the socket too, closing it here would
        # not tell the engine, and the warden would not end.
        return container_id, found["State"]["Pid"], socket.socket(fileno=stream._sock.detach())


def remove_containers(client: docker.DockerClient, owner: str) -> int:
    """Removes all containers of a service; returns how many. Raises SandboxLost when no engine answers."""
    try:
        leftovers = client.api.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner}"})
    except (DockerException, requests.RequestException) as error:
        raise SandboxLost(f"no Docker Engine answers: {error}") from error
    for container in leftovers:
        _remove(client, container["Id"])
    return len(leftovers)


def _remove(client: docker.DockerClient, container_id: str) -> bool:
    """Kills and removes a container; says whether it is gone or going."""
    try:
        client.api.remove_container(container_id, force=True, v=True)
    except NotFound:
        return True
    except (DockerException, requests.RequestException) as error:
        # 409: another removal is under way.
        if isinstance(error, APIError) and error.status_code == 409:
            return True
        logger.warning("container %s could not be removed: %s", container_id[:12], error)
        return False
    return True


class DockerSandbox:
    """One container, spoken to through its warden. See `base.Sandbox`."""

    def __init__(self, engine: DockerEngine, container_id: str, limits: SandboxLimits) -> None:
        self._engine = engine
        self._container_id = container_id
        self.limits = limits
        """Output and time may be set for each use; the rest is the container's."""
        self._link = WardenLink()
        self._closed = False
        self.uid = 0
        """The UID under which the episode's code runs; set for each use."""
        self.observed: dict[str, str] = {}
        """Facts read from inside at start."""
        self.most_output_bytes = 0
        """Of one run, so far."""
        self._process_id = 0

    def peaks(self) -> Peaks:
        """The most that the container has used so far."""
        return read_peaks(self._process_id, self._container_id)

    @property
    def alive(self) -> bool:
        """Whether the connection to the warden stands."""
        return self._link.is_open

    @property
    def command_timeout_seconds(self) -> float:
        return self.limits.command_timeout_seconds

    async def connect(self, connection: socket.socket, process_id: int, *, load_pytest: bool) -> None:
        """Takes over the attached stream, greets the warden, and takes the short way to it if there is one."""
        self._process_id = process_id
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._link, sock=connection)
        body = frames.LOAD_PYTEST if load_pytest else b""
        answer = await self._ask(Operation.HELLO, body, 0, _START_TIMEOUT_SECONDS)
        self.observed = json.loads(answer.body)
        answer = await self._ask(Operation.OPEN_PIPES, b"", 0, 10.0)
        try:
            pipes = open_pipes(process_id, json.loads(answer.body))
        except OSError as error:
            logger.debug("requests go through the engine: %s", error)
            return
        await self._ask(Operation.USE_PIPES, b"", 0, 10.0)
        await self._link.move(pipes)

    async def read_file(self, path: str) -> bytes:
        return (await self._file(Operation.READ, path.encode("utf-8", "surrogateescape"))).body

    async def write_file(self, path: str, content: bytes) -> None:
        encoded = path.encode()
        body = frames.WRITE_HEAD.pack(len(encoded)) + encoded + content
        if len(body) > frames.MAX_BODY_BYTES:
            raise FileRefused("too_large")
        await self._file(Operation.WRITE, body)

    async def require_path(self, path: str, *, folder_allowed: bool) -> None:
        await self._file(Operation.REQUIRE_PATH if folder_allowed else Operation.REQUIRE_FILE, path.encode())

    async def list_files(self) -> tuple[FileEntry, ...]:
        return decode_listing((await self._file(Operation.LIST, b"")).body)

    async def run(self, job: Job, timeout_seconds: float) -> Completed:
        timeout_seconds = min(timeout_seconds, self.limits.command_timeout_seconds)
        # Records are no text for a policy, and honest ones are as large as the warden's code lets them be.
        has_records = isinstance(job, CallFunction | RunTests | RunChecks)
        output_bytes = RECORDS_BYTES if has_records else self.limits.output_bytes
        answer = await self._ask(
            Operation.RUN, _encode(job, self._engine.environment), output_bytes, timeout_seconds
        )
        if answer.status is not Status.OK:
            raise SandboxLost(f"the warden could not run a job: {answer.body[:200]!r}")
        self.most_output_bytes = max(self.most_output_bytes, len(answer.body))
        return Completed(
            exit_status=answer.exit_status,
            output=answer.body,
            timed_out=bool(answer.flags & frames.FLAG_TIMED_OUT),
            output_truncated=bool(answer.flags & frames.FLAG_TRUNCATED),
            out_of_memory=bool(answer.flags & frames.FLAG_OUT_OF_MEMORY),
        )

    async def probe(self) -> dict[str, str]:
        """Reads what a process of the episode sees of its own rights and limits. Raises SandboxLost."""
        answer = await self._ask(Operation.RUN, b'{"kind": "probe"}', frames.MAX_BODY_BYTES, 10.0)
        try:
            facts: dict[str, str] = json.loads(answer.body)
        except ValueError:
            raise SandboxLost(f"a sandbox does not describe itself: {answer.body[:200]!r}") from None
        return self.observed | facts

    async def measure(self) -> Isolation:
        """Reads the isolation back, from the engine and from inside. Raises SandboxLost, naming what does not hold."""
        observed = await self.probe()
        wrong = [result for result in check_facts(observed, self.limits) if not result.holds]
        if wrong:
            listed = "; ".join(f"{result.name} is {result.observed}" for result in wrong)
            raise SandboxLost(f"a sandbox does not hold: {listed}")
        facts = self._engine.facts
        return Isolation(
            runtime=facts.runtime,
            runtime_version=facts.runtime_version,
            engine_version=facts.engine_version,
            kernel_version=facts.kernel_version,
            image_digest=facts.image_digest,
            seccomp_sha256=await asyncio.to_thread(self._engine.seccomp_sha256, self._container_id),
            limits=measured_limits(observed, self.limits),
            observed=observed,
        )

    async def scrub(self) -> str:
        answer = await self._ask(Operation.SCRUB, b"", 0, 10.0)
        return "" if answer.status is Status.OK else answer.body.decode(errors="replace") or "failed"

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._link.close()
            await asyncio.shield(asyncio.to_thread(self._engine.remove, self._container_id))

    async def _file(self, operation: Operation, body: bytes) -> Answer:
        answer = await self._ask(operation, body, frames.MAX_BODY_BYTES, 10.0)
        if answer.status is Status.FAILED:
            raise SandboxLost(f"the warden failed on a file: {answer.body[:200]!r}")
        if answer.status is not Status.OK:
            raise FileRefused(answer.status.name.lower())
        return answer

    async def _ask(
        self, operation: Operation, body: bytes, output_limit: int, timeout_seconds: float
    ) -> Answer:
        assert len(body) <= frames.MAX_BODY_BYTES
        head = frames.REQUEST.pack(
            operation, self.uid, round(timeout_seconds * 1000), output_limit, len(body)
        )
        try:
            async with asyncio.timeout(timeout_seconds + _ANSWER_MARGIN_SECONDS):
                return await self._link.send(head + body)
        except TimeoutError:
            message, connected = "the warden does not answer in time", True
        except SandboxLost as error:
            message, connected = str(error), False
        blames_policy = not self._closed and await asyncio.to_thread(
            self._engine.blames_policy, self._container_id, connected=connected
        )
        self._link.close()
        raise SandboxLost(message, by_policy=blames_policy)


def _encode(job: Job, environment: Environment) -> bytes:
    fields: dict[str, object]
    match job:
        case CallFunction():
            fields = {
                "kind": "call",
                "file": job.file,
                "function": job.function,
                "arguments": job.arguments,
            }
        case RunTests():
            fields = {"kind": "pytest_records", "files": job.files, "functions": job.functions}
            fields |= {"roots": job.roots, "seconds_each": job.seconds_each}
        case RunChecks():
            fields = {"kind": "by_name", "functions": job.functions}
            fields |= {"roots": job.roots, "seconds_each": job.seconds_each}
        case _:
            fields = {"kind": _JOB_KINDS[type(job)], "argv": job.argv}
    if environment.python:
        match job:
            case RunTests() | RunChecks():
                fields = {"kind": "in_image", "python": environment.python, "job": fields}
            case RunPython():
                fields = {"kind": "exec", "argv": (environment.python, "-s", *job.argv)}
            case RunPytest():
                fields = {"kind": "exec", "argv": (environment.python, "-s", _IN_IMAGE, "pytest", *job.argv)}
    if environment.variables:
        fields["variables"] = dict(environment.variables)
    return json.dumps(fields).encode()
