"""Source distributions of real packages: fetched by hash, unpacked in memory.

Nothing of a distribution is executed here: no pip, no setup.py. What comes over the network counts for nothing
until its SHA-256 is the pinned one, or the one that the caller gave; a kept copy is checked again whenever it
is read. The index is asked with the simple JSON API (PEP 691): the one that pip would ask.
"""

import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

PINNED = {
    "more-itertools==11.1.0": "48e8f4d9e7e5878571ecf6f2b4e57634f93cd474cc8cfbd2376f2d11b396e30d",
    "toolz==1.1.0": "27a5c770d068c110d9ed9323f24f1543e83b2f300a687b7891c1a6d56b697b5b",
    "boltons==25.0.0": "e110fbdc30b7b9868cb604e3f71d4722dd8f4dcb4a5ddd06028ba8f1ab0b5ace",
}
"""The distributions that the project itself uses, with their SHA-256."""

_ACCEPT = "application/vnd.pypi.simple.v1+json"
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_DOWNLOAD_SECONDS = 300.0
# The page of a project lists every file that it ever published.
_MAX_DOWNLOAD_BYTES = 20_000_000

_MAX_MEMBERS = 5_000
_MAX_FILE_BYTES = 2_000_000
_MAX_TOTAL_BYTES = 20_000_000


class SdistError(Exception):
    """A source distribution cannot be used; the message says why and what to change."""


def fetch(requirement: str, sha256: str | None, folder: Path) -> bytes:
    """The .tar.gz of NAME==VERSION, from `folder` or from the package index, with its hash checked.

    Raises:
        SdistError: It cannot be had, or is not what its hash says.
    """
    name, version = _parsed(requirement)
    requirement = f"{name}=={version}"
    wanted = _wanted_hash(requirement, sha256)
    kept = folder / f"{wanted}.tar.gz"
    if wanted is not None and kept.is_file():
        archive = kept.read_bytes()
        if hashlib.sha256(archive).hexdigest() == wanted:
            return archive
    url, published = _look_up(name, version)
    if wanted is None:
        raise SdistError(
            f"{requirement} is not pinned here. The index says that its hash is {published}: if that is the file "
            f"you mean, pass --sha256 {published}"
        )
    archive = _download(url)
    found = hashlib.sha256(archive).hexdigest()
    if found != wanted:
        raise SdistError(
            f"{requirement} from {_host(url)} has the hash {found}, not {wanted}: the download was cut, the file "
            f"was changed, or --sha256 belongs to another file"
        )
    _write_atomically(kept, archive)
    return archive


def unpack(archive: bytes) -> dict[str, bytes]:
    """The regular files of a distribution by path, without its top folder; links and devices are left out.

    Raises:
        SdistError: It is no such archive, holds a path that leads elsewhere, or is too large.
    """
    files: dict[str, bytes] = {}
    tops: set[str] = set()
    total_bytes = 0
    try:
        # Whole and first, because tarfile reads some headers of any size into memory.
        plain = io.BytesIO(_decompressed(archive))
        with tarfile.open(fileobj=plain, mode="r:") as tar:
            for number, member in enumerate(tar, start=1):
                if number > _MAX_MEMBERS:
                    raise SdistError(f"the archive has more than {_MAX_MEMBERS} members")
                if not member.isreg():
                    continue
                top, path = _checked_path(member.name)
                total_bytes += member.size
                if not 0 <= member.size <= _MAX_FILE_BYTES or total_bytes > _MAX_TOTAL_BYTES:
                    raise SdistError(f"the archive is too large, at {member.name!r}")
                if path in files:
                    raise SdistError(f"the archive holds {member.name!r} twice")
                tops.add(top)
                extracted = tar.extractfile(member)
                files[path] = extracted.read() if extracted is not None else b""
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise SdistError(f"this is no .tar.gz of a source distribution: {error}") from error
    if len(tops) != 1:
        raise SdistError(f"a source distribution has one top folder, this archive has {len(tops)}")
    for path in files:
        folders = path.split("/")[:-1]
        if any("/".join(folders[:depth]) in files for depth in range(1, len(folders) + 1)):
            raise SdistError(f"the archive has a file where {path!r} needs a folder")
    return files


