"""Where the gym listens, and the credential for it, found on the same machine without being told."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trainer_client.errors import NoGym

_LOCAL = re.compile(r"(127(\.\d+){3}|localhost|\[::1\]):\d+$")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a gym listens."""

    address: str
    """Host and port, such as 127.0.0.1:50051."""
    token: str
    """The credential, sent with every call; empty for none."""


def state_folder() -> Path:
    """Returns the folder in which a gym of this user leaves its endpoint file."""
    if chosen := os.environ.get("GYM_STATE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "coding-gym"


def find_endpoint() -> Endpoint:
    """Returns the gym that GYM_ADDRESS and GYM_TOKEN_FILE name, or reads the endpoint file of the one of this user.

    Raises:
        NoGym: No gym runs here, or a file can be read by others, so that the token in it is no secret any more.
    """
    if address := os.environ.get("GYM_ADDRESS"):
        if not _LOCAL.match(address):
            raise NoGym(
                f"GYM_ADDRESS is {address}, and a token would go there in the clear: make a tunnel to it (ssh -L), "
                "and set it to the end on this machine, such as 127.0.0.1:50051"
            )
        token_file = Path(os.environ.get("GYM_TOKEN_FILE", ""))
        try:
            token = _read_secret(token_file, f"chmod 600 {token_file}").strip()
        except (OSError, ValueError) as error:
            raise NoGym(
                f"GYM_ADDRESS is set, and GYM_TOKEN_FILE cannot be read: {error}. Set it to a file with the token"
            ) from error
        return Endpoint(address, token)
    path = state_folder() / "endpoint.json"
    try:
        content = json.loads(_read_secret(path, "make gym-down gym-up"))
        return Endpoint(str(content["address"]), str(content["token"]))
    except FileNotFoundError:
        raise NoGym(f"No gym runs on this machine ({path} is not there). Run: make gym-up") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoGym(f"{path} cannot be read: {error}. Run: make gym-down gym-up") from error


def _read_secret(path: Path, remedy: str) -> str:
    """Reads a file that its owner alone can read. Raises NoGym where others can."""
    with path.open(encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise NoGym(f"{path} can be read by others, so its token is no secret. Run: {remedy}")
        return file.read()
