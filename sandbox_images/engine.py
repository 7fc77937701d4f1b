"""Make sure that a Docker Engine answers: use one, start one or install one, in that order.

    python -m sandbox_images.engine up | down | status

`up` takes the engine that answers (DOCKER_HOST is honoured). Else it starts the installed one, and as root
on a Debian-like system it installs the distribution's first. `down` stops an engine only if `up` started
it as a process of its own, and only while no container runs on it.

An engine that we start gets no bridge and touches no firewall rule: sandboxes have no network, and the image
build uses the host's. It logs to engine.log and keeps its pid in engine.pid, in the state directory.
GYM_DOCKERD_OPTIONS adds options to it, such as another --data-root. It knows the OCI runtimes crun and runsc where
they are installed; whether they hold is for the gym's self-test to say.

Not covered: installing on other systems, or without root. There we say what to run, and stop.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import docker

ANSWER_TIMEOUT_SECONDS = 10
REQUEST_TIMEOUT_SECONDS = 600
"""Longest silence in an answer, for example while a build step prints nothing."""
START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 30
DEFAULT_HOST = "unix:///var/run/docker.sock"
EXEC_ROOT = "/var/run/docker"  # dockerd's default
# Nothing here needs a bridge or a firewall rule, and where make runs in a container neither can be set up.
NO_NETWORK_SETUP = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
OTHER_RUNTIMES = {
    "crun": "",
    # Without a network even inside its own kernel, and with the container's seccomp profile.
    "runsc": "--network=none --ignore-cgroups --oci-seccomp",
}
"""OCI runtimes beside the engine's own, and the options that each needs."""
OPERATORS_CONFIGURATION = Path("/etc/docker/daemon.json")
ADVICE = """no Docker Engine answers at {host}, and this user or system cannot have one set up for it.
      Debian, Ubuntu:  sudo apt-get update && sudo apt-get install docker.io
      then:            sudo usermod -aG docker "$USER"   (root on this machine, in effect), and log in again
      elsewhere:       install and start Docker Engine 20.10 or later, or point DOCKER_HOST at one"""


class SetupError(Exception):
    """A step of the set-up failed. The text names the log, or says what to run."""


def state_directory() -> Path:
    """Where pids, logs and addresses are kept; made on first use, for its owner alone."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = Path(os.environ.get("GYM_STATE_DIR") or base / "coding-gym")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def connect() -> docker.DockerClient | None:
    """Return a client of the engine that answers, or None."""
    import docker  # here, so that the name of the image can be had without it

    try:
        client = docker.from_env(timeout=ANSWER_TIMEOUT_SECONDS)  # asks the engine for its version
    except docker.errors.DockerException:
        return None
    client.api.timeout = REQUEST_TIMEOUT_SECONDS
    return client


def ensure_engine() -> tuple[docker.DockerClient, bool]:
    """Return a client, and whether this call started the engine.

    Raises:
        SetupError: no engine answers and none could be started.
    """
    if client := connect():
        return client, False
    with _lock():
        if client := connect():  # another make was faster
            return client, False
        ours = _start()
    if client := connect():
        return client, ours
    raise SetupError(f"the engine started, but does not answer; see {_log_path()}")


def stop_engine() -> list[str]:
    """Stop the engine that we started, if any; return the containers in use on it, for which it stays up."""
    pid = _our_pid()
    if pid is None:
        return []
    client = connect()
    if client and (running := client.containers.list()):
        return sorted(str(container.name) for container in running)
    os.kill(pid, signal.SIGTERM)
    if not _wait_until(lambda: _our_pid() is None, STOP_TIMEOUT_SECONDS):
        raise SetupError(f"dockerd (pid {pid}) does not stop; see {_log_path()}")
    _pid_path().unlink(missing_ok=True)
    _log_path().unlink(missing_ok=True)
    return []


def describe_stop(in_use: list[str]) -> str:
    """One line on what stop_engine() did."""
    if in_use:
        return f"Docker Engine: stays up, containers are in use on it: {', '.join(in_use)}"
    return "Docker Engine: none of ours runs"


def describe_engine(client: docker.DockerClient) -> str:
    """One line: version and address."""
    return f"Docker Engine: {client.version()['Version']} at {_host()}"


def run_logged(log_path: Path, *command: str) -> None:
    """Run one set-up command, its output at the end of the log."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with log_path.open("ab") as log:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, check=False
        ).returncode
    if status != 0:
        raise SetupError(f"`{command[0]}` ended with status {status}; see {log_path}")


def _host() -> str:
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def _pid_path() -> Path:
    return state_directory() / "engine.pid"


def _log_path() -> Path:
    return state_directory() / "engine.log"