def _parsed(requirement: str) -> tuple[str, Version]:
    name, separator, version = requirement.partition("==")
    try:
        if separator:
            return canonicalize_name(name, validate=True), Version(version)
    except ValueError:  # InvalidName and InvalidVersion
        pass
    raise SdistError(f"{requirement!r} does not name one version; write NAME==VERSION, as in toolz==1.1.0")


def _wanted_hash(requirement: str, sha256: str | None) -> str | None:
    pinned = PINNED.get(requirement)
    if sha256 is None:
        return pinned
    given = sha256.lower()
    if len(given) != 64 or set(given) - set("0123456789abcdef"):
        raise SdistError(f"{sha256!r} is no SHA-256; it has 64 hexadecimal digits")
    if pinned not in (None, given):
        raise SdistError(f"{requirement} is pinned to {pinned}; leave --sha256 out, or pass that one")
    return given


def index_url() -> str:
    """The package index: PIP_INDEX_URL, or pip's own default."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url.rstrip("/")
    # Here, because an environment need not have pip where the variable is set.
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/")


def _look_up(name: str, version: Version) -> tuple[str, str]:
    """The URL and the published SHA-256 of a source distribution."""
    page_url = f"{index_url()}/{name}/"
    try:
        listed = json.loads(_download(page_url))["files"]
        for file in listed:
            if _is_sdist(file["filename"], name, version):
                return urljoin(page_url, file["url"]), str(file["hashes"]["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise SdistError(
            f"{_host(page_url)} does not answer as a package index with {_ACCEPT}; set PIP_INDEX_URL to one that does"
        ) from error
    raise SdistError(
        f"the index has no .tar.gz source distribution of {name}=={version}; try another version"
    )


def _is_sdist(file_name: str, name: str, version: Version) -> bool:
    if not file_name.endswith(".tar.gz"):
        return False
    try:
        return parse_sdist_filename(file_name) == (name, version)
    except (InvalidSdistFilename, InvalidVersion):
        return False


def _download(url: str) -> bytes:
    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    body = bytearray()
    try:
        with requests.get(
            url, headers={"Accept": _ACCEPT}, timeout=(_CONNECT_SECONDS, _SILENCE_SECONDS), stream=True
        ) as response:
            if response.status_code != 200:
                raise SdistError(
                    f"{_host(url)} answers {response.status_code} for {urlsplit(url).path}; check the name and "
                    f"PIP_INDEX_URL"
                )
            for chunk in response.iter_content(1 << 16):
                body += chunk
                if len(body) > _MAX_DOWNLOAD_BYTES or time.monotonic() > deadline:
                    raise SdistError(
                        f"{urlsplit(url).path} from {_host(url)} is larger than {_MAX_DOWNLOAD_BYTES} bytes or "
                        f"takes longer than {_DOWNLOAD_SECONDS:g} s"
                    )
    except requests.RequestException as error:
        # Its text may hold the URL, and with it a password of the index.
        raise SdistError(
            f"{_host(url)} could not be reached, or broke off ({type(error).__name__}); check the network and "
            f"PIP_INDEX_URL, then try again"
        ) from error
    return bytes(body)


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or "the index"


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".sdist-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _decompressed(archive: bytes) -> bytes:
    # The window bits that stand for gzip.
    gunzip = zlib.decompressobj(wbits=31)
    # Headers and padding of the members come on top of what the files hold.
    limit = _MAX_TOTAL_BYTES + _MAX_MEMBERS * 2048
    plain = gunzip.decompress(archive, limit)
    if not gunzip.eof or gunzip.unused_data:
        raise SdistError("the archive is cut short, too large, or has something behind its end")
    return plain


def _checked_path(name: str) -> tuple[str, str]:
    """The top folder and the path below it."""
    parts = name.split("/")
    # Not printable are NUL and what was no UTF-8, too.
    if len(parts) < 2 or {"", ".", ".."} & set(parts) or "\\" in name or not name.isprintable():
        raise SdistError(f"the archive holds {name!r}, which is no plain path below one top folder")
    return parts[0], "/".join(parts[1:])
