"""The report of an evaluation: one HTML file that loads nothing, for people who decide whether to trust the figures.

Whatever comes from outside is escaped, and of that every character that does not show, such as those that turn the
direction of text around, is replaced by its number. There is no script, and the page's own policy allows none.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from gym_service.evaluation.reading import Attempt, Complaint
from gym_service.evaluation.rows import Row
from gym_service.evaluation.summary import OfTask, Summary, kind_of, told_sureness
from gym_service.grading.submissions import Completion, Content, Diff, Files
from gym_service.visible import visible

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --soft: #5b6472; --line: #e2e5ea; --paper: #fff; --tint: #f4f5f7;
        --good: #15803d; --bad: #b91c1c; --warn: #b45309; --warn-tint: #fff7e6 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --soft: #9aa3b2; --line: #333a45; --paper: #14171c; --tint: #1d2128;
          --good: #4ade80; --bad: #f87171; --warn: #fbbf24; --warn-tint: #2a2313 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 68rem; padding: 1.25rem; color: var(--ink); background: var(--paper);
       font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: .5rem 0 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem }
p { margin: .3rem 0 .8rem; max-width: 48rem } .soft { color: var(--soft) }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1rem 0 }
.figures div { border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem }
.figures b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums }
.figures span { color: var(--soft); font-size: .85rem }
.good b { color: var(--good) } .bad b, h2.bad { color: var(--bad) }
.warning { border-left: .3rem solid var(--warn); border-radius: .3rem; padding: .5rem .9rem; margin: 1rem 0;
           background: var(--warn-tint) } .warning ul { margin: .3rem 0; padding-left: 1.2rem }
.wide { overflow-x: auto; margin: 0 0 1rem } table { border-collapse: collapse; width: 100%; font-size: .92rem }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 600 } td { overflow-wrap: break-word; max-width: 34rem; min-width: 6rem }
td.number { min-width: 0 } td:first-child { min-width: 9rem } td code { overflow-wrap: break-word }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
code { font-size: .85rem; overflow-wrap: anywhere }
details { margin: .4rem 0; border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .7rem }
summary { cursor: pointer; overflow-wrap: anywhere } details ul { padding-left: 1.2rem; margin: .4rem 0 }
pre { margin: .4rem 0; padding: .5rem .7rem; border-radius: .4rem; background: var(--tint); font-size: .82rem;
      white-space: pre-wrap; overflow-wrap: anywhere; max-height: 24rem; overflow-y: auto }
@media (max-width: 40rem) { body { padding: .8rem } th, td { padding: .3rem .4rem } td { max-width: 15rem }
  .cards tr:first-child { display: none } .cards tr { display: block; border-bottom: 1px solid var(--line) }
  .cards td, .cards td.number { display: inline-block; border: 0; text-align: left; min-width: 0; max-width: none } }
"""
_USES = {"single_use": "each thrown away after one use", "reuse": "each used again after it was proven clean"}
_SHOWN_CHARACTERS = 6000
"""What is shown of a suspected submission."""
_MOST_SHOWN = 300
"""Suspected submissions and failures that are unfolded one by one."""
_MOST_TRIED = 2000
"""Samples whose signs are listed; those beyond are named alone."""


def write_page(
    review: Mapping[str, Any], rows: Sequence[Row], summary: Summary, attempts: Iterable[Attempt]
) -> str:
    """Gives the page. `review` is the content of the review sheet."""
    contents = {attempt.key: attempt.content for attempt in attempts}
    others = [row for row in rows if not row.is_suspected]
    title = f"{shown(review['suite'])}: {shown(review['source'])}"
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="soft">Evaluated {shown(review["began"])} to {shown(review["ended"])} (UTC), gym '
        f"<code>{shown(review['gym'])}</code>; profile {shown(review['profile'])}, sandboxes of the runtime "
        f"{shown(review['runtime'])}, {shown(_USES[review['sandboxes']])}.</p>",
        _figures(summary),
        _warnings(review, summary),
        _suspected(summary, contents),
        _tried(summary),
        _kinds(rows, summary),
        _tasks(summary.tasks),
        _folded("Passed with a flag", [row for row in others if row.passed and row.flags]),
        _folded("Failures", [row for row in others if row.is_graded and not row.passed]),
        _complaints("Could not be graded", summary.ungraded),
        _complaints("Could not be read", summary.complaints),
        _sheet(review),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def shown(text: object) -> str:
    """Text from outside as HTML in which every character can be seen."""
    return escape(visible(str(text)))


