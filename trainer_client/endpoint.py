"""Where the gym listens, and the credential for it, found on the same machine without being told."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from trainer_client.errors import NoGym


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
    """Reads the endpoint file of the gym that runs on this machine.

    Raises:
        NoGym: No gym runs here, or its file can be read by others, so that its token is no secret any more.
    """
    path = state_folder() / "endpoint.json"
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise NoGym(
                    f"{path} can be read by others, so its token is no secret. Run: make gym-down gym-up"
                )
            content = json.load(file)
        return Endpoint(str(content["address"]), str(content["token"]))
    except FileNotFoundError:
        raise NoGym(f"No gym runs on this machine ({path} is not there). Run: make gym-up") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoGym(f"{path} cannot be read: {error}. Run: make gym-down gym-up") from error
