"""One update of a tiny policy."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.trajectories import make_trajectory
from trainer_client.checkpoint import state_hash
from trainer_client.collate import Batch, collate
from trainer_client.config import RunConfig
from trainer_client.update import make_optimizer, score_tokens, split, update_policy

CONFIG = RunConfig(learning_rate=1e-3, microbatch_tokens=32)


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Every test here runs as a training run does."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_model() -> PreTrainedModel:
    """Returns a model that is the same every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model: PreTrainedModel = LlamaForCausalLM(config).eval()
    return model


def make_batch() -> Batch:
    """Returns four sequences of different lengths; the last one has no advantage."""
    trajectories = [
        make_trajectory(prompt=(1, 2, 3), turns=(((4, 5), (6, 7)), ((8,), ()))),
        make_trajectory(prompt=(1, 2), turns=(((9, 10, 11), ()),)),
        make_trajectory(prompt=range(1, 12), turns=(((4, 5), ()),)),
        make_trajectory(prompt=(3, 2, 1), turns=(((12,), ()),)),
    ]
    return collate(trajectories, [1.0, -0.5, 0.25, 0.0])


def test_scores_are_those_of_a_plain_forward_pass() -> None:
    """Log-probabilities and entropies, with the head on policy positions only, as over the whole sequence."""
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        scores = score_tokens(model, batch, temperature=0.7)
        logits = model(input_ids=batch.token_ids_BT, attention_mask=batch.attention_mask_BT).logits / 0.7

    logp_BTV = torch.log_softmax(logits, dim=-1)[:, :-1]
    logp_BT = logp_BTV.gather(2, batch.token_ids_BT[:, 1:, None]).squeeze(2)
    mask = batch.policy_mask_BT[:, 1:]
    torch.testing.assert_close(scores.logp_N, logp_BT[mask])
    torch.testing.assert_close(scores.entropy_N, -(logp_BTV.exp() * logp_BTV).sum(-1)[mask])


def test_one_normaliser_serves_all_microbatches() -> None:
    """The gradient is that of the undivided batch, whatever the size of the pieces."""
    whole = update_policy(*_model_and_optimizer(), make_batch(), replace(CONFIG, microbatch_tokens=1000))
    pieces = update_policy(*_model_and_optimizer(), make_batch(), replace(CONFIG, microbatch_tokens=1))

    assert pieces.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert pieces.loss == pytest.approx(whole.loss, abs=1e-7)
    assert pieces.entropy == pytest.approx(whole.entropy, rel=1e-6)


def test_the_first_loss_is_the_mean_advantage() -> None:
    """All ratios are 1 before the first step: -(3 * 1 - 3 * 0.5 + 2 * 0.25 + 1 * 0) / 9, and nothing is clipped."""
    stats = update_policy(*_model_and_optimizer(), make_batch(), CONFIG)

    assert stats.loss == pytest.approx(-(3 * 1.0 - 3 * 0.5 + 2 * 0.25) / 9, abs=1e-7)
    assert stats.clip_fraction == 0.0
    assert stats.tokens == 9


def test_log_probabilities_move_with_the_advantage() -> None:
    """The sum of advantage times log-probability rises."""
    model, optimizer = _model_and_optimizer()
    batch = make_batch()
    advantages = batch.advantages_B.repeat_interleave(batch.policy_mask_BT.sum(1))
    before = score_tokens(model, batch, 1.0).logp_N.detach()
    stats = update_policy(model, optimizer, batch, CONFIG)
    after = score_tokens(model, batch, 1.0).logp_N.detach()

    assert float((advantages * (after - before)).sum()) > 0
    assert stats.kl == pytest.approx(float((torch.expm1(after - before) - (after - before)).mean()), rel=1e-3)


def test_the_gap_is_the_distance_to_the_sampler() -> None:
    """A sampler that was off by 0.01 nats on every token shows as 0.01."""
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        logp = score_tokens(model, batch, 1.0).logp_N
    sampled = batch.sampler_logp_BT.masked_scatter(batch.policy_mask_BT, logp + 0.01)

    stats = update_policy(
        model, make_optimizer(model, CONFIG), replace(batch, sampler_logp_BT=sampled), CONFIG
    )

    assert stats.sampler_gap == pytest.approx(0.01, rel=1e-3)


def test_later_epochs_take_ratios_against_the_first_pass() -> None:
    """With a large step the second epoch clips; the weights differ from those after one epoch."""
    config = replace(CONFIG, learning_rate=0.05, epochs=2)
    once, twice = _model_and_optimizer(config), _model_and_optimizer(config)
    update_policy(*once, make_batch(), replace(config, epochs=1))
    stats = update_policy(*twice, make_batch(), config)

    assert stats.clip_fraction > 0
    assert state_hash(once[0]) != state_hash(twice[0])


def test_two_updates_give_the_same_bytes() -> None:
    """Nothing in an update depends on chance."""
    hashes = []
    for _ in range(2):
        model, optimizer = _model_and_optimizer()
        for _ in range(3):
            update_policy(model, optimizer, make_batch(), CONFIG)
        hashes.append(state_hash(model))

    assert hashes[0] == hashes[1]


def test_a_batch_without_advantage_changes_nothing() -> None:
    """Not even through momentum or weight decay."""
    config = replace(CONFIG, weight_decay=0.1)
    model, optimizer = _model_and_optimizer(config)
    update_policy(model, optimizer, make_batch(), config)
    before = state_hash(model)

    stats = update_policy(model, optimizer, replace(make_batch(), advantages_B=torch.zeros(4)), config)

    assert state_hash(model) == before
    assert (stats.loss, stats.grad_norm, stats.kl) == (0.0, 0.0, 0.0)
    assert stats.entropy > 0


def test_microbatches_keep_to_their_limit() -> None:
    """Lengths 13, 8, 5, 4 under a limit of 15: the longest alone, 8 alone, then 5 and 4 together."""
    pieces = split(make_batch(), [0, 1, 2, 3], 15)

    assert [tuple(piece.token_ids_BT.shape) for piece in pieces] == [(1, 13), (1, 8), (2, 5)]


def _model_and_optimizer(config: RunConfig = CONFIG) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    model = make_model()
    return model, make_optimizer(model, config)
