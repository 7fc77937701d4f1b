"""Source distributions: nothing counts before its hash is right, and a hostile archive stays in memory."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from gym_service.tasks import sdist
from gym_service.tasks.layout import find_layout
from gym_service.tasks.sdist import PINNED, SdistError, fetch, unpack

MIT = b"Permission is hereby granted, free of charge, to any person\nobtaining a copy of this software"


def packed(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


ARCHIVE = packed(("demo-1.0/demo/__init__.py", b"ONE = 1\n"))
HASH = hashlib.sha256(ARCHIVE).hexdigest()


@dataclass
class Index:
    """A package index on the loopback interface, with one version of one package."""

    archive: bytes = ARCHIVE
    cut_at_byte: int | None = None
    asked: list[str] = field(default_factory=list)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        pages = {"/simple/demo/": self._page(), "/files/demo-1.0.tar.gz": self.archive}
        body = pages.get(request.path, b"")
        request.send_response(200 if body else 404)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body if request.path == "/simple/demo/" else body[: self.cut_at_byte])

    def _page(self) -> bytes:
        names = ["demo-1.0-py3-none-any.whl", "demo-0.9.tar.gz", "demo-1.0.zip", "demo-1.0.tar.gz"]
        published = {"sha256": hashlib.sha256(self.archive).hexdigest()}
        files = [{"filename": name, "url": f"../../files/{name}", "hashes": published} for name in names]
        return json.dumps({"files": files}).encode()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    played = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            played.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{server.server_port}/simple/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield played
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_with_the_right_hash_is_kept_under_it(index, tmp_path):
    assert fetch("Demo==1.0.0", HASH.upper(), tmp_path) == ARCHIVE
    assert [path.name for path in tmp_path.iterdir()] == [f"{HASH}.tar.gz"]


def test_a_kept_file_needs_no_index(index, tmp_path):
    fetch("demo==1.0", HASH, tmp_path)
    index.asked.clear()

    assert fetch("demo==1.0", HASH, tmp_path) == ARCHIVE
    assert index.asked == []


def test_a_kept_file_that_was_changed_is_fetched_again(index, tmp_path):
    kept = tmp_path / f"{HASH}.tar.gz"
    kept.write_bytes(b"something else")

    assert fetch("demo==1.0", HASH, tmp_path) == ARCHIVE
    assert kept.read_bytes() == ARCHIVE


def test_a_pinned_file_needs_no_hash(index, tmp_path, monkeypatch):
    monkeypatch.setitem(PINNED, "demo==1.0", HASH)

    assert fetch("demo==1.0", None, tmp_path) == ARCHIVE


def test_another_hash_than_the_pinned_one_is_refused(index, tmp_path):
    with pytest.raises(SdistError, match="is pinned to 27a5"):
        fetch("toolz==1.1.0", HASH, tmp_path)
    assert index.asked == []


def test_a_file_with_another_hash_is_refused_and_not_kept(index, tmp_path):
    index.archive = packed(("demo-1.0/demo/__init__.py", b"ONE = 2\n"))

    with pytest.raises(SdistError, match=f"not {HASH}"):
        fetch("demo==1.0", HASH, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_hash_the_error_says_which_to_pass(index, tmp_path):
    with pytest.raises(SdistError, match=f"pass --sha256 {HASH}$"):
        fetch("demo==1.0", None, tmp_path)
    assert index.asked == ["/simple/demo/"]


def test_a_download_that_breaks_off_is_refused(index, tmp_path):
    index.cut_at_byte = 50

    with pytest.raises(SdistError, match="try again"):
        fetch("demo==1.0", HASH, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_has_a_largest_size(index, tmp_path, monkeypatch):
    index.archive = bytes(2001)
    monkeypatch.setattr(sdist, "_MAX_DOWNLOAD_BYTES", 2000)

    with pytest.raises(SdistError, match=r"/files/demo-1\.0\.tar\.gz .* larger than 2000 bytes"):
        fetch("demo==1.0", HASH, tmp_path)


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("demo==1.1", "no .tar.gz source distribution of demo==1.1; try another version"),
        ("absent==1.0", "answers 404 for /simple/absent/; check the name and PIP_INDEX_URL"),
        ("demo", "write NAME==VERSION"),
        ("demo>=1.0", "write NAME==VERSION"),
        ("../demo==1.0", "write NAME==VERSION"),
        ("demo==*", "write NAME==VERSION"),
    ],
)
def test_what_cannot_be_had_is_an_error_that_says_what_to_change(index, tmp_path, requirement, message):
    with pytest.raises(SdistError) as refused:
        fetch(requirement, HASH, tmp_path)

    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_index_that_is_away_is_an_error_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    with pytest.raises(SdistError, match="could not be reached") as refused:
        fetch("demo==1.0", HASH, tmp_path)
    assert "secret" not in str(refused.value)


def test_files_lose_their_top_folder():
    files = unpack(packed(("demo-1.0/demo/__init__.py", b"1"), ("demo-1.0/empty", b"")))

    assert files == {"demo/__init__.py": b"1", "empty": b""}


def test_links_and_devices_are_left_out():
    hostile = [
        special("demo-1.0/passwd", tarfile.SYMTYPE, "/etc/passwd"),
        special("demo-1.0/hard", tarfile.LNKTYPE, "/etc/passwd"),
        special("/dev/demo", tarfile.CHRTYPE),
        special("demo-1.0/pipe", tarfile.FIFOTYPE),
    ]

    assert unpack(packed(*hostile, ("demo-1.0/a", b"1"))) == {"a": b"1"}


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "demo-1.0/../../a",
        "demo-1.0//a",
        "./demo-1.0/a",
        "a",
        "demo-1.0/a\nb",
        "demo-1.0/\udc80",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(name):
    with pytest.raises(SdistError, match="no plain path"):
        unpack(packed(("demo-1.0/a", b"1"), (name, b"2")))


def test_a_path_with_a_nul_is_refused():
    info = tarfile.TarInfo("demo-1.0/a")
    info.pax_headers = {"path": "demo-1.0/a\0b"}

    with pytest.raises(SdistError, match="no plain path"):
        unpack(packed(info))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("d/a", b"1"), ("d/a", b"2")], "twice"),
        ([("d/a", b"1"), ("d/a/b", b"2")], "needs a folder"),
        ([("d/a", b"1"), ("e/b", b"2")], "has 2"),
        ([], "has 0"),
    ],
)
def test_an_archive_that_is_no_tree_of_files_is_refused(members, message):
    with pytest.raises(SdistError, match=message):
        unpack(packed(*members))


def test_an_archive_has_a_largest_number_of_members():
    with pytest.raises(SdistError, match="more than 5000 members"):
        unpack(packed(*(special(f"d/{number}", tarfile.DIRTYPE) for number in range(5001))))


def test_a_file_has_a_largest_size():
    with pytest.raises(SdistError, match="too large, at 'd/big'"):
        unpack(packed(("d/big", bytes(2_000_001))))


def test_all_files_together_have_a_largest_size():
    with pytest.raises(SdistError, match="too large, at 'd/10'"):
        unpack(packed(*((f"d/{number}", bytes(2_000_000)) for number in range(11))))


def test_a_bomb_is_not_unfolded():
    with pytest.raises(SdistError, match="too large"):
        unpack(gzip.compress(bytes(32_000_000), 1))


@pytest.mark.parametrize(
    "archive",
    [b"", b"no archive", ARCHIVE[:60], gzip.compress(b"no archive" * 100), ARCHIVE + ARCHIVE],
    ids=["empty", "text", "cut off", "packed text", "two"],
)
def test_what_is_no_archive_is_refused(archive):
    with pytest.raises(SdistError):
        unpack(archive)


FILES = {
    "LICENSE": MIT,
    "PKG-INFO": b"Metadata-Version: 2.1\nLicense-Expression: MIT\n",
    "setup.py": b"",
    "pyproject.toml": b"",
    "docs/conf.py": b"",
    "docs/demo/__init__.py": b"",
    "demo/__init__.py": b"",
    "demo/core.py": b"",
    "demo/fast.so": b"",
    "demo/data.json": b"",
    "demo/tests/test_inner.py": b"",
    "demo.egg-info/PKG-INFO": b"",
    "single.py": b"",
    "tests/conftest.py": b"",
    "tests/helper.py": b"",
    "tests/cases.txt": b"",
    "tests/test_demo.py": b"",
    "tests/.gitignore": b"",
}


def test_sources_are_told_from_tests_and_documentation():
    layout = find_layout(FILES)

    assert layout.roots == ("",)
    assert layout.source_files == ("demo/__init__.py", "demo/core.py", "single.py")
    assert layout.test_files == ("demo/tests/test_inner.py", "tests/test_demo.py")


def test_an_episode_gets_no_documentation_no_metadata_and_nothing_compiled():
    dropped = {
        "PKG-INFO",
        "setup.py",
        "docs/conf.py",
        "docs/demo/__init__.py",
        "demo/fast.so",
        "tests/.gitignore",
    }

    assert set(find_layout(FILES).kept) == set(FILES) - dropped - {"demo.egg-info/PKG-INFO"}


def test_packages_may_lie_in_src():
    files = {"src/demo/__init__.py": b"", "src/single.py": b"", "tests/test_demo.py": b"", "LICENSE": MIT}
    layout = find_layout({**files, "tasks.py": b"", "helper.py": b"", "examples/__init__.py": b""})

    assert layout.roots == ("src",)
    assert layout.source_files == ("src/demo/__init__.py", "src/single.py")
    assert layout.kept == tuple(sorted(files))


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ("License-Expression: BSD-3-Clause", "BSD"),
        ("License-Expression: MIT OR Apache-2.0", "MIT"),
        ("Classifier: License :: OSI Approved :: Apache Software License", "Apache"),
        ("Classifier: License :: OSI Approved :: ISC License (ISCL)", "ISC"),
        ("License: BSD", "BSD"),
        ("License: UNKNOWN", "MIT"),
        ("Classifier: License :: OSI Approved", "MIT"),
        ("License: Python-2.0", "PSF"),
    ],
)
def test_a_permissive_licence_is_recognised(metadata, kind):
    assert find_layout({**FILES, "PKG-INFO": f"Name: demo\n{metadata}\n".encode()}).license == kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PKG-INFO": b"License-Expression: GPL-3.0-or-later\n"}, "its licence is GPL-3.0-or-later;"),
        ({"PKG-INFO": b"License-Expression: MIT AND MPL-2.0\n"}, "its licence is MIT, MPL-2.0;"),
        ({"PKG-INFO": b"License: not MIT\n"}, "its licence is not MIT;"),
        ({"PKG-INFO": b"", "LICENSE": b"All rights reserved."}, "a text that is not known"),
        ({"PKG-INFO": b"", "LICENSE": MIT + b" GNU General Public License"}, "a text that is not known"),
        ({"LICENSE": None}, "no licence text"),
        ({"demo/tests/test_inner.py": None, "tests/test_demo.py": None}, "without tests"),
        ({"demo/__init__.py": None, "single.py": None}, "no Python packages"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(changes, message):
    files = {path: content for path, content in {**FILES, **changes}.items() if content is not None}

    with pytest.raises(SdistError) as refused:
        find_layout(files)
    assert message in str(refused.value)