def _figures(summary: Summary) -> str:
    boxes = [
        (f"pass@{k}", f"{estimate.value:.3f}", f"95% [{estimate.low:.3f}, {estimate.high:.3f}]", "")
        for k, estimate in summary.pass_at.items()
    ]
    boxes.append(("samples pass", f"{summary.passed} of {summary.graded}", f"{len(summary.tasks)} tasks", ""))
    suspects = len(summary.suspected)
    boxes.append(
        ("suspected of tampering", str(suspects), "by what was seen of them", "bad" if suspects else "good")
    )
    hostile = len(summary.hostile)
    boxes.append(("tried something", str(hostile), "seen, or likely by code", "bad" if hostile else "good"))
    missing = len(summary.ungraded) + len(summary.complaints)
    boxes.append(("without a verdict", str(missing), "not counted", "bad" if missing else "good"))
    return (
        '<div class="figures">'
        + "".join(
            f'<div class="{kind}"><b>{value}</b>{name}<br><span>{note}</span></div>'
            for name, value, note, kind in boxes
        )
        + "</div>"
    )


def _warnings(review: Mapping[str, Any], summary: Summary) -> str:
    found = ""
    if gaps := review["gaps"]:
        listed = "".join(f"<li>{shown(gap)}</li>" for gap in gaps)
        found += (
            '<div class="warning">This machine does not do for the profile evaluation. Every wall of a sandbox was '
            f"tried and held, but what stands behind them is older than it should be:<ul>{listed}</ul></div>"
        )
    if summary.untried:
        found += (
            f'<p class="soft">Nothing was handed in for {len(summary.untried)} tasks of the suite; they are not '
            "counted.</p>"
        )
    return found


def _suspected(summary: Summary, contents: Mapping[tuple[str, int], Content]) -> str:
    if not summary.suspected:
        return "<h2>Suspected tampering</h2><p>No sample was seen to act on its grading.</p>"
    folded = "".join(_fold(row, contents.get(row.key)) for row in summary.suspected[:_MOST_SHOWN])
    others = ", ".join(
        f"<code>{shown(row.task_id)}</code> {row.sample_index}" for row in summary.suspected[_MOST_SHOWN:]
    )
    return (
        f"<h2>Suspected tampering</h2><p>{_samples(len(summary.suspected))}. What is known of hidden tests stays with "
        f"the gym.</p>{folded}" + (f"<p>And {others}.</p>" if others else "")
    )


