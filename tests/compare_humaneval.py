"""Mixed completions by `evaluate humaneval` and by the package's own checker: `python -m tests.compare_humaneval`.

Canonical, mutated, empty, crashing and looping ones, and such as give the right value in another type, drawn by a seed.
That checker isolates nothing, so it gets what is derived here and nothing else. Prints the counts and each difference
with its code, and ends with 1 if there is one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gym_service.tasks import humaneval
from tests.completions import mixed, own_results

_STATUS = "VERDICT_STATUS_"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.compare_humaneval", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--state-folder", type=Path, help="where proofs of the tasks are kept; a new one by default"
    )
    options = parser.parse_args()
    submissions = mixed(list(humaneval.load()), options.count, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        rows = graded(submissions, Path(folder), options.state_folder or Path(folder, "state"))
        graded_at = time.monotonic()
        own = own_results(submissions)
    print(
        f"graded in {graded_at - began:.0f} s, checked by the package in {time.monotonic() - graded_at:.0f} s"
    )
    counts, differences = Counter(), []
    for submission, row, (passed, said) in zip(submissions, rows, own, strict=True):
        status = row["verdict"]["status"].removeprefix(_STATUS)
        counts[submission[0], status, said.partition(":")[0]] += 1
        if (status == "RESOLVED") != passed:
            differences.append((submission, status, said))
    for (kind, status, said), count in sorted(counts.items()):
        print(f"{count:5}  {kind:10} {status.lower():14} {said}")
    for (kind, task, completion), status, said in differences:
        print(f"\n{task.task_id}, {kind}: {status.lower()} here, {said!r} there\n{completion}")
    print(f"{len(submissions)} submissions, {len(differences)} differences")
    return 1 if differences else 0


def graded(submissions, folder, state):
    """The rows of the command `evaluate`, in the order of the submissions."""
    samples, keys = Counter(), []
    source, out = folder / "mixed.jsonl", folder / "out.jsonl"
    with source.open("w") as file:
        for _, task, completion in submissions:
            keys.append((task.task_id, samples[task.task_id]))
            samples[task.task_id] += 1
            row = {"task_id": task.task_id, "sample": keys[-1][1], "completion": completion}
            file.write(json.dumps(row) + "\n")
    words = [sys.executable, "-m", "gym_service", "--state-folder", str(state), "evaluate", "humaneval"]
    # Its table is of no interest here; how far it is goes to stderr.
    subprocess.run(
        [*words, "--submissions", str(source), "--out", str(out)], check=True, stdout=subprocess.DEVNULL
    )
    rows = {
        (row["task_id"], row["sample_index"]): row for row in map(json.loads, out.read_text().splitlines())
    }
    return [rows[key] for key in keys]


if __name__ == "__main__":
    sys.exit(main())
