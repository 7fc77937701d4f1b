"""What a service and its engine hold: containers, processes, descriptors, memory."""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import docker

from gym_service.sandbox.docker import OWNER_LABEL
from tests.bench.services import Service

_CREDENTIALS = struct.Struct("iII")
"""struct ucred of Linux: process, user, group."""


@dataclass(frozen=True)
class Process:
    """What one process holds."""

    descriptors: int
    rss_mib: float

    @classmethod
    def look_at(cls, process_id: int) -> "Process":
        """Reads it from the kernel."""
        folder = Path("/proc", str(process_id))
        lines = (folder / "status").read_text().splitlines()
        rss_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
        return cls(len(os.listdir(folder / "fd")), rss_kib / 1024)


@dataclass(frozen=True)
class Footprint:
    """What is held at one moment."""

    containers: int
    """The containers of this service, dead ones included."""
    processes: int
    """The processes in them, zombies included."""
    strangers: frozenset[str]
    """The containers of others on the same engine, by id."""
    service: Process
    engine: Process | None
    """None where the engine is no process of this machine that this user may look at."""

    @classmethod
    def take(cls, service: Service) -> "Footprint":
        """Counts now."""
        api = docker.from_env().api
        everybody = api.containers(all=True)
        containers = [each for each in everybody if each["Labels"].get(OWNER_LABEL) == service.state.owner]
        running = [each["Id"] for each in containers if each["State"] == "running"]
        return cls(
            containers=len(containers),
            strangers=frozenset(each["Id"] for each in everybody if each not in containers),
            processes=sum(len(api.top(each)["Processes"]) for each in running),
            service=Process.look_at(service.process_id),
            engine=_engine(),
        )


def _engine() -> Process | None:
    """Looks at the engine that is asked; a machine may have several."""
    engines = _processes_named("dockerd")
    address = docker.from_env().api.get_adapter("http+docker://").socket_path
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    listener, _, _ = _CREDENTIALS.unpack(credentials)
    # Where systemd has made the socket, it counts as the listener.
    chosen = [listener] if listener in engines else engines
    try:
        return Process.look_at(chosen[0]) if len(chosen) == 1 else None
    except PermissionError:
        return None


def _processes_named(name: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It ended meanwhile.
            if (folder / "comm").read_text() == f"{name}\n":
                found.append(int(folder.name))
    return found
