"""What there is to say about a frozen policy, as tables for a terminal and as plain data for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer_client.collate import collate, pack
from trainer_client.config import RunConfig
from trainer_client.console import COUNTED, by_kind, counted, percentage_or_dash
from trainer_client.metrics import Evaluation
from trainer_client.models.load import LoadedModel
from trainer_client.trajectory import Trajectory
from trainer_client.update import score_tokens

ATTEMPTS = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """What the trainer sees in the tokens that a policy sampled."""

    entropy: float
    """Mean entropy of the distributions that they were drawn from, in nats."""
    sampler_gap: float
    """Mean absolute difference between the sampler's log-probability and the trainer's, in nats."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Portrait:
    """A policy on the tasks of a split."""

    policy: str
    suite: str
    split: str
    evaluation: Evaluation
    tokens: TokenFigures
    group_size: int
    """Episodes of a group, for the share of groups that have a gradient."""

    @property
    def pass_at(self) -> dict[int, float]:
        """pass@k for each k that there are episodes for."""
        found = {k: self.evaluation.pass_at(k) for k in ATTEMPTS}
        return {k: value for k, value in found.items() if value is not None}

    def figures(self) -> dict[str, object]:
        """Returns everything as plain data."""
        row = self.evaluation
        return {
            "policy": self.policy,
            "suite": self.suite,
            "split": self.split,
            "episodes": row.episodes,
            "lost": row.lost,
            "pass_at_1": asdict(row.pass_at_1),
            "clustered_error": row.clustered_error,
            "pass_at": {str(k): value for k, value in self.pass_at.items()},
            "group_size": self.group_size,
            "groups_with_gradient": row.gradient_share(self.group_size),
            **asdict(self.tokens),
            "behaviour": asdict(row.behaviour),
            "sequences": row.sequences,
            "first_edits": row.first_edits,
            "tasks": [asdict(task) for task in row.tasks],
        }


def score(model: LoadedModel, trajectories: Sequence[Trajectory], config: RunConfig) -> TokenFigures:
    """Scores all tokens that the policy sampled, as the trainer scores them."""
    batch = collate(trajectories, [[0.0] * len(each.turns) for each in trajectories])
    logp_N, entropy_N = torch.zeros(2, batch.token_count)
    with torch.no_grad():
        for line in pack(batch, range(len(trajectories)), config.microbatch_tokens):
            scores = score_tokens(model.model, line.to(model.model.device), config)
            logp_N[line.places_M], entropy_N[line.places_M] = scores.logp_M.cpu(), scores.entropy_M.cpu()
    return TokenFigures(
        entropy_N.mean().item(), (logp_N - batch.sampler_logp_N).abs().mean().item(), batch.token_count
    )


def show(portrait: Portrait, console: Console) -> None:
    """Prints the tables."""
    row = portrait.evaluation
    console.print(
        Text(
            f"{portrait.policy} on {portrait.suite}/{portrait.split}: {len(row.tasks)} tasks, {row.episodes} episodes, "
            f"{row.seconds.total:.1f} s" + (f", {row.lost} episodes lost" if row.lost else ""),
            style="bold",
        )
    )
    for table in (_figures(portrait), _calls(portrait), _sequences(row), _first_edits(row)):
        console.print()
        console.print(table)


def _figures(portrait: Portrait) -> Table:
    row = portrait.evaluation
    table = _table("figure", "")
    table.add_row("pass@1 [95% over tasks]", str(row.pass_at_1))
    table.add_row("standard error, clustered by task", percentage_or_dash(row.clustered_error))
    for k, value in portrait.pass_at.items():
        if k > 1:
            table.add_row(f"pass@{k}, unbiased", f"{value:.2f}")
    table.add_row(
        f"groups of {portrait.group_size} with gradient, expected",
        percentage_or_dash(row.gradient_share(portrait.group_size)),
    )
    table.add_row("entropy of sampled tokens, nats", f"{portrait.tokens.entropy:.3f}")
    table.add_row("gap between sampler and trainer, nats", f"{portrait.tokens.sampler_gap:.1e}")
    return table


def _calls(portrait: Portrait) -> Table:
    seen = portrait.evaluation.behaviour
    table = _table("calls per episode", "")
    for name, value in zip(("turns", *COUNTED), (f"{seen.turns:.2f}", *counted(seen)), strict=True):
        table.add_row(name, value)
    table.add_row("failed by kind", by_kind(seen))
    table.add_row("episodes with an edit", percentage_or_dash(seen.edited))
    table.add_row("first edit right", percentage_or_dash(seen.first_edit))
    table.add_row("public tests only", f"{seen.public_only:.2f}")
    return table


def _sequences(row: Evaluation) -> Table:
    table = _table("sequence of calls", "episodes")
    for name, count in row.sequences.items():
        table.add_row(Text(name), str(count))
    return table


def _first_edits(row: Evaluation) -> Table:
    # A column for each family: the names of edits are too long to stand beside each other.
    totals = {family: sum(counts.values()) for family, counts in row.first_edits.items()}
    table = _table("first edit", *totals)
    for edit in sorted({edit for counts in row.first_edits.values() for edit in counts}):
        shares = (row.first_edits[family].get(edit, 0) / total for family, total in totals.items())
        table.add_row(edit, *(f"{share:.0%}" if share else "-" for share in shares))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
