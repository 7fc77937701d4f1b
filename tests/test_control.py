"""The background service on a real engine: up, up again, down, killed, and nothing of it left behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gym_service import control
from gym_service.sandbox import policy
from gym_service.sandbox.policy import SandboxLimits
from gym_service.state import HELD_STATUS, StateFolder
from tests.engine import containers_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

SMALL = ("--capacity", "2", "--graders", "1")


@pytest.fixture
def folder(tmp_path):
    """A state folder whose service is stopped afterwards, whatever the test did."""
    folder = tmp_path / "state"
    yield folder
    control.down(folder)


def containers(folder):
    return containers_of(StateFolder(folder).owner)


def wait_until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


def test_up_serves_up_again_changes_nothing_and_down_leaves_nothing(folder):
    control.up(folder, SMALL)
    first = StateFolder(folder).endpoint()
    started = time.monotonic()
    info = control.up(folder, SMALL)

    assert time.monotonic() - started < 2
    assert StateFolder(folder).endpoint() == first
    assert info.capacity == 2
    assert info.isolation.observed["effective_capabilities"] == "0" * 16
    assert info.isolation.seccomp_sha256 == policy.SECCOMP_SHA256
    assert info.isolation.limits.open_files == SandboxLimits().open_files
    assert info.profile == "training"
    (own, *others) = info.self_tests
    assert (own.runtime, own.offered) == (info.isolation.runtime, True)
    assert {"process_limit", "memory_limit", "socket_families"} < {check.name for check in own.checks}
    assert not any(other.offered for other in others)
    wait_until(lambda: len(containers(folder)) == 3)

    assert control.down(folder)

    assert containers(folder) == []
    assert StateFolder(folder).endpoint() is None
    assert control.status(folder) is None
    assert not control.down(folder)


def test_the_tokenizers_of_model_folders_are_known_from_the_start(folder, tmp_path):
    from trainer_client.models import tiny

    tiny.build_tokenizer().save_pretrained(tmp_path / "tiny")

    (tokenizer,) = control.up(folder, (*SMALL, "--tokenizer", str(tmp_path / "tiny"))).tokenizers

    assert tokenizer.append_only


def test_a_folder_without_a_tokenizer_ends_the_start_and_is_named(folder, tmp_path):
    with pytest.raises(control.ControlError, match=rf"error: {tmp_path}: tokenizer.json cannot be read"):
        control.up(folder, (*SMALL, "--tokenizer", str(tmp_path)))


def test_the_endpoint_is_for_its_owner_alone(folder):
    control.up(folder, SMALL)

    assert stat.S_IMODE((folder / "endpoint.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_token_is_in_the_log_or_on_a_command_line(folder):
    control.up(folder, SMALL)
    endpoint = json.loads((folder / "endpoint.json").read_text())

    assert endpoint["token"] not in (folder / "service.log").read_text()
    with open(f"/proc/{endpoint['process_id']}/cmdline", "rb") as file:
        assert endpoint["token"].encode() not in file.read()


def test_after_a_kill_the_containers_end_and_the_next_service_removes_them(folder):
    control.up(folder, SMALL)
    endpoint = StateFolder(folder).endpoint()
    wait_until(lambda: len(containers(folder)) == 3)
    before = {container["Id"] for container in containers(folder)}

    os.kill(endpoint.process_id, signal.SIGKILL)
    wait_until(lambda: all(container["State"]["Status"] != "running" for container in containers(folder)))
    control.up(folder, SMALL)

    wait_until(lambda: len(containers(folder)) == 3)
    assert before.isdisjoint(container["Id"] for container in containers(folder))


def test_after_a_kill_down_removes_the_containers(folder):
    control.up(folder, SMALL)
    os.kill(StateFolder(folder).endpoint().process_id, signal.SIGKILL)

    control.down(folder)

    assert containers(folder) == []


def test_a_second_service_of_one_folder_is_refused(folder):
    control.up(folder, SMALL)

    command = [sys.executable, "-m", "gym_service", "--state-folder", str(folder), "serve"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert second.returncode == HELD_STATUS
    assert "another service holds" in second.stderr
    assert control.status(folder) is not None


def test_a_service_that_cannot_start_says_why(folder):
    with pytest.raises(control.ControlError, match="--capacity must be from 1 to"):
        control.up(folder, ("--capacity", "0"))


def test_two_that_start_it_at_once_get_the_same_service(folder):
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _: control.up(folder, SMALL), range(2))

    assert first.isolation == second.isolation
    assert control.down(folder)
    assert containers(folder) == []


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_down_ends_a_service_that_is_about_to_start(folder, seconds):
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(control.up, folder, SMALL)
        time.sleep(seconds)
        wait_until(lambda: StateFolder(folder).holder() is not None)

        assert control.down(folder)

        starting.exception(timeout=20)
    assert StateFolder(folder).holder() is None
    assert containers(folder) == []


def test_a_service_that_is_stopped_twice_while_sandboxes_start_leaves_nothing(folder):
    control.up(folder, ("--capacity", "6", "--graders", "1"))
    process_id = StateFolder(folder).endpoint().process_id

    os.kill(process_id, signal.SIGTERM)
    os.kill(process_id, signal.SIGTERM)

    wait_until(lambda: StateFolder(folder).holder() is None)
    assert containers(folder) == []
    assert sorted(path.name for path in folder.iterdir()) == [
        "grading.seed",
        "lock",
        "proofs.json",
        "service.log",
    ]


def test_an_endpoint_of_a_service_that_is_gone_is_in_nobodys_way(folder):
    folder.mkdir()
    stale = {"address": "127.0.0.1:1", "token": "t", "process_id": os.getpid(), "image": "i"}
    (folder / "endpoint.json").write_text(json.dumps(stale))

    assert control.status(folder) is None
    assert not control.down(folder)
    assert control.up(folder, SMALL).capacity == 2


@pytest.mark.parametrize("command", ["up", "down", "status", "serve"])
def test_a_folder_that_cannot_be_is_an_error_in_one_line(tmp_path, command):
    (tmp_path / "file").touch()

    asked = [sys.executable, "-m", "gym_service", "--state-folder", str(tmp_path / "file"), command]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_every_built_in_task_is_proven():
    command = [sys.executable, "-m", "gym_service", "tasks", "check", "bugfix"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=150)

    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.splitlines()[-1] == "30 of 30 tasks are proven"