def _tried(summary: Summary) -> str:
    hostile = summary.hostile
    possible = summary.tried[len(hostile) :]
    found = (
        f"<p>{_samples(len(hostile))} with signs of something hostile: {told_sureness(hostile)}. <b>Seen</b>: grading "
        "saw it happen. <b>Likely</b>: the code is written to do it, and no task of its kind is solved that way. A "
        f"sign changes no verdict.</p>{_signs(hostile)}"
        if hostile
        else "<p>No sample has a sign that honest code does not have.</p>"
    )
    others = (
        f"<details><summary>{_samples(len(possible))} with signs that honest code has, too</summary>"
        f"{_signs(possible)}</details>"
        if possible
        else ""
    )
    scope = "<p>Code is read for signs in Python alone: of other languages there is what grading saw.</p>"
    return f"<h2>What submissions tried</h2>{found}{scope}{others}"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _signs(rows: Sequence[Row]) -> str:
    def told(row: Row) -> str:
        return "".join(
            f"<div><b>{shown(sign.sure)}</b>: {shown(sign.meaning)}"
            + "".join(f"<br><code>{shown(line)}</code>" for line in sign.evidence)
            + "</div>"
            for sign in row.signs
        )

    cells = (
        (
            f"<code>{shown(row.task_id)}</code>",
            str(row.sample_index),
            shown(kind_of(row.status.name)),
            told(row),
        )
        for row in rows[:_MOST_TRIED]
    )
    others = ", ".join(f"<code>{shown(row.task_id)}</code> {row.sample_index}" for row in rows[_MOST_TRIED:])
    return f'<div class="cards">{_table(("task", "#sample", "verdict", "signs"), cells)}</div>' + (
        f"<p>And {others}.</p>" if others else ""
    )


