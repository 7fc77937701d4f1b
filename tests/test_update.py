"""One update of a tiny policy."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.trajectories import collate_episodes, make_trajectory
from trainer_client.checkpoint import state_hash
from trainer_client.collate import Batch, pack
from trainer_client.config import RunConfig
from trainer_client.models.load import recompute_activations
from trainer_client.models.packed import use_packed_attention
from trainer_client.update import Scores, make_optimizer, score_tokens, update_policy

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
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model: PreTrainedModel = LlamaForCausalLM(config).eval()
    use_packed_attention(model)
    return model


def make_batch() -> Batch:
    """Returns four sequences of different lengths; the last one has no advantage."""
    trajectories = [
        make_trajectory(prompt=(1, 2, 3), turns=(((4, 5), (6, 7)), ((8,), ()))),
        make_trajectory(prompt=(1, 2), turns=(((9, 10, 11), ()),)),
        make_trajectory(prompt=range(1, 12), turns=(((4, 5), ()),)),
        make_trajectory(prompt=(3, 2, 1), turns=(((12,), ()),)),
    ]
    return collate_episodes(trajectories, [1.0, -0.5, 0.25, 0.0])


def score_batch(
    model: PreTrainedModel, batch: Batch, config: RunConfig = CONFIG, chunk_logits: int = 1 << 24
) -> Scores:
    """Returns the scores of all sampled tokens in the order of the batch."""
    lines = pack(batch, range(len(batch.token_ids)), config.microbatch_tokens)
    scores = [score_tokens(model, line, config, chunk_logits) for line in lines]
    order = torch.cat([line.places_M for line in lines]).argsort()
    logp_N = torch.cat([each.logp_M for each in scores])[order]
    return Scores(logp_N, torch.cat([each.entropy_M for each in scores])[order])


def gradients_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Returns the gradients, and clears them."""
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("line_tokens", [1, 16, 1000])
def test_scores_and_gradients_are_those_of_plain_forward_passes(line_tokens: int) -> None:
    """Sequence by sequence, over all positions and without anything shared; in double precision."""
    model, batch = make_model().double(), make_batch()
    logps, entropies = [], []
    for ids, sampled in zip(batch.token_ids, batch.sampled, strict=True):
        logp_TV = torch.log_softmax(model(torch.tensor([ids])).logits[0] / 0.7, dim=-1)
        logps += [logp_TV[place - 1, ids[place]] for place in sampled]
        entropies += [-(logp_TV[place - 1].exp() * logp_TV[place - 1]).sum() for place in sampled]
    (torch.stack(logps) * batch.advantages_N).sum().backward()
    expected = gradients_of(model)

    scores = score_batch(model, batch, replace(CONFIG, temperature=0.7, microbatch_tokens=line_tokens))
    (scores.logp_M * batch.advantages_N).sum().backward()

    # The softmax is taken in float32.
    torch.testing.assert_close(scores.logp_M.double(), torch.stack(logps), rtol=0, atol=2e-6)
    torch.testing.assert_close(scores.entropy_M.double(), torch.stack(entropies), rtol=0, atol=2e-6)
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)


def test_a_head_in_chunks_gives_the_same_and_keeps_no_logits() -> None:
    """Two tokens at a time; nothing of the size of their logits is kept for the backward pass."""
    kept: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    model, config = make_model(), replace(CONFIG, microbatch_tokens=1000)
    found = []
    for chunk_logits in (1 << 24, 2 * 40):
        kept.clear()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            scores = score_batch(model, make_batch(), config, chunk_logits)
        with_logits = [shape for shape in kept if shape[-1] == 40]
        (scores.logp_M * make_batch().advantages_N).sum().backward()
        found.append((scores, gradients_of(model), len(with_logits)))

    (whole, expected, many), (chunked, gradients, none) = found
    assert (many > 0, none) == (True, 0)
    torch.testing.assert_close(chunked.logp_M, whole.logp_M)
    torch.testing.assert_close(chunked.entropy_M, whole.entropy_M)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name])