def _start() -> bool:
    """Start an engine; return whether it is a process of ours. A system service is not ours to stop."""
    host = _host()
    if os.geteuid() != 0 or not host.startswith("unix://"):
        raise SetupError(ADVICE.format(host=host))
    if shutil.which("dockerd") is None:
        if shutil.which("apt-get") is None:
            raise SetupError(ADVICE.format(host=host))
        _install()
        if connect():  # the package started its own service
            return False
    if host == DEFAULT_HOST and Path("/run/systemd/system").exists():
        run_logged(_log_path(), "systemctl", "start", "docker")
        return False
    return _spawn(host)


def _install() -> None:
    print("      installing docker.io (apt-get)", flush=True)
    run_logged(_log_path(), "apt-get", "update")
    run_logged(_log_path(), "apt-get", "install", "-y", "--no-install-recommends", "docker.io")


def _spawn(host: str) -> bool:
    """Run dockerd in the background, outliving this terminal, and wait until it answers; return whether this did it.

    One of an earlier call may be there and not have answered in time. It is not this call's to stop.
    """
    print("      starting dockerd", flush=True)
    process = None
    if _our_pid() is None:
        options = os.environ.get("GYM_DOCKERD_OPTIONS", "").split()
        _clear_after_a_kill(options)
        command = [
            "dockerd",
            f"--host={host}",
            f"--pidfile={_pid_path()}",
            *NO_NETWORK_SETUP,
            *_runtimes(),
            *options,
        ]
        with _log_path().open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
    _wait_until(lambda: bool(connect() or (process and process.poll() is not None)), START_TIMEOUT_SECONDS)
    if connect() is None:
        raise SetupError(f"dockerd does not answer; see {_log_path()}")
    return process is not None


def _runtimes() -> list[str]:
    """Options that make the engine know the other runtimes. An operator who configures it registers his own."""
    if OPERATORS_CONFIGURATION.exists():
        return []
    options = []
    for name, arguments in OTHER_RUNTIMES.items():
        if program := shutil.which(name):
            # The option takes a program and no arguments.
            wrapper = state_directory() / f"{name}.sh"
            wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(program)} {arguments} "$@"\n')
            wrapper.chmod(0o700)
            options.append(f"--add-runtime={name}={wrapper}")
    return options


def _clear_after_a_kill(options: list[str]) -> None:
    """Removes what an engine that was killed left: dockerd takes any process with such a pid for the old one."""
    _pid_path().unlink(missing_ok=True)
    prefix = "--exec-root="
    exec_root = next(
        (option.removeprefix(prefix) for option in options if option.startswith(prefix)), EXEC_ROOT
    )
    containerd = Path(exec_root, "containerd")
    containerd_pid_path = containerd / "containerd.pid"
    _, arguments = _process_of(containerd_pid_path)
    if Path(arguments[0]).name != "containerd":
        containerd_pid_path.unlink(missing_ok=True)
        _end_orphans(containerd)


def _end_orphans(containerd: Path) -> None:
    """Ends the shims of a containerd that is gone, and the containers that they look after.

    The new engine would end those that it knows of, but not one that was being started: nobody is left at its input.
    """
    shims, parents = set(), {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It ended meanwhile.
            # Behind the name in brackets, which may hold anything: the state and the parent.
            stat = (process / "stat").read_text(errors="replace")
            parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
            program, *arguments = (process / "cmdline").read_text(errors="replace").split("\0")
            ours = f"{containerd}/containerd.sock" in arguments
            if ours and Path(program).name.startswith("containerd-shim"):
                shims.add(int(process.name))
    # Without its shim a container would be a child of somebody else.
    for process_id in [*(child for child, parent in parents.items() if parent in shims), *shims]:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    for address in containerd.glob("daemon/io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)


def _our_pid() -> int | None:
    """The pid of the dockerd that we started, if it lives."""
    pid, arguments = _process_of(_pid_path())
    return pid if f"--pidfile={_pid_path()}" in arguments else None


def _process_of(pid_path: Path) -> tuple[int | None, list[str]]:
    """The pid in the file and what runs under it now, which may be a stranger's command."""
    try:
        pid = int(pid_path.read_text())
        return pid, Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (OSError, ValueError):
        return None, [""]


def _wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@contextmanager
def _lock() -> Iterator[None]:
    """Keep a second make from starting a second engine. The folder itself is locked: no file is left."""
    descriptor = os.open(state_directory(), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main() -> None:
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    try:
        if verb == "up":
            print(describe_engine(ensure_engine()[0]))
        elif verb == "down":
            print(describe_stop(stop_engine()))
        elif verb == "status":
            client = connect()
            print(describe_engine(client) if client else f"Docker Engine: none answers at {_host()}")
        else:
            sys.exit("usage: python -m sandbox_images.engine up | down | status")
    except SetupError as error:
        sys.exit(f"Docker Engine: {error}")


if __name__ == "__main__":
    main()
