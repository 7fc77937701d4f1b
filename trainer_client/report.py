"""The report of a run: one HTML file with everything in it, made from what the run folder holds."""

import base64
from datetime import datetime
from html import escape
from pathlib import Path

from trainer_client import report_parts as parts
from trainer_client.config import RunConfig
from trainer_client.console import percentage_or_dash, time_split
from trainer_client.dashboard import draw_dashboard
from trainer_client.metrics import History
from trainer_client.result import Result, later_looks
from trainer_client.run_folder import RunFolder
from trainer_client.stopping import STOPPING_HEAD, StoppingRules, read_rules, stopping_section
from trainer_client.transcripts import Transcript, read_transcripts

REFRESH_SECONDS = 30
STYLE = """
:root { color-scheme: light; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --blue: #2563eb }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 66rem; padding: 1.25rem; color: var(--ink); background: #fff;
       font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: .5rem 0 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
h3 { font-size: .95rem; margin: 1rem 0 .3rem }
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
.first-wide td:first-child { white-space: normal; min-width: 14rem }
.shares span { display: block; margin: -.35rem -.7rem; padding: .35rem .7rem }
.warning { border-left: .3rem solid #b45309; padding: .3rem .8rem; background: #fffbeb }
details { margin: .4rem 0 } summary { cursor: pointer } details details { margin-left: 1rem }
pre { margin: .4rem 0; padding: .5rem .7rem; border-radius: .4rem; background: #f3f4f6; font-size: .85rem;
      white-space: pre-wrap; overflow-wrap: anywhere }
pre.answer { margin-left: 1rem; background: none; border: 1px solid var(--line) }
"""


def write_report(
    folder: Path,
    config: RunConfig,
    record: dict[str, str],
    history: History,
    result: Result | None,
    is_on: bool = False,
) -> Path:
    """Writes dashboard.png and report.html of a run, finished or not, into its folder; returns the report's path.

    `record` holds the facts that settings do not: versions, threads, what the gym said about itself. The page of a
    run that is still on loads itself anew every so often.
    """
    picture = folder / "dashboard.png"
    title = f"{config.name}: {config.toolset}, {config.suite}, seed {config.seed}"
    draw_dashboard(history, picture, title, config.entropy_target)
    report = folder / "report.html"
    temporary = report.with_suffix(".tmp")
    transcripts = read_transcripts(RunFolder(folder).transcripts)
    page = _page(
        config, record, history, result, transcripts, read_rules(folder), picture.read_bytes(), is_on
    )
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(report)
    return report


def _page(
    config: RunConfig,
    record: dict[str, str],
    history: History,
    result: Result | None,
    transcripts: list[Transcript],
    rules: StoppingRules | None,
    picture: bytes,
    is_on: bool,
) -> str:
    name = escape(config.name)
    image = base64.b64encode(picture).decode("ascii")
    done = history.steps[-1].step if history.steps else 0
    told = parts.told(history)
    sections = [
        f"<h1>{name}</h1>",
        f'<p class="soft">{done} of {config.steps} steps, {config.tasks_per_step} tasks &times; {config.group_size} '
        f"episodes each; toolset {escape(config.toolset)}, suite {escape(config.suite)}, seed {config.seed}</p>",
        _looks(later_looks(history)),
        _headline(result) if result else _unfinished(is_on),
        f'<div class="wide"><img alt="Dashboard of the run" src="data:image/png;base64,{image}"></div>',
        parts.cold_start(history.cold_start) if history.cold_start else "",
        "<h2>Evaluations</h2>",
        "<p>pass@1 with the 95% bootstrap interval over tasks; the standard error of the same mean over episodes, "
        "clustered by task; and pass@k, unbiased. Where a checkpoint is chosen it is on validation alone, "
        "ties go to the earlier one; the test tasks are played once for each policy that is reported.</p>",
        parts.evaluations(history, result),
        "<h2>Behaviour</h2>",
        "<p>Reads, edits and tests (in the coding toolset: commands) that were answered; malformed turns, in which no "
        "call could be read; and all calls that came back as an error. The first edit was right where it is the only "
        "one of its episode and every hidden test passes: a share of the episodes with an edit.</p>",
        parts.behaviour(history),
        f"<h2>Sequences of calls</h2><p>The most frequent ones of each evaluation.</p>{parts.sequences(told)}"
        if told
        else "",
        "<h2>First edits</h2><p>What the first edit was, as a share of the episodes of each family of tasks.</p>"
        + parts.first_edits(told)
        if told
        else "",
        parts.per_task(result) if result else "",
        "<h2>Failures</h2><p>One episode of each kind of failure on the test tasks, the most frequent kind of each "
        f"evaluation first. What a policy said is grey.</p>{parts.failures(transcripts)}"
        if transcripts
        else "",
        _stopping(history, rules) if rules else "",
        "<h2>Where the time went</h2>",
        f"<p>{escape(time_split(history.seconds))}</p>",
        f"<p>{parts.lost(history)}</p>",
        "<h2>Settings</h2>",
        parts.settings(config),
        "<h2>Record</h2>",
        parts.table(
            ("fact", "value"),
            ((escape(key), parts.code(value)) for key, value in sorted(record.items())),
            "text",
        ),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + (f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if is_on else "")
        + f"<title>{name}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body></html>\n"
    )


def _looks(labels: tuple[str, ...]) -> str:
    if not labels:
        return ""
    return (
        f'<p class="warning">The tasks that this run reports on were looked at again, by force: '
        f"{escape(', '.join(labels))}. Nothing that was decided after that can be reported on them.</p>"
    )


def _stopping(history: History, rules: StoppingRules) -> str:
    rows = [tuple(map(escape, row)) for row in stopping_section(history, rules)]
    return (
        "<h2>Stopping rules</h2><p>Written down before step 1. None of them stops a run: this is what each would have "
        f"done, and what is best of what it would have missed.</p>{parts.table(STOPPING_HEAD, rows, 'first-wide')}"
    )


def _unfinished(is_on: bool) -> str:
    state = f"is on, and this is how it stood at {datetime.now():%H:%M:%S}" if is_on else "is not finished"
    return f"<p>This run {state}: there is no test figure yet.</p>"


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
        f'<p class="soft">Weights of step {result.step}: sha256 {parts.code(result.weights_sha256)}</p>'
    )
