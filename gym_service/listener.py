"""How a service is reached: what it listens at, what it shows there, and what its owner's clients are told of it."""

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc

from gym_service.config import ServiceConfig
from gym_service.state import Endpoint

if TYPE_CHECKING:
    from gym_service.certificates import Identity

logger = logging.getLogger(__name__)

_RENEWAL_DAYS = 14
"""A certificate that ends sooner is warned of."""


def read_identity(config: ServiceConfig) -> "Identity | None":
    """Reads the certificate of a service that has to encrypt; None for one that has not.

    Raises ValueError where the service may not listen as it is told, and says what to do.
    """
    bind = config.listens_at
    bind.check_socket()
    if not config.is_encrypted:
        return None
    # 17 MB that a service without TLS does not need.
    from gym_service.certificates import CertificateFolder

    try:
        return CertificateFolder(config.state_folder).read_identity(bind.near_host)
    except ValueError as error:
        raise ValueError(f"--bind {config.bind} takes TLS: {error}") from None


def warn_of_end(identity: "Identity | None") -> None:
    """Says in the log that a certificate is about to end."""
    if identity and identity.days_left < _RENEWAL_DAYS:
        logger.warning(
            "the certificate ends in %.1f days: run `python -m gym_service certificates make`, then start again",
            identity.days_left,
        )


def listen(server: Any, config: ServiceConfig, identity: "Identity | None") -> str:
    """Returns the address at which clients on this machine call. Raises RuntimeError where it is taken."""
    bind = config.listens_at
    # A socket is its owner's alone from the start, not after a change of its mode.
    umask = os.umask(0o177)
    try:
        if identity is None:
            return bind.address(server.add_insecure_port(bind.target))
        shown = [(identity.key, identity.certificate)]
        asked = config.client_certificates
        credentials = grpc.ssl_server_credentials(shown, identity.authority if asked else None, asked)
        return bind.address(server.add_secure_port(bind.target, credentials))
    finally:
        os.umask(umask)


def endpoint_of(config: ServiceConfig, address: str, token: str, image: str) -> Endpoint:
    """Returns what the owner's clients on this machine have to know of the service in this process."""
    endpoint = Endpoint(address, token, os.getpid(), image)
    if not config.is_encrypted:
        return endpoint
    from gym_service.certificates import OWNER_NAME, CertificateFolder

    folder = CertificateFolder(config.state_folder)
    endpoint = replace(endpoint, ca_file=str(folder.authority))
    if not config.client_certificates:
        return endpoint
    own = folder.client(OWNER_NAME)
    return replace(endpoint, certificate_file=str(own), key_file=str(own.with_suffix(".key")))
