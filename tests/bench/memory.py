"""What idle sandboxes take of the machine's memory."""

import statistics
from pathlib import Path

import docker

from gym_service.sandbox.docker import OWNER_LABEL
from tests.bench.services import Service

_SAMPLES = 8


def idle_memory_mib(service: Service) -> tuple[float, float | None]:
    """Gives the median of what the cgroup of a warm sandbox counts, and of what its processes take for themselves.

    The second is their proportional share, in which a page that many sandboxes map counts once; None where this
    user may not look at the warden.
    """
    api = docker.from_env().api
    containers = api.containers(filters={"label": f"{OWNER_LABEL}={service.state.owner}"})[:_SAMPLES]
    counted = [
        api.stats(each["Id"], stream=False, one_shot=True)["memory_stats"]["usage"] for each in containers
    ]
    wardens = [api.inspect_container(each["Id"])["State"]["Pid"] for each in containers]
    try:
        shares = [_share_kib(process_id) for process_id in wardens]
    except OSError:
        return statistics.median(counted) / 2**20, None
    return statistics.median(counted) / 2**20, statistics.median(shares) / 1024


def _share_kib(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
