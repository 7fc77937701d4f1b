"""The file of verdicts: a line of JSON for each submission that was graded, and what an interrupted run left of it.

    {"task_id": ..., "sample_index": 0, "input_sha256": ..., "profile": ..., "sandboxes": "single_use", "seconds": 0.4,
     "evidence": [...], "signs": [{"name": ..., "sure": "likely", "evidence": [...]}], "peaks": {...},
     "verdict": {... as a client is told it, signed}, "seal": ...}

The file is only appended to; of several rows of one sample the last counts. A row is taken up again, and nothing runs
for it, if its seal shows that this gym wrote it and it is about the same input, task, grader, image and profile.
"""

import fcntl
import hashlib
import hmac
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gym_service.evaluation.evaluator import Evaluated
from gym_service.evaluation.reading import Attempt
from gym_service.evaluation.signs import Sign, surest
from gym_service.evaluation.tampering import TAMPERING
from gym_service.evaluation.usage import Usage
from gym_service.grading.certificate import told
from gym_service.grading.grader import grader_version
from gym_service.record import Sealer, canonical
from gym_service.tasks.suites import environment_of
from gym_service.values import VerdictStatus

_STATUS_PREFIX = "VERDICT_STATUS_"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under what a submission was graded."""

    image_digest: str
    seccomp_sha256: str
    profile: str
    sandboxes: str
    """single_use or reuse."""
    own_images: Mapping[str, str] = field(default_factory=dict)
    """For each image that tasks bring, the digest of what their sandboxes are of."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one submission."""

    task_id: str
    sample_index: int
    input_sha256: str
    """Of what was handed in."""
    profile: str
    sandboxes: str
    seconds: float
    """What it took, waiting for a sandbox included."""
    evidence: tuple[str, ...]
    peaks: Usage
    """The most that the grading used."""
    signs: tuple[Sign, ...]
    """What it tried, the surest first."""
    verdict: Mapping[str, Any]
    """As a client is told it, with content_sha256 and signature."""

    @property
    def key(self) -> tuple[str, int]:
        """What the submission is called by."""
        return self.task_id, self.sample_index

    @property
    def status(self) -> VerdictStatus:
        """What came of it."""
        return VerdictStatus[self.verdict["status"].removeprefix(_STATUS_PREFIX)]

    @property
    def passed(self) -> bool:
        """Whether it is right."""
        return self.status is VerdictStatus.RESOLVED

    @property
    def is_graded(self) -> bool:
        """Whether it is worth anything, 0 included: the gym did not fail."""
        return self.status is not VerdictStatus.INFRASTRUCTURE_ERROR

    @property
    def flags(self) -> tuple[str, ...]:
        """What stands out in it."""
        return tuple(self.verdict["flags"])

    @property
    def name(self) -> str:
        """What the submission is called by, for a reader."""
        return f"{self.task_id}, sample {self.sample_index}"

    @property
    def sure(self) -> str:
        """How sure it is that it tried something: seen, likely, possible; empty without any sign."""
        return surest(self.signs)

    @property
    def is_suspected(self) -> bool:
        """Whether it acted on its grading, by what was seen of it."""
        return self.status is VerdictStatus.TAMPER_SUSPECTED or not TAMPERING.isdisjoint(self.flags)


def row_of(
    attempt: Attempt, evaluated: Evaluated, conditions: Conditions, seconds: float, peaks: Usage
) -> Row:
    """Makes the row of a submission that was graded."""
    verdict = evaluated.verdict
    assert verdict.certificate is not None
    signed = {
        **told(verdict, verdict.certificate),
        "content_sha256": verdict.certificate.content_sha256,
        "signature": verdict.certificate.signature,
    }
    return Row(
        attempt.task.task_id,
        attempt.sample_index,
        attempt.sha256,
        conditions.profile,
        conditions.sandboxes,
        round(seconds, 3),
        evaluated.evidence,
        peaks,
        evaluated.signs,
        signed,
    )


class RowFile:
    """The rows of one file, for one evaluation at a time. Use as a context manager."""

    def __init__(self, path: Path, sealer: Sealer) -> None:
        """Raises OSError."""
        self._sealer = sealer
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise OSError(f"{path} is no plain file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise OSError(
                f"another evaluation writes into {path}: wait for its end, or choose another --out"
            ) from None
        self._file.seek(0)
        self._found = self._file.read()
        if self._found and not self._found.endswith(b"\n"):
            # What was being written when it was killed ends here, and is no row.
            self._file.write(b"\n")

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def known(self, attempts: Iterable[Attempt], conditions: Conditions) -> dict[tuple[str, int], Row]:
        """The rows that hold for these submissions as they are."""
        rows = {row.key: row for line in self._found.split(b"\n") if (row := self._read(line))}
        return {
            attempt.key: row
            for attempt in attempts
            if (row := rows.get(attempt.key)) and _holds(row, attempt, conditions)
        }

    def append(self, row: Row) -> None:
        """Writes a row; it is in the file when this returns. Raises OSError."""
        if not self._is_in_place():
            raise OSError(f"{self._path} was removed or replaced by somebody else while it was written")
        content = _plain(row)
        self._file.write(canonical({**content, "seal": self._seal(content)}).encode() + b"\n")
        self._file.flush()

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _read(self, line: bytes) -> Row | None:
        try:
            content = json.loads(line)
            seal = content.pop("seal")
            if not hmac.compare_digest(seal, self._seal(content)):
                return None
            signs = tuple(Sign(**{**each, "evidence": tuple(each["evidence"])}) for each in content["signs"])
            known = {
                "evidence": tuple(content["evidence"]),
                "signs": signs,
                "peaks": Usage(**content["peaks"]),
            }
            return Row(**{**content, **known})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def _seal(self, content: Mapping[str, object]) -> str:
        digest = hashlib.sha256(canonical(content).encode()).hexdigest()
        return self._sealer.seal(f"evaluation row {digest}")


def _plain(row: Row) -> dict[str, object]:
    plain = {name: getattr(row, name) for name in Row.__slots__}
    return plain | {
        "evidence": list(row.evidence),
        "signs": list(map(asdict, row.signs)),
        "peaks": asdict(row.peaks),
    }


def _holds(row: Row, attempt: Attempt, conditions: Conditions) -> bool:
    verdict = row.verdict
    image = conditions.own_images.get(environment_of(attempt.task).image, conditions.image_digest)
    now = Conditions(verdict["image_digest"], verdict["seccomp_sha256"], row.profile, row.sandboxes)
    return (
        row.is_graded
        and now == replace(conditions, image_digest=image, own_images={})
        and row.input_sha256 == attempt.sha256
        and verdict["task_sha256"] == attempt.task.sha256
        and verdict["grader_version"] == grader_version(attempt.task)
    )
