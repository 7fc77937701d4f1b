"""Where a gym listens: what other machines reach is encrypted, or the gym does not start."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gym_service import control
from gym_service.bind import parse_bind
from gym_service.certificates import CertificateFolder
from gym_service.config import ServiceConfig
from gym_service.listener import endpoint_of, read_identity, warn_of_end
from gym_service.sandbox.isolation import NO_ISOLATION, Assurance
from gym_service.server import running_gym
from gym_service.state import StateFolder
from gym_service.tasks.suites import built_in
from tests.conftest import fake_sandbox
from tests.engine import containers_of
from trainer_client.endpoint import Endpoint, find_endpoint
from trainer_client.errors import GymRefused, GymUnavailable, NoGym
from trainer_client.gym import GymClient

SMALL = ("--capacity", "2", "--graders", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return StateFolder(tmp_path / "state").folder


@pytest.fixture
def certificates(folder: Path) -> CertificateFolder:
    made = CertificateFolder(folder)
    made.make(["gym.example.org"])
    return made


@asynccontextmanager
async def gym_at(folder: Path, **settings) -> AsyncIterator[Endpoint]:
    """Runs a gym over FakeSandbox, and gives what its endpoint file says."""
    config = ServiceConfig(state_folder=folder, capacity=4, graders=2, **settings)
    async with running_gym(config, fake_sandbox, Assurance(NO_ISOLATION), built_in(), b"seed") as running:
        state = StateFolder(folder)
        assert state.lock()
        state.publish(endpoint_of(config, running.address, running.token, "image"))
        content = json.loads((folder / "endpoint.json").read_text())
        names = ("address", "token", "ca_file", "certificate_file", "key_file")
        yield Endpoint(*(content[name] for name in names))
        state.unlock()


async def capacity_of(endpoint: Endpoint | None) -> int:
    async with GymClient.connect(endpoint, reconnect_timeout_seconds=1) as client:
        return (await client.get_info()).capacity


async def play(endpoint: Endpoint | None) -> str:
    """Plays an episode, and returns the verdict's status."""
    async with GymClient.connect(endpoint) as client:
        episode = await client.create("bugfix/zero/share", "menu", run_seed=1, group="g", index=0)
        await client.end(episode.episode_id, "cancelled")
        return (await client.grade(episode.episode_id)).verdict.status