def test_gradient_checkpointing_keeps_less_and_gives_the_same_bytes() -> None:
    """The layers compute the same again."""
    model, kept = make_model(), []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    found = []
    for checkpointing in (False, True):
        kept.clear()
        model, optimizer = _model_and_optimizer()
        if checkpointing:
            recompute_activations(model)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            update_policy(model, optimizer, make_batch(), CONFIG)
        found.append((state_hash(model), sum(kept)))

    (plain, plain_kept), (checkpointed, checkpointed_kept) = found
    assert checkpointed == plain
    assert checkpointed_kept < plain_kept / 2


def test_scores_of_a_model_in_bfloat16_are_near_those_of_float32() -> None:
    model = make_model()
    before = score_batch(model, make_batch())

    rounded = score_batch(model.bfloat16(), make_batch())

    assert 0 < (rounded.logp_M - before.logp_M).abs().mean() < 0.01
    assert rounded.logp_M.dtype == torch.float32


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
    before = score_batch(model, batch).logp_M.detach()
    stats = update_policy(model, optimizer, batch, CONFIG)
    after = score_batch(model, batch).logp_M.detach()

    assert float((batch.advantages_N * (after - before)).sum()) > 0
    ratios = (after - before)[batch.places_of([0, 3])]  # The first with an advantage and the first without.
    assert stats.kl == pytest.approx(float((torch.expm1(ratios) - ratios).mean()), rel=1e-3)


