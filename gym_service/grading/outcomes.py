"""The strict, total parser of what a run of tests in a sandbox says came of them.

One object in JSON per line, made by the warden's runner or by hostile code beside it: `{"id": ..., "outcome": ...}`
for each test, and `{"end": STATUS}` as the last. It never raises, whatever the bytes are.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

OUTCOMES = frozenset({"passed", "failed", "skipped", "xfailed", "xpassed", "error"})
_MAX_LINE_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was reported."""

    by_id: dict[str, str]
    """The first outcome of each test."""
    ended: bool
    """Whether the run says of itself that it came to its end."""
    anomalies: tuple[str, ...]
    """What the runner alone never writes."""


def parse_outcomes(output: bytes, *, truncated: bool) -> Outcomes:
    """Parses the records of one run."""
    by_id: dict[str, str] = {}
    anomalies = ["more output than any run has"] if truncated else []
    ended = False
    # Every record ends with a newline; what follows the last one was cut with its process.
    for line in output.split(b"\n")[:-1]:
        match _record(line):
            case ["end"] if not ended:
                ended = True
            case [test_id, outcome] if not ended and test_id not in by_id:
                by_id[test_id] = outcome
            case [test_id, _] if not ended:
                anomalies.append(f"reported twice: {test_id[:200]}")
            case []:
                anomalies.append("a record that the runner does not write")
            case _:
                anomalies.append("a record after the end")
    return Outcomes(by_id, ended, tuple(dict.fromkeys(anomalies))[:20])


def _record(line: bytes) -> Sequence[str]:
    """Gives id and outcome, or that it is the end, or nothing."""
    if len(line) > _MAX_LINE_BYTES or line.count(b"[") + line.count(b"{") > 100:
        return []
    try:
        record = json.loads(line.decode("ascii"), object_pairs_hook=list)
    except (ValueError, RecursionError):
        return []
    match record:
        case [("end", int(status))] if not isinstance(status, bool):
            return ["end"]
        case [("id", str(test_id)), ("outcome", str(outcome))] if outcome in OUTCOMES:
            return [test_id, outcome]
    return []
