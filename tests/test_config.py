"""The settings of a run and their flags."""

from dataclasses import asdict, fields

import pytest

from trainer_client.config import RunConfig, field_docs, resumed
from trainer_client.flags import parse_flags
from trainer_client.presets import PRESETS


def test_every_setting_has_a_docstring() -> None:
    """The help of each flag is the docstring under its field, on one line."""
    docs = field_docs()

    assert [field.name for field in fields(RunConfig)] == list(docs)
    assert all(doc and "\n" not in doc for doc in docs.values())


def test_flags_set_fields_and_leave_the_others_out() -> None:
    """A flag that was not given is absent: --resume can tell it from one that was."""
    given, resume = parse_flags(
        ["--steps", "2", "--learning-rate", "3e-4", "--no-mask-truncated", "--name", "x"]
    )

    assert given == {"steps": 2, "learning_rate": 3e-4, "mask_truncated": False, "name": "x"}
    assert not resume


def test_every_default_can_be_given_as_a_flag() -> None:
    """Flags and fields are of the same types."""
    argv = []
    for name, value in asdict(RunConfig()).items():
        flag = "--" + name.replace("_", "-")
        argv += (
            [flag if value else flag.replace("--", "--no-", 1)]
            if isinstance(value, bool)
            else [flag, str(value)]
        )

    assert RunConfig(**parse_flags(argv)[0]) == RunConfig()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_what_no_flag_does(preset: str) -> None:
    """And its name is kept beside what it sets."""
    given, _ = parse_flags(["--steps", "2", "--preset", preset])

    assert given == {**PRESETS[preset], "preset": preset, "steps": 2}
    assert RunConfig(**given).model == PRESETS[preset]["model"]


def test_help_shows_what_presets_set(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--help"])

    shown = capsys.readouterr().out
    assert all(f"{preset}: " in shown for preset in PRESETS)
    assert "learning_rate=1e-06" in shown


def test_resume_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name there is nothing to go on with."""
    with pytest.raises(SystemExit):
        parse_flags(["--resume"])

    assert "--resume needs --name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("group_size", 1, "set it to 2 or more"),
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", float("nan"), "above 0"),
        ("clip_low", 1.5, "below 1"),
        ("beta2", 1.0, "below 1"),
        ("weight_decay", -0.1, "0 or more"),
        ("reward", "best", "hidden, public, fraction"),
        ("toolset", "all", "menu, coding"),
        ("demonstrations", -1, "set it to 0 or more"),
        ("demonstrations_test_first", True, "demonstrations above 0"),
        ("cold_start_steps", 0, "set it to 1 or more"),
        ("cold_start_learning_rate", 0.0, "above 0"),
        ("cold_start_foresight", -1.0, "0 or more"),
        ("name", "../x", "slashes"),
        ("preset", "qwen", "qwen3-0.6b-menu"),
        ("device", "gpu", "cuda:N"),
        ("dtype", "int8", "float32, bfloat16"),
        ("lora_rank", -1, "0 or more"),
        ("advantage", "best", "mean, mean_std, leave_one_out"),
        ("turn_cost", -1.0, "0 or more"),
        ("public_weight", 1.0, "below 1"),
        ("dual_clip", 1.1, "above 1 + clip_high"),
        ("importance_cap", 1.0, "above 1"),
        ("largest_group", 8, "above group_size"),
        ("length_free_tokens", 10, "above the tokens that are free"),
        ("track", "wandb", "tensorboard, trackio"),
    ],
)
def test_a_bad_setting_says_what_to_change(field: str, value: object, advice: str) -> None:
    """The message names the field, the value and what would do."""
    with pytest.raises(ValueError, match=field) as caught:
        RunConfig(**{field: value})  # type: ignore[arg-type]

    assert advice in str(caught.value)


def test_a_bad_flag_ends_with_the_same_advice(capsys: pytest.CaptureFixture[str]) -> None:
    """Validation is reached from the command line, and no trace is shown."""
    with pytest.raises(SystemExit) as caught:
        parse_flags(["--group-size", "1"])

    assert caught.value.code == 2
    assert "group_size is 1: set it to 2 or more" in capsys.readouterr().err


def test_resuming_with_other_settings_is_refused() -> None:
    """What was given has to match the run that is gone on with; what was not given is taken from it."""
    config = RunConfig(name="x", steps=2)

    assert resumed(config, {"name": "x"}) == config
    with pytest.raises(ValueError, match="seed 0, not 1"):
        resumed(config, {"name": "x", "seed": 1})


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"cold_start_steps": 10}, "demonstrations above 0"),
        ({"cold_start_foresight": 0.3}, "demonstrations above 0"),
        ({"lora_alpha": 8.0}, "lora_rank above 0"),
        ({"kl_estimator": "k1"}, "kl_coefficient above 0"),
        ({"epochs": 1, "clip_low": 0.1}, "epochs above 1"),
        ({"epochs": 1, "clip_high": 0.28}, "epochs above 1"),
        ({"epochs": 1, "dual_clip": 3.0}, "epochs above 1"),
        ({"entropy_step": 0.1}, "entropy_target above 0"),
        ({"importance_cap": 3.0, "sample_ahead": True}, "importance truncated or masked"),
        ({"importance": "masked"}, "set it to none, or set sample_ahead"),
        ({"aggregation": "constant"}, "aggregation_tokens"),
        ({"aggregation_tokens": 5}, "aggregation"),
        ({"entropy_target": 0.3, "entropy_bonus": 0.1}, "choose one"),
        ({"public_weight": 0.5, "reward": "public"}, "choose hidden or fraction"),
        ({"sample_ahead": True, "sampler": "vllm"}, "choose one"),
    ],
)
def test_a_setting_without_effect_is_refused_not_ignored(settings: dict[str, object], needed: str) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))) as caught:
        RunConfig(**settings)  # type: ignore[arg-type]

    assert needed in str(caught.value)


def test_an_episode_in_the_menu_has_one_turn_for_each_call() -> None:
    """Where nothing else is asked for; with the coding tools it is the gym that says how many."""
    assert RunConfig().turn_limit == 4
    assert RunConfig(max_turns=6).turn_limit == 6
    assert RunConfig(toolset="coding").turn_limit == 0
