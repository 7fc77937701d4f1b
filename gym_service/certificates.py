"""The certificates of a gym that other machines reach, in the folder `tls` of its state folder.

ca.pem, ca.key           the gym's own authority; clients get ca.pem, and nothing leaves with ca.key
server.pem, server.key   what the service shows
clients/NAME.pem, .key   what a client shows where the service asks for it; `owner` is for this machine

All is signed by the authority alone, so that a copy of ca.pem is all the trust that a client needs. It stays when the
others are made anew.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gym_service.private_file import write_private

OWNER_NAME = "owner"
DAYS = 397.0
"""How long a certificate is good, if nothing else is said."""
_AUTHORITY_DAYS = 3650.0
_MOST_DAYS = 3650.0
_CLOCK_DIFFERENCE = timedelta(minutes=10)
"""By how much the clock of another machine may be behind."""
_NEAR = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,63}")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Identity:
    """What a service shows to clients, and what it knows them by."""

    certificate: bytes
    key: bytes
    authority: bytes
    days_left: float


@dataclass(frozen=True, slots=True)
class _Issuer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class CertificateFolder:
    """The certificates of one state folder."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder.resolve() / "tls"
        self.authority = self.folder / "ca.pem"
        self._server = self.folder / "server.pem"
        self._make = f"python -m gym_service --state-folder {state_folder} certificates make"

    def client(self, name: str) -> Path:
        """Returns where the certificate of a client lies; its key is beside it, as `.key`."""
        return self.folder / "clients" / f"{name}.pem"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names and addresses by which the service may be called. Raises ValueError without a certificate."""
        return _hosts_of(self._read(self._server))

    def make(self, hosts: Sequence[str], days: float = DAYS) -> None:
        """Makes what the service shows, and what its owner does; the authority, if there is no good one yet.

        Without hosts it is good for those that it was good for. This machine's loopback interface is always among them.

        Raises ValueError for what cannot be.
        """
        if not hosts and self._server.exists():
            hosts = self.hosts
        names = [_general_name(host) for host in dict.fromkeys((*_NEAR, *map(str.lower, hosts)))]
        _check_days(days)
        self._make_authority()
        alternatives = x509.SubjectAlternativeName(names)
        self._issue(self._server, "coding-gym", ExtendedKeyUsageOID.SERVER_AUTH, days, alternatives)
        self._issue_client(OWNER_NAME, days)

    def make_client(self, name: str, days: float = DAYS) -> Path:
        """Makes a certificate for a client and returns where it lies. Raises ValueError for what cannot be."""
        if not _NAME.fullmatch(name) or name == OWNER_NAME:
            raise ValueError(
                f"{name!r} is no name for a client: take up to 64 letters, digits and _ . @ -, not {OWNER_NAME}"
            )
        _check_days(days)
        return self._issue_client(name, days)

    def read_identity(self, host: str) -> Identity:
        """Reads what a service shows that is called by this host on this machine.

        Raises ValueError, with the command that helps, where there is none, or it has come to its end, or is another's.
        """
        certificate = self._read(self._server)
        key = _read_key(self._server)
        days_left = (certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)
        if days_left <= 0:
            raise ValueError(
                f"the certificate {self._server} ended on {certificate.not_valid_after_utc:%Y-%m-%d}: run {self._make}"
            )
        try:
            certificate.verify_directly_issued_by(self._read(self.authority))
            matches = key.public_key() == certificate.public_key()
        except Exception:
            matches = False
        if not matches:
            raise ValueError(f"the files in {self.folder} do not belong together: run {self._make}")
        hosts = _hosts_of(certificate)
        if str(_general_name(host).value) not in hosts:
            raise ValueError(
                f"the certificate {self._server} is not for {host}, but for {', '.join(hosts)}: "
                f"run {self._make} --host {host}, with each other name by which clients call it"
            )
        return Identity(
            self._server.read_bytes(),
            _key_path(self._server).read_bytes(),
            self.authority.read_bytes(),
            days_left,
        )

    def _make_authority(self) -> None:
        if self.authority.exists() and self._issuer().certificate.not_valid_after_utc > datetime.now(UTC):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        # A name of its own: that of an authority which was made before must not stand for this one.
        name = _subject(f"coding-gym authority {x509.random_serial_number():x}"[:64])
        builder = _builder(name, name, key, datetime.now(UTC) + timedelta(days=_AUTHORITY_DAYS))
        usage = _usage(authority=True)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = builder.add_extension(usage, critical=True).add_extension(constraints, critical=True)
        self._write(self.authority, builder.sign(key, hashes.SHA256()), key)

    def _issue_client(self, name: str, days: float) -> Path:
        path = self.client(name)
        self._issue(path, name, ExtendedKeyUsageOID.CLIENT_AUTH, days)
        return path

    def _issue(
        self,
        path: Path,
        name: str,
        purpose: x509.ObjectIdentifier,
        days: float,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> None:
        issuer = self._issuer()
        key = ec.generate_private_key(ec.SECP256R1())
        end = min(datetime.now(UTC) + timedelta(days=days), issuer.certificate.not_valid_after_utc)
        builder = _builder(_subject(name), issuer.certificate.subject, key, end)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        known_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
        builder = builder.add_extension(known_by, critical=False)
        if alternatives:
            builder = builder.add_extension(alternatives, critical=False)
        self._write(path, builder.sign(issuer.key, hashes.SHA256()), key)

    def _issuer(self) -> _Issuer:
        issuer = _Issuer(self._read(self.authority), _read_key(self.authority))
        if issuer.certificate.public_key() != issuer.key.public_key():
            raise ValueError(
                f"{_key_path(self.authority)} is not the key of {self.authority}: put it back, or remove {self.folder}"
            )
        return issuer

    def _read(self, path: Path) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except FileNotFoundError:
            raise ValueError(f"there is no certificate {path}: run {self._make} --host NAME") from None
        except ValueError as error:
            raise ValueError(f"{path} is no certificate: {error}; run {self._make} --host NAME") from None

    def _write(self, path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(_key_path(path), secret)
        write_private(path, certificate.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - _CLOCK_DIFFERENCE
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    """Gives a host as a certificate names it. Raises ValueError for what is no host."""
    address = _address(host.strip("[]"))
    if address is not None:
        return x509.IPAddress(address)
    if not _HOST.fullmatch(host):
        raise ValueError(f"--host {host}: give a name such as gym.example.org, or an address, without a port")
    return x509.DNSName(host.lower())


def _address(text: str) -> _IPAddress | None:
    try:
        # A scope is no part of a certificate.
        return ipaddress.ip_address(text) if "%" not in text else None
    except ValueError:
        return None


def _hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _check_days(days: float) -> None:
    if not 0 < days <= _MOST_DAYS:
        raise ValueError(f"--days must be above 0 and at most {_MOST_DAYS:g}, not {days:g}")


def _key_path(certificate: Path) -> Path:
    # Not with_suffix: a client may be called a.b.
    return certificate.parent / (certificate.name.removesuffix(".pem") + ".key")


def _read_key(certificate: Path) -> ec.EllipticCurvePrivateKey:
    """Reads the key that lies beside a certificate. Raises ValueError where there is none."""
    path = _key_path(certificate)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; put it back, or remove {path.parent}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is not a key that was made here")
    return key
