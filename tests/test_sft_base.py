"""The starting policy that learned from demonstrations, made small over a gym in this process."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gym
from trainer_client.checkpoint import state_hash
from trainer_client.endpoint import Endpoint
from trainer_client.errors import GymUnavailable
from trainer_client.gym import GymClient
from trainer_client.models import demonstrator, start
from trainer_client.models import sft_base as module
from trainer_client.models.base import BaseSettings, make_rl_base
from trainer_client.models.load import load_model
from trainer_client.models.sft_base import SftSettings, make_sft_base
from trainer_client.supervised import add_gradient

BASE = BaseSettings(episodes_per_task=1, steps=4)
SMALL = SftSettings(steps=4)


async def test_it_imitates_better_than_rl_base_and_is_made_once(gym: Gym, tmp_path: Path) -> None:
    """A lower loss on the demonstrations; the second time it comes out of the cache, by another name than rl_base."""
    async with GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client:
        base = load_model(await make_rl_base(client, tmp_path, BASE))
        made = await make_sft_base(client, tmp_path, SMALL, BASE)
        written = (made / "model.safetensors").stat().st_mtime_ns
        tasks = await client.list_tasks("bugfix", "train")
        shown = await module._demonstrate(client, base, tasks, SMALL)
        again = await make_sft_base(client, tmp_path, SMALL, BASE)

    learned = load_model(made)
    losses = [add_gradient(each.model, shown, 0.0, 1 << 14) for each in (base, learned)]
    assert losses[1] < losses[0]
    assert learned.tokenizer_json == base.tokenizer_json
    assert (again, (made / "model.safetensors").stat().st_mtime_ns) == (made, written)


async def test_equal_settings_give_equal_weights_and_others_another_name(gym: Gym, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    async with GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client:
        one = await make_sft_base(client, first, SMALL, BASE)
        same = await make_sft_base(client, second, SMALL, BASE)
        other = await make_sft_base(client, first, SftSettings(steps=5), BASE)

    assert state_hash(load_model(one).model) == state_hash(load_model(same).model)
    assert one.name == same.name != other.name


async def test_a_demonstration_that_is_not_resolved_makes_no_policy(
    gym: Gym, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer demonstrations would be another policy under the same name."""
    repair = demonstrator.find_repair
    monkeypatch.setattr(
        demonstrator, "find_repair", lambda source: None if "range(" in source else repair(source)
    )
    async with GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client:
        with pytest.raises(GymUnavailable, match="not all demonstrations"):
            await make_sft_base(client, tmp_path, SMALL, BASE)

    assert not any(name.startswith("sft_base-") for name in os.listdir(tmp_path))


async def test_starting_policies_have_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No name is rl_base; whatever else is not known here is looked for as a model."""

    async def make(name: str) -> Path:
        return Path(name)

    monkeypatch.setattr(start, "make_rl_base", lambda gym: make("rl"))
    monkeypatch.setattr(start, "make_sft_base", lambda gym: make("sft"))
    gym: Any = None

    found = [await start.find_start_policy(gym, name) for name in ("", "rl_base", "sft_base", str(tmp_path))]

    assert found == [Path("rl"), Path("rl"), Path("sft"), tmp_path]
