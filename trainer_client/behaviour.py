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


def observe(trajectories: Sequence[Trajectory]) -> Behaviour:
    """Counts what was done in the episodes."""
    calls = [
        result for trajectory in trajectories for turn in trajectory.turns for result in turn.tool_results
    ]
    episodes = max(len(trajectories), 1)
    kinds = Counter(result.error_kind for result in calls if result.is_error)

    def answered(result: ToolResult, tools: Sequence[str]) -> bool:
        return result.tool.lower() in tools and not result.is_error

    return Behaviour(
        reads=sum(answered(result, READS) for result in calls) / episodes,
        tests=sum(answered(result, TESTS) for result in calls) / episodes,
        edits=sum(answered(result, EDITS) for result in calls) / episodes,
        failed=sum(result.is_error for result in calls) / episodes,
        malformed=sum(
            result.is_error and not result.tool and result.error_kind != UNKNOWN_TOOL for result in calls
        )
        / episodes,
        turns=sum(len(trajectory.turns) for trajectory in trajectories) / episodes,
        public_only=sum(_public_only(trajectory) for trajectory in trajectories) / episodes,
        failures={
            kind: count / episodes
            for kind, count in sorted(kinds.items(), key=lambda each: (-each[1], each[0]))
        },
    )


def _public_only(trajectory: Trajectory) -> bool:
    verdict = trajectory.verdict
    return verdict.status == "unresolved" and 0 < verdict.public_total == verdict.public_passed
