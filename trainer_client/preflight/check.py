"""What a check says, and how that is told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FAULTS: Mapping[str, str] = {
    "mask": "what is trained is not what the policy sampled: look at the mask of Trajectory, and at where collate puts "
    "what predicts each token (one before it)",
    "gap": "sampler and trainer disagree on the policy: look at the temperature of both, at whether the sampler has "
    "the weights of now, and at the positions of tokens behind an observation",
    "advantages": "rewards are compared with the baseline of another group, or advantages went to other episodes than "
    "the rewards came from: look at group_advantages and at the order of episodes",
    "reference": "the policy is compared with what moves along, or did not start from it, or gives other numbers each "
    "time: give the reference weights of its own (checkpoint 0) without gradient, and look for dropout",
    "companions": "a sequence sees those that it shares a line with: look at the layout (models.packed), at positions, "
    "and at where the shared beginning ends",
    "ratios": "ratios are taken against other weights than those that learn: the old log-probabilities have to be the "
    "trainer's own, of the first pass",
    "microbatches": "the split into lines is part of the loss: every term has to be divided by the same number, that "
    "of the whole batch",
    "silent groups": "equal rewards move the policy: look for an advantage that is not exactly 0 (rounding, divided by "
    "a deviation near 0) and for terms of the loss without the advantage",
    "direction": "an update does not raise what did well: look at the sign of the loss, at which token an advantage is "
    "given to, and, if both are right, lower learning_rate",
    "gold": "the reference solution does not pass, so that nothing could: `python -m gym_service tasks check` says why",
    "untouched": "what an episode starts from passes, so that doing nothing is rewarded: look at the hidden tests, and "
    "at whether the grader runs them",
    "regrade": "the same files get another verdict, so that the reward is partly chance: look for tests that depend on "
    "time, on order, or on what another test leaves behind",
    "rendering": "the policy reads other ids than it was made for: look at whether the gym has the tokenizer and the "
    "chat template of this model, and at line breaks around messages",
    "seeds": "an episode depends on more than its seed, so that no run can be repeated: look for time, counters and "
    "chance in what opens an episode and in what answers a turn",
}
"""Which fault fits where a check fails, and what to look at."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    passed: bool
    figure: str
    """What was found."""
    limit: str
    """What it has to be."""

    @property
    def fault(self) -> str:
        """Which fault fits where it is not that, and what to look at."""
        return FAULTS[self.name]


@dataclass(frozen=True, slots=True)
class Report:
    """All that was tried."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def failed(self) -> list[Check]:
        """What does not hold."""
        return [check for check in self.checks if not check.passed]

    def figure(self, name: str) -> str:
        """Returns what the check of this name found."""
        return next(check.figure for check in self.checks if check.name == name)

    def __str__(self) -> str:
        """One line where everything holds, else a table."""
        if self.failed:
            return table(self.checks)
        return (
            f"preflight: {len(self.checks)} checks passed, gap {self.figure('gap').partition(',')[0]}, "
            f"{self.figure('direction')}, {self.seconds:.1f} s"
        )


class PreflightFailed(ValueError):
    """A run does not start, and why."""

    def __init__(self, failed: Sequence[Check]) -> None:
        faults = "".join(f"\n  {check.name}: {check.fault}" for check in failed)
        super().__init__(f"the run does not start: {', '.join(check.name for check in failed)}{faults}")


def table(checks: Sequence[Check]) -> str:
    """Returns a line for each check, and under one that failed the fault that fits."""
    names = max(len(check.name) for check in checks)
    figures = max(len(check.figure) for check in checks)
    limits = max(len(check.limit) for check in checks)
    lines = [f"{'check':{names}}  {'figure':{figures}}  {'limit':{limits}}"]
    for check in checks:
        mark = "ok" if check.passed else "FAILED"
        lines.append(f"{check.name:{names}}  {check.figure:{figures}}  {check.limit:{limits}}  {mark}")
        if not check.passed:
            lines.append(f"{'':{names}}  {check.fault}")
    return "\n".join(lines)


def write_report(path: Path, report: Report) -> None:
    """Writes a report as JSON."""
    content = {
        "seconds": report.seconds,
        "checks": [{**asdict(check), "fault": check.fault} for check in report.checks],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
