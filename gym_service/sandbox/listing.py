"""The list of a workspace's files as it comes from a warden: bytes from a stranger, taken apart strictly."""

from gym_service.sandbox.base import FileEntry, SandboxLost
from sandbox_images.warden.files import MAX_DEPTH
from sandbox_images.warden.frames import ENTRY, ENTRY_KINDS


def decode_listing(body: bytes) -> tuple[FileEntry, ...]:
    """Gives the entries of a listing. Raises SandboxLost for what no warden would say."""
    entries: list[FileEntry] = []
    folders = {b""}
    start, previous = 0, b""
    while start < len(body):
        path_start = start + ENTRY.size
        if path_start > len(body):
            raise _nonsense(start)
        kind, mode, size_bytes, path_length = ENTRY.unpack_from(body, start)
        end = path_start + path_length
        path = body[path_start:end]
        folder, _, name = path.rpartition(b"/")
        if (
            end > len(body)
            or kind >= len(ENTRY_KINDS)
            or mode > 0o7777
            or path <= previous
            or name in (b"", b".", b"..")
            or b"\0" in name
            or path.count(b"/") >= MAX_DEPTH
            or (folder not in folders or path.startswith(b"/"))
        ):
            raise _nonsense(start)
        if ENTRY_KINDS[kind] == "folder":
            folders.add(path)
        entries.append(
            FileEntry(path.decode("utf-8", "surrogateescape"), ENTRY_KINDS[kind], mode, size_bytes)
        )
        start, previous = end, path
    return tuple(entries)


def _nonsense(offset: int) -> SandboxLost:
    return SandboxLost(f"a warden's list of files makes no sense at byte {offset}")
