"""What must hold of a run that was disturbed: beside an undisturbed one, the gym's records, the engine, the machine.

An episode is played again where the gym lost it, and a step where the trainer was killed before its checkpoint; each
time it is another episode to the gym, with a record of its own. The claims are about what the run is made of in the
end: for each place, which is a group, an index and the step of the policy that played, the episode played last.
"""

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gym_contract.v1 import gym_pb2 as pb

from gym_service import control
from gym_service.record_check import check_record
from gym_service.state import StateFolder, read_grading_seed
from tests.bench.private_engine import PrivateEngine
from trainer_client.metrics import History, read_history
from trainer_client.run_folder import RunFolder

_BUILT_IN_NETWORKS = {"bridge", "host", "none"}
_MOST_NAMED = 3

Places = dict[tuple[str, int, str], str]
"""The episode that was played last for each group, index and step of the policy."""


@dataclass(frozen=True)
class Claim:
    """Something that must hold."""

    sentence: str
    holds: bool
    detail: str = ""
    """Figures, or what does not hold."""


class Kept:
    """The records that a service keeps, watched while it grades: it writes a record once, with the verdict."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, int] = {}
        self.rewritten: set[str] = set()
        """The episodes whose record was written a second time."""

    def look(self) -> int:
        """Looks for further records; returns how many there are."""
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                name, inode = entry.name, entry.inode()
                if name.endswith(".jsonl") and self._files.setdefault(name, inode) != inode:
                    self.rewritten.add(name.removesuffix(".jsonl"))
        return len(self._files)

    @property
    def episodes(self) -> frozenset[str]:
        """The episodes that have a record."""
        return frozenset(name.removesuffix(".jsonl") for name in self._files)


@dataclass(frozen=True)
class Recorded:
    """What the record of an episode says."""

    group: str
    index: int
    policy_step: str
    """Of the policy that played, such as step-12."""
    task_id: str
    status: str
    """Of the verdict, in the words of the trainer."""
    head: str
    problem: str
    """Why the record is not as it was written; empty when it is."""

    @classmethod
    def read(cls, path: Path, private_seed: bytes | None) -> "Recorded":
        """Reads and checks a record."""
        data = path.read_bytes()
        finding = check_record(data, private_seed)
        *events, _ = map(json.loads, data.splitlines())
        created, turn, graded = (events[place]["content"] for place in (0, 1, -1))
        # Behind what was created comes the end where an episode has no turn.
        action = pb.Action.FromString(base64.b64decode(turn.get("action", {}).get("sent_base64", "")))
        return cls(
            created["seed"]["group"],
            created["seed"]["index"],
            action.policy_version.rpartition("/")[2],
            created["task_id"],
            graded["verdict"]["status"].removeprefix("VERDICT_STATUS_").lower(),
            events[-1]["sha256"],
            "" if finding.vouched else f"{path.name}: {finding.summary}",
        )


@dataclass(frozen=True)
class Run:
    """What a run has written down."""

    history: History
    result: dict[str, object]
    rows: list[dict[str, object]]
    """Of its episodes, those included that were played again later."""
    damaged: int
    """Lines that are no row."""

    @classmethod
    def read(cls, folder: RunFolder) -> "Run":
        """Reads a run; one that has come to no end has no result."""
        rows, damaged = [], 0
        for line in folder.episodes.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                damaged += 1
        result = folder.path / "result.json"
        return cls(
            read_history(folder.metrics),
            json.loads(result.read_text()) if result.exists() else {},
            rows,
            damaged,
        )

    def last(self, records: dict[str, Recorded]) -> Places:
        """For each place the episode that was played last."""
        told = [(str(row["episode_id"]), records.get(str(row["episode_id"]))) for row in self.rows]
        return {(each.group, each.index, each.policy_step): name for name, each in told if each}


def claims_of(folder: Path, kept: Kept, before: frozenset[str], state: StateFolder) -> list[Claim]:
    """Compares the run "stormy" with the run "calm", which had the records `before`. The service still serves."""
    kept.look()
    private_seed = read_grading_seed(state.folder)
    records = {name: Recorded.read(kept.folder / f"{name}.jsonl", private_seed) for name in kept.episodes}
    calm, stormy = (Run.read(RunFolder(folder / "runs" / name)) for name in ("calm", "stormy"))
    mine = {name: record for name, record in records.items() if name not in before}
    places = stormy.last(records)
    return [
        _claim(
            "the run ends with the same set of (group, index, policy)",
            other_places(calm.last(records), places, stormy),
            f"{len(places)} of them, {len(mine)} episodes graded, {len(stormy.rows)} told to the run",
        ),
        _claim(
            "every step learns once, from each of its episodes once",
            _learned(calm, stormy),
            f"{len(stormy.history.steps)} steps",
        ),
        _claim(
            "no episode is graded twice",
            _graded_twice(kept, stormy, records, state),
            f"{len(records)} records",
        ),
        _claim(
            "every record is as it was written", [each.problem for each in records.values() if each.problem]
        ),
        _claim(
            "no reward is invented: each is that of a valid verdict on record",
            invented(stormy, mine),
            f"{len(stormy.rows)} rewards",
        ),
        _claim(
            "weights and figures are those of the undisturbed run, to the last bit",
            _other_numbers(calm, stormy),
            str(stormy.result.get("weights_sha256")),
        ),
    ]


def _claim(sentence: str, problems: list[str], figures: str = "") -> Claim:
    more = f"; {len(problems) - _MOST_NAMED} more" if len(problems) > _MOST_NAMED else ""
    return Claim(sentence, not problems, "; ".join(problems[:_MOST_NAMED]) + more if problems else figures)


def other_places(wanted: Places, found: Places, stormy: Run) -> list[str]:
    problems = [f"missing: {place}" for place in sorted(wanted.keys() - found.keys())]
    problems += [f"added: {place}" for place in sorted(found.keys() - wanted.keys())]
    problems += [f"step {row.step}: {row.lost} lost" for row in stormy.history.steps if row.lost]
    problems += [f"{row.label}: {row.lost} lost" for row in stormy.history.evaluations if row.lost]
    return problems


def _learned(calm: Run, stormy: Run) -> list[str]:
    steps = [row.step for row in stormy.history.steps]
    problems = [] if steps == [row.step for row in calm.history.steps] else [f"the steps are {steps}"]
    for row, like in zip(stormy.history.steps, calm.history.steps, strict=False):
        # Over the group and the index of each episode that was learned from, in their order.
        if not (row.fingerprint and like.fingerprint and row.fingerprint.groups == like.fingerprint.groups):
            problems.append(f"step {row.step} is made of other episodes")
    return problems


def _graded_twice(kept: Kept, stormy: Run, records: dict[str, Recorded], state: StateFolder) -> list[str]:
    problems = [f"the record of {name} was written twice" for name in sorted(kept.rewritten)]
    told = Counter(str(row["episode_id"]) for row in stormy.rows)
    problems += [f"the run was told {count} times of {name}" for name, count in told.items() if count > 1]
    # The service counts its gradings itself, since its last start.
    info = control.status(state.folder)
    counted = sum(info.grading.verdicts.values()) if info else -1
    lives = Counter(name.rpartition("-")[0] for name in records)
    latest = max(records, key=lambda name: (kept.folder / f"{name}.jsonl").stat().st_mtime_ns)
    if counted and counted != lives[latest.rpartition("-")[0]]:
        problems.append(
            f"{counted} gradings since the last start, and {lives[latest.rpartition('-')[0]]} records"
        )
    return problems


def invented(stormy: Run, records: dict[str, Recorded]) -> list[str]:
    problems = [f"{stormy.damaged} damaged rows"] if stormy.damaged else []
    for row in stormy.rows:
        record = records.get(str(row["episode_id"]))
        told = row["group"], row["index"], row["status"], row["record_sha256"]
        if record is None or told != (record.group, record.index, record.status, record.head):
            problems.append(f"{row['episode_id']} has another record than the run was told, or none")
        elif record.status == "infrastructure_error":
            problems.append(f"{row['episode_id']} has no valid verdict")
    places = stormy.last(records)
    for step in stormy.history.steps:
        learned = [
            records[name]
            for (group, *_), name in places.items()
            if group.startswith(f"train/step-{step.step}/")
        ]
        passed = Counter(record.task_id for record in learned if record.status == "resolved")
        counts = all(task.passed == passed[task.task_id] for task in step.tasks)
        if not counts or step.reward != passed.total() / len(learned):
            problems.append(f"the rewards of step {step.step} are not those on record")
    return problems


def _other_numbers(calm: Run, stormy: Run) -> list[str]:
    problems = [
        f"step {row.step} has other {name}"
        for row, like in zip(stormy.history.steps, calm.history.steps, strict=False)
        for name in ("tokens", "weights")
        if getattr(row.fingerprint, name) != getattr(like.fingerprint, name)
    ]
    evaluations = {row.label: row.tasks for row in calm.history.evaluations}
    if {row.label: row.tasks for row in stormy.history.evaluations} != evaluations:
        problems.append("the evaluations differ")
    if stormy.result != calm.result or not stormy.result:
        problems.append("the results differ")
    return problems


def left_on_engine(engine: PrivateEngine) -> list[str]:
    """Names what an engine still has after its service was stopped."""
    with engine.client() as client:
        containers = [
            f"container {each['Id'][:12]} ({each['State']})" for each in client.api.containers(all=True)
        ]
        networks = [
            f"network {each['Name']}"
            for each in client.api.networks()
            if each["Name"] not in _BUILT_IN_NETWORKS
        ]
        volumes = [f"volume {each['Name']}" for each in client.api.volumes()["Volumes"] or []]
    return containers + networks + volumes


def left_on_machine(folder: Path) -> list[str]:
    """Names what is left of processes, mounts, sockets and temporary files after the engine was stopped, too."""
    return [*_processes_of(folder), *_files_of(folder)]


def _processes_of(folder: Path) -> Iterator[str]:
    """Names processes that have the folder in their command line or among their mounts, as containers have."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()):
            with suppress(OSError):  # It ended meanwhile.
                command = (process / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
                if str(folder) in command or str(folder) in (process / "mountinfo").read_text(
                    errors="replace"
                ):
                    yield f"process {process.name} ({command[:80]})"


def _files_of(folder: Path) -> Iterator[str]:
    runs, state = folder / "runs", folder / "state"
    temporary = [
        *(folder / "tmp").iterdir(),
        *state.rglob("*.new"),
        *runs.rglob("*.tmp"),
        *runs.rglob("partial-*"),
    ]
    known = [state / "endpoint.json", state / "engine.pid"]
    # Below exec are those of dockerd and containerd themselves, which stay where they are killed.
    sockets = [path for path in folder.rglob("*") if path.is_socket() and folder / "exec" not in path.parents]
    for path in (*temporary, *sockets, *(path for path in known if path.exists())):
        yield f"{path.relative_to(folder)}"
