"""Rows as SWE-bench has them: an issue, a commit of a repository, a patch, tests, and what the tests did.

    instance_id, repo (OWNER/NAME), base_commit, problem_statement, patch, test_patch
    FAIL_TO_PASS, PASS_TO_PASS      lists of pytest's ids, or the text of such a list
    image, image_name, docker_image one of them, if its own image is to be used

The other fields (version, hints and so on) have no part in a task. Nothing of a row is believed: what its tests do is
seen when the task is made.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_service.tasks.importing import ImportRefused, read_text, task_name

FORM = "swebench"
_IMAGES = ("image", "image_name", "docker_image")
_PYTEST_ID = re.compile(r"[^\s:\[\]\\]+\.py(::[^\W\d]\w*)+(\[.*\])?", re.DOTALL)
_UNITTEST_ID = re.compile(r"\w+ \([\w.]+\)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row, as it stands there."""

    number: int
    """Which of the file's rows, or which line, from 1."""
    name: str
    """Its instance_id, as the last part of a task's id."""
    repo: str
    base_commit: str
    problem: str
    """What the issue says."""
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str
    """The image that it names; empty for none."""

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return f"row {self.number}, {self.name}"


@dataclass(frozen=True, slots=True)
class Rows:
    """What a file comes to."""

    source: str
    """Names the file and its content."""
    rows: tuple[Row, ...]
    refused: tuple[str, ...]
    """A line for each that is no such row, with its number, its id and the reason."""


def read_rows(path: Path, images: Path | None = None) -> Rows:
    """Reads a file of JSON lines, or of one list; `images` has images by instance_id. Raises ImportRefused."""
    text, source = read_text(path)
    named = _read_images(images) if images else {}
    rows: dict[str, Row] = {}
    refused = []
    for number, piece in _pieces(path, text):
        label = f"row {number}"
        try:
            fields = json.loads(piece) if isinstance(piece, str) else piece
            if not isinstance(fields, dict):
                raise ValueError("it is no object")
            name = task_name(fields, "instance_id")
            label = f"row {number}, {name}"
            if name in rows:
                raise ValueError("it was there before")
            rows[name] = _row(number, name, fields, named)
        except (ValueError, RecursionError) as error:
            refused.append(f"{label}: {error}")
    if not rows:
        raise ImportRefused(
            f"{path} holds no row as --as {FORM} wants it: {next(iter(refused), 'it is empty')}"
        )
    return Rows(source, tuple(rows.values()), tuple(refused))


def _pieces(path: Path, text: str) -> list[tuple[int, Any]]:
    """The rows with their numbers, those of lines yet to be parsed."""
    if not text.lstrip().startswith("["):
        return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    try:
        return list(enumerate(json.loads(text), start=1))
    except (ValueError, RecursionError) as error:
        raise ImportRefused(f"{path} is no list in JSON: {error}") from error


def _read_images(path: Path) -> dict[str, str]:
    text, _ = read_text(path)
    try:
        images = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImportRefused(f"{path} is not in JSON: {error}") from error
    if not isinstance(images, dict) or not all(isinstance(image, str) for image in images.values()):
        raise ImportRefused(f"{path} has to be one object, with an image for each instance_id")
    return images


def _row(number: int, name: str, fields: Mapping[str, Any], images: Mapping[str, str]) -> Row:
    """Raises ValueError."""
    fail_to_pass, pass_to_pass = (_tests(fields, key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    if not fail_to_pass:
        raise ValueError("FAIL_TO_PASS is empty: no test would decide")
    if both := {*fail_to_pass} & {*pass_to_pass}:
        raise ValueError(f"{min(both)} is in FAIL_TO_PASS and in PASS_TO_PASS")
    image = images.get(str(fields["instance_id"])) or next(filter(None, map(fields.get, _IMAGES)), "")
    if not isinstance(image, str):
        raise ValueError("its image is no text")
    return Row(
        number=number,
        name=name,
        repo=_text(fields, "repo"),
        base_commit=_text(fields, "base_commit"),
        problem=_text(fields, "problem_statement"),
        patch=_text(fields, "patch"),
        test_patch=_text(fields, "test_patch"),
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        image=image,
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"it has no {name} (a text)")
    value.encode()  # JSON can write a text that is none in UTF-8: a ValueError, too.
    return value


def _tests(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    tests = fields.get(name)
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError:
            raise ValueError(f"{name} is a text, and no list in JSON") from None
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise ValueError(f"it has no {name} (a list of tests)")
    for test in tests:
        if _UNITTEST_ID.fullmatch(test):
            raise ValueError(
                f"{name} has {test[:100]!a}, which is how Django's runner names a test: only tests that pytest runs "
                "are taken, named like tests/test_a.py::test_b"
            )
        if not _PYTEST_ID.fullmatch(test):
            raise ValueError(f"{name} has {test[:100]!a}: tests are named like tests/test_a.py::test_b[1]")
    return tuple(dict.fromkeys(tests))
