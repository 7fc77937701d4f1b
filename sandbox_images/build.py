"""Make sure that an engine answers and the sandbox image exists on it.

    python -m sandbox_images.build [--steps N] [COMMAND ...]

The image is named by its content, `coding-gym/sandbox:<hash of Dockerfile and warden>`, so an image that
exists is the right one and nothing is done. Its base comes from a registry; where none can be reached it is
made from Debian packages with mmdebstrap, and the same Dockerfile runs on it.

With a COMMAND, runs it on engine and image, stops the engine again if it was started for it, and ends with
the command's status. Stdout is then the command's alone.

Not covered: architectures other than the engine's own, and proxies that need a certificate of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_images.engine import (
    SetupError,
    describe_engine,
    describe_stop,
    ensure_engine,
    run_logged,
    state_directory,
    stop_engine,
)

if TYPE_CHECKING:
    import docker

FOLDER = Path(__file__).parent
REPOSITORY = "coding-gym/sandbox"
CONTENT_LABEL = "coding-gym.content"
SUITE = "bookworm"
REGISTRY_BASE = "debian:bookworm-slim"
BOOTSTRAPPED_BASE = "coding-gym/base:bookworm"
# As in Debian's own slim images, so that both bases give the same image.
NO_DOCUMENTATION = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


def image_reference() -> str:
    """The name of the image for the files as they are now. Asks no engine."""
    return f"{REPOSITORY}:{_content_hash()[:12]}"


def ensure_image(client: docker.DockerClient) -> str:
    """Build the image unless it exists; return its id, `sha256:...`.

    Raises:
        SetupError: no base could be had, or a step of the Dockerfile failed.
    """
    from docker.errors import ImageNotFound

    try:
        return str(client.images.get(image_reference()).id)
    except ImageNotFound:
        _build(client, base=_find_base(client))
        return str(client.images.get(image_reference()).id)


def _content() -> dict[str, bytes]:
    """The files that go into the image, by their path in the build context."""
    paths = [FOLDER / "Dockerfile", *sorted((FOLDER / "warden").rglob("*.py"))]
    return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}


def _content_hash() -> str:
    digest = hashlib.sha256()
    for name, data in _content().items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _context() -> io.BytesIO:
    """A build context of exactly the hashed files, without the owners, modes and times of this checkout."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in _content().items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def _log_path() -> Path:
    return state_directory() / "image.log"


def _build(client: docker.DockerClient, base: str) -> None:
    """Run the Dockerfile: its steps on the terminal, all of its output in the log."""
    log_path = _log_path()
    with log_path.open("w") as log:
        for line in client.api.build(
            fileobj=_context(),
            custom_context=True,
            tag=image_reference(),
            labels={CONTENT_LABEL: _content_hash()},
            buildargs={"BASE": base} | proxies(),
            network_mode="host",  # the engine may have no bridge, see engine.NO_NETWORK_SETUP
            rm=True,
            forcerm=True,
            decode=True,
        ):
            text = line.get("error") or line.get("stream", "")
            log.write(text)
            if "error" in line:
                raise SetupError(f"{text.strip()}; see {log_path}")
            if text.startswith("Step "):
                print(f"      {_shorten(text)}", flush=True)
    log_path.unlink()  # a log that is there tells of a failure


def _shorten(text: str, limit: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def proxies() -> dict[str, str]:
    """The proxies of this process, as arguments of a build."""
    return {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}


def _find_base(client: docker.DockerClient) -> str:
    """The base that is here; else the registry's; else one of our own making."""
    for image in (REGISTRY_BASE, BOOTSTRAPPED_BASE):
        if client.images.list(name=image):
            return image
    print(f"      pulling {REGISTRY_BASE}", flush=True)
    if _pull(client, REGISTRY_BASE):
        return REGISTRY_BASE
    print(f"      no registry in reach: making the base from Debian packages ({SUITE})", flush=True)
    _bootstrap(client)
    return BOOTSTRAPPED_BASE


def _pull(client: docker.DockerClient, image: str) -> bool:
    from docker.errors import DockerException

    try:
        client.images.pull(image)  # the engine itself gives up on a registry that says nothing
    except DockerException:
        return False
    return True


def _bootstrap(client: docker.DockerClient) -> None:
    """Make BOOTSTRAPPED_BASE: the essential packages and apt, straight from the Debian mirrors."""
    if shutil.which("mmdebstrap") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise SetupError(
                f"cannot pull {REGISTRY_BASE}, and mmdebstrap is missing to make a base without a registry.\n"
                "      Debian, Ubuntu:  sudo apt-get install mmdebstrap debian-archive-keyring uidmap"
            )
        run_logged(_log_path(), "apt-get", "update")
        run_logged(
            _log_path(),
            "apt-get",
            "install",
            "-y",
            "--no-install-recommends",
            "mmdebstrap",
            "debian-archive-keyring",
        )
    with tempfile.NamedTemporaryFile(prefix="coding-gym-base-", suffix=".tar") as archive:
        options = [f"--dpkgopt=path-exclude={pattern}" for pattern in NO_DOCUMENTATION]
        run_logged(
            _log_path(), "mmdebstrap", "--variant=apt", *options, SUITE, archive.name, *_host_mirrors()
        )
        repository, tag = BOOTSTRAPPED_BASE.split(":")
        client.api.import_image_from_file(archive.name, repository=repository, tag=tag)


def _host_mirrors() -> Sequence[str]:
    """The sources of this suite that the host itself uses, such as a mirror of its own network's.

    None on other systems, and none with transports that need more than the base has: then mmdebstrap takes
    Debian's public mirrors.
    """
    if shutil.which("apt-get") is None:
        return []
    line_format = "$(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", line_format, "Created-By: Packages", "Origin: Debian"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    sources = [line.partition(" ") for line in listing.splitlines()]
    mirrors = [source for codename, _, source in sources if codename.split("-")[0] == SUITE]
    return mirrors if all(mirror.startswith("deb http://") for mirror in mirrors) else []


def _run_command(command: Sequence[str]) -> int:
    """Run the command; Ctrl-C reaches it by itself, and what it makes of that is its status."""
    process = subprocess.Popen(command)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _set_up(steps: int) -> bool:
    """Steps 2 and 3 of the set-up; return whether the engine was started for it."""
    print(f"[2/{steps}] Docker Engine", flush=True)
    client, engine_is_ours = ensure_engine()
    print(f"      {describe_engine(client)}", flush=True)
    print(f"[3/{steps}] Sandbox image", flush=True)
    image_id = ensure_image(client)
    size_mib = client.images.get(image_id).attrs["Size"] / 2**20
    print(f"      {image_reference()}, {image_id}, {size_mib:.0f} MiB", flush=True)
    return engine_is_ours


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox_images.build")
    parser.add_argument("--steps", type=int, default=3, help="how many set-up steps to speak of")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="run this on engine and image")
    options = parser.parse_args()
    try:
        # Stdout belongs to the command, if there is one.
        with redirect_stdout(sys.stderr if options.command else sys.stdout):
            engine_is_ours = _set_up(options.steps)
    except SetupError as error:
        print(f"      failed: {error}", file=sys.stderr)
        return 1
    if not options.command:
        return 0
    status = _run_command(options.command)
    if engine_is_ours and (in_use := stop_engine()):
        print(describe_stop(in_use), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
