"""Failed episodes to read: one of each kind of failure, as text.

The kinds are told apart without knowing any task, by verdict, end and calls; an episode is of the first that fits.
What is kept is bounded, and is text that a policy and its code wrote: whoever shows it has to escape it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer_client.behaviour import count_edits, serves_public_tests_only
from trainer_client.sequences import Decode
from trainer_client.trajectory import Trajectory

MOST_CHARACTERS = 4_000
"""Of one piece of text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call."""

    tool: str
    text: str
    error_kind: str
    """Empty where it is no error."""


@dataclass(frozen=True, slots=True)
class SaidTurn:
    """One turn in words."""

    said: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """An episode that stands for a kind of failure."""

    label: str
    """The evaluation that it is from."""
    kind: str
    episodes: int
    """How many of the evaluation's episodes are of this kind."""
    task_id: str
    group: str
    index: int
    """With the group, which episode it is in episodes.jsonl."""
    status: str
    reason: str
    hidden: str
    """Hidden tests in the form 2 of 8."""
    public: str
    stop_reason: str
    prompt: str
    turns: tuple[SaidTurn, ...]


def kind_of_failure(trajectory: Trajectory) -> str:
    """Names what is wrong with an episode; nothing for one that passes."""
    verdict, outcome = trajectory.verdict, trajectory.outcome
    if verdict.status == "resolved":
        return ""
    if verdict.status != "unresolved":
        return f"verdict {verdict.status}"
    if serves_public_tests_only(trajectory):
        return "public tests pass, hidden ones do not"
    if outcome.truncated:
        return f"cut off: {outcome.stop_reason}"
    if not count_edits(trajectory):
        return "handed in without an edit"
    results = [result for turn in trajectory.turns for result in turn.tool_results]
    failed = next((result.error_kind for result in results if result.is_error), "")
    return f"wrong edit, and a failed call: {failed}" if failed else "wrong edit"


def transcribe_failures(label: str, trajectories: Sequence[Trajectory], decode: Decode) -> list[Transcript]:
    """Returns the first episode of each kind of failure, the most frequent kind first."""
    kinds: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.verdict.valid and (kind := kind_of_failure(trajectory)):
            kinds.setdefault(kind, []).append(trajectory)
    ordered = sorted(kinds.items(), key=lambda each: (-len(each[1]), each[0]))
    return [_transcribe(label, kind, len(each), each[0], decode) for kind, each in ordered]


def _transcribe(label: str, kind: str, episodes: int, trajectory: Trajectory, decode: Decode) -> Transcript:
    verdict = trajectory.verdict
    turns = tuple(
        SaidTurn(
            _cut(decode(turn.action_ids)),
            tuple(
                Answer(result.tool, _cut(result.text), result.error_kind if result.is_error else "")
                for result in turn.tool_results
            ),
        )
        for turn in trajectory.turns
    )
    return Transcript(
        label=label,
        kind=kind,
        episodes=episodes,
        task_id=trajectory.task_id,
        group=trajectory.group,
        index=trajectory.index,
        status=verdict.status,
        reason=_cut(verdict.reason),
        hidden=f"{verdict.hidden_passed} of {verdict.hidden_total}",
        public=f"{verdict.public_passed} of {verdict.public_total}",
        stop_reason=trajectory.outcome.stop_reason,
        prompt=_cut(decode(trajectory.prompt_ids)),
        turns=turns,
    )


def _cut(text: str) -> str:
    left = len(text) - MOST_CHARACTERS
    return text if left <= 0 else f"{text[:MOST_CHARACTERS]} ... {left} more characters"


def keep_transcripts(path: Path, label: str, transcripts: Sequence[Transcript]) -> None:
    """Puts the transcripts of an evaluation into the file, in place of what it has of that label."""
    kept = [*(each for each in read_transcripts(path) if each.label != label), *transcripts]
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps([asdict(each) for each in kept], indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_transcripts(path: Path) -> list[Transcript]:
    """Reads the file; one that does not exist is empty."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [
        Transcript(
            **row
            | {
                "turns": tuple(
                    SaidTurn(turn["said"], tuple(Answer(**answer) for answer in turn["answers"]))
                    for turn in row["turns"]
                )
            }
        )
        for row in rows
    ]
