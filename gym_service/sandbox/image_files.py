"""What lies in an image, read out of a container that is made of it and never started.

The engine packs the files, and nothing of the image runs. What comes is a stranger's archive: links are refused, and no
more is taken than a base tree may hold.
"""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.docker import OWNER_LABEL
from gym_service.tasks.base_tree import LEFT_OUT, Room, is_left_out
from gym_service.tasks.importing import ImportRefused
from sandbox_images.own import ImageRefused, build_image

_BUILD_SECONDS = 600
_NOT_TAKEN = ("HOME", "LD_", "PYTEST_", "PYTHON")
_MAX_ARCHIVE_BYTES = 4 << 30
"""With what is left out of it, such as a history."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine's, as a container that does not run."""

    digest: str
    """`sha256:` and 64 hexadecimal digits."""
    folder: str
    """Where its commands start; empty where it says nothing."""
    variables: Mapping[str, str]
    """Its environment variables, without those that would reach into the service's own Python or loader."""
    _client: docker.DockerClient
    _container: str

    def holds(self, path: str) -> bool:
        """Whether there is something under a path."""
        try:
            stream, _ = self._client.api.get_archive(self._container, path)
        except NotFound:
            return False
        stream.close()
        return True

    def read_folder(self, folder: str) -> dict[str, bytes]:
        """The files of a folder, by their paths in it. Raises ImportRefused."""
        try:
            stream, _ = self._client.api.get_archive(self._container, folder)
        except NotFound:
            raise ImportRefused(f"its image holds no folder {folder}") from None
        files: dict[str, bytes] = {}
        room = Room()
        try:
            with tarfile.open(fileobj=_Stream(stream), mode="r|") as archive:
                for member in archive:
                    _, _, path = member.name.rstrip("/").partition("/")
                    if member.isdir() or is_left_out(path):
                        continue
                    if not member.isreg():
                        raise ImportRefused(
                            f"{folder} of its image holds {path[:200]!a}, which is no plain file"
                        )
                    room.take(path, member.size)
                    content = archive.extractfile(member)
                    files[path] = content.read() if content else b""
        except tarfile.TarError as error:
            raise ImportRefused(f"{folder} of its image cannot be read: {error}") from error
        finally:
            stream.close()
        return files


def build(folder: Path, left_out: Collection[str]) -> str:
    """Builds an image of the Dockerfile in a folder, without what is to be left out; returns its digest.

    What nobody looked through, such as a history, stays out, too: there may be links in it, and files without an end.

    Its steps run with the network and the rights that the engine gives them. Raises ImportRefused, SandboxLost.
    """
    try:
        client = docker.from_env(timeout=_BUILD_SECONDS)
        with tempfile.TemporaryDirectory(prefix="coding-gym-") as temporary:
            context = Path(temporary) / "context"
            shutil.copytree(
                folder,
                context,
                symlinks=True,
                ignore=lambda place, names: {*LEFT_OUT, *(left_out if place == str(folder) else ())},
            )
            return build_image(client, context)
    except (DockerException, requests.RequestException) as error:
        raise SandboxLost(f"the engine does not build an image: {error}") from error
    except ImageRefused as error:
        raise ImportRefused(str(error)) from error


@contextmanager
def open_image(name: str, owner: str) -> Iterator[Image]:
    """Opens an image that the engine has, by its name or digest. Raises ImportRefused, SandboxLost."""
    try:
        client = docker.from_env(timeout=60)
        try:
            image = client.images.get(name)
        except APIError as error:
            # Not found, or no name at all.
            if not error.is_client_error():
                raise
            raise ImportRefused(f"the engine has no image {name[:200]}: pull or load it first") from None
        config = image.attrs["Config"]
        named = dict(each.partition("=")[::2] for each in config.get("Env") or ())
        variables = {name: value for name, value in named.items() if not name.startswith(_NOT_TAKEN)}
        made = client.api.create_container(
            image.id, command=["none"], network_disabled=True, labels={OWNER_LABEL: owner}
        )
        try:
            yield Image(str(image.id), config.get("WorkingDir") or "", variables, client, made["Id"])
        finally:
            client.api.remove_container(made["Id"], force=True, v=True)
    except (DockerException, requests.RequestException) as error:
        raise SandboxLost(f"the engine does not show the image {name}: {error}") from error


class _Stream(io.RawIOBase):
    """The pieces of an archive as a file that is read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._left = _MAX_ARCHIVE_BYTES

    def read(self, size: int = -1) -> bytes:
        """Gives so many bytes, fewer at the end. Raises ImportRefused."""
        parts = [self._rest]
        have = len(self._rest)
        while have < size and (piece := next(self._pieces, b"")):
            parts.append(piece)
            have += len(piece)
            self._left -= len(piece)
            if self._left < 0:
                raise ImportRefused(f"the folder in its image takes more than {_MAX_ARCHIVE_BYTES >> 30} GiB")
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]
