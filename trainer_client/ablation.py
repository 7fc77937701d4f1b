"""An ablation on paper: arms that each change one field of the common settings, run with the same seeds.

runs/<name>/ of an ablation has

ablation.json   arms, seeds and settings, written before the first run
runs/<arm>-seed<N>/   the folders of its runs (`trainer_client.run_folder`)
logs/           what each run said
result.json, table.md, forest.png   what came of it

Every run reports its last checkpoint on all held-out tasks. The episodes of these tasks come from the seed alone, so
arms meet the same ones, and arms are compared task by task. Intervals are over tasks, after a task's rate has been
averaged over the seeds: what the seeds do is told beside them, by the rates of each and their standard deviation.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from trainer_client.config import RunConfig
from trainer_client.metrics import History
from trainer_client.result import LAST
from trainer_client.run_folder import write_json
from trainer_client.statistics import Interval, paired_difference, task_interval

NAMED_ARMS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "kl_k3_0.05": {"kl_coefficient": 0.05},
    "sft_cold_start": {"model": "sft_base"},
    "public_reward": {"reward": "public"},
}
"""What each of them changes; k3 is the estimator that a run has unless told otherwise."""
OF_THE_ABLATION = ("name", "seed", "report", "gym_share")
"""Fields that the ablation sets by itself."""
SHARED = (
    *OF_THE_ABLATION,
    "preset",
    "track",
    "suite",
    "validate_every",
    "validation_episodes",
    "test_episodes",
)
"""Fields that no arm may change: set by the ablation, without influence, or part of what arms are compared by."""
DEFAULTS: Mapping[str, Any] = {"steps": 30, "test_episodes": 16}
"""Settings that an ablation has where no flag says otherwise."""
LATE_STEPS = 5
"""Steps at the end of training that "late" figures are means over."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of the settings."""

    name: str
    changes: dict[str, Any]
    """The field that it changes, with its value; empty for the common settings as they are."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """Which runs an ablation is made of."""

    name: str
    arms: tuple[Arm, ...]
    """The first one is what the others are compared with."""
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    """What all runs share, by field; what is not there has its default."""
    gym_share: int
    """Runs that the gym's capacity is divided among; 0 while that is not known yet."""

    def config(self, arm: Arm, seed: int) -> RunConfig:
        """Returns the settings of one run. Raises ValueError where they do not go together."""
        own = {
            "name": f"{re.sub(r'[^A-Za-z0-9_.=+-]', '_', arm.name)}-seed{seed}",
            "seed": seed,
            "report": "last",
            "gym_share": self.gym_share or 1,
        }
        try:
            return RunConfig(**self.settings | arm.changes | own)
        except ValueError as error:
            raise ValueError(f"arm {arm.name}: {error}") from error

    @property
    def configs(self) -> list[RunConfig]:
        """The settings of all runs, all arms of a seed before the next seed."""
        return [self.config(arm, seed) for seed in self.seeds for arm in self.arms]


def parse_arm(text: str) -> Arm:
    """Returns the arm that a name or FIELD=VALUE stands for. Raises ValueError that says what an arm can be."""
    if text in NAMED_ARMS:
        return Arm(text, dict(NAMED_ARMS[text]))
    name, equals, value = text.partition("=")
    types = {field.name: field.type for field in fields(RunConfig)}
    if not equals or name not in types:
        raise ValueError(
            f"arm {text!r}: give one of {', '.join(NAMED_ARMS)}, or FIELD=VALUE with one flag of "
            "python -m trainer_client.run (with _ for -)"
        )
    if name in SHARED:
        raise ValueError(f"arm {text!r}: {name} has to be the same in all arms")
    return Arm(text, _found({name: _parse_value(text, types[name], value)}))


