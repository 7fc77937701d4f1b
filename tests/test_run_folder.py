"""The folder of a run."""

import json
from pathlib import Path

import pytest

from tests.trajectories import make_trajectory
from trainer_client.config import RunConfig
from trainer_client.run_folder import append_episodes, changes, find_run, make_run, name_run, open_run


def test_a_run_without_a_name_gets_one_that_is_free(tmp_path: Path) -> None:
    """Two words and the date."""
    name = name_run(RunConfig(), tmp_path).name

    assert len(name.split("-")) == 5
    assert not (tmp_path / name).exists()


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    """The message says how to go on with it."""
    make_run(RunConfig(name="x"), {}, tmp_path)

    with pytest.raises(FileExistsError, match="--resume --name x"):
        name_run(RunConfig(name="x"), tmp_path)
    with pytest.raises(FileExistsError):
        make_run(RunConfig(name="x"), {}, tmp_path)


def test_a_run_that_was_killed_while_its_folder_was_made_is_not_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        make_run(RunConfig(name="x"), {"torch": object()}, tmp_path)  # type: ignore[dict-item]

    assert name_run(RunConfig(name="x"), tmp_path).name == "x"
    assert make_run(RunConfig(name="x"), {}, tmp_path).checkpoints.is_dir()


def test_a_row_that_was_being_written_when_the_trainer_was_killed_spoils_no_other(tmp_path: Path) -> None:
    folder = make_run(RunConfig(name="x"), {}, tmp_path)
    append_episodes(folder, [make_trajectory(index=0)])
    append_episodes(folder, [make_trajectory(index=1)])
    first, second = folder.episodes.read_text().splitlines(keepends=True)
    folder.episodes.write_text(first + second[:-20])

    append_episodes(folder, [make_trajectory(index=1)])

    assert folder.episodes.read_text() == first + second


def test_a_run_is_opened_with_its_own_settings(tmp_path: Path) -> None:
    """Flags need not be given again."""
    config = RunConfig(name="x", steps=2, mask_truncated=False)
    make_run(config, {"torch": "2"}, tmp_path)

    assert open_run({"name": "x", "steps": 2}, tmp_path)[1:] == (config, {"torch": "2"})
    with pytest.raises(ValueError, match="steps 2, not 3"):
        open_run({"name": "x", "steps": 3}, tmp_path)


def test_a_run_that_is_not_there_cannot_be_gone_on_with(tmp_path: Path) -> None:
    """Resuming never starts a run."""
    with pytest.raises(FileNotFoundError, match="no run"):
        open_run({"name": "x"}, tmp_path)


def test_a_run_is_found_by_its_name_and_wherever_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(RunConfig(name="x"), {})
    make_run(RunConfig(name="x"), {}, tmp_path / "elsewhere")

    assert find_run("x").path.resolve() == tmp_path / "runs" / "x"
    assert find_run("elsewhere/x").path.resolve() == tmp_path / "elsewhere" / "x"
    with pytest.raises(FileNotFoundError, match="no run runs/y"):
        find_run("y")


def test_a_run_of_a_version_with_other_settings_is_refused_by_their_names(tmp_path: Path) -> None:
    make_run(RunConfig(name="x"), {}, tmp_path)
    path = tmp_path / "x" / "config.json"
    content = json.loads(path.read_text())
    content["config"]["start"] = "somewhere"
    path.write_text(json.dumps(content))

    with pytest.raises(ValueError, match=r"not known any more \(start\)"):
        open_run({"name": "x"}, tmp_path)


def test_changed_facts_are_named() -> None:
    """What was there before, what is there now, and what is new."""
    assert changes({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == ["b was 2 and is 3 now"]
    assert changes({}, {"c": "4"}) == ["c was unknown and is 4 now"]
