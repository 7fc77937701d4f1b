"""What lies in an image is read without starting it, and no more of it than a base tree may hold."""

import io
import os
import tarfile

import docker
import pytest
from docker.errors import ImageNotFound

from gym_service.sandbox import image_files
from gym_service.sandbox.image_files import open_image
from gym_service.tasks import base_tree
from gym_service.tasks.importing import ImportRefused
from sandbox_images.build import image_reference
from tests.engine import containers_of

pytestmark = pytest.mark.docker
OWNER = f"tests-{os.getpid()}"


@pytest.fixture(scope="module")
def image_of():
    """Makes images of nothing but some files; of a name that is taken on, a link or a folder."""
    client = docker.from_env()
    made = []

    def image_of(entries, changes=()):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in entries.items():
                entry = tarfile.TarInfo(name)
                if isinstance(content, bytes):
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
                else:
                    entry.type, entry.linkname = content
                    archive.addfile(entry)
        answer = client.api.import_image_from_data(
            buffer.getvalue(), repository=f"coding-gym-{OWNER}", changes=list(changes)
        )
        made.append(docker.utils.json_stream.json.loads(answer)["status"])
        return made[-1]

    yield image_of
    for digest in made:
        try:
            client.images.remove(digest, force=True)
        except ImageNotFound:
            pass


def test_a_folder_is_read_with_nothing_of_what_is_left_out(image_of):
    files = {
        "app/a.py": b"a\n",
        "app/deep/er/b.bin": b"\0\n",
        "app/.git/config": b"x",
        "app/deep/__pycache__/a.pyc": b"x",
        "app/empty": b"",
        "apple/c.py": b"x",
    }

    with open_image(image_of(files), OWNER) as image:
        assert image.read_folder("/app") == {"a.py": b"a\n", "deep/er/b.bin": b"\0\n", "empty": b""}
        assert image.holds("/apple/c.py")
        assert not image.holds("/app/c.py")


def test_an_image_says_where_it_works_and_what_it_sets_but_for_what_reaches_into_python(image_of):
    changes = ["WORKDIR /app", "ENV PATH=/x:/y", "ENV KIND=a=b", "ENV PYTHONPATH=/z", "ENV LD_PRELOAD=/z.so"]
    digest = image_of({"a": b""}, changes)

    with open_image(digest, OWNER) as image:
        assert (image.digest, image.folder) == (digest, "/app")
        assert image.variables == {"PATH": "/x:/y", "KIND": "a=b"}


def test_nothing_is_left_of_the_container_nor_was_it_started():
    with open_image(image_reference(), OWNER) as image:
        [container] = [each for each in containers_of(OWNER) if each["Id"] == image._container]
        assert container["State"]["Status"] == "created"

    assert image._container not in {each["Id"] for each in containers_of(OWNER)}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("link", (tarfile.SYMTYPE, "/etc/passwd")),
        ("fifo", (tarfile.FIFOTYPE, "")),
        ("hard", (tarfile.LNKTYPE, "app/a")),
    ],
)
def test_what_is_no_plain_file_is_refused(image_of, name, content):
    with (
        open_image(image_of({"app/a": b"x", f"app/{name}": content}), OWNER) as image,
        pytest.raises(ImportRefused, match="no plain file"),
    ):
        image.read_folder("/app")


@pytest.mark.parametrize(
    ("module", "name", "most", "reason"),
    [
        (base_tree, "MAX_FILES", 2, "more than 2 files"),
        (base_tree, "MAX_BYTES", 5, "more than 0 MiB"),
        (base_tree, "MAX_FILE_BYTES", 3, "c has more than"),
        (image_files, "_MAX_ARCHIVE_BYTES", 1000, "takes more than 0 GiB"),
    ],
)
def test_a_folder_that_is_too_large_is_refused_before_it_is_read(
    image_of, monkeypatch, module, name, most, reason
):
    monkeypatch.setattr(module, name, most)

    with (
        open_image(image_of({"app/a": b"x", "app/b": b"x", "app/c": b"12345"}), OWNER) as image,
        pytest.raises(ImportRefused, match=reason),
    ):
        image.read_folder("/app")


def test_a_folder_that_is_not_there_is_refused(image_of):
    with (
        open_image(image_of({"a": b""}), OWNER) as image,
        pytest.raises(ImportRefused, match="holds no folder /app"),
    ):
        image.read_folder("/app")


def test_an_image_that_the_engine_has_not_is_refused():
    with (
        pytest.raises(ImportRefused, match="pull or load it first"),
        open_image("there-is-no/such-image:1", OWNER),
    ):
        pass
