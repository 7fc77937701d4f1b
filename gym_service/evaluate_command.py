"""`python -m gym_service evaluate`: grades submissions for a suite, with nothing prepared by hand and no gym running.

Everything happens in this process: an engine and the image as `make gym-up` has them, the self-test of every wall,
proofs of the tasks that are asked for, gradings in sandboxes of a pool. What comes of it lies side by side:

    NAME.jsonl         a row for each sample, written as soon as it is graded; what an interrupted run goes on from
    NAME.html          the report
    NAME.review.json   the review sheet, for `verify-record`
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gym_service.errors import NotFound
from gym_service.sandbox.machine import PROFILES
from gym_service.state import StateFolder

if TYPE_CHECKING:
    from gym_service.evaluation.reading import Attempt, Complaint, Read
    from gym_service.evaluation.summary import Summary
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.sandbox.isolation import Assurance
    from gym_service.sandbox.pool import Elsewhere, StartSandbox
    from gym_service.tasks.suites import Task

_MOST_GRADERS = 256
_SPARE_SANDBOXES = 3
"""Started ahead, while the others are used: as many as start at once. Where they serve again one is enough."""
_PROVEN_AT_ONCE = 20
_TOLD_COMPLAINTS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be evaluated, and how."""

    suite: str
    source: str
    attempts: "Sequence[Attempt]"
    out: Path
    complaints: "Sequence[Complaint]" = ()
    unproven: "Sequence[Complaint]" = ()
    """Submissions for tasks that are not proven, which nothing is graded for."""
    untried: Sequence[str] = ()
    """Tasks of the suite that nothing was handed in for."""
    graders: int = 4
    reuse: bool = False

    @property
    def report(self) -> Path:
        """Where the report goes."""
        return self.out.with_suffix(".html")

    @property
    def review(self) -> Path:
        """Where the review sheet goes."""
        return self.out.with_suffix(".review.json")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    evaluate = commands.add_parser(
        "evaluate",
        help="grade submissions for the tasks of a suite; needs no running gym",
        description="Grades submissions for the tasks of a suite, each in sandboxes of its own, and writes verdicts, a "
        "report and a sealed review sheet. The exit status is 0 when everything that was handed in is graded, 1 when "
        "something is not, could not be read, or pass@1 is below --fail-under, 2 for wrong options.",
    )
    evaluate.add_argument("suite", metavar="SUITE", help="such as bugfix")
    evaluate.add_argument(
        "--submissions",
        required=True,
        metavar="FILE_OR_FOLDER",
        help="lines of JSON (task_id, sample, and files, diff or completion), or a folder with TASK.py, TASK.diff or "
        "TASK/SAMPLE/...; or canonical, the suite's own solutions; or stubs, what its tasks start from",
    )
    evaluate.add_argument(
        "--out",
        type=Path,
        metavar="FILE.jsonl",
        help="where the verdicts go, report and review sheet beside them; what it holds already is not graded again. "
        "evaluations/SUITE-SUBMISSIONS.jsonl by default",
    )
    evaluate.add_argument(
        "--profile",
        choices=PROFILES,
        help="evaluation refuses a machine with known gaps, training names them; by default evaluation where the "
        "machine allows it",
    )
    evaluate.add_argument(
        "--reuse",
        action="store_true",
        help="sandboxes serve again after they were proven clean, which is faster; not with --profile evaluation",
    )
    evaluate.add_argument("--graders", type=int, default=4, help="gradings at once (default: 4)")
    evaluate.add_argument(
        "--fail-under", type=float, default=0.0, metavar="RATE", help="the least pass@1 for exit status 0"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command and returns the exit status."""
    # Not above: every other command would wait for what these import.
    from gym_service.evaluation.reading import ReadingError, read_submissions
    from gym_service.tasks.store import DamagedSuite, known_suites

    out = arguments.out or _default_out(arguments.suite, arguments.submissions)
    if fault := _fault(arguments, out):
        print(f"error: {fault}", file=sys.stderr)
        return 2
    state = StateFolder(arguments.state_folder)
    try:
        tasks = known_suites(state.suites).suite(arguments.suite)
        read = read_submissions(arguments.submissions, tasks)
    except (NotFound, DamagedSuite, ReadingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for complaint in read.complaints[:_TOLD_COMPLAINTS]:
        print(f"{complaint.place}: {complaint.message}", file=sys.stderr)
    if not read.attempts:
        print(f"error: there is no submission for {arguments.suite} to grade", file=sys.stderr)
        return 1
    if not state.lock("evaluate.lock"):
        print(f"error: another `evaluate` is at work in {state.folder}; wait for its end", file=sys.stderr)
        return 1
    plan = Plan(arguments.suite, arguments.submissions, (), out)
    try:
        _try_to_write(plan, state.grading_seed())
    except OSError as error:
        print(f"error: --out {out} does not do: {error}", file=sys.stderr)
        return 2
    try:
        return _run_on_engine(arguments, out, state, tasks, read)
    except KeyboardInterrupt:
        print(f"\nstopped; what was graded is kept in {out}, and the same command goes on", file=sys.stderr)
        return 130


def _try_to_write(plan: Plan, private_seed: bytes) -> None:
    """Finds out before anything is graded whether all that comes of it can be written. Raises OSError."""
    from gym_service.evaluation.rows import RowFile
    from gym_service.record import Sealer

    with RowFile(plan.out, Sealer(private_seed)):
        for path in (plan.report, plan.review):
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder, and a file of this name is to be written")
            temporary = _temporary(path)
            temporary.touch()
            temporary.unlink()


def _fault(arguments: argparse.Namespace, out: Path) -> str:
    if arguments.reuse and arguments.profile == "evaluation":
        return "--profile evaluation uses each sandbox once; leave --reuse out"
    if not 1 <= arguments.graders <= _MOST_GRADERS:
        return f"--graders must be from 1 to {_MOST_GRADERS}, not {arguments.graders}"
    if not 0.0 <= arguments.fail_under <= 1.0:
        return f"--fail-under must be from 0 to 1, not {arguments.fail_under:g}"
    if out.suffix != ".jsonl":
        return f"--out must end in .jsonl, and {out} does not"
    if out.resolve() == Path(arguments.submissions).resolve():
        return f"--out {out} is the file of the submissions: verdicts would be written into it"
    return ""


def _default_out(suite: str, source: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(source).resolve().stem)
    return Path("evaluations", f"{suite}-{stem}.jsonl")


def _run_on_engine(
    arguments: argparse.Namespace, out: Path, state: StateFolder, tasks: "Sequence[Task]", read: "Read"
) -> int:
    import uvloop

    from gym_service.sandbox.base import SandboxLost
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.sandbox.policy import SandboxLimits
    from sandbox_images.build import ensure_image, image_reference
    from sandbox_images.engine import SetupError, describe_stop, ensure_engine, stop_engine

    async def work(engine: DockerEngine) -> int:
        from gym_service.sandbox.surroundings import Surroundings
        from gym_service.server import assure

        profile = _profile(arguments, engine)
        assurance = await assure(engine, profile)
        isolation = assurance.isolation
        print(
            f"profile    {profile}{_because(assurance)}\n"
            f"sandboxes  {'reused' if arguments.reuse else 'single_use'}, {isolation.runtime}, engine "
            f"{isolation.engine_version}, kernel {isolation.kernel_version}\n"
            f"image      {isolation.image_digest}",
            file=sys.stderr,
        )
        faults = await _prove(engine, state, read.attempts)
        plan = _plan(arguments, out, tasks, read, faults)
        elsewhere = Surroundings(engine)
        summary = await evaluate(plan, engine.start, assurance, state.grading_seed(), elsewhere)
        return _status(summary, arguments.fail_under)

    engine_is_ours = False
    try:
        with redirect_stdout(sys.stderr):
            client, engine_is_ours = ensure_engine()
            ensure_image(client)
        engine = DockerEngine(
            image_reference(), SandboxLimits(), f"{state.owner}-evaluate", reuse=arguments.reuse
        )
        engine.remove_leftovers()
        try:
            return uvloop.run(work(engine))
        finally:
            engine.remove_leftovers()
    except (SandboxLost, SetupError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: {error}\nwhat is graded is kept in {out}; mend that, and the same command goes on",
            file=sys.stderr,
        )
        return 1
    finally:
        if engine_is_ours and (in_use := stop_engine()):
            print(describe_stop(in_use), file=sys.stderr)


def _profile(arguments: argparse.Namespace, engine: "DockerEngine") -> str:
    from gym_service.server import find_gaps

    if arguments.profile:
        return str(arguments.profile)
    return "training" if arguments.reuse or find_gaps(engine) else "evaluation"


def _because(assurance: "Assurance") -> str:
    if not assurance.gaps:
        return ""
    return f": this machine lacks {len(assurance.gaps)} things that evaluation asks for"


async def _prove(
    engine: "DockerEngine", state: StateFolder, attempts: "Sequence[Attempt]"
) -> dict[str, tuple[str, ...]]:
    """Proves the tasks that are not; gives what does not hold, by task. Raises SandboxLost."""
    from gym_service.evaluation.running import Progress
    from gym_service.proof import ProofBook, open_grounds, prove_all

    book = ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
    asked = {attempt.task.task_id: attempt.task for attempt in attempts}
    tasks = [task for task in asked.values() if not book.holds(task)]
    faults: dict[str, tuple[str, ...]] = {}
    if not tasks:
        return faults
    print(f"{len(tasks)} tasks are to be proven first, once for this image", file=sys.stderr)
    progress = Progress(len(tasks))
    async with open_grounds(engine) as grounds:
        for start in range(0, len(tasks), _PROVEN_AT_ONCE):
            proofs = await prove_all(tasks[start : start + _PROVEN_AT_ONCE], grounds)
            book.add(proofs)
            faults |= {proof.task.task_id: proof.faults for proof in proofs if proof.faults}
            progress.step(len(proofs))
    return faults


def _plan(
    arguments: argparse.Namespace,
    out: Path,
    tasks: "Sequence[Task]",
    read: "Read",
    faults: dict[str, tuple[str, ...]],
) -> Plan:
    from gym_service.evaluation.reading import Complaint

    tried = {attempt.task.task_id for attempt in read.attempts}
    return Plan(
        suite=arguments.suite,
        source=arguments.submissions,
        attempts=[attempt for attempt in read.attempts if attempt.task.task_id not in faults],
        out=out,
        complaints=read.complaints,
        unproven=[
            Complaint(
                f"{attempt.task.task_id}, sample {attempt.sample_index}",
                f"the task is not proven: {'; '.join(faults[attempt.task.task_id])}",
            )
            for attempt in read.attempts
            if attempt.task.task_id in faults
        ],
        untried=[task.task_id for task in tasks if task.task_id not in tried],
        graders=arguments.graders,
        reuse=arguments.reuse,
    )


async def evaluate(
    plan: Plan,
    start_sandbox: "StartSandbox",
    assurance: "Assurance",
    private_seed: bytes,
    elsewhere: "Elsewhere | None" = None,
) -> "Summary":
    """Grades what is planned, writes all there is to write, and prints the table. Raises OSError."""
    from gym_service.evaluation.evaluator import Evaluator
    from gym_service.evaluation.report import write_page
    from gym_service.evaluation.review import Occasion, make_review, seal_review
    from gym_service.evaluation.rows import Conditions, RowFile
    from gym_service.evaluation.running import grade_all
    from gym_service.evaluation.signs import SignReader
    from gym_service.evaluation.summary import summarize, terminal_table
    from gym_service.evaluation.usage import MeasuredPool
    from gym_service.grading.certificate import Signer
    from gym_service.grading.grader import Grader
    from gym_service.record import Sealer
    from gym_service.sandbox.policy import SandboxLimits
    from gym_service.tasks.suites import environment_of
    from gym_service.visible import printable

    isolation, sealer, began = assurance.isolation, Sealer(private_seed), _now()
    pool = MeasuredPool(
        start_sandbox,
        SandboxLimits(),
        size=plan.graders + (1 if plan.reuse else _SPARE_SANDBOXES),
        reuse=plan.reuse,
        elsewhere=elsewhere,
    )
    environments = {environment_of(attempt.task) for attempt in plan.attempts}
    conditions = Conditions(
        isolation.image_digest,
        isolation.seccomp_sha256,
        assurance.profile,
        "reuse" if plan.reuse else "single_use",
        {each.image: pool.image_of(each) for each in environments if each.image},
    )
    grader = Grader(pool, private_seed, plan.graders)
    signer = Signer(isolation.image_digest, isolation.seccomp_sha256, private_seed)
    with RowFile(plan.out, sealer) as file:
        known = file.known(plan.attempts, conditions)
        if known:
            print(f"{len(known)} of {len(plan.attempts)} are graded in {plan.out} already", file=sys.stderr)
        if len(known) < len(plan.attempts):
            pool.open()
        try:
            async with SignReader() as reader:
                evaluator, started = Evaluator(grader, signer, pool.image_of, reader), time.monotonic()
                rows = await grade_all(plan.attempts, known, evaluator, file, conditions, plan.graders)
            used, seconds = pool.status, time.monotonic() - started
        finally:
            await pool.close()
    summary = summarize(rows, plan.untried, plan.unproven, plan.complaints)
    occasion = Occasion(plan.suite, printable(plan.source), began, _now(), seconds, resumed=len(known))
    retries = grader.status.retries
    review = make_review(occasion, rows, summary, assurance, conditions, used, retries, sealer.gym)
    # First of all, where there is always room for it.
    print(terminal_table(summary), flush=True)
    _replace(plan.review, seal_review(review, sealer))
    _replace(plan.report, write_page(review, rows, summary, plan.attempts).encode())
    print(f"verdicts      {plan.out}\nreport        {plan.report}\nreview sheet  {plan.review}")
    return summary


def _status(summary: "Summary", least: float) -> int:
    estimate = summary.pass_at.get(1)
    if least and (estimate is None or estimate.value < least):
        found = f"{estimate.value:.3f}" if estimate else "not known"
        print(f"error: pass@1 is {found}, below --fail-under {least:g}", file=sys.stderr)
        return 1
    return 0 if summary.is_complete else 1


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _replace(path: Path, content: bytes) -> None:
    """Writes all of a file, or nothing."""
    temporary = _temporary(path)
    temporary.write_bytes(content)
    temporary.replace(path)
