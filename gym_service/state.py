"""The state folder: where a service and the clients of the same user find each other, and nobody else does.

endpoint.json   address, token and process of the service that runs; readable by its owner alone
gym.sock        where it listens, with --bind unix
tls/            certificates for a service that other machines reach (`certificates`)
service.log     its log
suites/         suites that were made or imported here
tokens.json     the hashes of the tokens that were issued, with roles and ends
tokens.lock     held while tokens.json is changed
proofs.json     which tasks are proven, with which grader and image
grading.seed    keys the draw of hidden inputs, signatures and seals; kept, so that a replay is graded alike
records/        the records of graded episodes, as far as they are kept (`record_folder`)
lock            held by the service that runs: one per folder, and the kernel says which process it is
evaluate.lock   held by the `evaluate` command, likewise
tasks.lock      held by the `tasks` command that uses containers: each begins by removing those that are left over
"""

import fcntl
import hashlib
import json
import os
import secrets
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gym_service.private_file import write_private

HELD_STATUS = 3
"""The exit status of a service that found its folder held by another process."""

TOKENS_FILE = "tokens.json"
_SEED_BYTES = 32
_SEED_NAME = "grading.seed"
_FLOCK = struct.Struct("@hhqqi")
"""struct flock of Linux: type, whence, start, length, process."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a service is reached, from this machine."""

    address: str
    token: str = field(repr=False)
    process_id: int
    image: str
    """The name of the sandbox image that it uses."""
    ca_file: str = ""
    """The certificate of the authority that vouches for the service; empty where traffic is not encrypted."""
    certificate_file: str = ""
    """What the owner shows to a service that asks for it; else empty."""
    key_file: str = ""
    """The key of that certificate."""
    viewer: str = ""
    """Where the page of the service is, such as http://127.0.0.1:8080; empty without one."""


class StateFolder:
    """The files of one service."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, for its owner alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder = folder
        self.log = folder / "service.log"
        self.suites = folder / "suites"
        """The suites that were made on this machine."""
        self.proofs = folder / "proofs.json"
        self.tokens = folder / TOKENS_FILE
        self._endpoint = folder / "endpoint.json"
        self._lock: int | None = None
        # Services of other folders on the same engine are left alone.
        self.owner = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        """Names the containers of this folder's service on an engine."""

    def lock(self, name: str = "lock") -> bool:
        """Takes the folder until `unlock` or the end of this process; returns whether it could be had."""
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A lock of the process, not of the file: the kernel knows whose it is, and `holder` asks it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        """Gives the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holder(self) -> int | None:
        """Gives the process that holds the folder: the service that runs or is about to; None without one.

        A process that holds the folder itself gives its own.
        """
        if self._lock is not None:
            return os.getpid()
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, process_id = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        finally:
            os.close(descriptor)
        return None if kind == fcntl.F_UNLCK else process_id

    def publish(self, endpoint: Endpoint) -> None:
        """Tells the owner's clients where the service is."""
        write_private(self._endpoint, json.dumps(asdict(endpoint)).encode())

    def withdraw(self) -> None:
        """Takes back what `publish` told."""
        self._endpoint.unlink(missing_ok=True)

    def endpoint(self) -> Endpoint | None:
        """Reads where the service is that holds the folder; None without one, whatever the file says."""
        try:
            endpoint = Endpoint(**json.loads(self._endpoint.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return endpoint if endpoint.process_id == self.holder() else None

    def grading_seed(self) -> bytes:
        """Reads the private seed, and makes it at the first time."""
        if read_grading_seed(self.folder) is None:
            write_private(self.folder / _SEED_NAME, secrets.token_bytes(_SEED_BYTES))
        seed = read_grading_seed(self.folder)
        assert seed is not None
        return seed


def read_grading_seed(folder: Path) -> bytes | None:
    """Reads the private seed of a state folder; None where there is none. Raises ValueError for a damaged one."""
    path = folder / _SEED_NAME
    try:
        seed = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(seed) != _SEED_BYTES:
        raise ValueError(f"{path} is damaged; remove it, and hidden inputs are drawn anew")
    return seed
