"""Seeds and tasks that it takes to see an effect."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from tests.arms import make_arm
from trainer_client.ablation import Ablation, ArmResult, write_ablation, write_results
from trainer_client.power import (
    chosen_arms,
    least_count,
    main,
    need,
    normal_count,
    paired_power,
    seed_spread,
    spread,
    task_spread,
    two_sample_power,
)


@pytest.mark.parametrize(("effect", "seeds"), [(0.10, 3), (0.05, 12), (0.02, 70)])
def test_the_normal_approximation_gives_the_books_seeds(effect: float, seeds: int) -> None:
    """With its seed sd of 0.042."""
    assert normal_count(effect, 0.042, 0.8, 0.05, samples=2) == seeds


def test_the_normal_approximation_gives_the_books_tasks() -> None:
    """About 140 for 0.05, with its task sd of 0.21: (1.960 + 0.842) ** 2 * 0.21 ** 2 / 0.05 ** 2 = 138.5."""
    assert normal_count(0.05, 0.21, 0.8, 0.05, samples=1) == 139


@pytest.mark.parametrize(("effect", "count"), [(0.2, 394), (0.5, 64), (0.8, 26)])
def test_two_samples_need_what_tables_of_power_give(effect: float, count: int) -> None:
    """Cohen's table for 80%, two-sided, 0.05: 393 to 394, 64 and 26 in each sample."""
    assert least_count(lambda n: two_sample_power(n, effect, 1.0, 0.05), 0.8) == count


@pytest.mark.parametrize(("effect", "count"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_differences_need_what_tables_of_power_give(effect: float, count: int) -> None:
    assert least_count(lambda n: paired_power(n, effect, 1.0, 0.05), 0.8) == count


def test_the_power_is_how_often_the_test_finds_the_effect() -> None:
    """In samples as small as those of an ablation, where the normal approximation promises too much."""
    draw = np.random.default_rng(0)
    one, other = draw.normal(0.0, 0.042, (20_000, 3)), draw.normal(0.10, 0.042, (20_000, 3))
    found = float(np.mean(ttest_ind(one, other, axis=1).pvalue < 0.05))
    differences = draw.normal(0.15, 0.21, (20_000, 10))
    found_paired = float(np.mean(ttest_1samp(differences, 0.0, axis=1).pvalue < 0.05))

    assert two_sample_power(3, 0.10, 0.042, 0.05) == pytest.approx(found, abs=0.01)
    assert paired_power(10, 0.15, 0.21, 0.05) == pytest.approx(found_paired, abs=0.01)
    assert found < 0.8


def test_an_sd_from_few_seeds_is_known_within_wide_bounds() -> None:
    """With 6 degrees of freedom the quantiles of chi-square are 1.237 and 14.449."""
    found = spread(0.042, 6)

    assert found.low == pytest.approx(0.042 * math.sqrt(6 / 14.449), rel=1e-3)
    assert found.high == pytest.approx(0.042 * math.sqrt(6 / 1.237), rel=1e-3)
    needed = need(found, two_sample_power, 2, 0.05, 0.8, 0.05)
    assert needed.low < needed.normal < needed.exact < needed.high


def test_the_seed_sd_is_pooled_within_arms() -> None:
    """Arms may be as far apart as they like: variances 0.02 with 1 and 0.01 with 2 degrees of freedom."""
    arms = [make_arm("a", [0.2], [0.4]), make_arm("b", [0.7], [0.8], [0.9])]

    found = seed_spread(arms)

    assert found is not None
    assert found.degrees == 3
    assert found.sd == pytest.approx(math.sqrt((0.02 * 1 + 0.01 * 2) / 3))
    assert seed_spread([make_arm("a", [0.2])]) is None


def test_the_task_sd_is_that_of_differences_not_of_difficulty() -> None:
    """Tasks that range from 0.1 to 0.9, and an arm that is 0.1 better at some: sd of 0, 0.1, 0.1 is 0.0577."""
    arms = [make_arm("a", [0.1, 0.5, 0.8]), make_arm("b", [0.1, 0.6, 0.9])]

    found = task_spread(arms)

    assert found is not None
    assert found.sd == pytest.approx(0.1 / math.sqrt(3))
    assert found.degrees == 2
    assert task_spread(arms[:1]) is None


def test_an_arm_that_collapsed_is_left_out_unless_it_is_named() -> None:
    arms = [
        make_arm("a", [0.5]),
        make_arm("b", [0.6]),
        make_arm("hacked", [0.01]),
        make_arm("solved", [0.99]),
    ]

    assert chosen_arms(arms, []) == (arms[:2], ["hacked", "solved"])
    assert chosen_arms(arms, ["hacked", "a"]) == ([arms[2], arms[0]], [])
    with pytest.raises(ValueError, match="the ablation has a, b"):
        chosen_arms(arms, ["c"])
    with pytest.raises(ValueError, match="every arm"):
        chosen_arms(arms[2:], [])


def _finished(folder: Path, results: list[ArmResult]) -> str:
    ablation = Ablation(folder.name, (), (0,), {}, 1)
    write_ablation(folder, ablation)
    write_results(folder, ablation, results)
    return str(folder)


def test_an_ablation_says_what_its_successor_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table, and as JSON with the same figures."""
    folder = _finished(
        tmp_path / "x",
        [
            make_arm("default", [0.5, 0.7, 0.9], [0.45, 0.7, 0.8]),
            make_arm("other", [0.7, 0.6, 0.9], [0.6, 0.7, 0.7]),
            make_arm("hacked", [0.0, 0.0, 0.0], [0.0, 0.0, 0.1]),
        ],
    )

    assert main([folder, "--effect", "0.1"]) == 0
    table = capsys.readouterr().out
    assert main([folder, "--effect", "0.1", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)

    assert content["left_out"] == ["hacked"]
    assert content["seed_sd"]["degrees"] == 2
    (needed,) = content["needed"]
    for side in ("seeds", "tasks"):
        assert f"{needed[side]['exact']} [{needed[side]['low']}, {needed[side]['high']}]" in table
    assert "Left out    hacked" in table


def test_one_seed_leaves_the_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _finished(tmp_path / "x", [make_arm("a", [0.5, 0.7]), make_arm("b", [0.4, 0.7])])

    assert main([folder, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["seed_sd"] is None
    assert all(row["seeds"] is None and row["tasks"]["exact"] >= 2 for row in content["needed"])


def test_where_nothing_varies_there_is_nothing_to_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _finished(tmp_path / "x", [make_arm("a", [0.5, 0.7])])

    assert main([folder]) == 1
    assert "nothing varies" in capsys.readouterr().err
    assert main([str(tmp_path / "y")]) == 1
    assert "no finished ablation" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--power", "1"], ["--alpha", "0"], ["--effect", "2"], ["--power", "0.01"]]
)
def test_figures_that_make_no_question_are_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["x", *flags])