def status_of(folder: Path) -> str:
    command = (sys.executable, "-m", "gym_service", "--state-folder", str(folder), "status")
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def serve_command(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `serve` where no engine answers, so that whatever comes before the engine is all there is."""
    command = (sys.executable, "-m", "gym_service", "--state-folder", str(folder), "serve", *options)
    environment = os.environ | {"DOCKER_HOST": "tcp://127.0.0.1:9"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


PUBLIC = [
    "0.0.0.0:50051",
    "[::]:50051",
    "[::ffff:127.0.0.1]:50051",
    "[::127.0.0.1]:50051",
    "192.0.2.7:50051",
    "gym.example.org:50051",
    "127.0.0.1.evil.example:50051",
    "localhost.evil.example:50051",
    "127.1:50051",
    "2130706433:50051",
    "0:50051",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_that_others_may_reach_takes_a_certificate(folder: Path, address: str) -> None:
    with pytest.raises(ValueError, match=r"takes TLS: there is no certificate .* certificates make --host"):
        read_identity(ServiceConfig(state_folder=folder, bind=address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_token_never_leaves_the_machine_in_the_clear(address: str) -> None:
    """It is refused before there is a connection, however the endpoint came about."""
    with pytest.raises(NoGym, match="in the clear"):
        Endpoint(address, "secret")


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:5", "127.0.0.1:5"),
        ("127.3.2.1:5", "127.3.2.1:5"),
        ("localhost:5", "127.0.0.1:5"),
        ("[::1]:5", "[::1]:5"),
    ],
)
def test_the_loopback_interface_does_without_and_no_name_is_asked_for(
    folder: Path, address: str, target: str
) -> None:
    config = ServiceConfig(state_folder=folder, bind=address)

    assert read_identity(config) is None
    assert config.listens_at.target == Endpoint(address, "secret").target == target


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bind": "127.0.0.1"}, "give HOST:PORT"),
        ({"bind": "127.0.0.1:65536"}, "give HOST:PORT"),
        ({"bind": "127.0.0.1:5,0.0.0.0:5"}, "give HOST:PORT"),
        ({"bind": "::1:5"}, "give HOST:PORT"),
        ({"bind": "[::1%lo]:5"}, "give HOST:PORT"),
        ({"bind": "[1:2]:5"}, "no IPv6 address"),
        ({"bind": ""}, "give HOST:PORT"),
        ({"bind": "unix:gym.sock"}, "give a whole path"),
        ({"bind": "unix:/a b"}, "give a whole path"),
        ({"bind": "unix:/" + "x" * 107}, "at most 107 bytes, and this one 108"),
        ({"bind": "unix", "tls": True}, "--tls is for hosts"),
        ({"client_certificates": True}, "add --tls"),
    ],
)
def test_what_cannot_be_listened_at_is_refused(folder: Path, settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServiceConfig(state_folder=folder, **settings)


def test_serve_refuses_before_it_asks_the_engine(folder: Path, certificates: CertificateFolder) -> None:
    """With the command that helps; with a certificate that command has made, the engine is what it lacks."""
    refused = serve_command(folder, "--bind", "0.0.0.0:0", "--client-certificates", "require")
    assert "no Docker Engine answers" in refused.stderr
    for path in certificates.folder.glob("server.*"):
        path.unlink()

    refused = serve_command(folder, "--bind", "0.0.0.0:0")

    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert f"run python -m gym_service --state-folder {folder} certificates make --host" in refused.stderr


# Certificates


def test_everything_is_the_owners_alone_and_the_authority_stays(certificates: CertificateFolder) -> None:
    before = certificates.authority.read_bytes()
    certificates.make_client("ann.b")
    certificates.make(["other.example.org"])

    files = [path for path in certificates.folder.rglob("*") if path.is_file()]
    assert len(files) == 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert certificates.authority.read_bytes() == before
    assert certificates.hosts == ("localhost", "127.0.0.1", "::1", "other.example.org")
    certificates.make([])
    assert certificates.hosts[-1] == "other.example.org"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "gym.example.org:0", "GYM.example.org:0"])
def test_a_certificate_does_for_the_hosts_that_it_names(
    folder: Path, certificates: CertificateFolder, address: str
) -> None:
    assert read_identity(ServiceConfig(state_folder=folder, bind=address))
    with pytest.raises(ValueError, match=r"is not for 192.0.2.7, but for .*--host 192.0.2.7"):
        read_identity(ServiceConfig(state_folder=folder, bind="192.0.2.7:0"))


def test_one_that_has_ended_is_refused_and_one_that_will_is_warned_of(
    folder: Path, certificates: CertificateFolder, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServiceConfig(state_folder=folder, tls=True)
    warn_of_end(read_identity(config))
    assert caplog.text == ""

    certificates.make([], days=13.9)
    warn_of_end(read_identity(config))
    assert "ends in 13.9 days" in caplog.text

    certificates.make([], days=1e-9)
    with pytest.raises(ValueError, match=r"ended on .* certificates make"):
        read_identity(config)


def test_files_that_do_not_belong_together_are_refused(
    folder: Path, certificates: CertificateFolder, tmp_path: Path
) -> None:
    config = ServiceConfig(state_folder=folder, tls=True)
    other = CertificateFolder(tmp_path / "other")
    other.make([])
    kept = certificates.authority.read_bytes()

    certificates.authority.write_bytes(other.authority.read_bytes())
    with pytest.raises(ValueError, match="do not belong together"):
        read_identity(config)
    certificates.authority.write_bytes(kept)
    (certificates.folder / "server.key").write_bytes((other.folder / "server.key").read_bytes())
    with pytest.raises(ValueError, match="do not belong together"):
        read_identity(config)
    (certificates.folder / "server.key").write_text("no key")
    with pytest.raises(ValueError, match=r"server.key cannot be read"):
        read_identity(config)


def test_an_authority_whose_key_is_gone_is_not_replaced(certificates: CertificateFolder) -> None:
    """Else every client would have to take another copy, and nobody would have said so."""
    before = certificates.authority.read_bytes()
    (certificates.folder / "ca.key").unlink()

    with pytest.raises(ValueError, match=r"ca.key cannot be read"):
        certificates.make([])

    assert certificates.authority.read_bytes() == before


def test_nothing_is_signed_with_the_key_of_another_authority(
    certificates: CertificateFolder, tmp_path: Path
) -> None:
    other = CertificateFolder(tmp_path / "other")
    other.make([])
    (certificates.folder / "ca.key").write_bytes((other.folder / "ca.key").read_bytes())

    with pytest.raises(ValueError, match="is not the key of"):
        certificates.make([])


@pytest.mark.parametrize("host", ["gym.example.org:5", "a b", "-x.example", "", "*.example.org", "ä.example"])
def test_what_is_no_host_is_not_certified(folder: Path, host: str) -> None:
    with pytest.raises(ValueError, match="--host"):
        CertificateFolder(folder).make([host])
    assert not (folder / "tls").exists()


@pytest.mark.parametrize("name", ["owner", "../x", ".x", "a/b", "", "x" * 65])
def test_what_is_no_name_gets_no_certificate(certificates: CertificateFolder, name: str) -> None:
    with pytest.raises(ValueError, match="is no name for a client"):
        certificates.make_client(name)


def test_the_command_says_what_clients_need_and_refuses_in_one_line(folder: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "gym_service", "--state-folder", str(folder), "certificates")
        return subprocess.run((*command, *arguments), capture_output=True, text=True)

    assert "certificates make --host NAME" in run("client", "ann").stderr
    made = run("make", "--host", "gym.example.org", "--host", "192.0.2.7", "--days", "30")
    assert "::1, gym.example.org, 192.0.2.7, 30 days" in made.stdout
    assert str(folder / "tls" / "ca.pem") in made.stdout
    named = dict(line.split() for line in run("client", "ann.b").stdout.splitlines())
    assert list(named) == ["GYM_CLIENT_CERTIFICATE", "GYM_CLIENT_KEY"]
    assert all(Path(path).is_file() for path in named.values())
    refused = run("make", "--host", "a:5")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)


# TLS


async def test_an_episode_is_played_through_tls(folder: Path, certificates: CertificateFolder) -> None:
    async with gym_at(folder, tls=True) as endpoint:
        assert endpoint.ca_file == str(certificates.authority)
        assert not endpoint.certificate_file
        assert await play(endpoint) != "infrastructure_error"
        assert f"serving    {endpoint.address}" in await asyncio.to_thread(status_of, folder)
        with pytest.raises(GymRefused, match="UNAUTHENTICATED"):
            await capacity_of(Endpoint(endpoint.address, "guess", endpoint.ca_file))


async def test_a_gym_whose_certificates_are_gone_is_not_said_to_be_stopped(
    folder: Path, certificates: CertificateFolder
) -> None:
    async with gym_at(folder, tls=True):
        certificates.authority.unlink()
        said = await asyncio.to_thread(status_of, folder)
    assert f"process {os.getpid()} holds the gym's folder" in said
    assert "no gym is running" in await asyncio.to_thread(status_of, folder)


async def test_a_client_elsewhere_is_told_by_the_environment(
    folder: Path, certificates: CertificateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = certificates.make_client("ann").with_suffix(".key")
    async with gym_at(folder, tls=True, client_certificates=True) as endpoint:
        (tmp_path / "token").touch(mode=0o600)
        (tmp_path / "token").write_text(endpoint.token)
        for name, value in {
            "GYM_ADDRESS": endpoint.address.replace("127.0.0.1", "localhost"),
            "GYM_TOKEN_FILE": str(tmp_path / "token"),
            "GYM_CA_FILE": str(certificates.authority),
            "GYM_CLIENT_CERTIFICATE": str(certificates.client("ann")),
            "GYM_CLIENT_KEY": str(key),
        }.items():
            monkeypatch.setenv(name, value)

        assert await capacity_of(find_endpoint()) == 4
        key.chmod(0o644)
        with pytest.raises(NoGym, match="can be read by others"):
            await capacity_of(find_endpoint())
        monkeypatch.delenv("GYM_CLIENT_KEY")
        with pytest.raises(NoGym, match="belong together"):
            find_endpoint()
        monkeypatch.delenv("GYM_CLIENT_CERTIFICATE")
        monkeypatch.setenv("GYM_CA_FILE", "nowhere.pem")
        with pytest.raises(NoGym, match="GYM_CA_FILE"):
            await capacity_of(find_endpoint())


async def test_with_client_certificates_nobody_gets_in_without_one_of_this_gym(
    folder: Path, certificates: CertificateFolder, tmp_path: Path
) -> None:
    foreign = CertificateFolder(tmp_path / "other")
    foreign.make([])
    late = certificates.make_client("late", days=1e-9)
    served = certificates.folder / "server.pem"
    async with gym_at(folder, tls=True, client_certificates=True) as endpoint:
        assert await capacity_of(endpoint) == 4
        assert f"serving    {endpoint.address}" in await asyncio.to_thread(status_of, folder)
        with pytest.raises(GymUnavailable, match="GYM_CLIENT_CERTIFICATE and GYM_CLIENT_KEY"):
            await capacity_of(Endpoint(endpoint.address, endpoint.token, endpoint.ca_file))
        # Of another authority, one that has ended, and one that is for something else.
        for path in (foreign.client("owner"), late, served):
            shown = Endpoint(
                endpoint.address, endpoint.token, endpoint.ca_file, str(path), str(path.with_suffix(".key"))
            )
            with pytest.raises(GymUnavailable, match=f"does not take {path}"):
                await capacity_of(shown)
        with pytest.raises(GymRefused, match="UNAUTHENTICATED"):
            await capacity_of(
                Endpoint(endpoint.address, "", endpoint.ca_file, endpoint.certificate_file, endpoint.key_file)
            )


async def test_what_does_not_fit_is_told_with_what_to_change(
    folder: Path, certificates: CertificateFolder, tmp_path: Path
) -> None:
    foreign = CertificateFolder(tmp_path / "other")
    foreign.make([])
    for name, content in (("empty.pem", ""), ("torn.pem", "-----BEGIN CERTIFICATE-----\n!")):
        (tmp_path / name).write_text(content)
    async with gym_at(folder, tls=True) as endpoint:
        with pytest.raises(GymUnavailable, match="set GYM_CA_FILE"):
            await capacity_of(Endpoint(endpoint.address, endpoint.token))
        for path, said in (
            (foreign.authority, "is not of that gym's authority"),
            (tmp_path / "torn.pem", "is not what its name says"),
        ):
            with pytest.raises(GymUnavailable, match=said):
                await capacity_of(Endpoint(endpoint.address, endpoint.token, str(path)))
        with pytest.raises(NoGym, match="there is no certificate in"):
            await capacity_of(Endpoint(endpoint.address, endpoint.token, str(tmp_path / "empty.pem")))
        # Somebody on the way, at an address that is none of the gym's.
        host, port = endpoint.address.split(":")
        middle = await asyncio.start_server(lambda r, w: between(r, w, host, int(port)), "127.0.0.2", 0)
        address = f"127.0.0.2:{middle.sockets[0].getsockname()[1]}"
        with pytest.raises(GymUnavailable, match=f"certificate is not for {address}"):
            await capacity_of(Endpoint(address, endpoint.token, endpoint.ca_file))
        middle.close()
    async with gym_at(tmp_path / "plain") as endpoint:
        with pytest.raises(GymUnavailable, match="does not encrypt"):
            await capacity_of(Endpoint(endpoint.address, endpoint.token, str(certificates.authority)))
    with pytest.raises(GymUnavailable, match="See whether it runs there"):
        await capacity_of(Endpoint("127.0.0.1:1", "", str(certificates.authority)))


async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Passes on what comes."""
    far_reader, far_writer = await asyncio.open_connection(host, port)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)


