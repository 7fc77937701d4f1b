"""The report of a run: one HTML file with everything in it, made from what the run folder holds."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from trainer_client.behaviour import Behaviour
from trainer_client.config import RunConfig, field_docs
from trainer_client.console import COUNTED, by_kind, counted, percentage_or_dash, time_split
from trainer_client.dashboard import draw_dashboard
from trainer_client.metrics import ColdStart, Evaluation, History
from trainer_client.result import Result

STYLE = """
:root { color-scheme: light; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --blue: #2563eb }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 66rem; padding: 1.25rem; color: var(--ink); background: #fff;
       font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: .5rem 0 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { margin: .3rem 0 .8rem; max-width: 46rem } .soft { color: var(--soft) }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: 1rem 0 }
.figures div { border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem }
.figures b { display: block; font-size: 1.35rem; color: var(--blue) }
.figures span { color: var(--soft); font-size: .85rem }
img { width: 100%; min-width: 40rem } .wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--soft); font-weight: 600 } th:first-child, td:first-child { text-align: left }
.text td { text-align: left; vertical-align: top } .text td:last-child { white-space: normal; color: var(--soft) }
code { font-size: .85rem; overflow-wrap: anywhere }
"""


def write_report(
    folder: Path, config: RunConfig, record: dict[str, str], history: History, result: Result | None
) -> Path:
    """Writes dashboard.png and report.html of a run, finished or not, into its folder; returns the report's path.

    `record` holds the facts that settings do not: versions, threads, what the gym said about itself.
    """
    picture = folder / "dashboard.png"
    draw_dashboard(history, picture, f"{config.name}: {config.toolset}, {config.suite}, seed {config.seed}")
    report = folder / "report.html"
    temporary = report.with_suffix(".tmp")
    temporary.write_text(_page(config, record, history, result, picture.read_bytes()), encoding="utf-8")
    temporary.replace(report)
    return report


def _page(
    config: RunConfig, record: dict[str, str], history: History, result: Result | None, picture: bytes
) -> str:
    name = escape(config.name)
    image = base64.b64encode(picture).decode("ascii")
    done = history.steps[-1].step if history.steps else 0
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="soft">{done} of {config.steps} steps, {config.tasks_per_step} tasks &times; {config.group_size} '
        f"episodes each; toolset {escape(config.toolset)}, suite {escape(config.suite)}, seed {config.seed}</p>",
        _headline(result) if result else "<p>This run is not finished: there is no test figure yet.</p>",
        f'<div class="wide"><img alt="Dashboard of the run" src="data:image/png;base64,{image}"></div>',
        _cold_start(history.cold_start) if history.cold_start else "",
        "<h2>Evaluations</h2>",
        "<p>pass@1 with the 95% bootstrap interval over tasks. Where a checkpoint is chosen it is on validation alone, "
        "ties go to the earlier one; the test tasks are played once for each policy that is reported.</p>",
        _evaluations(history, result),
        "<h2>Behaviour</h2>",
        "<p>Reads, edits and tests (in the coding toolset: commands) that were answered; malformed turns, in which no "
        "call could be read; and all calls that came back as an error.</p>",
        _behaviour(history),
        _per_task(result) if result else "",
        "<h2>Where the time went</h2>",
        f"<p>{escape(time_split(history.seconds))}</p>",
        f"<p>{_lost(history)}</p>",
        "<h2>Settings</h2>",
        _settings(config),
        "<h2>Record</h2>",
        _table(("fact", "value"), ((key, _code(value)) for key, value in sorted(record.items())), "text"),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _headline(result: Result) -> str:
    raw = ((str(result.raw.pass_at_1), "test pass@1 before the cold start"),) if result.raw else ()
    figures = (
        *raw,
        (str(result.trained.pass_at_1), f"test pass@1 of step {result.step}, 95% interval over tasks"),
        (str(result.start.pass_at_1), "test pass@1 of the starting policy"),
        *(
            (difference.signed, f"paired difference by task, {name}")
            for name, difference in result.differences
        ),
        (
            f"{percentage_or_dash(result.trained.pass_at(8))} against {percentage_or_dash(result.start.pass_at(8))}",
            "test pass@8, trained against start",
        ),
    )
    cards = "".join(
        f"<div><b>{escape(figure)}</b><span>{escape(what)}</span></div>" for figure, what in figures
    )
    return (
        f'<div class="figures">{cards}</div>'
        f'<p class="soft">Weights of step {result.step}: sha256 {_code(result.weights_sha256)}</p>'
    )


def _evaluations(history: History, result: Result | None) -> str:
    def row(evaluation: Evaluation) -> tuple[str, ...]:
        label = escape(evaluation.label)
        if result is not None and evaluation == result.chosen:
            label = f"<b>{label}</b> (chosen)"
        return (
            label,
            str(evaluation.step),
            str(evaluation.pass_at_1),
            percentage_or_dash(evaluation.pass_at(8)),
            f"{evaluation.behaviour.public_only:.0%}",
        )

    head = ("evaluation", "step", "pass@1", "pass@8", "public tests only")
    return _table(head, (row(evaluation) for evaluation in history.evaluations))


def _behaviour(history: History) -> str:
    rows: list[tuple[str, Behaviour]] = [(row.label, row.behaviour) for row in history.evaluations]
    if history.cold_start:
        rows.insert(0, ("demonstrations that were kept", history.cold_start.behaviour))
    return _table(
        ("calls per episode", "turns", *COUNTED, "failed by kind"),
        ((escape(label), f"{seen.turns:.2f}", *counted(seen), escape(by_kind(seen))) for label, seen in rows),
    )


def _cold_start(row: ColdStart) -> str:
    others = "".join(f", {count} {escape(status)}" for status, count in row.rejected.items())
    return (
        f"<h2>Cold start</h2><p>{row.kept} of {row.played} demonstrations were resolved and learned from{others}: "
        f"{row.tokens / row.kept:.0f} tokens each, {row.said / row.kept:.0f} of them said by the demonstrator. "
        f"Loss {row.losses[0]:.3f} before the first of {len(row.losses)} steps, {row.losses[-1]:.3f} before the last, "
        "in nats per token.</p>"
    )


def _per_task(result: Result) -> str:
    counts = [{task.task_id: task for task in row.tasks} for _, row in result.policies]
    start = {task.task_id: task for task in result.start.tasks}
    rows = [
        (
            _code(task.task_id),
            *(
                f"{of[task.task_id].passed}/{of[task.task_id].episodes}" if task.task_id in of else "-"
                for of in counts
            ),
            f"{task.rate - start[task.task_id].rate:+.2f}" if task.task_id in start else "-",
        )
        for task in result.trained.tasks
    ]
    names = [name for name, _ in result.policies]
    return "<h2>Test tasks</h2>" + _table(("task", *names, f"{names[-1]} - start"), rows)


def _lost(history: History) -> str:
    lost = sum(row.lost for row in history.steps) + sum(row.lost for row in history.evaluations)
    if not lost:
        return "No episode was lost."
    return (
        f"{lost} episodes were lost through the gym and left out: they count neither as passed nor as failed."
    )


def _settings(config: RunConfig) -> str:
    docs = field_docs()
    rows = ((escape(key), _code(str(value)), escape(docs[key])) for key, value in asdict(config).items())
    return _table(("setting", "value", ""), rows, "text")


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "figures-table") -> str:
    """Cells are HTML already, the head is text."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{titles}</tr>{body}</table></div>'
