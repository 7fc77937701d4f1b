"""Where the gym listens, and the credential for it, found on the same machine without being told."""

import ipaddress
import json
import os
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer_client.errors import NoGym

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<other>[A-Za-z0-9._-]+)):[0-9]{1,5}")
_SOCKET = "unix:"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a gym listens. Raises NoGym where a token would leave this machine in the clear."""

    address: str
    """Host and port, such as 127.0.0.1:50051, or unix:PATH."""
    token: str = field(repr=False)
    """The credential, sent with every call; empty for none."""
    ca_file: str = ""
    """The certificate of the authority that vouches for the gym, its ca.pem; empty for traffic that is not encrypted,
    which goes to this machine alone."""
    certificate_file: str = ""
    """What is shown to a gym that asks for it; else empty."""
    key_file: str = ""
    """The key of that certificate."""

    def __post_init__(self) -> None:
        is_socket = self.address.startswith(_SOCKET)
        if is_socket and self.ca_file:
            raise NoGym(f"{self.address} does not leave this machine, so leave GYM_CA_FILE out")
        if not is_socket and not _ADDRESS.fullmatch(self.address):
            raise NoGym(
                f"{self.address!r} is no address of a gym: give HOST:PORT (an IPv6 address in brackets) or unix:PATH"
            )
        if not (is_socket or self.ca_file or _is_loopback(self.address)):
            raise NoGym(
                f"{self.address} is not this machine, and a token would go there in the clear: set GYM_CA_FILE to "
                "a copy of that gym's ca.pem (`python -m gym_service certificates make` there), or make a tunnel (ssh "
                "-L) and set GYM_ADDRESS to its end on this machine, such as 127.0.0.1:50051"
            )
        if bool(self.certificate_file) != bool(self.key_file):
            raise NoGym("GYM_CLIENT_CERTIFICATE and GYM_CLIENT_KEY belong together: set both, or none")
        if self.certificate_file and not self.ca_file:
            raise NoGym("GYM_CLIENT_CERTIFICATE is shown in TLS alone: set GYM_CA_FILE, too, or leave it out")

    def read_certificates(self) -> tuple[bytes, bytes | None, bytes | None] | None:
        """Returns the authority, and the key and certificate to show, if any; None for traffic that is not encrypted.

        Raises:
            NoGym: A file cannot be read, the key can be read by others, or the socket belongs to another user.
        """
        if not self.ca_file:
            self._check_socket()
            return None
        try:
            authority = Path(self.ca_file).read_bytes()
            # Without one, gRPC would trust whom the web trusts.
            if b"-----BEGIN CERTIFICATE-----" not in authority:
                raise ValueError(f"there is no certificate in {self.ca_file}")
        except (OSError, ValueError) as error:
            raise NoGym(
                f"GYM_CA_FILE cannot be read: {error}. Set it to a copy of the gym's ca.pem"
            ) from None
        if not self.certificate_file:
            return authority, None, None
        try:
            key = _read_secret(Path(self.key_file), f"chmod 600 {self.key_file}").encode()
            return authority, key, Path(self.certificate_file).read_bytes()
        except (OSError, ValueError) as error:
            raise NoGym(
                f"GYM_CLIENT_KEY and GYM_CLIENT_CERTIFICATE cannot be read: {error}. "
                "Set them to the files that the gym's operator gave you"
            ) from None

    def _check_socket(self) -> None:
        if not self.address.startswith(_SOCKET):
            return
        path = self.address.removeprefix(_SOCKET)
        try:
            found = os.stat(path)
        except OSError:
            return  # There is no gym, as anywhere else where nothing listens.
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise NoGym(f"{path} is no socket of this user: somebody else would get the token")

    def advice(self, problem: str) -> str:
        """Says what to change where no gym answers, as far as gRPC's own words for the problem tell."""
        if not self.ca_file and "Socket closed" in problem:
            return "If that gym encrypts, set GYM_CA_FILE to a copy of its ca.pem; else run: make gym-up"
        if not self.ca_file:
            return "Run: make gym-up"
        for sign, advice in (
            (
                "has expired",
                "The gym's certificate has ended: `python -m gym_service certificates make` there",
            ),
            ("VERIFY_FAILED", f"{self.ca_file} is not of that gym's authority: take a copy of its ca.pem"),
            (
                "Hostname Verification",
                f"The gym's certificate is not for {self.address}: call it by a name that it has, or run "
                "`python -m gym_service certificates make --host NAME` there and start it again",
            ),
            (
                "WRONG_VERSION_NUMBER",
                "That gym does not encrypt: start it with --tls, or leave GYM_CA_FILE out",
            ),
            (
                "create security handshaker",
                f"{' or '.join(filter(None, (self.ca_file, self.certificate_file, self.key_file)))} is not what its "
                "name says: take a copy anew",
            ),
            (
                "Socket closed",
                f"The gym does not take {self.certificate_file}: have one made by `certificates client` there"
                if self.certificate_file
                else "If that gym asks for a certificate, set GYM_CLIENT_CERTIFICATE and GYM_CLIENT_KEY",
            ),
        ):
            if sign in problem:
                return advice
        return "See whether it runs there: make gym-status"

    @property
    def target(self) -> str:
        """The address as gRPC calls it. In the clear, nobody is asked what `localhost` resolves to."""
        if self.ca_file:
            return self.address
        # After two slashes gRPC expects the name of a host.
        return re.sub("^unix://+", "unix:/", re.sub("^localhost:", "127.0.0.1:", self.address))


