"""The service that is attacked, and the proof after each attack that nobody else noticed anything."""

from functools import partial

import docker
import grpc
import pytest
from docker.errors import DockerException
from gym_contract.v1 import gym_pb2 as pb
from gym_contract.v1 import gym_pb2_grpc

from gym_service import control
from gym_service.state import StateFolder
from tests.attack.player import CENSUS, Service, bash, program, read
from tests.engine import containers_of

CAPACITY = 8
GRADERS = 2
OPTIONS = ("--capacity", str(CAPACITY), "--graders", str(GRADERS))
SERVICE_GROWTH_BYTES = 64 << 20


def runtimes():
    """The runtimes that this engine has, of those that a gym can serve on; its own first."""
    try:
        info = docker.from_env(timeout=10).info()
    except DockerException:
        return ["runc"]  # The tests say that there is no engine.
    return [info["DefaultRuntime"], *sorted({"runsc"} & info["Runtimes"].keys() - {info["DefaultRuntime"]})]


@pytest.fixture(scope="package", params=runtimes())
def service(request, tmp_path_factory):
    """A service in a process of its own."""
    folder = tmp_path_factory.mktemp("attacked") / "state"
    try:
        try:
            info = control.up(folder, [*OPTIONS, "--runtime", request.param])
        except control.ControlError as error:
            if request.param == runtimes()[0]:
                raise
            pytest.skip(f"a gym does not serve on {request.param}: {error}")
        assert info.isolation.runtime == request.param
        state = StateFolder(folder)
        endpoint = state.endpoint()
        with grpc.insecure_channel(endpoint.address) as channel:
            yield Service(
                gym_pb2_grpc.GymServiceStub(channel),
                channel,
                (("authorization", f"Bearer {endpoint.token}"),),
                endpoint.process_id,
                state.log,
                lambda: [each["Id"] for each in containers_of(state.owner)],
            )
    finally:
        control.down(folder)


@pytest.fixture
def neighbour(service):
    """An episode beside the attack."""
    return service.open()


@pytest.fixture(autouse=True)
def nobody_notices(service, neighbour):
    """Whatever is attacked: neighbours, processes, containers and the service are afterwards as they were."""
    resident_bytes = service.resident_bytes()
    ordinary = partial(
        neighbour.play,
        *program(CENSUS, name="census.py"),
        read(f"{neighbour.module}.py"),
        bash("pytest -q"),
        bash("ls -la"),
    )
    before = ordinary()
    assert before[1].text == "itself\n"
    yield
    try:
        assert ordinary() == before
        assert neighbour.solve().status == pb.VERDICT_STATUS_RESOLVED
        for player in service.opened:
            if player.outcome is None and player.turns_left:
                assert player.run(CENSUS).text == "itself\n"
        assert len(service.containers()) <= CAPACITY + GRADERS
        assert service.resident_bytes() - resident_bytes < SERVICE_GROWTH_BYTES
    finally:
        for player in service.opened:
            if player.outcome is None:
                player.end()
        service.opened.clear()


@pytest.fixture
def player(service):
    """The episode that attacks."""
    return service.open()
