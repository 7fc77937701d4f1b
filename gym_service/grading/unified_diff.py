"""Applying a unified diff to a tree of files, in trusted code: the diff is a stranger's text and runs nothing.

Taken are the forms that `diff -u` and `git diff` write, for files that change, are new or are deleted. Each hunk has to
match its file line by line, at the line that it names or at the nearest other one, because models miscount lines; no
context is guessed. Not taken: renames, copies, binary files, links, modes.
"""

import re
from collections.abc import Mapping, Sequence

_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@")
_REFUSED = (
    "rename ",
    "copy ",
    "GIT binary patch",
    "Binary files ",
    "old mode",
    "new mode",
    "similarity index",
)
_PLAIN_MODE = "new file mode 100644"
_NOTHING = "/dev/null"
_MOST_COMPARISONS = 2_000_000
"""Lines that are compared in search of where hunks belong: a second or so, which a stranger may cost."""


class DiffRefused(Exception):
    """The diff is none, or does not fit the files; the message says where."""


def apply_diff(tree: Mapping[str, bytes], text: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Gives the files that a diff changes or adds, as they are then, and those that it deletes. Raises DiffRefused."""
    # Not splitlines: form feeds and the like end no line of a diff.
    as_sent = text.removesuffix("\n").split("\n")
    lines = [line.removesuffix("\r") for line in as_sent]
    changed: dict[str, bytes] = {}
    deleted: list[str] = []
    search = _Search()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(_REFUSED) or (line.startswith("new file mode") and line != _PLAIN_MODE):
            raise DiffRefused(f"line {at + 1}: {line[:60]!a} is not taken; changes of plain files are")
        if not line.startswith("--- ") or not _next_is(lines, at, "+++ "):
            if line.startswith("@@ "):
                raise DiffRefused(f"line {at + 1}: a hunk without the names of its file before it")
            at += 1
            continue
        before, after = _path(line), _path(lines[at + 1])
        path = before if after == _NOTHING else after
        if path in changed or path in deleted:
            raise DiffRefused(f"line {at + 1}: {path[:100]!a} comes a second time")
        if _NOTHING not in (before, after) and before != after:
            raise DiffRefused(f"line {at + 1}: {before[:100]!a} is renamed, which is not taken")
        if before != _NOTHING and path not in tree:
            raise DiffRefused(f"line {at + 1}: there is no file {path[:100]!a}")
        if before == _NOTHING and path in tree:
            raise DiffRefused(f"line {at + 1}: the file {path[:100]!a} exists already")
        old = tree.get(path, b"")
        # A diff may have been sent with such ends of lines, or be of a file that has them.
        content, at = _apply_hunks(old, as_sent if b"\r\n" in old else lines, at + 2, search)
        if after == _NOTHING:
            if content:
                raise DiffRefused(f"{path[:100]!a} is deleted, and lines of it are left")
            deleted.append(path)
        else:
            changed[path] = content
    if not changed and not deleted:
        raise DiffRefused("it holds no change of a file: `--- a/PATH`, `+++ b/PATH` and hunks are looked for")
    return changed, tuple(sorted(deleted))


class _Search:
    """Counts what it costs to find where hunks belong."""

    def __init__(self) -> None:
        self._left = _MOST_COMPARISONS

    def find(self, lines: Sequence[str], wanted: Sequence[str], first: int, near: int) -> int | None:
        """Gives where `wanted` lies, from `first` on, as near as can be; None where it does not lie."""
        last = len(lines) - len(wanted)
        for distance in range(max(near - first, last - near, 0) + 1):
            self._count()
            for start in dict.fromkeys((near - distance, near + distance)):
                if first <= start <= last and self._is_at(lines, wanted, start):
                    return start
        return None

    def _is_at(self, lines: Sequence[str], wanted: Sequence[str], start: int) -> bool:
        for number, line in enumerate(wanted):
            self._count()
            if lines[start + number] != line:
                return False
        return True

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise DiffRefused("it takes too long to find where its hunks belong")


def _apply_hunks(content: bytes, lines: Sequence[str], at: int, search: _Search) -> tuple[bytes, int]:
    """Applies the hunks of one file from line `at` on; gives the new content, and the line after them."""
    # Bytes that are no UTF-8 have to survive in lines that the diff leaves alone.
    old = content.decode("utf-8", "surrogateescape").split("\n")
    ends_with_newline = old[-1] == ""
    if ends_with_newline:
        old.pop()
    new: list[str] = []
    done = 0
    hunks = 0
    while at < len(lines) and (head := _HUNK.match(lines[at])):
        hunks += 1
        number = at + 1
        removed, added, at, newline_after = _read_hunk(head, lines, at + 1)
        # Without lines of its own, a hunk stands after the line that it names.
        near = int(head[1]) - 1 if removed else int(head[1])
        start = search.find(old, removed, done, near)
        if start is None:
            raise DiffRefused(f"line {number}: the hunk does not match the file")
        new += [*old[done:start], *added]
        done = start + len(removed)
        if done == len(old):
            ends_with_newline = newline_after
    if not hunks:
        raise DiffRefused(f"line {at + 1}: a hunk is expected, `@@ -1,3 +1,4 @@`")
    new += old[done:]
    text = "\n".join(new) + ("\n" if new and ends_with_newline else "")
    try:
        return text.encode("utf-8", "surrogateescape"), at
    except UnicodeEncodeError:
        raise DiffRefused("it is no text in UTF-8") from None


def _read_hunk(head: re.Match[str], lines: Sequence[str], at: int) -> tuple[list[str], list[str], int, bool]:
    """Gives the lines before, those after, the line that follows, and whether the last line after ends as lines do."""
    left, right = (int(head[group] or 1) for group in (2, 4))
    removed: list[str] = []
    added: list[str] = []
    newline_after = True
    while len(removed) < left or len(added) < right or _next_is(lines, at - 1, "\\"):
        # Editors strip what ends a line, and an empty line of context then has no blank.
        line = lines[at] if at < len(lines) else "@"
        kind, rest = (line[:1] or " "), line[1:]
        if kind == "\\":
            newline_after = newline_after and lines[at - 1][:1] == "-"
        elif kind in " -+":
            if kind in " -":
                removed.append(rest)
            if kind in " +":
                added.append(rest)
        else:
            raise DiffRefused(f"line {at + 1}: the hunk is shorter than it says")
        at += 1
    if len(removed) != left or len(added) != right:
        raise DiffRefused(f"line {at}: the hunk is longer than it says")
    return removed, added, at, newline_after


def _next_is(lines: Sequence[str], at: int, start: str) -> bool:
    return at + 1 < len(lines) and lines[at + 1].startswith(start)


def _path(line: str) -> str:
    # GNU diff writes a time after a tabulator.
    name = line[4:].partition("\t")[0].rstrip()
    return name if name == _NOTHING else re.sub(r"^[ab]/", "", name)
