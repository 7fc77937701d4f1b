"""What the page is told of episodes, in plain values.

Whatever a policy or its code wrote is text and stays text: the page shows it as such. Characters that do not show, such
as those that move a terminal's cursor or turn the direction of text around, are replaced by their numbers here.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gym_contract.v1 import gym_pb2 as pb

from gym_service.episode import Episode, Step
from gym_service.toolsets.base import Misuse
from gym_service.toolsets.calls import parse_calls
from gym_service.values import StopReason, Submission, TestCount, ToolResult, Verdict, VerdictStatus
from gym_service.visible import visible

MOST_LISTED = 200
SHOWN_CHARACTERS = 20_000
"""Of one text."""
_SHOWN_IDS = 4096
"""Of one piece of a sequence."""
_MOST_RUNS = 50
SLOW_SECONDS = 1.0
"""A turn or a grading that took as long is slow, unless another limit is asked for."""
_OUTAGES = (StopReason.SANDBOX_DEAD, StopReason.INFRASTRUCTURE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which episodes are asked for."""

    show: str = "all"
    """One of `SHOWS`."""
    run: str = ""
    """Those of one run alone."""
    text: str = ""
    """Those that have this in their id, task, group or caller."""
    slow_seconds: float = SLOW_SECONDS

    def __post_init__(self) -> None:
        if self.show not in SHOWS:
            raise ValueError(f"show must be one of {', '.join(SHOWS)}")
        # Also what is no number at all.
        if not 0 <= self.slow_seconds < float("inf"):
            raise ValueError("slow_seconds must be a number from 0")

    def takes(self, episode: Episode) -> bool:
        """Whether an episode is asked for."""
        return (
            SHOWS[self.show](episode, self.slow_seconds)
            and self.run in ("", run_of(episode))
            and (not self.text or self.text.casefold() in _searched(episode).casefold())
        )


def verdict_of(episode: Episode) -> Verdict | None:
    """Gives the verdict on an episode; None until there is one."""
    grading = episode.grading
    if grading is None or not grading.done() or grading.cancelled() or grading.exception():
        return None
    return grading.result()


def run_of(episode: Episode) -> str:
    """Names the run that an episode belongs to: a caller and the seed that it gave."""
    return f"{episode.owner}/{episode.creation.seed.run_seed}"


def _has_failed(episode: Episode, _: float) -> bool:
    verdict = verdict_of(episode)
    lost = _is_ended(episode) and episode.stop_reason in _OUTAGES
    return lost or (verdict is not None and verdict.status is not VerdictStatus.RESOLVED)


def _is_suspected(episode: Episode, _: float) -> bool:
    verdict = verdict_of(episode)
    return verdict is not None and (bool(verdict.flags) or verdict.status is VerdictStatus.TAMPER_SUSPECTED)


def _is_slow(episode: Episode, seconds: float) -> bool:
    return max(episode.slowest_seconds, episode.grading_seconds) >= seconds


def _is_ended(episode: Episode) -> bool:
    ending = episode.ending
    return ending is not None and ending.done() and not ending.cancelled() and not ending.exception()


SHOWS: Mapping[str, Callable[[Episode, float], bool]] = {
    "all": lambda episode, _: True,
    "live": lambda episode, _: not _is_ended(episode),
    "failed": _has_failed,
    "tampered": _is_suspected,
    "slow": _is_slow,
}


def view_list(episodes: Iterable[Episode], wanted: Wanted, now: float) -> dict[str, Any]:
    """Lists episodes, the latest first, and the runs they belong to. `now` is that of the monotonic clock."""
    runs: dict[str, Counter[str]] = {}
    shown: list[dict[str, Any]] = []
    matching = total = 0
    for episode in episodes:
        total += 1
        run = runs.setdefault(run_of(episode), Counter())
        run["episodes"] += 1
        run["live"] += not _is_ended(episode)
        verdict = verdict_of(episode)
        run["graded"] += verdict is not None
        run["resolved"] += verdict is not None and verdict.status is VerdictStatus.RESOLVED
        if wanted.takes(episode):
            matching += 1
            if len(shown) < MOST_LISTED:
                shown.append(_row(episode, now))
    counted = [{"run": visible(name), **counts} for name, counts in list(runs.items())[:_MOST_RUNS]]
    return {"episodes": shown, "matching": matching, "total": total, "runs": counted}


def version_of(episode: Episode) -> str:
    """Changes whenever there is more of an episode to see."""
    played = sum(step.played.done() for step in episode.steps[-1:])
    return f"{len(episode.steps)}.{played}.{_is_ended(episode):d}.{verdict_of(episode) is not None:d}"


def view_episode(episode: Episode, now: float) -> dict[str, Any]:
    """Gives all that is shown of an episode."""
    creation = episode.creation
    return {
        "version": version_of(episode),
        "row": _row(episode, now),
        "facts": {
            "task": visible(episode.task.task_id),
            "split": episode.task.split,
            "toolset": episode.toolset.name,
            "caller": visible(episode.owner),
            "run seed": str(creation.seed.run_seed),
            "group": visible(creation.seed.group),
            "index in group": str(creation.seed.index),
            "tokenizer": creation.tokenizer_fingerprint[:12],
            "turns at most": str(episode.max_turns),
            "limits asked": visible(", ".join(f"{name} {value:g}" for name, value in creation.limits)),
        },
        "messages": [{"role": visible(each.role), "text": _text(each.content)} for each in episode.messages],
        "prompt_ids": episode.prompt and _piece(episode.prompt.token_ids, episode.prompt.position, mask=0),
        "turns": [_turn(episode, number, step) for number, step in enumerate(list(episode.steps))],
        "submission": _submission(episode.submission) if _is_ended(episode) else None,
        "verdict": _verdict(verdict, episode) if (verdict := verdict_of(episode)) else None,
    }


