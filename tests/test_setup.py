"""Set-up: the engine that is ours to stop, the image named by its content, versions that are all pinned."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sandbox_images import build, engine

ROOT = Path(__file__).parent.parent


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("GYM_STATE_DIR", str(tmp_path / "state"))
    return engine.state_directory()


@pytest.fixture
def image_folder(tmp_path, monkeypatch):
    folder = tmp_path / "sandbox_images"
    shutil.copytree(build.FOLDER, folder)
    monkeypatch.setattr(build, "FOLDER", folder)
    return folder


def test_state_is_for_its_owner_alone(state):
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [str(os.getpid()), "4194305", "no number", ""], ids=["ours", "nobody", "word", "empty"]
)
def test_a_process_that_got_the_pid_of_our_engine_is_not_stopped(state, content):
    (state / "engine.pid").write_text(content)

    assert engine.stop_engine() == []


def test_an_engine_elsewhere_that_is_silent_is_reported_and_never_started(state, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started something"))

    with pytest.raises(engine.SetupError, match=re.escape("tcp://127.0.0.1:9")):
        engine.ensure_engine()


def test_a_set_up_command_that_fails_names_its_log(state):
    with pytest.raises(engine.SetupError, match=r"status 3; see .*set-up\.log"):
        engine.run_logged(state / "set-up.log", "sh", "-c", "echo why; exit 3")

    assert (state / "set-up.log").read_text() == "why\n"


def test_an_engine_that_was_slow_to_answer_is_not_taken_for_one_of_this_call(state, monkeypatch):
    answers = iter([None, None, None])
    monkeypatch.setattr(engine, "connect", lambda: next(answers, "a client"))
    monkeypatch.setattr(engine, "_our_pid", lambda: os.getpid())
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(engine.os, "geteuid", lambda: 0)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{state}/docker.sock")

    assert engine.ensure_engine() == ("a client", False)


def test_an_engine_of_ours_knows_the_runtimes_that_are_installed(state, tmp_path, monkeypatch):
    (tmp_path / "runsc").write_text("#!/bin/sh\necho runsc $*\n")
    (tmp_path / "runsc").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(engine, "OPERATORS_CONFIGURATION", tmp_path / "daemon.json")
    monkeypatch.setattr(engine, "OTHER_RUNTIMES", {"absent": "", "runsc": engine.OTHER_RUNTIMES["runsc"]})

    (option,) = engine._runtimes()
    name, wrapper = option.removeprefix("--add-runtime=").split("=")
    shown = subprocess.run([wrapper, "--version"], capture_output=True, text=True, check=True).stdout
    assert name == "runsc"
    assert shown == "runsc --network=none --ignore-cgroups --oci-seccomp --version\n"

    (tmp_path / "daemon.json").write_text("{}")
    assert engine._runtimes() == []


def test_what_a_killed_containerd_was_starting_is_ended_and_nothing_else(tmp_path):
    def shim_of(containerd):
        address = f"{containerd}/containerd.sock"
        command = ["containerd-shim-runc-v2", "-c", "sleep 100 & echo $!; wait", "sh", "-address", address]
        shim = subprocess.Popen(command, executable="/bin/sh", stdout=subprocess.PIPE, text=True)
        return shim, int(shim.stdout.readline())

    (ours, container), (other, other_container) = shim_of(tmp_path), shim_of(tmp_path / "other")
    bundle = tmp_path / "daemon/io.containerd.runtime.v2.task/moby/1"
    bundle.mkdir(parents=True)
    (bundle / "address").write_text(f"unix://{tmp_path}/shim.sock")
    (tmp_path / "shim.sock").touch()
    try:
        engine._end_orphans(tmp_path)

        assert not (tmp_path / "shim.sock").exists()
        assert ours.wait(timeout=10) == -signal.SIGKILL
        # It is nobody's child now, and may stay a zombie.
        assert engine._wait_until(lambda: not Path(f"/proc/{container}/exe").exists(), 10)
        assert other.poll() is None
        assert Path(f"/proc/{other_container}/exe").exists()
    finally:
        os.kill(other_container, signal.SIGKILL)
        other.wait()


def test_the_image_has_a_new_name_when_the_warden_changes(image_folder):
    before = build.image_reference()
    (image_folder / "warden" / "added.py").write_text("")

    assert build.image_reference() != before


def test_the_image_keeps_its_name_when_the_warden_was_only_run(image_folder):
    before = build.image_reference()
    (image_folder / "warden" / "__pycache__").mkdir(exist_ok=True)
    (image_folder / "warden" / "__pycache__" / "added.pyc").write_bytes(b"")

    assert build.image_reference() == before


def test_the_name_of_the_image_needs_no_docker():
    code = "import sys; sys.modules['docker'] = None; from sandbox_images import build; print(build.image_reference())"
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert output.strip() == build.image_reference()


@pytest.mark.docker
def test_no_file_of_the_image_lends_its_owners_rights():
    client, _ = engine.ensure_engine()
    build.ensure_image(client)
    found = client.containers.run(
        build.image_reference(),
        ["/", "-xdev", "-perm", "/6000"],
        entrypoint="find",
        network_mode="none",
        remove=True,
    )

    assert found == b""


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # Those bring an environment of their own, with other versions of what is pinned here.
    apart = ("vllm", "bench", "trackio", "trl", "verifiers", "skyrl", "openenv")
    installed = [extra for name, extra in extras.items() if name not in apart]
    declared = [*project["dependencies"], *(requirement for extra in installed for requirement in extra)]
    names = {re.match(r"[\w-]+", requirement).group() for requirement in declared}
    pinned = set(
        re.findall(r"^([\w-]+)==[\w.]+$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    )

    assert names - pinned == set()


def test_the_client_takes_grpc_and_protobuf_alone():
    code = (
        "import sys; before = set(sys.modules); import trainer_client.blocking, trainer_client.gym\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    # What belongs to grpc it imports itself, where it is installed.
    ours = {"google", "gym_contract", "trainer_client", "typing_extensions"}
    assert {name for name in output.split() if not re.match("grpc|_?cython", name)} <= ours
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.match("[a-z]+", each).group() for each in project["dependencies"]} == {"grpcio", "protobuf"}
    assert (ROOT / "trainer_client" / "py.typed").exists()


def test_make_alone_lists_every_target_that_is_meant_for_people():
    listing = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  make ([a-z-]+)  +[A-Z]", listing, flags=re.MULTILINE)

    assert {"setup", "gym-up", "gym-down", "gym-status", "train", "test", "bench", "clean"} <= set(listed)
    assert {"help", "test-fast", "verify", "fix", "proto"} <= set(listed)
