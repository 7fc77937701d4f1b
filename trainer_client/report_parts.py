"""The parts of a report, as HTML: tables of figures, and failed episodes to read.

Whatever comes from outside of the trainer is escaped here. What a policy wrote is hostile: of it, characters that do
not show, such as those that turn the direction of text around, are replaced by their numbers as well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

from trainer_client.behaviour import Behaviour
from trainer_client.config import RunConfig, field_docs
from trainer_client.console import COUNTED, by_kind, counted, percentage_or_dash
from trainer_client.metrics import ColdStart, Evaluation, History
from trainer_client.result import Result
from trainer_client.transcripts import SaidTurn, Transcript

ATTEMPTS = (4, 8)
"""The k of the columns pass@k, beside 1."""
MOST_SEQUENCES = 15
"""Rows of the table of sequences."""


def evaluations(history: History, result: Result | None) -> str:
    """Returns the table of all evaluations."""

    def row(evaluation: Evaluation) -> tuple[str, ...]:
        label = escape(evaluation.label)
        if result is not None and evaluation == result.chosen:
            label = f"<b>{label}</b> (chosen)"
        return (
            label,
            str(evaluation.step),
            str(evaluation.pass_at_1),
            percentage_or_dash(evaluation.clustered_error),
            *(percentage_or_dash(evaluation.pass_at(k)) for k in ATTEMPTS),
            f"{evaluation.behaviour.public_only:.0%}",
        )

    head = (
        "evaluation",
        "step",
        "pass@1",
        "clustered SE",
        *(f"pass@{k}" for k in ATTEMPTS),
        "public tests only",
    )
    return table(head, (row(evaluation) for evaluation in history.evaluations))


def behaviour(history: History) -> str:
    """Returns the table of what policies did."""
    rows: list[tuple[str, Behaviour]] = [(row.label, row.behaviour) for row in history.evaluations]
    if history.cold_start:
        rows.insert(0, ("demonstrations that were kept", history.cold_start.behaviour))
    return table(
        ("calls per episode", "turns", *COUNTED, "with an edit", "first edit right", "failed by kind"),
        (
            (
                escape(label),
                f"{seen.turns:.2f}",
                *counted(seen),
                percentage_or_dash(seen.edited),
                percentage_or_dash(seen.first_edit),
                escape(by_kind(seen)),
            )
            for label, seen in rows
        ),
    )


def told(history: History) -> list[Evaluation]:
    """Returns the evaluations that are told of in detail: those on test tasks, else the first and the last."""
    rows = [row for row in history.evaluations if row.sequences]
    tested = [row for row in rows if row.label.startswith("test/")]
    return tested or [*rows[:1], *rows[1:][-1:]]


def sequences(rows: Sequence[Evaluation]) -> str:
    """Returns the table of the most frequent sequences of calls, by their largest share in any of the evaluations."""
    shares = [{name: count / row.episodes for name, count in row.sequences.items()} for row in rows]
    names = {name: max(of.get(name, 0.0) for of in shares) for share in shares for name in share}
    return table(
        ("sequence of calls", *(row.label for row in rows)),
        (
            (code(name), *(f"{of[name]:.0%}" if name in of else "-" for of in shares))
            for name in sorted(names, key=lambda name: (-names[name], name))[:MOST_SEQUENCES]
        ),
        "first-wide",
    )


def first_edits(rows: Sequence[Evaluation]) -> str:
    """Returns, for each evaluation, the table of the first edit by family."""
    return "".join(_first_edits(row) for row in rows if row.first_edits)


def _first_edits(row: Evaluation) -> str:
    edits = sorted({edit for counts in row.first_edits.values() for edit in counts})

    def share(counts: dict[str, int], edit: str) -> str:
        value = counts.get(edit, 0) / sum(counts.values())
        shade = f' style="background: rgb(37 99 235 / {value / 2:.2f})"' if value else ""
        return f"<span{shade}>{value:.0%}</span>" if value else "-"

    rows = (
        (escape(family), *(share(counts, edit) for edit in edits))
        for family, counts in row.first_edits.items()
    )
    return f"<h3>{escape(row.label)}</h3>" + table(("family", *edits), rows, "shares")


def per_task(result: Result) -> str:
    """Returns the table of the test tasks."""
    counts = [{task.task_id: task for task in row.tasks} for _, row in result.policies]
    start = {task.task_id: task for task in result.start.tasks}
    rows = [
        (
            code(task.task_id),
            *(
                f"{of[task.task_id].passed}/{of[task.task_id].episodes}" if task.task_id in of else "-"
                for of in counts
            ),
            f"{task.rate - start[task.task_id].rate:+.2f}" if task.task_id in start else "-",
        )
        for task in result.trained.tasks
    ]
    names = [name for name, _ in result.policies]
    return "<h2>Test tasks</h2>" + table(("task", *names, f"{names[-1]} - start"), rows)


def failures(transcripts: Sequence[Transcript]) -> str:
    """Returns failed episodes, each folded up."""
    return "".join(_failure(each) for each in transcripts)


def _failure(each: Transcript) -> str:
    head = f"<b>{shown(each.kind)}</b>, {each.episodes} of {escape(each.label)}: {code(each.task_id)}"
    reason = f", {shown(each.reason)}" if each.reason else ""
    return (
        f"<details><summary>{head}</summary>"
        f'<p class="soft">{shown(each.group)}, episode {each.index}; ended by {shown(each.stop_reason)}; verdict '
        f"{shown(each.status)}{reason}; hidden tests {escape(each.hidden)}, public {escape(each.public)}.</p>"
        f"<details><summary>prompt</summary><pre>{shown(each.prompt)}</pre></details>"
        + "".join(_turn(turn) for turn in each.turns)
        + "</details>"
    )


def _turn(turn: SaidTurn) -> str:
    answers = (
        f'<pre class="answer">{shown(f"{each.tool} ({each.error_kind})" if each.error_kind else each.tool)}\n'
        f"{shown(each.text)}</pre>"
        for each in turn.answers
    )
    return f"<pre>{shown(turn.said)}</pre>" + "".join(answers)


def cold_start(row: ColdStart) -> str:
    """Returns what came of the demonstrations."""
    others = "".join(f", {count} {escape(status)}" for status, count in row.rejected.items())
    return (
        f"<h2>Cold start</h2><p>{row.kept} of {row.played} demonstrations were resolved and learned from{others}: "
        f"{row.tokens / row.kept:.0f} tokens each, {row.said / row.kept:.0f} of them said by the demonstrator. "
        f"Loss {row.losses[0]:.3f} before the first of {len(row.losses)} steps, {row.losses[-1]:.3f} before the last, "
        "in nats per token.</p>"
    )


def lost(history: History) -> str:
    """Returns a sentence on the episodes that the gym lost."""
    count = sum(row.lost for row in history.steps) + sum(row.lost for row in history.evaluations)
    if not count:
        return "No episode was lost."
    return f"{count} episodes were lost through the gym and left out: they count neither as passed nor as failed."


def settings(config: RunConfig) -> str:
    """Returns the table of all settings."""
    docs = field_docs()
    rows = ((escape(key), code(str(value)), escape(docs[key])) for key, value in asdict(config).items())
    return table(("setting", "value", ""), rows, "text")


def shown(text: str) -> str:
    """Returns text from outside as HTML in which every character can be seen."""
    return "".join(
        escape(each) if each.isprintable() or each in "\n\t" else f"\\u{{{ord(each):04X}}}" for each in text
    )


def code(text: str) -> str:
    """Returns text as HTML, in the type of code."""
    return f"<code>{escape(text)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "figures-table") -> str:
    """Cells are HTML already, the head is text."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{titles}</tr>{body}</table></div>'
