"""The state folder: who holds it, where the service is, and files that are whole or not there."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gym_service.__main__ import _OneLine
from gym_service.state import Endpoint, StateFolder, read_grading_seed

HOLD = """
import sys, time
from pathlib import Path
from gym_service.state import StateFolder
state = StateFolder(Path(sys.argv[1]))
print(state.lock(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def state(tmp_path):
    return StateFolder(tmp_path / "state")


@pytest.fixture
def other(state):
    """Another process that holds the folder."""
    command = [sys.executable, "-c", HOLD, str(state.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def published(state, **changes):
    fields = {"address": "127.0.0.1:1", "token": "t", "process_id": 1, "image": "i"} | changes
    (state.folder / "endpoint.json").write_text(json.dumps(fields))


def test_a_folder_that_nobody_holds_can_be_taken_and_given_back(state):
    assert state.holder() is None

    assert state.lock()
    assert state.holder() == os.getpid()
    state.unlock()

    assert state.holder() is None


def test_a_folder_is_held_once_and_the_kernel_says_by_whom(state, other):
    assert state.holder() == other.pid
    assert not state.lock()
    assert state.holder() == other.pid


def test_a_process_that_was_killed_holds_nothing(state, other):
    other.send_signal(signal.SIGKILL)
    other.wait()

    assert state.holder() is None
    assert state.lock()
    state.unlock()


def test_an_endpoint_is_that_of_the_process_that_holds_the_folder(state, other):
    state.publish(Endpoint("127.0.0.1:1", "t", other.pid, "i"))

    assert state.endpoint() == Endpoint("127.0.0.1:1", "t", other.pid, "i")


@pytest.mark.parametrize(
    "process_id", [1, os.getpid(), 2**31 - 1, -1, "x"], ids=["init", "this one", "nobody", "negative", "word"]
)
def test_an_endpoint_of_another_process_is_none(state, other, process_id):
    published(state, process_id=process_id)

    assert state.endpoint() is None


def test_an_endpoint_that_a_dead_service_left_is_none(state):
    published(state, process_id=os.getpid())

    assert state.endpoint() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"address": 5}'])
def test_an_endpoint_file_that_is_damaged_is_none(state, other, content):
    (state.folder / "endpoint.json").write_bytes(content)

    assert state.endpoint() is None


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(state, monkeypatch):
    published(state, token="old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        state.publish(Endpoint("127.0.0.1:1", "new", 1, "i"))

    assert [path.name for path in state.folder.iterdir()] == ["endpoint.json"]
    assert json.loads((state.folder / "endpoint.json").read_text())["token"] == "old"


def test_the_grading_seed_stays_and_one_that_is_damaged_is_not_used(state):
    seed = state.grading_seed()

    assert len(seed) == 32
    assert state.grading_seed() == seed
    (state.folder / "grading.seed").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        state.grading_seed()


def test_looking_for_a_grading_seed_makes_none(tmp_path):
    assert read_grading_seed(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_an_event_of_the_log_is_one_line_whatever_it_quotes():
    quoted = "a\n2026-01-01 INFO forged\r\x1b[31m\u2028"
    record = logging.LogRecord("gym", logging.INFO, "x.py", 1, "lost: %s", (quoted,), None)

    line = _OneLine("%(levelname)s %(message)s").format(record)

    assert line == r"INFO lost: a\n2026-01-01 INFO forged\r\x1b[31m\u2028"
