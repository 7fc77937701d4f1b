"""Supervised learning from episodes, over a tiny model with random weights."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.trajectories import make_trajectory
from trainer_client.checkpoint import state_hash
from trainer_client.models.packed import use_packed_attention
from trainer_client.supervised import SupervisedSettings, add_gradient, supervise
from trainer_client.trajectory import Trajectory

EPISODES = [
    make_trajectory(prompt=(1, 2, 3), turns=(((4, 5), (6, 7)), ((8,), ()))),
    make_trajectory(prompt=(1, 2, 9, 3), turns=(((10, 11, 12), (3,)), ((4, 13), (6,)), ((8,), ()))),
    make_trajectory(prompt=(1, 2), turns=(((4,), (7, 7)), ((8, 8), ()))),
]
SETTINGS = SupervisedSettings(seed=0, steps=60, batch_size=2, learning_rate=2e-2, warmup_steps=3)


def make_model() -> PreTrainedModel:
    """Returns a model that is the same every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model: PreTrainedModel = LlamaForCausalLM(config)
    use_packed_attention(model)
    return model


def plain_loss(model: PreTrainedModel, foresight: float) -> tuple[Tensor, float]:
    """Takes one episode at a time through a plain forward pass; returns the loss and the policy's part of it."""
    said, answered = [], []
    for episode in EPISODES:
        ids = torch.tensor(episode.token_ids)
        logp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(dim=-1)
        for place in range(len(episode.prompt_ids), len(ids)):
            value = logp[place - 1, ids[place]]
            (said if episode.mask[place] else answered).append(value)
    own = -torch.stack(said).mean()
    return own - foresight * torch.stack(answered).mean(), own.item()


@pytest.mark.parametrize("foresight", [0.0, 0.3])
@pytest.mark.parametrize("microbatch_tokens", [1, 14, 1000])
def test_loss_and_gradient_are_those_of_a_plain_forward_pass(
    foresight: float, microbatch_tokens: int
) -> None:
    """Means over what the policy said and over what was answered, however the episodes are split."""
    plain, packed = make_model(), make_model()
    loss, own = plain_loss(plain, foresight)
    loss.backward()

    assert add_gradient(packed, EPISODES, foresight, microbatch_tokens) == pytest.approx(own, abs=1e-6)
    for one, other in zip(plain.parameters(), packed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def learn(episodes: list[Trajectory]) -> tuple[list[float], str]:
    """Returns the losses and the hash of the weights at the end."""
    model = make_model()
    losses = [step.loss for step in supervise(model, episodes, SETTINGS)]
    return losses, state_hash(model)


def test_learning_lowers_the_loss() -> None:
    losses, _ = learn(EPISODES)

    assert len(losses) == 60
    assert losses[0] > 3.0
    assert losses[-1] < 0.5


def test_learning_is_repeatable_bit_for_bit() -> None:
    assert learn(EPISODES) == learn(EPISODES)
