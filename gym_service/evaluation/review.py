"""The review sheet, which a security reviewer signs.

One document per evaluation that states what was executed, under which isolation as it was measured, and every anomaly.

    {"kind": "evaluation review", "review": {...}, "sha256": ..., "seal": ...}

`sha256` is the hash of the review as the only event of a record (`record`), `seal` that of this gym over it. The file
is written in one way only, so that `verify-record` finds any change of it, as in a record. What it cannot show is the
same, too: who can read the state folder can seal what he likes.
"""

import hmac
import json
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gym_service import __version__
from gym_service.evaluation.rows import Conditions, Row
from gym_service.evaluation.summary import Summary
from gym_service.record import START, Link, Sealer, canonical
from gym_service.sandbox.docker import RECORDS_BYTES
from gym_service.sandbox.isolation import Assurance
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import PoolStatus

KIND = "evaluation review"
_LINK_KIND = "review"
_UNEXPECTED = ("died", "broken", "not_clean")
"""Why a sandbox is thrown away that was to serve again, or was still in use."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When and what was evaluated."""

    suite: str
    source: str
    """What the submissions were read from, as it was named."""
    began: str
    """In UTC, as ISO 8601 writes it; so is `ended`."""
    ended: str
    grading_seconds: float
    """From the first grading to the last."""
    resumed: int
    """Samples whose rows were there before, so that nothing ran for them on this occasion."""


def make_review(
    occasion: Occasion,
    rows: Sequence[Row],
    summary: Summary,
    assurance: Assurance,
    conditions: Conditions,
    pool: PoolStatus,
    retries: int,
    gym: str,
) -> dict[str, Any]:
    """Makes the content of a review sheet. Plain data, as JSON has it."""
    isolation = assurance.isolation
    content = {
        "gym": gym,
        "service_version": __version__,
        "suite": occasion.suite,
        "source": occasion.source,
        "began": occasion.began,
        "ended": occasion.ended,
        "resumed": occasion.resumed,
        "profile": conditions.profile,
        "gaps": assurance.gaps,
        "sandboxes": conditions.sandboxes,
        "image_digest": isolation.image_digest,
        "image_digests_of_gradings": sorted({row.verdict["image_digest"] for row in rows}),
        "own_images": dict(conditions.own_images),
        "seccomp_sha256": isolation.seccomp_sha256,
        "kernel": isolation.kernel_version,
        "engine": isolation.engine_version,
        "runtime": f"{isolation.runtime} {isolation.runtime_version}".strip(),
        "grader_versions": sorted({row.verdict["grader_version"] for row in rows}),
        "limits": asdict(isolation.limits) if isolation.limits else None,
        "measured": dict(isolation.observed),
        "self_tests": [asdict(check) for each in assurance.self_tests for check in each.checks],
        "peaks": _peaks(rows, isolation.limits),
        "resources": {
            "memory_peak_of_the_service_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "seconds_of_grading": round(occasion.grading_seconds, 3),
            "sandboxes_at_once": pool.size,
            "sandboxes_started": pool.started,
            "sandboxes_retired": pool.retired,
            "gradings_tried_again": retries,
        },
        "results": {
            "samples": summary.graded,
            "passed": summary.passed,
            "statuses": dict(summary.statuses),
            "flags": dict(summary.flags),
            "pass_at": {str(k): asdict(estimate) for k, estimate in summary.pass_at.items()},
            "tasks_without_submission": len(summary.untried),
        },
        "anomalies": {
            "gaps_of_the_machine": assurance.gaps,
            "gradings_tried_again": retries,
            "sandboxes_lost_or_unclean": {
                reason: count for reason, count in pool.retired.items() if reason in _UNEXPECTED
            },
            "tried": [
                {**_named(row), "status": row.status.name, "signs": [asdict(sign) for sign in row.signs]}
                for row in summary.tried
            ],
            "suspected": [
                {**_named(row), "status": row.status.name, "flags": row.flags, "evidence": row.evidence}
                for row in summary.suspected
            ],
            "could_not_be_graded": [asdict(each) for each in summary.ungraded],
            "could_not_be_read": [asdict(each) for each in summary.complaints],
        },
        "executed": [
            {
                **_named(row),
                "input_sha256": row.input_sha256,
                "submission_sha256": row.verdict["submission_sha256"],
                "task_sha256": row.verdict["task_sha256"],
                "verdict_sha256": row.verdict["content_sha256"],
                "status": row.status.name,
                "seconds": row.seconds,
                "peaks": asdict(row.peaks),
            }
            for row in rows
        ],
    }
    plain: dict[str, Any] = json.loads(canonical(content))
    return plain


def seal_review(content: dict[str, Any], sealer: Sealer) -> bytes:
    """Writes a review sheet as it stands in a file."""
    digest = _digest(content)
    return _written(content, digest, sealer.seal(digest))


def is_review(data: bytes) -> bool:
    """Whether a file says of itself that it is a review sheet."""
    return data.startswith(f'{{\n "kind": "{KIND}"'.encode())


def read_review(data: bytes) -> tuple[dict[str, Any], str, str]:
    """Gives the content of a review sheet, its hash and its seal. Raises ValueError for one that was changed."""
    try:
        fields = json.loads(data.decode("ascii"))
        content, digest, seal = fields["review"], fields["sha256"], fields["seal"]
        found = _digest(content)
        if not isinstance(content.get("gym"), str) or not all(
            isinstance(each, str) for each in (digest, seal)
        ):
            raise ValueError("it is no review sheet")
        as_written = _written(content, digest, seal)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("it is no review sheet as this gym writes them") from None
    if digest != found:
        raise ValueError("the review does not match its sha256")
    if as_written != data:
        raise ValueError("it is not written as review sheets are")
    return content, digest, seal


def is_sealed(digest: str, seal: str, sealer: Sealer) -> bool:
    """Whether the seal is this gym's."""
    return hmac.compare_digest(seal.encode(errors="replace"), sealer.seal(digest).encode())


def _digest(content: object) -> str:
    return Link.after(START, 0, _LINK_KIND, canonical(content)).sha256


def _written(content: object, digest: str, seal: str) -> bytes:
    fields = {"kind": KIND, "review": content, "sha256": digest, "seal": seal}
    return json.dumps(fields, indent=1).encode() + b"\n"


def _peaks(rows: Sequence[Row], limits: SandboxLimits | None) -> dict[str, dict[str, object]]:
    """The greatest use of a grading with its limit, and whose it was; None where nobody could measure it."""
    found: dict[str, tuple[list[tuple[float, str]], float | None]] = {
        "memory_bytes": (_figures(rows, "memory_bytes"), limits.memory_bytes if limits else None),
        "pids": (_figures(rows, "pids"), limits.pids if limits else None),
        "output_bytes_of_a_run": (_figures(rows, "output_bytes"), RECORDS_BYTES),
        "seconds": ([(row.seconds, row.name) for row in rows], None),
    }
    return {
        what: {
            "greatest": max(figures)[0] if figures else None,
            "of": max(figures)[1] if figures else "",
            "limit": limit,
        }
        for what, (figures, limit) in found.items()
    }


def _figures(rows: Sequence[Row], name: str) -> list[tuple[float, str]]:
    return [(value, row.name) for row in rows if (value := getattr(row.peaks, name)) is not None]


def _named(row: Row) -> dict[str, object]:
    return {"task_id": row.task_id, "sample_index": row.sample_index}
