"""What a policy is worth before anything is learned."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.rows import BEHAVIOUR
from tests.runs import place_of_runs
from tests.trajectories import make_trajectory
from trainer_client.config import RunConfig
from trainer_client.describe import describe, main
from trainer_client.metrics import Evaluation, Seconds, TaskCount
from trainer_client.models.load import load_model
from trainer_client.models.tiny import build_tiny
from trainer_client.portrait import Portrait, TokenFigures, score, show

COUNTS = (TaskCount("s/a", 4, 2), TaskCount("s/b", 4, 0))


def _portrait() -> Portrait:
    row = Evaluation(
        "x",
        0,
        COUNTS,
        BEHAVIOUR,
        0,
        Seconds(),
        sequences={"read > submit": 5},
        first_edits={"zero": {"edit a": 3, "no edit": 1}},
    )
    return Portrait("p", "s", "train", row, TokenFigures(0.5, 1e-7, 9), group_size=2)


async def test_any_folder_can_be_described_and_twice_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure is there, and no folder of a run."""
    build_tiny(tmp_path / "start")
    config = RunConfig(
        model=str(tmp_path / "start"), cohort_size=4, max_turns=2, max_new_tokens=4, group_size=2
    )
    async with place_of_runs(tmp_path, monkeypatch):
        first = (await describe(config, "validation", 2)).figures()
        second = (await describe(config, "validation", 2)).figures()

    assert first == second
    assert first["episodes"] == 10
    assert set(first["pass_at"]) == {"1"}
    assert first["entropy"] > 5
    assert first["sampler_gap"] < 1e-5
    assert not (tmp_path / "runs").exists()


def test_pass_at_k_is_shown_where_there_are_enough_episodes() -> None:
    """Of four episodes, two passed on one task: some pair of them has a gradient in 4 of 6 cases."""
    figures = _portrait().figures()

    assert figures["pass_at"] == {"1": 0.25, "4": 0.5}
    assert figures["groups_with_gradient"] == pytest.approx(1 / 3)
    assert json.loads(json.dumps(figures)) == figures


def test_the_tables_show_what_was_done() -> None:
    file = io.StringIO()

    show(_portrait(), Console(file=file, width=100))

    for shown in ("0.25", "groups of 2 with gradient", "0.500", "read > submit", "75%", "not_read 0.25"):
        assert shown in file.getvalue()


def test_names_of_edits_are_whole_in_a_narrow_terminal() -> None:
    families = ("compare", "init", "minmax", "range", "zero")
    edits = (
        "edit add_zero_guard",
        "edit fix_comparison",
        "edit hardcode_tests",
        "edit swap_minmax",
        "no edit",
    )
    portrait = _portrait()
    row = replace(portrait.evaluation, first_edits={family: dict.fromkeys(edits, 1) for family in families})
    file = io.StringIO()

    show(replace(portrait, evaluation=row), Console(file=file, width=80))

    for name in (*families, *edits):
        assert name in file.getvalue()


def test_entropy_is_a_mean_over_all_sampled_tokens(tmp_path: Path) -> None:
    """A policy whose logits are all equal is as uncertain as can be, ln(vocabulary), and its sampler knew it."""
    build_tiny(tmp_path / "start")
    loaded = load_model(tmp_path / "start")
    for parameter in loaded.model.parameters():
        parameter.data.zero_()
    uniform = -math.log(loaded.model.config.vocab_size)
    episodes = [make_trajectory(turns=[((3, 4), (5,)), ((6,), ())], logprobs=[uniform] * 3)] * 2

    figures = score(loaded, episodes, RunConfig())

    assert figures.entropy == pytest.approx(-uniform)
    assert figures.sampler_gap == pytest.approx(0.0, abs=1e-5)
    assert figures.tokens == 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--episodes", "0"], "episodes is 0"), (["--temperature", "0"], "temperature is 0")],
)
def test_what_cannot_be_described_says_why(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rl_base", *flags]) == 1

    assert message in capsys.readouterr().err


def test_test_tasks_are_not_described() -> None:
    """Nobody would know that they were looked at."""
    with pytest.raises(SystemExit):
        main(["rl_base", "--split", "test"])
