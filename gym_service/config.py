"""The configuration of one service."""

import argparse
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gym_service.bind import Bind, parse_bind
from gym_service.sandbox.machine import PROFILES
from gym_service.sandbox.policy import BOUNDS, SandboxLimits


def default_state_folder() -> Path:
    """The folder where services and clients of one user find each other."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(os.environ.get("GYM_STATE_DIR") or Path(state) / "coding-gym")


RECORDS = ("none", "flagged", "all")
"""Flagged are those whose verdict has a flag or suspects tampering."""
_MOST = 100_000
_LONGEST_LEASE_SECONDS = 86_400.0 * 7


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Everything that an operator decides. Raises ValueError for what cannot be."""

    state_folder: Path = field(default_factory=default_state_folder)
    """Where the endpoint file, the log, the grading seed and the records lie; one service per folder."""
    bind: str = "127.0.0.1:0"
    """Where to listen: HOST:PORT, unix:PATH or unix; see `bind`. Beyond this machine, traffic is encrypted."""
    tls: bool = False
    """Whether traffic is encrypted also where no other machine gets."""
    client_certificates: bool = False
    """Whether a client has to show a certificate of this gym's, beside its token."""
    capacity: int = 64
    """The episodes that can be live at once; each has a sandbox."""
    graders: int = 4
    """The sandboxes that are kept for grading."""
    reuse: bool = True
    """Whether a sandbox serves again after it was proven clean."""
    max_lease_seconds: float = 300.0
    """The longest time that an episode lives without a word from its client."""
    kept_episodes: int = 4096
    """The ended episodes whose records are kept, graded or not."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    """The limits of each sandbox."""
    runtime: str = ""
    """The OCI runtime of the sandboxes; empty for the engine's default."""
    profile: str = "training"
    """One of `machine.PROFILES`: whether a machine with known gaps is refused."""
    records: str = "flagged"
    """One of `RECORDS`: which records of graded episodes are written to the state folder."""

    verdict_cache: bool = True
    """Whether a verdict that was reached before is given again without a run; see `grading.cache`."""
    tokenizers: tuple[str, ...] = ()
    """The model folders, or names in the local cache of transformers, whose tokenizers are registered at start."""
    viewer_port: int | None = None
    """Where on the loopback interface the page of the service and its metrics are; 0 for a free port, None for none."""

    def __post_init__(self) -> None:
        if self.listens_at.path and self.tls:
            raise ValueError("--tls is for hosts: what goes through a socket does not leave this machine")
        if self.client_certificates and not self.is_encrypted:
            raise ValueError(
                "--client-certificates are shown in TLS, which this bind does without: add --tls"
            )
        for name in ("capacity", "graders", "kept_episodes"):
            if not 1 <= getattr(self, name) <= _MOST:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} must be from 1 to {_MOST}, not {getattr(self, name)}")
        if self.viewer_port is not None and not 0 <= self.viewer_port <= 65535:
            raise ValueError(f"--viewer-port must be from 0 (a free one) to 65535, not {self.viewer_port}")
        if self.profile not in PROFILES:
            raise ValueError(f"--profile must be one of {', '.join(PROFILES)}, not {self.profile}")
        if self.records not in RECORDS:
            raise ValueError(f"--records must be one of {', '.join(RECORDS)}, not {self.records}")
        if self.profile == "evaluation" and self.reuse:
            raise ValueError("--profile evaluation uses each sandbox once; add --single-use")
        if not 1 <= self.max_lease_seconds <= _LONGEST_LEASE_SECONDS:
            raise ValueError(
                f"--max-lease-seconds must be from 1 to {_LONGEST_LEASE_SECONDS:g}, "
                f"not {self.max_lease_seconds:g}"
            )

    @property
    def listens_at(self) -> Bind:
        """Where to listen."""
        return parse_bind(self.bind, self.state_folder)

    @property
    def is_encrypted(self) -> bool:
        """Whether traffic is encrypted."""
        return self.tls or not self.listens_at.is_local


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each limit of a sandbox, under the name of its field."""
    group = parser.add_argument_group("limits of a sandbox", "K, M and G stand for 2^10, 2^20 and 2^30.")
    for name, default in asdict(SandboxLimits()).items():
        whole = isinstance(default, int)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=_whole_number if whole else float,
            default=default,
            metavar="N",
            help=f"{BOUNDS[name].what}; {_shown(default) if whole else default} by default",
        )


def limits_from(arguments: argparse.Namespace) -> SandboxLimits:
    """Reads the limits of a sandbox. Raises ValueError for what cannot be."""
    return SandboxLimits(**{name: getattr(arguments, name) for name in BOUNDS})


def _whole_number(text: str) -> int:
    parts = re.fullmatch("([0-9]{1,15})([KMG]?)", text.upper())
    if parts is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, such as 512 or 64M")
    return int(parts[1]) << 10 * " KMG".index(parts[2] or " ")


def _shown(number: int) -> str:
    """Writes a number as an operator would."""
    power = max(power for power in range(4) if number % (1 << 10 * power) == 0)
    return f"{number >> 10 * power}{' KMG'[power].strip()}"