# Sockets


async def test_an_episode_is_played_through_a_socket_that_is_its_owners_alone(folder: Path) -> None:
    async with gym_at(folder, bind="unix") as endpoint:
        path = folder / "gym.sock"
        assert endpoint.address == f"unix:{path}"
        assert [stat.S_IMODE(os.stat(each).st_mode) for each in (path, folder)] == [0o600, 0o700]
        assert await play(endpoint) != "infrastructure_error"
        assert f"serving    {endpoint.address}" in await asyncio.to_thread(status_of, folder)
        with pytest.raises(GymRefused, match="UNAUTHENTICATED"):
            await capacity_of(Endpoint(endpoint.address, "guess"))
    assert not path.exists()


async def test_a_socket_that_a_dead_service_left_is_taken_and_a_live_one_is_not(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "own" / "gym.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with gym_at(folder, bind=f"unix:{path}") as endpoint:
        assert await capacity_of(endpoint) == 4
        with pytest.raises(ValueError, match="another program listens there"):
            parse_bind(f"unix:{path}", folder).check_socket()


@pytest.mark.parametrize("slashes", ["//", "///"])
async def test_a_path_may_be_written_as_gRPC_writes_it(folder: Path, slashes: str) -> None:
    path = f"{folder}/other.sock"
    async with gym_at(folder, bind=f"unix:{slashes}{path[1:]}") as endpoint:
        assert endpoint.address == f"unix:{path}"
        assert await capacity_of(Endpoint(f"unix:{slashes}{path[1:]}", endpoint.token)) == 4


def test_a_socket_is_not_made_where_others_get_or_over_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ValueError, match="chmod 700"):
        parse_bind(f"unix:{tmp_path}/open/gym.sock", folder).check_socket()
    (folder / "file").touch()
    with pytest.raises(ValueError, match="there is a file of that name"):
        parse_bind(f"unix:{folder}/file", folder).check_socket()


