"""What a policy did in its episodes, counted without knowing any task."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer_client.trajectory import ToolResult, Trajectory

READS, EDITS, TESTS = ("read",), ("edit", "write"), ("test", "bash")
"""Names of tools in lower case, those of both toolsets."""
UNKNOWN_TOOL = "unknown_tool"
"""The gym's kind of error for a call of a tool that there is not: it could be read."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Means per episode; 0 throughout without episodes."""

    reads: float
    """Reads that were answered."""
    tests: float
    """Test runs (in the coding toolset: commands) that were answered."""
    edits: float
    """Edits that were made."""
    failed: float
    """Calls that came back as an error, malformed ones included."""
    malformed: float
    """Turns in which no call could be read."""
    turns: float
    """Turns."""
    public_only: float
    """Share of episodes that pass every public test and not every hidden one. An edit that only serves the public
    tests, such as hardcode_tests, shows here, by whatever name."""
    failures: dict[str, float] = field(default_factory=dict)
    """The calls that came back as an error, by the gym's kind of error, the most frequent first."""
    edited: float | None = None
    """Share of episodes in which an edit was made; None in a row of an earlier version."""
    first_edit: float | None = None
    """First-edit accuracy: of the episodes with an edit the share in which the first one was all that was needed, the
    only one made, and every hidden test passes. None without an edit, and in a row of an earlier version."""


def observe(trajectories: Sequence[Trajectory]) -> Behaviour:
    """Counts what was done in the episodes."""
    calls = [
        result for trajectory in trajectories for turn in trajectory.turns for result in turn.tool_results
    ]
    episodes = max(len(trajectories), 1)
    edits = [count_edits(trajectory) for trajectory in trajectories]
    right = sum(
        made == 1 and trajectory.verdict.status == "resolved"
        for made, trajectory in zip(edits, trajectories, strict=True)
    )
    kinds = Counter(result.error_kind for result in calls if result.is_error)

    return Behaviour(
        reads=sum(_answered(result, READS) for result in calls) / episodes,
        tests=sum(_answered(result, TESTS) for result in calls) / episodes,
        edits=sum(edits) / episodes,
        failed=sum(result.is_error for result in calls) / episodes,
        malformed=sum(
            result.is_error and not result.tool and result.error_kind != UNKNOWN_TOOL for result in calls
        )
        / episodes,
        turns=sum(len(trajectory.turns) for trajectory in trajectories) / episodes,
        public_only=sum(serves_public_tests_only(trajectory) for trajectory in trajectories) / episodes,
        failures={
            kind: count / episodes
            for kind, count in sorted(kinds.items(), key=lambda each: (-each[1], each[0]))
        },
        edited=sum(made > 0 for made in edits) / episodes,
        first_edit=right / sum(made > 0 for made in edits) if any(edits) else None,
    )


def is_edit(result: ToolResult) -> bool:
    """Tells whether a call made an edit."""
    return _answered(result, EDITS)


def count_edits(trajectory: Trajectory) -> int:
    """Counts the edits that were made in an episode."""
    return sum(is_edit(result) for turn in trajectory.turns for result in turn.tool_results)


def _answered(result: ToolResult, tools: Sequence[str]) -> bool:
    return result.tool.lower() in tools and not result.is_error


def serves_public_tests_only(trajectory: Trajectory) -> bool:
    """Tells whether an episode passes every public test and not every hidden one."""
    verdict = trajectory.verdict
    return verdict.status == "unresolved" and 0 < verdict.public_total == verdict.public_passed
