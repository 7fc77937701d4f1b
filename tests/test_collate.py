"""From trajectories to tensors."""

import pytest
import torch

from tests.trajectories import make_trajectory
from trainer_client.collate import collate


def test_tokens_masks_and_logps_line_up() -> None:
    """Each sampled token has its mask and its log-probability at its own position; padding is on the right."""
    long = make_trajectory(prompt=(1, 2), turns=(((3, 4), (5,)), ((6,), ())), logprobs=(-0.1, -0.2, -0.3))
    short = make_trajectory(prompt=(7,), turns=(((8,), ()),), logprobs=(-0.4,))

    batch = collate([long, short], [0.5, -0.5])

    assert batch.token_ids_BT.tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0]]
    assert batch.attention_mask_BT.int().tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch.policy_mask_BT.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    torch.testing.assert_close(
        batch.sampler_logp_BT, torch.tensor([[0, 0, -0.1, -0.2, 0, -0.3], [0, -0.4, 0, 0, 0, 0]])
    )
    assert batch.advantages_B.tolist() == [0.5, -0.5]
    assert batch.token_count == 4


def test_rows_are_cut_to_their_longest() -> None:
    """A microbatch of short sequences carries no padding of longer ones."""
    long = make_trajectory(prompt=(1, 2, 3, 4, 5))
    short = make_trajectory(prompt=(7,), turns=(((8,), ()),))

    batch = collate([long, short], [1.0, 2.0]).rows([1])

    assert batch.token_ids_BT.tolist() == [[7, 8]]
    assert batch.advantages_B.tolist() == [2.0]


def test_logps_that_do_not_match_the_tokens_are_refused() -> None:
    """A missing log-probability would shift all later ones."""
    with pytest.raises(ValueError, match="2 sampled tokens and 1 log-prob"):
        collate([make_trajectory(logprobs=(-1.0,))], [0.0])


def test_a_sequence_without_a_prompt_is_refused() -> None:
    """The first token has nothing to be predicted from."""
    with pytest.raises(ValueError, match="no prompt"):
        collate([make_trajectory(prompt=())], [0.0])


def test_nothing_cannot_be_collated() -> None:
    """An empty batch has no shape."""
    with pytest.raises(ValueError, match="no trajectories"):
        collate([], [])