def state_folder() -> Path:
    """Returns the folder in which a gym of this user leaves its endpoint file."""
    if chosen := os.environ.get("GYM_STATE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "coding-gym"


def find_endpoint() -> Endpoint:
    """Returns the gym that GYM_ADDRESS and GYM_TOKEN_FILE name, or reads the endpoint file of the one of this user.

    A gym on another machine takes GYM_CA_FILE, too, and perhaps GYM_CLIENT_CERTIFICATE and GYM_CLIENT_KEY.

    Raises:
        NoGym: No gym runs here, a token would go in the clear, or a file can be read by others, so that what is in it
            is no secret any more.
    """
    if address := os.environ.get("GYM_ADDRESS"):
        named = ("GYM_CA_FILE", "GYM_CLIENT_CERTIFICATE", "GYM_CLIENT_KEY")
        endpoint = Endpoint(address, "", *(os.environ.get(name, "") for name in named))
        token_file = Path(os.environ.get("GYM_TOKEN_FILE", ""))
        try:
            return replace(endpoint, token=_read_secret(token_file, f"chmod 600 {token_file}").strip())
        except (OSError, ValueError) as error:
            raise NoGym(
                f"GYM_ADDRESS is set, and GYM_TOKEN_FILE cannot be read: {error}. Set it to a file with the token"
            ) from error
    path = state_folder() / "endpoint.json"
    try:
        content = json.loads(_read_secret(path, "make gym-down gym-up"))
        files = [str(content.get(name, "")) for name in ("ca_file", "certificate_file", "key_file")]
        return Endpoint(str(content["address"]), str(content["token"]), *files)
    except FileNotFoundError:
        raise NoGym(f"No gym runs on this machine ({path} is not there). Run: make gym-up") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoGym(f"{path} cannot be read: {error}. Run: make gym-down gym-up") from error


def _is_loopback(address: str) -> bool:
    """Whether an address is written as one of the loopback interface. A name is not, whatever it resolves to."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    # Of IPv6 that is ::1, not an address of IPv4 in other clothes.
    return found.is_loopback if found.version == 4 else found == ipaddress.IPv6Address("::1")


def _read_secret(path: Path, remedy: str) -> str:
    """Reads a file that its owner alone can read. Raises NoGym where others can."""
    with path.open(encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise NoGym(f"{path} can be read by others, so what is in it is no secret. Run: {remedy}")
        return file.read()
