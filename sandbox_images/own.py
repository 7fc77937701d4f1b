"""Images of somebody else's: made of a Dockerfile, or on the engine already, with the warden put on top.

The warden comes as one layer in which nothing lies but `/opt/gym` (own.Dockerfile); no file of the image is touched and
none of it is needed. What comes of it is named by its content, `coding-gym/own:<hash of the image and of what is put
on top>`, so one that exists is the right one and nothing is done.

Not covered: images of another architecture than the engine's.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox_images.build import CONTENT_LABEL, FOLDER, image_reference, proxies
from sandbox_images.engine import SetupError, state_directory

if TYPE_CHECKING:
    import docker

REPOSITORY = "coding-gym/own"
_FILES = {"Dockerfile": "own.Dockerfile", "runtime.py": "runtime.py"}
_PLACE = "/opt/gym"
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


class ImageRefused(SetupError):
    """An image that cannot be used; the message says what to change."""


def build_image(client: docker.DockerClient, folder: Path, dockerfile: str = "Dockerfile") -> str:
    """Builds an image of a Dockerfile and the folder that it is written for; returns its digest.

    What the Dockerfile says is done as root and with the host's network, as the engine may have no bridge: it has to be
    trusted, unlike what later runs in the image. Raises ImageRefused for a step that fails.
    """
    file = folder / dockerfile
    if not file.is_file():
        raise ImageRefused(f"{file} is missing: an image is made of a Dockerfile")
    return _build(client, str(file), path=str(folder), dockerfile=dockerfile, buildargs=proxies())


def reference(image: str) -> str:
    """The name of an image with the warden on top, for the files as they are now. Asks no engine."""
    digest = hashlib.sha256(f"{image}\0{image_reference()}\0".encode())
    for name in _FILES.values():
        digest.update((FOLDER / name).read_bytes())
    return f"{REPOSITORY}:{digest.hexdigest()[:24]}"


def find(client: docker.DockerClient, image: str) -> str:
    """The digest of an image with the warden on top; empty where there is none yet."""
    from docker.errors import ImageNotFound

    try:
        return str(client.images.get(reference(image)).id)
    except ImageNotFound:
        return ""


def derive(client: docker.DockerClient, image: str, labels: Mapping[str, str] | None = None) -> str:
    """Puts the warden on top of an image unless that is done; returns the digest of what comes of it.

    `labels` is what a container is told by that exists for a moment. Raises ImageRefused for an image that does not
    do, and SetupError when a step fails.
    """
    if found := find(client, image):
        return found
    _check(client, image)
    _check_place(client, image, labels or {})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, file in _FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = (FOLDER / file).stat().st_size
            archive.addfile(entry, io.BytesIO((FOLDER / file).read_bytes()))
    buffer.seek(0)
    return _build(
        client,
        f"the warden on top of {image}",
        fileobj=buffer,
        custom_context=True,
        tag=reference(image),
        labels={CONTENT_LABEL: reference(image)},
        buildargs={"GYM": image_reference(), "OWN": image},
    )


def _check(client: docker.DockerClient, image: str) -> None:
    from docker.errors import ImageNotFound

    if not _DIGEST.fullmatch(image):
        raise ImageRefused(
            f"{image!a} is no digest: name the image by `docker inspect -f '{{{{.Id}}}}' NAME`"
        )
    try:
        found = client.images.get(image).attrs
    except ImageNotFound:
        raise ImageRefused(
            f"there is no image {image} on this engine: build it, or `docker pull` or `docker load` it"
        ) from None
    gym = client.images.get(image_reference()).attrs
    config: dict[str, Any] = found["Config"] or {}
    if (found["Os"], found["Architecture"]) != (gym["Os"], gym["Architecture"]):
        raise ImageRefused(
            f"the image {image} is for {found['Os']}/{found['Architecture']}: build it for {gym['Os']}/"
            f"{gym['Architecture']}, which this engine runs"
        )
    if config.get("Volumes"):
        volumes = ", ".join(sorted(config["Volumes"]))
        raise ImageRefused(
            f"the image {image} declares volumes ({volumes}), which would be writable without a limit: take VOLUME "
            "out of its Dockerfile"
        )
    if config.get("OnBuild"):
        raise ImageRefused(
            f"the image {image} has ONBUILD steps, which would run when the warden is put on top: take ONBUILD out of "
            "its Dockerfile"
        )
    if CONTENT_LABEL in (config.get("Labels") or {}):
        raise ImageRefused(
            f"the image {image} has the warden in it already: name the image that it was put on top of"
        )


def _check_place(client: docker.DockerClient, image: str, labels: Mapping[str, str]) -> None:
    """Checks that nothing lies where the warden is put: its Python would load that as its own."""
    from docker.errors import NotFound

    # Of the files of an image the engine tells through a container; this one never runs.
    made = client.api.create_container(image, command=["none"], network_disabled=True, labels=dict(labels))
    try:
        client.api.get_archive(made["Id"], _PLACE)[0].close()
    except NotFound:
        return
    finally:
        client.api.remove_container(made["Id"], force=True, v=True)
    raise ImageRefused(f"the image {image} has something in {_PLACE}, where the gym is put: move it")


def _build(client: docker.DockerClient, what: str, **source: Any) -> str:
    """Has the engine build an image; all of the output goes to a log, which stays where a step fails."""
    from docker.errors import APIError

    # One for each, as several commands may build at a time.
    log_path = state_directory() / f"image-{hashlib.sha256(what.encode()).hexdigest()[:12]}.log"
    digest = ""
    with log_path.open("w") as log:
        try:
            for line in client.api.build(network_mode="host", rm=True, forcerm=True, decode=True, **source):
                text = line.get("error") or line.get("stream", "")
                log.write(text)
                if "error" in line:
                    raise ImageRefused(f"{what} cannot be built: {text.strip()}; see {log_path}")
                digest = line.get("aux", {}).get("ID", digest)
        except APIError as error:
            if not error.is_client_error():
                raise
            # What is no Dockerfile is told before anything is built.
            raise ImageRefused(f"{what} cannot be built: {error.explanation}") from error
    # Another command that builds the same may have been done with it first.
    log_path.unlink(missing_ok=True)
    return digest
