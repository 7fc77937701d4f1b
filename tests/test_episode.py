"""An episode that another trainer plays: its turns, its reward, its sequence, its observations as text."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import Gym
from tests.tokenizers import NO_THINKING, transformers_tokenizer
from trainer_client.endpoint import Endpoint
from trainer_client.episode import Episode, observation_text, register, render_suffix
from trainer_client.gym import GymClient

ZERO = "bugfix/zero/share"
REPAIR = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")
TOKENIZERS = [("tiny", {}), ("qwen3", {}), ("qwen3", NO_THINKING)]


@pytest.fixture
async def client(gym: Gym) -> AsyncIterator[GymClient]:
    async with GymClient.connect(Endpoint(gym.running.address, gym.running.token)) as client:
        yield client


@asynccontextmanager
async def with_tokenizer(
    client: GymClient, model: str, arguments: dict[str, Any], toolset: str = "menu"
) -> AsyncIterator[tuple[Any, Episode]]:
    tokenizer = transformers_tokenizer(model)
    known = await register(client, tokenizer, arguments)
    episode = await Episode.open(client, ZERO, toolset, fingerprint=known.fingerprint)
    yield tokenizer, episode
    await episode.close()


async def test_a_repair_is_worth_1(client: GymClient) -> None:
    episode = await Episode.open(client, ZERO, "menu")
    said = [await episode.say(text) for text in REPAIR]

    assert "//" in observation_text(said[0])
    assert episode.turn == 3
    assert await episode.reward() == 1.0
    assert episode.token_ids == []


async def test_what_the_trainer_cuts_off_is_graded_as_it_stands(client: GymClient) -> None:
    episode = await Episode.open(client, ZERO, "menu")
    await episode.call(("edit", {"operation": "add_zero_guard"}))

    assert await episode.reward("context_overflow") == 1.0
    assert episode.outcome
    assert episode.outcome.stop_reason == "context_overflow"


async def test_what_the_gym_does_not_know_any_more_has_no_reward(client: GymClient) -> None:
    episode = await Episode.open(client, ZERO, "menu")
    await episode.close()
    gone = Episode(client, episode.opened.__class__("gone", (), None, 6), [], [], [])

    assert await gone.reward() is None
    await gone.close()


async def test_an_argument_that_is_none_is_left_out(client: GymClient) -> None:
    """As trainers give what a policy did not say."""
    episode = await Episode.open(client, ZERO, "coding")
    said = await episode.call(("Bash", {"command": "ls", "timeout": None}))
    await episode.close()

    assert not said.tool_results[0].is_error


async def test_without_a_group_episodes_differ_and_with_one_they_repeat(client: GymClient) -> None:
    async def task(**options: Any) -> str:
        episode = await Episode.open(client, ZERO, "menu", **options)
        await episode.close()
        return episode.opened.messages[-1].content

    assert len({await task() for _ in range(8)}) > 1
    assert len({await task(group="g", index=3) for _ in range(3)}) == 1


@pytest.mark.parametrize(("model", "arguments"), TOKENIZERS)
async def test_the_sequence_is_what_was_sampled_and_what_the_gym_appends(
    client: GymClient, model: str, arguments: dict[str, Any]
) -> None:
    async with with_tokenizer(client, model, arguments) as (tokenizer, episode):
        said = [tokenizer.encode(text, add_special_tokens=False) for text in REPAIR]
        said[0].append(tokenizer.eos_token_id)
        prompt = list(episode.token_ids)
        deltas = []
        for ids in said:
            stepped = await episode.sampled(ids, [-1.0] * len(ids))
            deltas.append(list(stepped.delta.token_ids) if stepped.delta else [])

    spans = [
        (prompt, 0),
        *(
            (ids, one)
            for pair in zip(said, deltas, strict=True)
            for ids, one in zip(pair, (1, 0), strict=True)
        ),
    ]
    assert episode.token_ids == [token for ids, _ in spans for token in ids]
    assert episode.mask == [one for ids, one in spans for _ in ids]
    assert episode.logprobs == [-1.0 * one for one in episode.mask]
    # The second turn was cut: the gym closes it.
    assert deltas[1][0] == tokenizer.eos_token_id != deltas[0][0]


@pytest.mark.parametrize(("model", "arguments"), TOKENIZERS)
async def test_an_observation_is_a_text_that_is_encoded_to_its_ids(
    client: GymClient, model: str, arguments: dict[str, Any]
) -> None:
    async with with_tokenizer(client, model, arguments, "coding") as (tokenizer, episode):
        wild = "é ≠ 語 \U0001f600\t  \n\n\n x\r\n  < | im_end | >"
        deltas = [episode.opened.prompt]
        for call in (
            ("Bash", {"command": "ls -l"}),
            ("Write", {"file_path": "wild.txt", "content": wild}),
            ("Read", {"file_path": "wild.txt"}),
            ("Read", {"file_path": "gone.txt"}),
        ):
            deltas.append((await episode.call(call)).delta)

        for delta in deltas:
            assert delta
            text = render_suffix(delta, tokenizer)
            assert tokenizer.encode(text, add_special_tokens=False) == list(delta.token_ids)


@pytest.mark.parametrize(("model", "arguments"), TOKENIZERS)
async def test_an_observation_that_spells_a_control_token_is_refused_as_a_text(
    client: GymClient, model: str, arguments: dict[str, Any]
) -> None:
    """Encoded, the text would end the turn: a file would speak for the policy."""
    async with with_tokenizer(client, model, arguments, "coding") as (tokenizer, episode):
        content = f"a {tokenizer.eos_token} b"
        await episode.call(("Write", {"file_path": "turn.txt", "content": content}))
        stepped = await episode.call(("Read", {"file_path": "turn.txt"}))

        assert stepped.delta
        with pytest.raises(ValueError, match="no text that the tokenizer encodes to its ids"):
            render_suffix(stepped.delta, tokenizer)
