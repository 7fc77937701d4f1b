"""Where a service listens: on the loopback interface, at a socket of its owner, or for other machines.

What counts as this machine alone is decided by how the address is written, never by what a name resolves to.
"""

import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

SOCKET_NAME = "gym.sock"
_LONGEST_PATH_BYTES = 107
"""Of a socket, for the kernel."""
_PATH = re.compile(r"/[A-Za-z0-9._/@+~-]+")
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<other>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Bind:
    """Where a service listens. Made by `parse_bind`."""

    host: str
    """A name or an address without brackets; empty for a socket."""
    port: int
    """0 for a free one."""
    path: str
    """That of the socket; empty for a host."""

    @property
    def is_local(self) -> bool:
        """Whether no other machine gets there."""
        return bool(self.path) or is_loopback(self.host)

    @property
    def target(self) -> str:
        """As gRPC listens at it."""
        return f"unix:{self.path}" if self.path else _joined(self.host, self.port)

    @property
    def near_host(self) -> str:
        """The host by which clients on this machine come."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def address(self, port: int) -> str:
        """Returns what clients on this machine call, when the free port is known."""
        return self.target if self.path else _joined(self.near_host, port)

    def check_socket(self) -> None:
        """Raises ValueError unless a socket can be made where its owner alone gets.

        One that a killed service left behind is in nobody's way: gRPC removes it.
        """
        if not self.path:
            return
        path = Path(self.path)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        folder = path.parent.stat()
        if folder.st_mode & 0o077 or folder.st_uid != os.geteuid():
            raise ValueError(
                f"--bind unix:{path}: others get into {path.parent}: choose a folder that is yours alone (chmod 700)"
            )
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise ValueError(f"--bind unix:{path}: there is a file of that name: choose another")
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(2)
                asking.connect(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        raise ValueError(
            f"--bind unix:{path}: another program listens there: stop it, or choose another path"
        )


def parse_bind(text: str, state_folder: Path) -> Bind:
    """Reads HOST:PORT, unix:PATH, or unix for a socket in the state folder. Raises ValueError for what is neither."""
    if text == "unix" or text.startswith("unix:"):
        path = text.removeprefix("unix:") if ":" in text else str(state_folder.resolve() / SOCKET_NAME)
        # After two slashes gRPC expects the name of a host, after three a path.
        path = re.sub("^//+", "/", path)
        if not _PATH.fullmatch(path):
            raise ValueError(
                f"--bind unix:{path}: give a whole path, such as /run/gym/{SOCKET_NAME}, of letters, digits and ._@+~-"
            )
        if (length := len(path.encode())) > _LONGEST_PATH_BYTES:
            raise ValueError(
                f"--bind unix:{path}: the path of a socket has at most {_LONGEST_PATH_BYTES} bytes, and this one "
                f"{length}: give a shorter one with --bind unix:PATH"
            )
        return Bind("", 0, path)
    parts = _ADDRESS.fullmatch(text)
    if parts is None or not int(parts["port"]) <= 65535:
        raise ValueError(
            f"--bind {text}: give HOST:PORT with a port up to 65535 (0 takes a free one; an IPv6 address in brackets), "
            "or unix:PATH"
        )
    # What this name resolves to is for others to say.
    host = "127.0.0.1" if parts["other"] == "localhost" else parts["six"] or parts["other"]
    if parts["six"]:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ValueError(f"--bind {text}: {host} is no IPv6 address") from None
    return Bind(host, int(parts["port"]), "")


def is_loopback(host: str) -> bool:
    """Whether a host is written as an address of the loopback interface. A name is not, whatever it resolves to."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Of IPv6 that is ::1, not an address of IPv4 in other clothes.
    return address.is_loopback if address.version == 4 else address == ipaddress.IPv6Address("::1")


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