def _searched(episode: Episode) -> str:
    seed = episode.creation.seed
    return "\n".join((episode.episode_id, episode.task.task_id, seed.group, episode.owner))


def _row(episode: Episode, now: float) -> dict[str, Any]:
    seed = episode.creation.seed
    verdict = verdict_of(episode)
    ended = _is_ended(episode)
    reason = episode.stop_reason if ended else None
    return {
        "id": episode.episode_id,
        "run": visible(run_of(episode)),
        "task": visible(episode.task.task_id),
        "group": visible(seed.group),
        "index": seed.index,
        "toolset": episode.toolset.name,
        "state": "graded" if verdict else "ended" if ended else "turn" if episode.playing else "live",
        "turns": len(episode.steps),
        "max_turns": episode.max_turns,
        "ids": episode.length,
        "stop_reason": reason.name.lower() if reason else "",
        "status": verdict.status.name.lower() if verdict else "",
        "hidden": _count(verdict.hidden) if verdict else "",
        "flags": [visible(flag) for flag in verdict.flags] if verdict else [],
        "created": time.time() - (now - episode.created_at),
        "seconds": (episode.ended_at if ended else now) - episode.created_at,
        "slowest_seconds": episode.slowest_seconds,
        "grading_seconds": episode.grading_seconds,
    }


def _turn(episode: Episode, number: int, step: Step) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "number": number,
        "began_seconds": step.began_at - episode.created_at,
        "seconds": step.seconds,
        **_action(step.sent, episode),
        "results": None,
        "delta": None,
    }
    if turn["ids"]:
        # The last turn has no delta: nothing follows it.
        turn["ids"]["position"] = episode.length
    if step.played.done() and not step.played.cancelled():
        observation = step.played.result().observation
        turn["results"] = [_result(each) for each in observation.tool_results]
        if delta := observation.delta:
            turn["delta"] = _piece(delta.token_ids, delta.position, mask=0)
            if turn["ids"]:
                turn["ids"]["position"] = delta.position - turn["ids"]["count"]
    return turn


def _action(sent: bytes, episode: Episode) -> dict[str, Any]:
    action = pb.Action.FromString(sent)
    match action.WhichOneof("content"):
        case "token_ids" if episode.tokenizer is not None:
            text = episode.tokenizer.text_of(action.token_ids.ids)
            return {
                "form": "token ids",
                "text": _text(text),
                "ids": _piece(action.token_ids.ids, None, mask=1),
                "calls": _calls(text, episode),
            }
        case "tool_calls":
            calls = [
                {"tool": visible(call.tool), "arguments": _text(call.arguments_json)}
                for call in action.tool_calls.calls
            ]
            return {"form": "calls", "text": "", "ids": None, "calls": calls}
        case _:
            return {
                "form": "text",
                "text": _text(action.text),
                "ids": None,
                "calls": _calls(action.text, episode),
            }


def _calls(text: str, episode: Episode) -> list[dict[str, str]]:
    """The calls as the service understood them; none where it did not."""
    in_thought = episode.tokenizer is not None and episode.tokenizer.opens_thought
    tools = {tool.name: tool for tool in episode.toolset.tools}
    try:
        calls = parse_calls(text, tools, in_thought=in_thought)
    except Misuse:
        return []
    return [
        {
            "tool": visible(call.tool),
            "arguments": _text("\n".join(f"{name}: {value}" for name, value in call.arguments.items())),
        }
        for call in calls
    ]


def _result(result: ToolResult) -> dict[str, Any]:
    return {
        "tool": visible(result.tool),
        "text": _text(result.text),
        "error_kind": visible(result.error_kind),
        "exit_status": result.exit_status,
        "output_truncated": result.output_truncated,
    }


def _piece(ids: Iterable[int], position: int | None, *, mask: int) -> dict[str, Any]:
    """A piece of the sequence; `mask` is 1 where the policy sampled it, which is what a trainer learns from."""
    known = list(ids)
    return {"position": position, "mask": mask, "count": len(known), "ids": known[:_SHOWN_IDS]}


def _submission(submission: Submission) -> dict[str, Any]:
    return {
        "sha256": submission.sha256,
        "refusal": visible(submission.refusal),
        "deleted": [visible(path) for path in submission.deleted],
        "ignored": [visible(path) for path in submission.ignored],
        "files": [
            {"path": visible(path), "text": _text(content.decode("utf-8", "backslashreplace"))}
            for path, content in sorted(submission.files.items())
        ],
    }


def _verdict(verdict: Verdict, episode: Episode) -> dict[str, Any]:
    certificate = verdict.certificate
    return {
        "status": verdict.status.name.lower(),
        "hidden": _count(verdict.hidden),
        "public": _count(verdict.public),
        "reason": _text(verdict.reason),
        "flags": [visible(flag) for flag in verdict.flags],
        "from_cache": verdict.from_cache,
        "grader": certificate.grader_version if certificate else "",
        "record_sha256": episode.record_sha256,
        "grading_seconds": episode.grading_seconds,
    }


def _count(count: TestCount | None) -> str:
    return f"{count.passed}/{count.total}" if count else ""


def _text(text: str) -> str:
    more = len(text) - SHOWN_CHARACTERS
    return visible(text if more <= 0 else f"{text[:SHOWN_CHARACTERS]}\n[{more} more characters]")