def _parse_value(arm: str, kind: Any, value: str) -> Any:
    words = {"true": True, "false": False}
    try:
        return words[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
        wanted = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise ValueError(f"arm {arm!r}: {value!r} is not {wanted}") from None


def _found(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings with the whole path of a model folder: runs start elsewhere."""
    folder = Path(settings.get("model", "")).expanduser()
    return (
        settings | {"model": str(folder.resolve())} if settings.get("model") and folder.is_dir() else settings
    )


def plan(name: str, arms: Sequence[str], seeds: Sequence[int], settings: Mapping[str, Any]) -> Ablation:
    """Returns the ablation with these arms, after a check of every run; its share of the gym is still to be chosen.

    Raises ValueError for an arm that is none, that changes nothing, or whose settings do not go together.
    """
    for what, given in (("arm", arms), ("seed", seeds)):
        if not given or len(set(given)) < len(given):
            raise ValueError(f"give at least one {what}, and each one once")
    for own in OF_THE_ABLATION:
        if own in settings:
            raise ValueError(f"--{own.replace('_', '-')}: an ablation sets it by itself, leave it out")
    ablation = Ablation(name, tuple(map(parse_arm, arms)), tuple(seeds), _found({**DEFAULTS, **settings}), 0)
    # Named alike, so that only what differs between arms does.
    common = replace(ablation.config(Arm("default", {}), seeds[0]), name="")
    known: dict[RunConfig, str] = {}
    for arm in ablation.arms:
        config = replace(ablation.config(arm, seeds[0]), name="")
        if arm.changes and config == common:
            raise ValueError(f"arm {arm.name} changes nothing: the common settings have that already")
        if other := known.get(config):
            raise ValueError(f"the arms {other} and {arm.name} have the same settings: leave one out")
        known[config] = arm.name
    names = [config.name for config in ablation.configs]
    if len(set(names)) < len(names):
        raise ValueError(
            f"some arms would have runs of one name ({', '.join(names)}): write one of them otherwise"
        )
    return ablation


def write_ablation(folder: Path, ablation: Ablation) -> None:
    """Makes the folder of an ablation and writes down what it will be."""
    (folder / "logs").mkdir(parents=True)
    write_json(folder / "ablation.json", asdict(ablation))


def read_ablation(folder: Path) -> Ablation:
    """Reads what an ablation is made of. Raises FileNotFoundError where there is none."""
    path = folder / "ablation.json"
    if not path.exists():
        raise FileNotFoundError(f"there is no ablation {folder}: leave out --resume to start one")
    content = json.loads(path.read_text(encoding="utf-8"))
    return Ablation(
        content["name"],
        tuple(Arm(**arm) for arm in content["arms"]),
        tuple(content["seeds"]),
        content["settings"],
        content["gym_share"],
    )


@dataclass(frozen=True, slots=True)
class SeedRun:
    """What came of one run of an arm."""

    seed: int
    rates: dict[str, float]
    """Pass rate of each held-out task, by its name."""
    public_only: float
    """Share of held-out episodes that pass every public test and not every hidden one."""
    reward_late: float
    """Mean reward in training, late."""
    pass_rate_late: float
    """Share of training episodes that pass every hidden test, late."""
    public_only_late: float
    """Share of training episodes that pass every public test and not every hidden one, late."""
    entropy_late: float
    """Entropy on sampled tokens in nats, late, of the steps that learned from any."""
    weights_sha256: str
    first_edits: dict[str, int] = field(default_factory=dict)
    """What the first edit of the held-out episodes was, and in how many, the most frequent first."""

    @property
    def pass_at_1(self) -> float:
        """Mean pass rate over tasks."""
        return fmean(self.rates.values())


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What came of one arm."""

    name: str
    runs: tuple[SeedRun, ...]
    """In the order of the seeds."""

    @property
    def rates(self) -> dict[str, float]:
        """Pass rate of each held-out task, the mean over seeds, in the order of the tasks' names."""
        names = sorted({name for run in self.runs for name in run.rates})
        return {name: fmean(run.rates[name] for run in self.runs if name in run.rates) for name in names}

    @property
    def pass_at_1(self) -> Interval:
        """Mean over tasks of these rates, with the interval over tasks."""
        return task_interval(list(self.rates.values()))

    @property
    def seed_sd(self) -> float | None:
        """Standard deviation of pass@1 over seeds; None with one."""
        return stdev(run.pass_at_1 for run in self.runs) if len(self.runs) > 1 else None

    def mean(self, figure: str) -> float:
        """Returns the mean over seeds of a figure of SeedRun."""
        return fmean(getattr(run, figure) for run in self.runs)

    @property
    def commonest_edit(self) -> str:
        """The most frequent first edit of the held-out episodes, with its share; a dash where there is none."""
        counts = sum((Counter(run.first_edits) for run in self.runs), Counter[str]())
        return next((f"{edit} {n / counts.total():.0%}" for edit, n in counts.most_common(1)), "-")

    def differences(self, base: "ArmResult") -> list[float]:
        """Returns the differences of the rates, this arm's less the other's, of the tasks that both have."""
        other = base.rates
        return [rate - other[name] for name, rate in self.rates.items() if name in other]

    def difference(self, base: "ArmResult") -> Interval:
        """Returns the mean of these differences, with the interval over tasks."""
        differences = self.differences(base)
        return paired_difference(differences, [0.0] * len(differences))


def seed_run(seed: int, history: History, weights_sha256: str) -> SeedRun:
    """Reads off the rows of a finished run what an ablation wants of it. Raises ValueError where it is not finished."""
    last = history.evaluation(LAST)
    if last is None or not history.steps:
        raise ValueError(f"seed {seed}: the held-out tasks have not been played yet")
    late = history.steps[-LATE_STEPS:]
    return SeedRun(
        seed=seed,
        rates={task.task_id: task.rate for task in last.tasks},
        public_only=last.behaviour.public_only,
        reward_late=fmean(row.reward for row in late),
        pass_rate_late=fmean(row.pass_rate for row in late),
        public_only_late=fmean(row.behaviour.public_only for row in late),
        entropy_late=fmean([row.update.entropy for row in late if row.update.tokens] or [0.0]),
        weights_sha256=weights_sha256,
        first_edits=dict(sum(map(Counter, last.first_edits.values()), Counter[str]()).most_common()),
    )


def write_results(folder: Path, ablation: Ablation, results: Sequence[ArmResult]) -> None:
    """Writes result.json, for programs, and table.md."""
    base = results[0]
    arms = [
        {
            "name": arm.name,
            "pass_at_1": asdict(arm.pass_at_1),
            "difference": asdict(arm.difference(base)) if arm is not base else None,
            "seed_sd": arm.seed_sd,
            "runs": [asdict(run) | {"pass_at_1": run.pass_at_1} for run in arm.runs],
        }
        for arm in results
    ]
    write_json(folder / "result.json", asdict(ablation) | {"arms": arms})
    (folder / "table.md").write_text(markdown_table(results), encoding="utf-8")


def read_results(folder: Path) -> list[ArmResult]:
    """Reads the arms of a finished ablation. Raises FileNotFoundError where there is none."""
    path = folder / "result.json"
    if not (folder / "ablation.json").exists() or not path.exists():
        raise FileNotFoundError(
            f"{folder} is no finished ablation: make one with python -m trainer_client.ablate --name {folder.name}"
        )
    known = {field.name for field in fields(SeedRun)}
    return [
        ArmResult(
            arm["name"],
            tuple(
                SeedRun(**{key: value for key, value in run.items() if key in known}) for run in arm["runs"]
            ),
        )
        for arm in json.loads(path.read_text(encoding="utf-8"))["arms"]
    ]


TABLE_HEAD = (
    "arm",
    "held-out pass@1 [95%]",
    "paired difference",
    "each seed",
    "seed sd",
    "public tests only",
    "public only in training",
    "training reward",
    "training pass",
    "training entropy",
    "first edit, most often",
)
"""Of training it is the last LATE_STEPS steps."""
TABLE_PARTS = ((0, 1, 2, 3, 4), (0, 5, 6, 7, 8, 9, 10))
"""Columns that are shown together where lines are short."""


def table_rows(results: Sequence[ArmResult]) -> list[tuple[str, ...]]:
    """Returns the rows of a table under TABLE_HEAD, as plain text."""
    base = results[0]
    return [
        (
            arm.name,
            str(arm.pass_at_1),
            "-" if arm is base else arm.difference(base).signed,
            " ".join(f"{run.pass_at_1:.2f}" for run in arm.runs),
            "-" if arm.seed_sd is None else f"{arm.seed_sd:.3f}",
            f"{arm.mean('public_only'):.0%}",
            f"{arm.mean('public_only_late'):.0%}",
            f"{arm.mean('reward_late'):.2f}",
            f"{arm.mean('pass_rate_late'):.2f}",
            f"{arm.mean('entropy_late'):.2f}",
            arm.commonest_edit,
        )
        for arm in results
    ]


def markdown_table(results: Sequence[ArmResult]) -> str:
    """Returns the table for a document."""
    lines = (TABLE_HEAD, ("---",) * len(TABLE_HEAD), *table_rows(results))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
