"""A Docker Engine of one's own that may be killed: the engine that others use never is.

It is started as the project starts engines, with everything that is its own in one folder: socket, data, containerd.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import docker

from sandbox_images.build import ensure_image, image_reference


class PrivateEngine:
    """An engine in a folder. Needs root and the program dockerd."""

    def __init__(self, folder: Path, state: Path) -> None:
        """`state` is the state folder in which the engine's pid and log are kept."""
        self.folder = folder
        self._state = state
        self.environment = os.environ | {
            "GYM_STATE_DIR": str(state),
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "GYM_DOCKERD_OPTIONS": f"--data-root={folder}/data --exec-root={folder}/exec",
        }
        """In which everything finds this engine, and the state folder."""

    @staticmethod
    def lacks() -> str:
        """Says what this machine lacks for one, in a sentence; empty when it lacks nothing."""
        if os.geteuid() != 0:
            return "an engine that may be killed is started as root"
        if shutil.which("dockerd") is None:
            return "an engine that may be killed needs dockerd on this machine"
        return ""

    @contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        """Connects to it."""
        with closing(docker.DockerClient(self.environment["DOCKER_HOST"], timeout=120)) as client:
            yield client

    def start(self) -> None:
        """Starts it, also after it was killed."""
        self._manage("up")

    def stop(self) -> None:
        """Stops it in order and removes its data, a folder that an engine that was killed left mounted on itself."""
        self._manage("down")
        if f" {self.folder}/data " in Path("/proc/self/mountinfo").read_text():
            subprocess.run(["umount", self.folder / "data"], check=True)
        shutil.rmtree(self.folder / "data")

    def kill(self) -> None:
        """Kills it with its containerd; what becomes of the containers is for the next one to see to."""
        for pid_file in (self._state / "engine.pid", self.folder / "exec/containerd/containerd.pid"):
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)

    def copy_image(self) -> None:
        """Loads the sandbox image from the engine in use, where it is made if need be."""
        with closing(docker.from_env(timeout=600)) as common, self.client() as private:
            ensure_image(common)
            private.images.load(common.images.get(image_reference()).save(named=True))

    def pids_of_wardens(self) -> list[int]:
        """Gives the first process of each container that runs, as this machine numbers them."""
        with self.client() as client:
            states = []
            for listed in client.api.containers():
                with suppress(docker.errors.NotFound):
                    states.append(client.api.inspect_container(listed["Id"])["State"])
        return sorted(state["Pid"] for state in states if state["Running"] and state["Pid"])

    def _manage(self, verb: str) -> None:
        command = [sys.executable, "-m", "sandbox_images.engine", verb]
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)
