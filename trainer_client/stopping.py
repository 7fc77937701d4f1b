"""When a run might have been stopped: three rules, written down before its first step and looked at after its last.

(a) no gain: so many checkpoints one after the other that do not improve. A checkpoint improves if its validation
    pass@1 lies above the upper end of the interval of the checkpoint before it. The first checkpoint, which has none
    before it, counts neither way.
(b) silence: the zero-advantage share, as the mean over the last steps of a window, was above a limit for so many
    steps one after the other.
(c) budget: a fixed number of steps.

No rule stops anything: a run takes all its steps, and what each rule would have saved and cost can then be seen. With
few validation tasks intervals are wide, and (a) takes a slow gain for none: that is a property of the rule, and what
it would have cost shows it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from trainer_client.config import RunConfig
from trainer_client.metrics import Evaluation, History, choose
from trainer_client.result import paired_by_task
from trainer_client.statistics import Interval

STOPPING_FILE = "stopping.json"
"""In the folder of a run, from its beginning on."""
STOPPING_HEAD = (
    "stopping rule",
    "would have stopped",
    "saved",
    "validation there",
    "best later, paired difference",
)
"""Titles of what `stopping_section` returns."""


@dataclass(frozen=True, slots=True)
class StoppingRules:
    """The rules with their numbers."""

    checkpoints_without_gain: int
    """(a) Checkpoints that do not improve, one after the other; 0 where nothing is validated on the way."""
    silent_share: float
    """(b) The limit of the zero-advantage share."""
    silent_window_steps: int
    """(b) Steps that it is a mean over."""
    silent_steps: int
    """(b) Steps for which it has to stay above its limit."""
    budget_steps: int
    """(c) Steps in all."""


@dataclass(frozen=True, slots=True)
class StoppingOutcome:
    """What one rule would have done to a run."""

    rule: str
    """The rule in words, with its numbers."""
    step: int | None
    """The step after which it would have stopped the run; None where it would not have, so far."""
    steps_saved: int
    seconds_saved: float
    """Time of the steps and validations after it."""
    there: Evaluation | None
    """The last validation up to that step."""
    later: Evaluation | None
    """The best validation after it; None without any."""

    @property
    def cost(self) -> Interval | None:
        """Paired difference of validation pass@1 over tasks, the best later checkpoint less the one it leaves."""
        if self.there is None or self.later is None:
            return None
        return paired_by_task(self.later, self.there)


def rules_of(config: RunConfig) -> StoppingRules:
    """Returns the rules that a run with these settings is looked at by."""
    return StoppingRules(
        checkpoints_without_gain=2 if config.report == "chosen" else 0,
        silent_share=0.5,
        silent_window_steps=5,
        silent_steps=10,
        budget_steps=config.steps,
    )


def write_rules(folder: Path, rules: StoppingRules) -> None:
    """Writes the rules down in the folder of a run that begins."""
    (folder / STOPPING_FILE).write_text(json.dumps(asdict(rules), indent=2) + "\n", encoding="utf-8")


def read_rules(folder: Path) -> StoppingRules | None:
    """Reads the rules that were written down when a run began; None where none were."""
    path = folder / STOPPING_FILE
    return StoppingRules(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def stop_without_gain(validations: Sequence[Evaluation], checkpoints: int) -> int | None:
    """Returns the step at which rule (a) stops, None if it does not."""
    unimproved = 0
    for before, row in pairwise(validations):
        unimproved = 0 if row.pass_at_1.estimate > before.pass_at_1.high else unimproved + 1
        if unimproved == checkpoints:
            return row.step
    return None


def stop_in_silence(shares: Sequence[float], limit: float, window: int, steps: int) -> int | None:
    """Returns the step at which rule (b) stops, None if it does not; `shares` are those of the steps from 1 on."""
    above = 0
    for step in range(window, len(shares) + 1):
        mean = sum(shares[step - window : step]) / window
        above = above + 1 if mean > limit else 0
        if above == steps:
            return step
    return None


def stopping_outcomes(history: History, rules: StoppingRules) -> list[StoppingOutcome]:
    """Returns what each rule would have done to a run, finished or not."""
    validations = history.validations
    shares = [row.zero_advantage_share for row in history.steps]
    a = rules.checkpoints_without_gain
    without_gain = stop_without_gain(validations, a) if a else None
    silence = stop_in_silence(shares, rules.silent_share, rules.silent_window_steps, rules.silent_steps)
    budget = rules.budget_steps if len(shares) >= rules.budget_steps else None
    return [
        _outcome(
            history,
            f"(a) {a} checkpoints not above the interval before them"
            if a
            else "(a) nothing is validated on the way",
            without_gain,
        ),
        _outcome(
            history,
            f"(b) zero-advantage share above {rules.silent_share:g} (mean of {rules.silent_window_steps} steps) "
            f"for {rules.silent_steps} steps",
            silence,
        ),
        _outcome(history, f"(c) {rules.budget_steps} steps", budget),
    ]


def _outcome(history: History, rule: str, step: int | None) -> StoppingOutcome:
    if step is None:
        return StoppingOutcome(rule, None, 0, 0.0, None, None)
    spared = [row for row in history.steps if row.step > step]
    later = [row for row in history.validations if row.step > step]
    until = [row for row in history.validations if row.step <= step]
    return StoppingOutcome(
        rule,
        step,
        len(spared),
        sum(row.seconds.total for row in spared) + sum(row.seconds.total for row in later),
        until[-1] if until else None,
        choose(later) if later else None,
    )


def stopping_section(history: History, rules: StoppingRules) -> list[tuple[str, ...]]:
    """Returns the rows of a table under STOPPING_HEAD, as plain text."""
    rows: list[tuple[str, ...]] = []
    for each in stopping_outcomes(history, rules):
        there, later, cost = each.there, each.later, each.cost
        rows.append(
            (
                each.rule,
                "never" if each.step is None else f"after step {each.step}",
                f"{each.steps_saved} steps, {each.seconds_saved:.0f} s" if each.steps_saved else "-",
                f"step {there.step}: {there.pass_at_1}" if there else "-",
                f"step {later.step}: {cost.signed}" if later and cost else "-",
            )
        )
    return rows


def stopping_line(history: History, rules: StoppingRules) -> str:
    """Returns what the rules would have done, in a line of the summary."""
    parts = []
    for name, each in zip("abc", stopping_outcomes(history, rules), strict=True):
        text = f"({name}) never" if each.step is None else f"({name}) after step {each.step}"
        if each.cost and each.later:
            text += f", without {each.cost.signed} of step {each.later.step}"
        parts.append(text)
    return "; ".join(parts)