def _folded(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    more = f", of which the first {_MOST_SHOWN} are shown" if len(rows) > _MOST_SHOWN else ""
    return f"<h2>{title}</h2><p>{_samples(len(rows))}{more}.</p>" + "".join(
        _fold(row, None) for row in rows[:_MOST_SHOWN]
    )


def _fold(row: Row, content: Content | None) -> str:
    counts = ", ".join(
        f"{name} tests {count['passed']} of {count['total']}"
        for name in ("hidden", "public")
        if (count := row.verdict[name])
    )
    flags = f"; flags: {shown(', '.join(row.flags))}" if row.flags else ""
    evidence = "".join(f"<li><code>{shown(line)}</code></li>" for line in row.evidence)
    why = row.evidence[0] if row.is_suspected and row.evidence else row.verdict["reason"]
    code = f"<pre>{shown(_text_of(content))}</pre>" if content is not None else ""
    return (
        f"<details><summary><code>{shown(row.task_id)}</code> sample {row.sample_index}: "
        f"<b>{shown(kind_of(row.status.name))}</b>, {shown(why)}</summary>"
        f'<p class="soft">{counts}{flags}; {row.seconds:.1f} s; input <code>{shown(row.input_sha256)}</code></p>'
        + (f"<ul>{evidence}</ul>" if evidence else "")
        + f"{code}</details>"
    )


def _text_of(content: Content) -> str:
    match content:
        case Files(files):
            text = "\n".join(
                f"# {path}\n{data.decode(errors='replace')}" for path, data in sorted(files.items())
            )
        case Diff(text) | Completion(text):
            pass
    left = len(text) - _SHOWN_CHARACTERS
    return text[:_SHOWN_CHARACTERS] + (f"\n... and {left} more characters" if left > 0 else "")


def _kinds(rows: Sequence[Row], summary: Summary) -> str:
    graded = len(rows)
    statuses = (
        (shown(kind_of(status)), str(count), f"{count / graded:.1%}")
        for status, count in sorted(summary.statuses.items(), key=lambda item: -item[1])
    )
    reasons: dict[str, int] = {}
    for row in rows:
        if not row.passed:
            reasons[row.verdict["reason"]] = reasons.get(row.verdict["reason"], 0) + 1
    whys = (
        (shown(why), str(count)) for why, count in sorted(reasons.items(), key=lambda item: -item[1])[:50]
    )
    flags = ((f"<code>{shown(flag)}</code>", str(count)) for flag, count in sorted(summary.flags.items()))
    return (
        "<h2>Verdicts by kind</h2>"
        + _table(("verdict", "#samples", "#share"), statuses)
        + (_table(("why it fails", "#samples"), whys) if reasons else "")
        + "<h2>Flags</h2>"
        + (
            "<p>What stands out in submissions. A flag decides nothing; honest code can have one.</p>"
            + _table(("flag", "#samples"), flags)
            if summary.flags
            else "<p>No sample has one.</p>"
        )
    )


def _tasks(tasks: Sequence[OfTask]) -> str:
    def row(task: OfTask) -> tuple[str, ...]:
        failed = ", ".join(
            f"{count} {kind_of(status)}"
            for status, count in sorted(task.statuses.items())
            if status != "RESOLVED"
        )
        flags = ", ".join(f"{flag} {count}" for flag, count in sorted(task.flags.items()))
        rate = f"{task.passed / task.samples:.2f}" if task.samples else "-"
        return (
            f"<code>{shown(task.task_id)}</code>",
            f"{task.passed} of {task.samples}",
            rate,
            shown(failed) or "-",
            shown(flags) or "-",
            f"{task.seconds:.1f}",
        )

    head = ("task", "#passed", "#rate", "failures", "flags", "#seconds")
    return "<h2>Tasks</h2>" + _table(head, map(row, tasks))


def _complaints(title: str, found: Sequence[Complaint]) -> str:
    if not found:
        return ""
    more = (
        f"<p>And {len(found) - _MOST_SHOWN} more, in the review sheet.</p>"
        if len(found) > _MOST_SHOWN
        else ""
    )
    rows = ((shown(each.place), shown(each.message)) for each in found[:_MOST_SHOWN])
    return f'<h2 class="bad">{title}</h2>' + _table(("where", "why"), rows) + more


def _sheet(review: Mapping[str, Any]) -> str:
    plain = {
        key: value
        for key, value in review.items()
        if key
        not in (
            "executed",
            "anomalies",
            "results",
            "gaps",
            "measured",
            "self_tests",
            "limits",
            "resources",
            "peaks",
        )
    }
    tables = [
        _pairs(plain),
        "<details><summary>Isolation, as it was measured inside a sandbox</summary>"
        + _pairs(review["measured"])
        + "</details>",
        "<details><summary>Limits of a sandbox</summary>" + _pairs(review["limits"] or {}) + "</details>",
        "<details open><summary>Greatest use of a grading</summary>"
        + _table(
            ("what", "#greatest", "#limit", "by whom"),
            (
                (
                    shown(kind_of(what)),
                    shown("not measured" if peak["greatest"] is None else f"{peak['greatest']:,}"),
                    shown("-" if peak["limit"] is None else f"{peak['limit']:,}"),
                    f"<code>{shown(peak['of'])}</code>" if peak["of"] else "-",
                )
                for what, peak in review["peaks"].items()
            ),
        )
        + "</details>",
        "<details><summary>Resources</summary>" + _pairs(review["resources"]) + "</details>",
        "<details><summary>Self-test: every wall that was tried before anything ran</summary>"
        + _table(
            ("wall", "held", "what was seen"),
            (
                (
                    f"<code>{shown(each['name'])}</code>",
                    "yes" if each["holds"] else "NO",
                    shown(each["observed"]),
                )
                for each in review["self_tests"]
            ),
        )
        + "</details>",
    ]
    return (
        "<h2>Review sheet</h2><p>The same is in the file of the review sheet, with every sample that was executed by "
        "its hashes. It is sealed: <code>python -m gym_service verify-record</code> finds any change of it.</p>"
        + "".join(tables)
    )


def _pairs(values: Mapping[str, Any]) -> str:
    rows = (
        (
            shown(kind_of(key)),
            f"<code>{shown(', '.join(map(str, value)) if isinstance(value, list) else value)}</code>",
        )
        for key, value in values.items()
    )
    return _table(("", ""), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already, the head is text; a column whose head starts with # holds numbers."""

    def kind(number: int) -> str:
        return ' class="number"' if head[number].startswith("#") else ""

    titles = "".join(
        f"<th{kind(number)}>{escape(title.lstrip('#'))}</th>" for number, title in enumerate(head)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind(number)}>{cell}</td>" for number, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{titles}</tr>{body}</table></div>'
