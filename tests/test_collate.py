"""From trajectories to lines of tokens."""

import pytest
import torch

from tests.trajectories import collate_episodes, make_trajectory
from trainer_client.collate import Batch, Line, pack

SYSTEM = (1, 2, 3)


def make_batch() -> Batch:
    """Returns sequences of two tasks after three common tokens, mixed."""
    return collate_episodes(
        [
            make_trajectory(prompt=(*SYSTEM, 4, 5), turns=(((6, 7), (8,)), ((9,), ()))),
            make_trajectory(prompt=(*SYSTEM, 9, 9), turns=(((6,), ()),)),
            make_trajectory(prompt=(*SYSTEM, 4, 5), turns=(((6, 6), ()),)),
        ],
        [1.0, 2.0, 3.0],
    )


def read_back(batch: Batch, line: Line) -> dict[int, tuple[list[int], int, int]]:
    """Returns for each of the batch's tokens on the line: what comes before it in its sequence, it, its position."""
    prefix = line.layout.prefix_length
    ids, positions = line.token_ids_T.tolist(), line.positions_T.tolist()
    starts = [prefix + sum(line.layout.lengths[:n]) for n in range(len(line.layout.lengths))]
    found = {}
    for place, source, target in zip(
        line.places_M.tolist(), line.sources_M.tolist(), line.targets_M.tolist(), strict=True
    ):
        start = max(each for each in starts if each <= source)
        found[place] = (ids[:prefix] + ids[start : source + 1], target, positions[source] + 1)
    return found


@pytest.mark.parametrize("line_tokens", [1, 8, 11, 1000])
def test_every_sampled_token_is_predicted_from_what_came_before_it(line_tokens: int) -> None:
    """Whatever is shared and however it is split: each once, at its position, after its own sequence."""
    batch = make_batch()
    found: dict[int, tuple[list[int], int, int]] = {}
    for line in pack(batch, [0, 1, 2], line_tokens):
        assert not found.keys() & line.places_M.tolist()
        found |= read_back(batch, line)

    assert [found[place] for place in sorted(found)] == [
        (list(ids[:place]), ids[place], place)
        for ids, sampled in zip(batch.token_ids, batch.sampled, strict=True)
        for place in sampled
    ]


def test_a_common_beginning_is_laid_out_once() -> None:
    """The system prompt between tasks; all of the prompt but its last token within one."""
    both, alike = pack(make_batch(), [0, 1, 2], 1000), pack(make_batch(), [0, 2], 1000)

    assert [line.layout.prefix_length for line in both] == [3]
    assert both[0].token_ids_T.tolist() == [1, 2, 3, 4, 5, 6, 6, 4, 5, 6, 7, 8, 9, 9, 9, 6]
    assert both[0].positions_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 7, 8, 3, 4, 5]
    assert [line.layout.prefix_length for line in alike] == [4]


def test_the_last_token_of_a_prompt_is_never_shared() -> None:
    """Sequences that are equal to the end: the first sampled token has a state of its own that predicts it."""
    same = make_trajectory(prompt=(1, 2, 3), turns=(((4, 5), ()),))

    (line,) = pack(collate_episodes([same, same], [1.0, 1.0]), [0, 1], 1000)

    assert line.layout.prefix_length == 2
    assert line.sources_M.tolist() == [2, 3, 5, 6]


def test_lines_keep_to_their_limit() -> None:
    """By their tokens, the shared ones counted once; what is longer alone gets a line of its own."""
    lines = pack(make_batch(), [0, 1, 2], 12)

    assert [len(line.token_ids_T) for line in lines] == [12, 6]
    assert [len(line.token_ids_T) for line in pack(make_batch(), [0, 1, 2], 1)] == [7, 9, 6]


def test_a_sequence_that_would_shorten_what_others_share_gets_a_line_of_its_own() -> None:
    """Joined, the two of one task would lay out their prompts twice: more tokens than another line has."""
    long = (*SYSTEM, *range(10, 30))
    pair = [make_trajectory(prompt=long, turns=(((4,), ()),))] * 2
    batch = collate_episodes([*pair, make_trajectory(prompt=(*SYSTEM, 4), turns=(((4,), ()),))], [1.0] * 3)

    assert [line.layout.lengths for line in pack(batch, [0, 1, 2], 1000)] == [(5,), (2, 2)]


def test_tokens_carry_the_advantage_and_the_log_probability_of_their_own() -> None:
    first = make_trajectory(turns=(((3, 4), (5,)), ((6,), ())), logprobs=(-0.1, -0.2, -0.3))
    second = make_trajectory(prompt=(7,), turns=(((8,), ()),), logprobs=(-0.4,))

    batch = collate_episodes([first, second], [0.5, -0.5])

    assert batch.advantages_N.tolist() == [0.5, 0.5, 0.5, -0.5]
    torch.testing.assert_close(batch.sampler_logp_N, torch.tensor([-0.1, -0.2, -0.3, -0.4]))
    assert batch.places_of([1, 0]).tolist() == [3, 0, 1, 2]


def test_logps_that_do_not_match_the_tokens_are_refused() -> None:
    """A missing log-probability would shift all later ones."""
    with pytest.raises(ValueError, match="2 sampled tokens and 1 log-prob"):
        collate_episodes([make_trajectory(logprobs=(-1.0,))], [0.0])


def test_a_sequence_without_a_prompt_is_refused() -> None:
    """The first token has nothing to be predicted from."""
    with pytest.raises(ValueError, match="no prompt"):
        collate_episodes([make_trajectory(prompt=())], [0.0])


def test_nothing_cannot_be_collated() -> None:
    """An empty batch has no figures."""
    with pytest.raises(ValueError, match="no trajectories"):
        collate_episodes([], [])
