"""The evaluation profile: what it asks of a machine, and that it is asked."""

from dataclasses import replace

import pytest

from gym_service.config import ServiceConfig
from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.machine import MachineFacts, gaps
from gym_service.server import serve
from gym_service.state import StateFolder

GOOD = MachineFacts(
    engine_version="29.5.1",
    runtime="runc",
    runtime_version="1.2.8",
    kernel_version="6.12.9-generic",
    cgroup_version="2",
    swap_bytes=0,
    core_pattern="core",
    address_randomization="2",
    socket_mode=0o660,
)


def test_a_machine_that_has_everything_has_no_gap():
    assert gaps(GOOD) == []
    assert gaps(replace(GOOD, engine_version="30.0.0-rc.1", runtime_version="1.10.0+ds1")) == []
    for mended in ("1.2.9", "1.3.3", "1.4.0", "2.0"):
        assert gaps(replace(GOOD, runtime_version=mended)) == []


@pytest.mark.parametrize(
    ("change", "named", "remedy"),
    [
        ({"engine_version": "29.5.0"}, "the engine is 29.5.0", "install Docker Engine 29.5.1"),
        ({"engine_version": "20.10.24+dfsg1"}, "the engine is 20.10.24", "install Docker Engine 29.5.1"),
        ({"engine_version": "unknown"}, "the engine is unknown", "install Docker Engine 29.5.1"),
        ({"runtime_version": "1.2.7"}, "the runtime is runc 1.2.7", "install runc 1.2.8"),
        ({"runtime_version": "1.1.15"}, "the runtime is runc 1.1.15", "install runc 1.2.8"),
        ({"runtime_version": "1.2.8-rc.1"}, "the runtime is runc 1.2.8-rc.1", "install runc 1.2.8"),
        ({"runtime_version": "1.3.2"}, "the runtime is runc 1.3.2", "install runc 1.2.8, 1.3.3"),
        ({"runtime_version": "1.4.0-rc.1"}, "the runtime is runc 1.4.0-rc.1", "1.4.0 or later"),
        ({"engine_version": "29.5.1-rc.1"}, "the engine is 29.5.1-rc.1", "install Docker Engine 29.5.1"),
        ({"runtime": "crun", "runtime_version": "99"}, "the runtime is crun 99", "no version is pinned"),
        ({"kernel_version": "5.15.0-91"}, "the kernel is 5.15.0-91", "run Linux 6.1"),
        ({"cgroup_version": "1"}, "control groups are of version 1", "unified_cgroup_hierarchy"),
        ({"swap_bytes": 2 << 30}, "there are 2048 MiB of swap", "swapoff -a"),
        (
            {"core_pattern": "|/usr/bin/apport %p"},
            "the program '/usr/bin/apport'",
            "sysctl kernel.core_pattern",
        ),
        ({"address_randomization": "0"}, "randomize_va_space is 0", "sysctl kernel.randomize_va_space=2"),
        ({"socket_mode": 0o666}, "mode 0666", "chmod o= SOCKET"),
    ],
)
def test_a_gap_is_named_with_what_to_do(change, named, remedy):
    (gap,) = gaps(replace(GOOD, **change))

    assert named in gap
    assert remedy in gap


def test_evaluation_uses_each_sandbox_once(tmp_path):
    with pytest.raises(ValueError, match="--single-use"):
        ServiceConfig(state_folder=tmp_path, profile="evaluation")

    assert not ServiceConfig(state_folder=tmp_path, profile="evaluation", reuse=False).reuse


def test_an_unknown_profile_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--profile must be one of training, evaluation"):
        ServiceConfig(state_folder=tmp_path, profile="production")


@pytest.mark.docker
async def test_evaluation_refuses_a_machine_with_a_gap(tmp_path, monkeypatch):
    monkeypatch.setattr("gym_service.server.gaps", lambda facts: gaps(replace(GOOD, swap_bytes=1 << 30)))

    with pytest.raises(
        SandboxLost, match="does not do for evaluation:\n  there are 1024 MiB of swap; turn it off"
    ):
        await serve(
            ServiceConfig(state_folder=tmp_path, profile="evaluation", reuse=False), StateFolder(tmp_path)
        )