def test_the_gap_is_the_distance_to_the_sampler() -> None:
    """A sampler that was off by 0.01 nats on every token shows as 0.01."""
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        sampled = score_batch(model, batch).logp_M + 0.01

    stats = update_policy(
        model, make_optimizer(model, CONFIG), replace(batch, sampler_logp_N=sampled), CONFIG
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

    stats = update_policy(
        model,
        optimizer,
        replace(make_batch(), advantages=tuple((0.0,) * len(each) for each in make_batch().sampled)),
        config,
    )

    assert state_hash(model) == before
    assert (stats.loss, stats.grad_norm, stats.kl) == (0.0, 0.0, 0.0)
    assert stats.entropy > 0


def test_of_sequences_without_advantage_a_quarter_speaks_for_all() -> None:
    """Five silent ones: the first and the fifth are scored, with the weight of all five tokens."""
    silent = [make_trajectory(prompt=(3, 2, last), turns=(((12,), ()),)) for last in range(5, 10)]
    taught = make_trajectory(prompt=(1, 2), turns=(((9, 10, 11), ()),))
    batch = collate_episodes([*silent, taught], [0.0] * 5 + [1.0])
    entropy = score_batch(make_model(), batch).entropy_M.tolist()

    stats = update_policy(*_model_and_optimizer(), batch, CONFIG)

    assert stats.entropy == pytest.approx(
        (5 * (entropy[0] + entropy[4]) / 2 + sum(entropy[5:])) / 8, rel=1e-5
    )


def _model_and_optimizer(config: RunConfig = CONFIG) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    model = make_model()
    return model, make_optimizer(model, config)


def test_a_gradient_that_is_no_number_leaves_the_weights_alone() -> None:
    model, batch = make_model(), make_batch()
    before = state_hash(model)
    broken = replace(batch, advantages=((math.inf,) * 3, *batch.advantages[1:]))

    with pytest.raises(ValueError, match="lower learning_rate"):
        update_policy(model, make_optimizer(model, CONFIG), broken, CONFIG)
    assert state_hash(model) == before


def _all_indices(batch: Batch) -> list[int]:
    return list(range(len(batch.advantages)))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_of_the_kl_term_is_that_of_its_estimate(estimator: str) -> None:
    """No advantage anywhere: what is left is kl_coefficient times the mean estimate, on every token."""
    config = replace(CONFIG, kl_coefficient=0.5, kl_estimator=estimator, epochs=1, max_grad_norm=1e9)
    batch = replace(make_batch(), advantages=tuple((0.0,) * len(each) for each in make_batch().sampled))
    model, reference = make_model(), make_model()
    with torch.no_grad():
        reference.lm_head.weight += 0.05 * torch.randn_like(reference.lm_head.weight)
    held = score_batch(reference, batch).logp_M.detach()
    log_ratio = held - score_batch(model, batch).logp_M
    estimate = {
        "k1": -log_ratio,
        "k2": log_ratio**2 / 2,
        "k3": log_ratio.exp() - 1 - log_ratio,
    }[estimator]
    (0.5 * estimate.mean()).backward()
    expected = math.sqrt(sum(float(each.square().sum()) for each in gradients_of(model).values()))

    stats = update_policy(model, make_optimizer(model, config), batch, config, reference=reference)

    assert stats.grad_norm == pytest.approx(expected, rel=1e-4)
    assert stats.loss == pytest.approx(0.5 * estimate.mean().item(), rel=1e-4)
    k3 = (log_ratio.exp() - 1 - log_ratio).mean().item()
    assert stats.reference_kl == pytest.approx(k3, rel=1e-4)


def test_at_the_first_step_the_policy_is_its_own_reference() -> None:
    config = replace(CONFIG, kl_coefficient=0.5)

    stats = update_policy(*_model_and_optimizer(config), make_batch(), config, reference=make_model())

    assert stats.reference_kl == 0.0


def test_the_entropy_bonus_raises_the_entropy() -> None:
    """Its gradient is that of minus the mean entropy over all tokens, those without advantage included."""
    config = replace(CONFIG, epochs=1, max_grad_norm=1e9, learning_rate=1e-4)
    batch = replace(make_batch(), advantages=tuple((0.0,) * len(each) for each in make_batch().sampled))
    model = make_model()
    lines = pack(batch, _all_indices(batch), config.microbatch_tokens)
    scores = [score_tokens(model, line, config, entropy_gradient=True) for line in lines]
    entropy = torch.cat([each.entropy_M for each in scores])
    (-0.1 * entropy.mean()).backward()
    expected = math.sqrt(sum(float(each.square().sum()) for each in gradients_of(model).values()))

    stats = update_policy(model, make_optimizer(model, config), batch, config, entropy_bonus=0.1)

    assert stats.grad_norm == pytest.approx(expected, rel=1e-4)
    assert score_batch(model, batch).entropy_M.mean() > entropy.mean()


def test_importance_weights_multiply_the_loss_of_each_token() -> None:
    """The sampler gave every token half the trainer's probability: weight 2, cut at 1.5."""
    config = replace(CONFIG, sample_ahead=True, importance="truncated", importance_cap=1.5)
    batch = make_batch()
    half = score_batch(make_model(), batch).logp_M.detach() - math.log(2)

    stats = update_policy(*_model_and_optimizer(config), replace(batch, sampler_logp_N=half), config)

    assert stats.loss == pytest.approx(-1.5 * (3 * 1.0 - 3 * 0.5 + 2 * 0.25) / 9, rel=1e-5)
    assert stats.importance == pytest.approx(1.5)
    # KL(sampler || trainer) by k3 with r = 2.
    assert stats.stale_kl == pytest.approx(2 - 1 - math.log(2), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"aggregation": "sequence"}, (1.0 - 0.5 + 0.25) / 4),
        ({"aggregation": "constant", "aggregation_tokens": 10}, (3 * 1.0 - 3 * 0.5 + 2 * 0.25) / 40),
    ],
)
def test_the_loss_is_aggregated_as_asked(settings: dict[str, object], expected: float) -> None:
    """Sequences of 3, 3, 2 and 1 tokens with advantages 1, -1/2, 1/4 and 0."""
    config = replace(CONFIG, **settings)  # type: ignore[arg-type]
    whole = update_policy(
        *_model_and_optimizer(config), make_batch(), replace(config, microbatch_tokens=1000)
    )
    pieces = update_policy(*_model_and_optimizer(config), make_batch(), replace(config, microbatch_tokens=1))

    assert whole.loss == pytest.approx(-expected, abs=1e-7)
    assert pieces.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
