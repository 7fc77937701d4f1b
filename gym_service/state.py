"""The state folder: where a service and the clients of the same user find each other, and nobody else does.

endpoint.json   address, token and process of the service that runs; readable by its owner alone
service.log     its log
grading.seed    keys the draw of hidden inputs; kept, so that a replay is graded alike
lock            held by the service that runs: one per folder
"""

import fcntl
import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a service is reached."""

    address: str
    token: str
    process_id: int
    image: str
    """The name of the sandbox image that it uses."""


class StateFolder:
    """The files of one service."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, for its owner alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder = folder
        self.log = folder / "service.log"
        self._endpoint = folder / "endpoint.json"
        # Services of other folders on the same engine are left alone.
        self.owner = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        """Names the containers of this folder's service on an engine."""

    def lock(self) -> IO[str] | None:
        """Takes the folder for the life of this process; None when another service holds it."""
        file = (self.folder / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def publish(self, endpoint: Endpoint) -> None:
        """Tells the owner's clients where the service is."""
        self._write_private(self._endpoint, json.dumps(asdict(endpoint)).encode())

    def withdraw(self) -> None:
        """Takes back what `publish` told."""
        self._endpoint.unlink(missing_ok=True)

    def endpoint(self) -> Endpoint | None:
        """Reads where the service is; None when none was published."""
        try:
            return Endpoint(**json.loads(self._endpoint.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def grading_seed(self) -> bytes:
        """Reads the private seed, and makes it at the first time."""
        path = self.folder / "grading.seed"
        if not path.exists():
            self._write_private(path, secrets.token_bytes(32))
        return path.read_bytes()

    def _write_private(self, path: Path, content: bytes) -> None:
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