async def test_a_token_does_not_go_to_the_socket_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "gym.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        try:
            os.chown(path, 12345, 12345)
        except PermissionError:
            pytest.skip("takes root")
        with pytest.raises(NoGym, match="no socket of this user"):
            await capacity_of(Endpoint(f"unix:{path}", "secret"))


# Services in processes of their own


@pytest.mark.docker
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "options", [("--bind", "unix"), ("--tls", "--client-certificates", "require")], ids=("unix", "tls")
)
async def test_up_and_the_trainer_find_each_other_and_no_secret_shows(
    folder: Path, certificates: CertificateFolder, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GYM_STATE_DIR", str(folder))
    try:
        await asyncio.to_thread(control.up, folder, (*SMALL, *options))
        endpoint = StateFolder(folder).endpoint()
        assert endpoint
        assert await play(None) == "unresolved"

        secrets = [endpoint.token, *(certificates.folder / "server.key").read_text().splitlines()[1:-1]]
        process = Path("/proc") / str(endpoint.process_id)
        places = [(process / name).read_text() for name in ("cmdline", "environ")]
        places += [(folder / "service.log").read_text(), json.dumps(containers_of(StateFolder(folder).owner))]
        for place, sign in zip(places, ("gym_service", "GYM_STATE_DIR", "serving at", '"Env"'), strict=True):
            assert sign in place
            assert not any(secret in place for secret in secrets)
    finally:
        assert await asyncio.to_thread(control.down, folder)
    assert await asyncio.to_thread(control.status, folder) is None
