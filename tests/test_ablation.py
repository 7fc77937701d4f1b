"""Which runs an ablation is made of, and what is read off them."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.arms import make_arm
from tests.rows import BEHAVIOUR, make_evaluation, make_history, make_row
from trainer_client.ablation import (
    NAMED_ARMS,
    OF_THE_ABLATION,
    Ablation,
    ArmResult,
    markdown_table,
    parse_arm,
    plan,
    read_ablation,
    read_results,
    seed_run,
    write_ablation,
    write_results,
)
from trainer_client.config import RunConfig
from trainer_client.forest import draw_forest
from trainer_client.metrics import History
from trainer_client.statistics import task_interval
from trainer_client.update import NOTHING_LEARNED


def test_the_arms_with_names_change_one_field_at_most() -> None:
    assert all(len(changes) <= 1 for changes in NAMED_ARMS.values())
    assert parse_arm("kl_k3_0.05").changes == {"kl_coefficient": 0.05}
    assert RunConfig().kl_estimator == "k3"


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("learning_rate=1e-3", {"learning_rate": 1e-3}),
        ("group_size=4", {"group_size": 4}),
        ("mask_truncated=false", {"mask_truncated": False}),
        ("model=a=b", {"model": "a=b"}),
    ],
)
def test_any_other_field_makes_an_arm_of_its_own_type(text: str, changes: dict[str, object]) -> None:
    arm = parse_arm(text)

    assert arm.name == text
    assert arm.changes == changes
    assert [type(value) for value in arm.changes.values()] == [type(value) for value in changes.values()]


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ("none", "give one of default, kl_k3_0.05"),
        ("rate=1", "FIELD=VALUE"),
        ("learning_rate=1e-3 turn_cost=0.1", "not a value of type float"),
        ("group_size=2.5", "not a value of type int"),
        ("mask_truncated=maybe", "not true or false"),
        ("seed=1", "seed has to be the same in all arms"),
        ("suite=other", "suite has to be the same"),
        ("default,default", "each one once"),
        ("default,learning_rate=2e-3", "learning_rate=2e-3 changes nothing"),
        ("turn_cost=0.1,turn_cost=0.10", "have the same settings"),
        ("default,kl_estimator=k1", "arm kl_estimator=k1: .* no effect without kl_coefficient"),
        ("default,temperature=0", "arm temperature=0: .* above 0"),
        ("model=a/b,model=a_b", "runs of one name"),
    ],
)
def test_what_is_no_arm_of_one_field_is_refused_before_anything_runs(arms: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan("x", arms.split(","), [0], {})


@pytest.mark.parametrize("field", OF_THE_ABLATION)
def test_what_the_ablation_sets_cannot_be_set_for_it(field: str) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        plan("x", ["default"], [0], {field: 1})


def test_a_setting_that_all_arms_share_can_make_one_of_them_change_nothing() -> None:
    plan("x", ["kl_k3_0.05"], [0], {})

    with pytest.raises(ValueError, match="changes nothing"):
        plan("x", ["kl_k3_0.05"], [0], {"kl_coefficient": 0.05})


def test_runs_of_one_seed_differ_in_the_field_of_the_arm_alone() -> None:
    """And all of them report their last checkpoint, so that no choice is part of the comparison."""
    ablation = plan("x", ["default", "public_reward"], [3, 4], {"toolset": "coding"})

    assert [config.name for config in ablation.configs] == [
        "default-seed3",
        "public_reward-seed3",
        "default-seed4",
        "public_reward-seed4",
    ]
    default, public, *_ = ablation.configs
    different = {
        field.name
        for field in fields(RunConfig)
        if getattr(default, field.name) != getattr(public, field.name)
    }
    assert different == {"name", "reward"}
    assert (default.steps, default.test_episodes, default.report, default.toolset) == (
        30,
        16,
        "last",
        "coding",
    )


def test_a_model_folder_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start in the folder of the ablation."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()

    assert plan("x", ["default"], [0], {"model": "mine"}).settings["model"] == str(tmp_path / "mine")
    assert parse_arm("model=mine").changes["model"] == str(tmp_path / "mine")
    assert parse_arm("model=elsewhere").changes["model"] == "elsewhere"


def test_an_ablation_comes_back_as_it_was_written(tmp_path: Path) -> None:
    ablation = replace(plan("x", ["default", "turn_cost=0.1"], [0, 1], {"steps": 2}), gym_share=2)
    write_ablation(tmp_path / "x", ablation)

    assert read_ablation(tmp_path / "x") == ablation
    with pytest.raises(FileNotFoundError, match="leave out --resume"):
        read_ablation(tmp_path / "y")


def test_rates_are_averaged_over_seeds_before_tasks_are_compared() -> None:
    base = make_arm("default", [0.0, 0.5], [0.5, 0.5])
    arm = make_arm("other", [0.5, 0.75], [0.5, 0.25])

    assert base.rates == {"a": 0.25, "b": 0.5}
    assert base.pass_at_1 == task_interval([0.25, 0.5])
    assert arm.differences(base) == [0.25, 0.0]
    assert arm.difference(base).estimate == pytest.approx(0.125)
    assert base.seed_sd == pytest.approx(0.25 / 2**0.5)
    assert make_arm("one", [0.5]).seed_sd is None


def test_a_task_that_one_seed_lost_is_the_mean_of_the_others() -> None:
    arm = make_arm("x", [0.0, 0.5], [1.0])

    assert arm.rates == {"a": 0.5, "b": 0.5}
    assert arm.differences(make_arm("y", [0.25])) == [0.25]


def test_late_figures_are_those_of_the_last_five_steps() -> None:
    """The exploit counter too; of the held-out tasks it is that of the last evaluation."""
    steps = [
        replace(
            make_row(step),
            reward=step / 10,
            behaviour=replace(BEHAVIOUR, public_only=1.0 if step > 5 else 0.0),
        )
        for step in range(1, 11)
    ]
    steps[-1] = replace(steps[-1], update=NOTHING_LEARNED)
    last = replace(
        make_evaluation("test/last", 10, 4),
        behaviour=replace(BEHAVIOUR, public_only=0.75),
        first_edits={"zero": {"b": 2, "a": 1}, "init": {"a": 3}},
    )

    run = seed_run(0, History(steps, [make_evaluation("test/start", 0, 2), last]), "ab")

    assert run.reward_late == pytest.approx(0.8)
    assert run.entropy_late == pytest.approx(0.5), "step 10 learned nothing, and has none"
    assert (run.public_only, run.public_only_late) == (0.75, 1.0)
    assert run.pass_at_1 == pytest.approx(0.25)
    assert run.first_edits == {"a": 4, "b": 2}
    assert ArmResult("x", (run, run)).commonest_edit == "a 67%"
    with pytest.raises(ValueError, match="not been played"):
        seed_run(0, make_history(2), "ab")


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    ablation = Ablation("x", (), (0, 1), {}, 2)
    results = [make_arm("default", [0.25, 0.5], [0.5, 0.5]), make_arm("other", [0.5, 0.75], [0.5, 1.0])]
    with pytest.raises(FileNotFoundError, match="no finished ablation"):
        read_results(tmp_path / "x")
    write_ablation(tmp_path / "x", ablation)
    write_results(tmp_path / "x", ablation, results)

    assert read_results(tmp_path / "x") == results
    first, second = json.loads((tmp_path / "x" / "result.json").read_text())["arms"]
    assert first["difference"] is None
    assert second["difference"]["estimate"] == pytest.approx(0.25)


def test_the_table_is_one_line_per_arm() -> None:
    arms = [
        make_arm("default", [0.25, 0.5], [0.5, 0.5]),
        make_arm("bad", [0.0, 0.0], [0.0, 0.0], public_only=0.98),
    ]

    head, rule, default, bad = markdown_table(arms).splitlines()

    assert head.count("|") == rule.count("|") == default.count("|") == bad.count("|")
    assert re.match(r"\| default \| 0\.44 \[0\.38, 0\.50\] \| - \| 0\.38 0\.50 \| 0\.088 \| 0% \|", default)
    assert re.match(
        r"\| bad \| 0\.00 \[0\.00, 0\.00\] \| -0\.44 \[-0\.50, -0\.38\] \|.*\| 98% \| 98% \|.*\| - \|$", bad
    )


def test_the_forest_plot_shows_every_arm(tmp_path: Path) -> None:
    """A further arm makes it taller; names are names, not markup."""
    arms = [make_arm("default", [0.25, 0.5], [0.5, 0.5]), make_arm("$x$_1", [0.5, 0.75], [0.5, 1.0])]
    heights = []
    for count in (1, 2):
        draw_forest(arms[:count], tmp_path / "forest.png", "x $y$")
        content = (tmp_path / "forest.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        heights.append(int.from_bytes(content[20:24], "big"))

    assert heights[0] < heights[1]
