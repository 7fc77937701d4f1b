"""The record of a graded episode: a chain of events that shows any later change, closed by a seal.

A record is lines of JSON, one per event:

    created    gym, episode, task, toolset, seed, tokenizer, limits asked, opening messages,
               whether the chat template told of the tools
    turn       one for each turn: the action as it was sent, the results, the ids that were appended
    ended      stop reason, and the submission with its files
    graded     the verdict with its hashes and signature, and the evidence, which no client ever gets
    seal       the HMAC of the last hash under a key of the gym

A line has `kind`, `content`, `previous` and `sha256`: that of the JSON of content, index (from 0), kind and previous,
with sorted keys, no blanks and everything but ASCII escaped. `previous` is the hash of the line before, 64 zeros at
first. The last hash, the head, therefore stands for the whole record, and is what a client gets. Whoever keeps it needs
no key to find a change; whoever has the private seed needs no head, because a chain that was made anew has no seal.
What the seal cannot show: who can read the state folder can seal what he likes, and files can be removed.

The action is kept as the bytes that came, because they are what was played, and as what they say, for a reader.
"""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass

from gym_contract.v1 import gym_pb2 as pb

from gym_service.episode import Episode, Step, StepResult
from gym_service.grading.certificate import derive, told
from gym_service.tokens import ChatTokenizer
from gym_service.values import StopReason, Submission, Verdict

START = "0" * 64
SEAL = "seal"

_LONG_BYTES = 100_000
"""From here on a record is made in a thread: a long one would hold everybody up."""


@dataclass(frozen=True, slots=True)
class Link:
    """One event in its place in the chain."""

    kind: str
    content: str
    """In JSON."""
    previous: str
    sha256: str

    @classmethod
    def after(cls, previous: str, index: int, kind: str, content: str) -> "Link":
        """Appends an event to the one whose hash is `previous`."""
        # Put together by hand, so that a content, which may be long, is written as JSON once.
        hashed = f'{{"content":{content},"index":{index},"kind":"{kind}","previous":"{previous}"}}'
        return cls(kind, content, previous, hashlib.sha256(hashed.encode()).hexdigest())

    @property
    def line(self) -> bytes:
        """The event as it stands in a file."""
        fields = f'"content":{self.content},"kind":"{self.kind}","previous":"{self.previous}"'
        return f'{{{fields},"sha256":"{self.sha256}"}}\n'.encode()


class Sealer:
    """Seals the records of one gym."""

    def __init__(self, private_seed: bytes) -> None:
        self._key = derive(private_seed, "record seal")
        self.gym = derive(private_seed, "gym name").hex()[:16]
        """Names the gym in its records, so that one of another gym can be told from one that was rewritten."""

    def seal(self, head: str) -> str:
        """Seals a record by its head."""
        return hmac.digest(self._key, head.encode(), "sha256").hex()


def seal_line(seal: str) -> bytes:
    """The last line of a file."""
    return f'{{"kind":"{SEAL}","seal":"{seal}"}}\n'.encode()


def canonical(content: object) -> str:
    """Writes a content as JSON in the one way that is hashed; what is no text or number fails."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


async def make_record(episode: Episode, verdict: Verdict, gym: str) -> list[Link]:
    """Makes the record of a graded episode."""
    size = episode.record_bytes + sum(map(len, episode.submission.files.values()))
    if size + episode.length < _LONG_BYTES:
        return _chain(episode, verdict, gym)
    return await asyncio.to_thread(_chain, episode, verdict, gym)


def _chain(episode: Episode, verdict: Verdict, gym: str) -> list[Link]:
    links: list[Link] = []
    previous = START
    for index, (kind, content) in enumerate(_events(episode, verdict, gym)):
        links.append(Link.after(previous, index, kind, canonical(content)))
        previous = links[-1].sha256
    return links


def _events(episode: Episode, verdict: Verdict, gym: str) -> Iterator[tuple[str, dict[str, object]]]:
    creation = episode.creation
    seed = creation.seed
    yield (
        "created",
        {
            "gym": gym,
            "episode_id": episode.episode_id,
            "task_id": episode.task.task_id,
            "toolset": episode.toolset.name,
            "seed": {"run_seed": seed.run_seed, "group": seed.group, "index": seed.index},
            "tokenizer_fingerprint": creation.tokenizer_fingerprint,
            "max_turns": creation.max_turns,
            "max_edits": creation.max_edits,
            "limits": dict(creation.limits),
            "native_tools": episode.native_tools,
            "messages": [
                {"role": each.role, "content": each.content, "tool": each.tool} for each in episode.messages
            ],
        },
    )
    for number, step in enumerate(episode.steps):
        yield (
            "turn",
            {
                "turn": number,
                "action": _action(step.sent, episode.tokenizer),
                "observation": _observation(step),
            },
        )
    assert episode.stop_reason is not None
    yield "ended", {"stop_reason": _name(episode.stop_reason), "submission": _submission(episode.submission)}
    assert verdict.certificate is not None
    signed = {
        **told(verdict, verdict.certificate),
        "content_sha256": verdict.certificate.content_sha256,
        "signature": verdict.certificate.signature,
    }
    yield "graded", {"verdict": signed, "evidence": list(verdict.evidence)}


def _name(reason: StopReason) -> str:
    return f"STOP_REASON_{reason.name}"


def _action(sent: bytes, tokenizer: ChatTokenizer | None) -> dict[str, object]:
    content: dict[str, object] = {"sent_base64": base64.b64encode(sent).decode()}
    action = pb.Action.FromString(sent)
    match action.WhichOneof("content"):
        case "text":
            content["text"] = action.text
        case "token_ids" if tokenizer is not None:
            content["text"] = tokenizer.text_of(action.token_ids.ids)
        case "tool_calls":
            content["calls"] = [[call.tool, call.arguments_json] for call in action.tool_calls.calls]
    return content


def _observation(step: Step) -> dict[str, object] | None:
    """None for a turn that the end of the episode cut off, which may still be under way."""
    if not step.played.done() or step.played.cancelled():
        return None
    result: StepResult = step.played.result()
    delta = result.observation.delta
    return {
        "tool_results": [
            {
                "tool": each.tool,
                "text": each.text,
                "error_kind": each.error_kind,
                "output_truncated": each.output_truncated,
                "exit_status": each.exit_status,
            }
            for each in result.observation.tool_results
        ],
        "delta": delta and {"position": delta.position, "token_ids": list(delta.token_ids)},
        "stop_reason": result.stop_reason and _name(result.stop_reason),
    }


def _submission(submission: Submission) -> dict[str, object]:
    return {
        "sha256": submission.sha256,
        "files": [
            {"path": path, "sha256": hashlib.sha256(content).hexdigest(), **_text(content)}
            for path, content in sorted(submission.files.items())
        ],
        "deleted": list(submission.deleted),
        "ignored": list(submission.ignored),
        "refusal": submission.refusal,
    }


def _text(content: bytes) -> dict[str, str]:
    """A content as text where it is text."""
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
