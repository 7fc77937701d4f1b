"""The sampler is compared with the model run on one whole sequence at a time."""

import asyncio
from random import Random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from trainer_client.models.generation import draw
from trainer_client.models.packed import use_packed_attention
from trainer_client.models.policy import Row, Sampled
from trainer_client.models.sampler import Sampler

STOP = 1
LLAMA = LlamaConfig(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
)
QWEN = Qwen3Config(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


@pytest.fixture(params=[LLAMA, QWEN], ids=["llama", "qwen3"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    config = request.param
    torch.manual_seed(0)
    made = LlamaForCausalLM(config) if isinstance(config, LlamaConfig) else Qwen3ForCausalLM(config)
    # Larger weights than at the start of a training, so that the context matters.
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data *= 5
    use_packed_attention(made)
    return made.eval()


def make_sampler(model: PreTrainedModel, max_new_tokens: int = 8) -> Sampler:
    return Sampler(model, stop_ids=[STOP], max_new_tokens=max_new_tokens)


def make_rows(*lengths: int) -> list[Row]:
    draw = Random("prompts")
    return [
        Row([draw.randrange(2, 40) for _ in range(length)], Random(f"0/group/{index}"))
        for index, length in enumerate(lengths)
    ]


async def play(
    sampler: Sampler, rows: list[Row], turns: int
) -> list[list[tuple[tuple[int, ...], tuple[float, ...]]]]:
    """Plays turns with observations of different lengths in between."""
    played: list[list[tuple[tuple[int, ...], tuple[float, ...]]]] = [[] for _ in rows]
    for turn in range(turns):
        for number, (row, sampled) in enumerate(zip(rows, await sampler.sample_turn(rows), strict=True)):
            row.ids += [*sampled.token_ids, *range(5, 7 + (number + turn) % 5)]
            played[number].append((sampled.token_ids, sampled.logprobs))
    return played


def alone(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The log-probabilities of every next id, from one pass without cache, mask or batch."""
    with torch.inference_mode():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].float(), dim=-1)


async def test_recorded_logprobs_are_those_of_the_model_on_the_whole_sequence(model: PreTrainedModel) -> None:
    rows = make_rows(3, 9, 1, 17)
    prompts = [list(row.ids) for row in rows]

    played = await play(make_sampler(model), rows, turns=4)

    for row, prompt, turns in zip(rows, prompts, played, strict=True):
        expected = alone(model, row.ids)
        position = len(prompt)
        for number, (ids, logprobs) in enumerate(turns):
            for offset, (token_id, logprob) in enumerate(zip(ids, logprobs, strict=True)):
                reference = expected[position + offset - 1, token_id].item()
                assert logprob == pytest.approx(reference, abs=2e-5)
            position += len(ids) + 2 + (rows.index(row) + number) % 5


async def test_a_row_draws_the_same_turns_alone_and_in_a_batch(model: PreTrainedModel) -> None:
    together = await play(make_sampler(model), make_rows(3, 9, 1, 17), turns=3)

    for index in range(4):
        sampler, row = make_sampler(model), make_rows(3, 9, 1, 17)[index]
        for turn in range(3):
            (sampled,) = await sampler.sample_turn([row])
            assert sampled.token_ids == together[index][turn][0]
            row.ids += [*sampled.token_ids, *range(5, 7 + (index + turn) % 5)]


async def test_the_same_batch_gives_the_same_bits(model: PreTrainedModel) -> None:
    first = await play(make_sampler(model), make_rows(3, 9, 1, 17), turns=3)
    second = await play(make_sampler(model), make_rows(3, 9, 1, 17), turns=3)

    assert first == second


@pytest.mark.parametrize("continuous", [False, True])
async def test_only_when_turns_come_as_they_like_does_one_share_with_the_one_before(
    model: PreTrainedModel, continuous: bool
) -> None:
    """In lock-step the one before is a matter of chance, and would decide the last bits."""
    rows = make_rows(70, 90)
    rows[1].ids[:70] = rows[0].ids
    seen = []
    model.base_model.register_forward_pre_hook(
        lambda _, __, settings: seen.append(settings["input_ids"].shape[1]), with_kwargs=True
    )
    sampler = Sampler(model, stop_ids=[STOP], max_new_tokens=1, continuous=continuous)
    for row in rows:
        await sampler.sample_turn([row])

    assert seen == ([70, 64, 26] if continuous else [70, 90])


async def test_rows_may_leave_and_join_between_turns(model: PreTrainedModel) -> None:
    sampler, rows = make_sampler(model), make_rows(4, 6, 8)
    await play(sampler, rows[:2], turns=1)
    await play(sampler, [rows[2], rows[0]], turns=1)
    (sampled,) = await sampler.sample_turn([rows[0]])

    expected = alone(model, [*rows[0].ids, *sampled.token_ids])
    for offset, (token_id, logprob) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
        assert logprob == pytest.approx(expected[len(rows[0].ids) + offset - 1, token_id].item(), abs=2e-5)


async def test_a_turn_ends_with_a_stop_id_or_at_the_limit(model: PreTrainedModel) -> None:
    turns = [
        turn for row in await play(make_sampler(model, 5), make_rows(*[4] * 40), turns=2) for turn in row
    ]

    assert all(STOP not in ids[:-1] for ids, _ in turns)
    assert all(ids[-1] == STOP or len(ids) == 5 for ids, _ in turns)
    assert {ids[-1] == STOP for ids, _ in turns} == {True, False}


async def test_ids_come_as_often_as_the_temperature_says(model: PreTrainedModel) -> None:
    rows = make_rows(*[6] * 4000)
    for row in rows:
        row.ids = rows[0].ids
    sampler = Sampler(model, stop_ids=[], max_new_tokens=1, temperature=2.0)

    drawn = torch.tensor([turn.token_ids[0] for turn in await sampler.sample_turn(rows)])

    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([rows[0].ids])).logits[0, -1]
    expected = torch.softmax(logits / 2.0, dim=-1)
    frequency = torch.bincount(drawn, minlength=40) / len(rows)
    assert (frequency - expected).abs().max().item() < 0.03


class Dice(Random):
    """Always falls on the same side."""

    def __init__(self, side: float) -> None:
        super().__init__()
        self._side = side

    def random(self) -> float:
        return self._side


@pytest.mark.parametrize("side", [0.0, 0.5, 1.0 - 2**-53])
@pytest.mark.parametrize("possible", [0, 7, 255, 256, 299])
def test_an_id_of_probability_zero_is_never_drawn(possible: int, side: float) -> None:
    logits = torch.full((1, 300), -torch.inf)
    logits[0, possible] = 0.0

    assert draw(logits, 1.0, [Dice(side)]) == ([possible], [0.0])


def test_logits_that_are_no_numbers_draw_nothing() -> None:
    with pytest.raises(ValueError, match="learning_rate"):
        draw(torch.full((1, 300), torch.nan), 1.0, [Dice(0.5)])


async def test_turns_that_join_while_others_are_under_way_are_what_they_would_be_alone(
    model: PreTrainedModel,
) -> None:
    expected = [await make_sampler(model).sample_turn([row]) for row in make_rows(3, 9, 1, 17, 40, 40)]
    sampler = Sampler(model, stop_ids=[STOP], max_new_tokens=8, continuous=True)

    async def come_late(row: Row, number: int) -> list[Sampled]:
        await asyncio.sleep(0.002 * number)
        return await sampler.sample_turn([row])

    rows = make_rows(3, 9, 1, 17, 40, 40)
    turns = await asyncio.gather(*(come_late(row, number) for number, row in enumerate(rows)))

    assert [turn.token_ids for (turn,) in turns] == [turn.token_ids for (turn,) in expected]
    for (turn,), (other,) in zip(turns, expected, strict=True):
        assert turn.logprobs == pytest.approx(other.logprobs, abs=2e-5)


async def test_a_beginning_that_is_shared_passes_the_model_once(model: PreTrainedModel) -> None:
    (opening,) = make_rows(100)
    rows = [Row([*opening.ids, *rest.ids], rest.random) for rest in make_rows(3, 5, 9)]
    seen = []
    model.base_model.register_forward_pre_hook(
        lambda _, __, settings: seen.append(settings["input_ids"].shape[1]), with_kwargs=True
    )

    (turn, *_) = await Sampler(model, stop_ids=[STOP], max_new_tokens=1).sample_turn(rows)

    assert seen == [96, 3 * 4 + 3 + 5 + 9]
    logprobs = alone(model, rows[0].ids)[-1]
    assert turn.logprobs == pytest.approx([logprobs[turn.token_ids[0]].item()], abs=2e-5)


async def test_a_batch_that_nobody_waits_for_any_more_does_not_hold_up_the_next(
    model: PreTrainedModel,
) -> None:
    sampler = make_sampler(model, max_new_tokens=100_000)
    endless, row = make_rows(4, 4)
    endless.random = Dice(0.0)  # Draws the id 0 and never the one that ends a turn.
    given_up = asyncio.create_task(sampler.sample_turn([endless]))
    await asyncio.sleep(0.05)
    given_up.cancel()

    async with asyncio.timeout(20):
        (turn,) = await sampler.sample_turn([row])

    assert turn.token_ids[-1] == STOP


async def test_a_failure_of_the_model_reaches_who_waits(model: PreTrainedModel) -> None:
    rows = make_rows(3)
    rows[0].ids.append(10_000)

    with pytest.raises(IndexError):
        await make_sampler(model).sample_turn(rows)
