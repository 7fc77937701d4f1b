"""The signature of a verdict: by what it is about, not by whom it was given to.

`content_sha256` covers all that a client is told of a verdict, so that anybody can compute it again from the message:
SHA-256 over the JSON of

    {"flags": [...], "grader_version": "function-1", "hidden": {"passed": 5, "total": 9}, "image_digest": "...",
     "public": {"passed": 3, "total": 3}, "reason": "...", "seccomp_sha256": "...", "seed_sha256": "...",
     "status": "VERDICT_STATUS_UNRESOLVED", "submission_sha256": "...", "task_sha256": "..."}

with the keys in this order, no blanks, everything but ASCII escaped, and null for a count that is absent. Nothing in it
names the episode: equal work gets an equal verdict, and a stored one can be given again.

`signature` is the HMAC-SHA256 of content_sha256 as text. It is symmetric: it shows whoever holds the private seed that
this gym gave the verdict, and nobody else anything. Each use of the private seed has a key of its own, so that what is
published of one says nothing of another.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace

from gym_service.values import Certificate, TestCount, Verdict


class Signer:
    """Signs the verdicts of one gym."""

    def __init__(self, image_digest: str, seccomp_sha256: str, private_seed: bytes) -> None:
        """`image_digest` and `seccomp_sha256` are what was measured of the gym's own sandboxes."""
        self._image_digest = image_digest
        self._seccomp_sha256 = seccomp_sha256
        self._private_seed = private_seed

    def sign(
        self, verdict: Verdict, task_sha256: str, seed: str, grader_version: str, image_digest: str = ""
    ) -> Certificate:
        """Certifies a verdict; `seed` is that of the episode, `image_digest` the image's if it is not the gym's own."""
        certificate = Certificate(
            task_sha256=task_sha256,
            image_digest=image_digest or self._image_digest,
            seccomp_sha256=self._seccomp_sha256,
            grader_version=grader_version,
            seed_sha256=hmac.digest(derive(self._private_seed, "seed name"), seed.encode(), "sha256").hex(),
            content_sha256="",
            signature="",
        )
        digest = _hash(told(verdict, certificate))
        return replace(certificate, content_sha256=digest, signature=signature(self._private_seed, digest))


def told(verdict: Verdict, certificate: Certificate) -> dict[str, object]:
    """All that a client is told of a verdict, under the names of the contract, as it is hashed."""
    return {
        "status": f"VERDICT_STATUS_{verdict.status.name}",
        "hidden": _count(verdict.hidden),
        "public": _count(verdict.public),
        "reason": verdict.reason,
        "flags": list(verdict.flags),
        "submission_sha256": verdict.submission_sha256,
        "task_sha256": certificate.task_sha256,
        "image_digest": certificate.image_digest,
        "seccomp_sha256": certificate.seccomp_sha256,
        "grader_version": certificate.grader_version,
        "seed_sha256": certificate.seed_sha256,
    }


def check_content(verdict: Mapping[str, object]) -> bool:
    """Says whether the fields of a verdict are those that its content_sha256 was made of."""
    content = {key: value for key, value in verdict.items() if key not in ("content_sha256", "signature")}
    return verdict.get("content_sha256") == _hash(content)


def signature(private_seed: bytes, content_sha256: str) -> str:
    """Signs the hash of a verdict's content."""
    return hmac.digest(derive(private_seed, "verdict signature"), content_sha256.encode(), "sha256").hex()


def derive(private_seed: bytes, purpose: str) -> bytes:
    """Derives the key of one purpose from the private seed."""
    return hmac.digest(private_seed, purpose.encode(), "sha256")


def _count(count: TestCount | None) -> dict[str, int] | None:
    return {"passed": count.passed, "total": count.total} if count else None


def _hash(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
