"""A list of files that makes no sense loses the sandbox, and never becomes anything else."""

import random

import pytest

from gym_service.sandbox.base import FileEntry, SandboxLost
from gym_service.sandbox.listing import decode_listing
from sandbox_images.warden.frames import ENTRY, ENTRY_KINDS


def entry(path, kind="file", mode=0o644, size_bytes=0):
    return ENTRY.pack(ENTRY_KINDS.index(kind), mode, size_bytes, len(path)) + path


def test_entries_come_out_as_they_were_packed():
    body = entry(b"a", "folder", 0o755) + entry(b"a/\xff", size_bytes=7)

    assert decode_listing(body) == (
        FileEntry("a", "folder", 0o755, 0),
        FileEntry("a/\udcff", "file", 0o644, 7),
    )


@pytest.mark.parametrize(
    "body",
    [
        entry(b"a")[:-1],
        entry(b"a") + b"\0",
        ENTRY.pack(4, 0o644, 0, 1) + b"a",
        entry(b"a", mode=0o10000),
        entry(b""),
        entry(b"a") + entry(b"a"),
        entry(b"b") + entry(b"a"),
        entry(b"a/b"),
        entry(b"a") + entry(b"a/b"),
        entry(b"a", "symlink") + entry(b"a/b"),
        entry(b"a", "folder") + entry(b"a/.."),
        entry(b"a", "folder") + entry(b"a/"),
        entry(b".."),
        entry(b"/a"),
        entry(b"a\0b"),
        b"".join(entry(b"/".join([b"a"] * depth), "folder") for depth in range(1, 66)),
    ],
    ids=range(16),
)
def test_nonsense_loses_the_sandbox(body):
    with pytest.raises(SandboxLost):
        decode_listing(body)


def test_any_changed_byte_is_taken_or_loses_the_sandbox():
    body = entry(b"a", "folder") + entry(b"a/b", size_bytes=9) + entry(b"c", "other")
    draw = random.Random(0)
    for _ in range(2000):
        changed = bytearray(body)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(len(body))] = draw.randrange(256)
        try:
            paths = [each.path for each in decode_listing(bytes(changed))]
        except SandboxLost:
            continue
        assert len(set(paths)) == len(paths)
