"""One update of the policy from one batch.

The batch passes the model line by line (`trainer_client.collate`), and each process of a run takes its share of the
lines. Every term of the loss is divided by the same number, that of the whole batch, so that neither split changes
anything beyond rounding. Logits exist for sampled tokens only, and for some of them at a time: with
the vocabulary of a real model they would be larger than everything else together.

A sequence without advantage has no gradient, unless a KL divergence from a reference or the entropy is part of the
loss. What is computed for the figures alone is read off every fourth sequence: the entropy and the gap of those that
have no gradient, and the KL of the update, which takes a pass after it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trainer_client.collate import Batch, Line, pack
from trainer_client.config import RunConfig
from trainer_client.distributed import ALONE, World
from trainer_client.models.packed import hidden_states, logits_of
from trainer_client.objective import (
    aggregation,
    clipped_surrogate,
    entropy,
    importance_weights,
    kl_estimate,
)
from trainer_client.optimizer import MasterAdamW

CHUNK_LOGITS = 1 << 24
"""Logits that exist at a time: 64 MiB of them, and a few times that for what is made of them."""
FIGURES_EVERY = 4


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What is read off one update. Means are over the sampled tokens of the batch."""

    loss: float
    """The objective before the first step of the optimizer, sign turned."""
    grad_norm: float
    """Norm of the gradient before clipping, mean over the epochs; 0 where no sequence has a gradient."""
    clip_fraction: float
    """Share of tokens whose ratio was clipped, mean over the epochs."""
    entropy: float
    """Entropy of the policy before the update, in nats; sequences without gradient are represented by a quarter."""
    kl: float
    """Estimate of KL(before || after the update) from a quarter of the sequences, in nats."""
    sampler_gap: float
    """Mean absolute difference between the sampler's log-probability and the trainer's, in nats; over the same
    tokens as the entropy."""
    tokens: int
    """Sampled tokens."""
    reference_kl: float = 0.0
    """Estimate (k3) of KL(before || reference) in nats; 0 without a reference."""
    importance: float = 1.0
    """Mean importance weight of the tokens that have a gradient; 1 where tokens are not weighted."""
    stale_kl: float = 0.0
    """Estimate (k3) of KL(sampler || before) in nats over the tokens that have a gradient: how far the policy has
    moved since it sampled."""


NOTHING_LEARNED = UpdateStats(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
"""Of a step without any sequence to learn from."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The policy's view of the M sampled tokens of a line, in the order of the line."""

    logp_M: Tensor
    """Log-probability of each token, in nats, float32."""
    entropy_M: Tensor
    """Entropy of the distribution that the token was drawn from, in nats; with gradient if that was asked for."""


def make_optimizer(model: PreTrainedModel, config: RunConfig) -> MasterAdamW:
    """Returns AdamW over what is trained of the model: everything, or with LoRA the adapters."""
    return MasterAdamW(
        (parameter for parameter in model.parameters() if parameter.requires_grad),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        foreach=True,
    )


def score_tokens(
    model: PreTrainedModel,
    line: Line,
    config: RunConfig,
    chunk_logits: int = CHUNK_LOGITS,
    *,
    entropy_gradient: bool = False,
) -> Scores:
    """Scores the sampled tokens of a line. The language-model head runs on their states only.

    Where there are more than `chunk_logits` logits they are made in chunks, and again in the backward pass.
    """
    hidden_TD = hidden_states(model, line.token_ids_T, line.positions_T, line.layout)
    rows = max(1, chunk_logits // model.config.get_text_config().vocab_size)
    chunks = list(
        zip(hidden_TD.index_select(0, line.sources_M).split(rows), line.targets_M.split(rows), strict=True)
    )
    if len(chunks) == 1 or not torch.is_grad_enabled():
        scored = [_score(model, config.temperature, entropy_gradient, *chunk) for chunk in chunks]
    else:
        scored = [
            checkpoint(
                _score,
                model,
                config.temperature,
                entropy_gradient,
                *chunk,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for chunk in chunks
        ]
    logps, entropies = zip(*scored, strict=True)
    return Scores(logp_M=torch.cat(logps), entropy_M=torch.cat(entropies))


def _score(
    model: PreTrainedModel, temperature: float, entropy_gradient: bool, hidden_CD: Tensor, targets_C: Tensor
) -> tuple[Tensor, Tensor]:
    logp_CV = torch.log_softmax(logits_of(model, hidden_CD) / temperature, dim=-1)
    return logp_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1), entropy(
        logp_CV if entropy_gradient else logp_CV.detach()
    )


def update_policy(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    config: RunConfig,
    world: World = ALONE,
    *,
    reference: PreTrainedModel | None = None,
    entropy_bonus: float = 0.0,
) -> UpdateStats:
    """Takes config.epochs steps of the optimizer on the batch, in place, and returns what was seen on the way.

    The log-probabilities that ratios are taken against are the trainer's own, of the first pass: before the first
    step every ratio is exactly 1. What lies between them and the sampler's is the matter of importance weights.
    `reference` is the policy that config.kl_coefficient holds on to, and needed where that is above 0. A batch
    without any gradient leaves weights and optimizer as they are.

    All processes of `world` call it with the same batch and equal weights, and have equal weights and figures
    afterwards. Raises PeerLost when another process ended and ValueError when the gradient is not finite; the weights
    may then be between two steps.
    """
    device = next(model.parameters()).device
    regularised = config.kl_coefficient > 0 or entropy_bonus > 0
    everything = range(len(batch.advantages))
    moving = [index for index in everything if regularised or any(batch.advantages[index])]
    silent = [index for index in everything if index not in set(moving)]
    sample = silent[::FIGURES_EVERY]
    tokens, advantages_N = batch.token_count, batch.advantages_N.to(device)
    weights, normaliser = aggregation(
        list(map(len, batch.sampled)), config.aggregation, config.aggregation_tokens
    )
    weight_N = torch.tensor(weights).repeat_interleave(torch.tensor(list(map(len, batch.sampled)))).to(device)
    sampler_logp_N = batch.sampler_logp_N.to(device)
    before_N, entropy_N, after_N, reference_N = torch.zeros(4, tokens, device=device)

    def lines_of(indices: list[int]) -> list[Line]:
        return [line.to(device) for line in world.share(pack(batch, indices, config.microbatch_tokens))]

    def look(
        indices: list[int], logp_N: Tensor, entropy_N: Tensor | None = None, by: PreTrainedModel = model
    ) -> None:
        with torch.no_grad():
            for line in lines_of(indices):
                scores = score_tokens(by, line, config)
                logp_N[line.places_M] = scores.logp_M
                if entropy_N is not None:
                    entropy_N[line.places_M] = scores.entropy_M

    look(sample, before_N, entropy_N)
    lines = lines_of(moving)
    if reference is not None and config.kl_coefficient:
        look(moving, reference_N, by=reference)
    seen, grad_norms = torch.zeros(config.epochs, 2, dtype=torch.float64, device=device), []
    for epoch in range(config.epochs if moving else 0):
        optimizer.zero_grad(set_to_none=True)
        for line in lines:
            scores = score_tokens(model, line, config, entropy_gradient=entropy_bonus > 0)
            places_M = line.places_M
            if epoch == 0:
                before_N[places_M], entropy_N[places_M] = scores.logp_M.detach(), scores.entropy_M.detach()
                if config.importance != "none":
                    weight_N[places_M] *= importance_weights(
                        before_N[places_M],
                        sampler_logp_N[places_M],
                        config.importance,
                        config.importance_cap,
                    )
            loss_M, is_clipped_M = _token_losses(
                scores,
                before_N[places_M],
                reference_N[places_M],
                advantages_N[places_M],
                config,
                entropy_bonus,
            )
            loss = (loss_M * weight_N[places_M]).sum()
            (loss / normaliser).backward()
            seen[epoch] += torch.stack((loss.detach(), is_clipped_M.sum()))
        world.add_gradients(model)
        grad_norms.append(clip_grad_norm_(model.parameters(), config.max_grad_norm).item())
        if not math.isfinite(grad_norms[-1]):
            raise ValueError(
                f"the norm of the gradient is {grad_norms[-1]}: start a run with a lower learning_rate; "
                "the checkpoints so far are good"
            )
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    again = [*moving[::FIGURES_EVERY], *sample] if moving else []
    look(again, after_N)
    world.add(before_N, entropy_N, after_N, reference_N, seen)
    speaks_N = _weights(batch, moving, silent, sample).to(device)
    gap_N = (sampler_logp_N - before_N).abs()

    def kl(logp_N: Tensor, other_logp_N: Tensor, indices: list[int]) -> float:
        places = batch.places_of(indices).to(device)
        return kl_estimate("k3", logp_N[places], other_logp_N[places]).mean().item() if indices else 0.0

    def weight() -> float:
        places = batch.places_of(moving).to(device)
        kind, cap = config.importance, config.importance_cap
        return importance_weights(before_N[places], sampler_logp_N[places], kind, cap).mean().item()

    losses, clipped_tokens = seen.unbind(dim=1)
    return UpdateStats(
        loss=(losses / normaliser)[0].item(),
        grad_norm=sum(grad_norms) / len(grad_norms) if grad_norms else 0.0,
        clip_fraction=(clipped_tokens / tokens).mean().item(),
        entropy=(speaks_N * entropy_N).sum().item() / tokens,
        kl=kl(before_N, after_N, again),
        sampler_gap=(speaks_N * gap_N).sum().item() / tokens,
        tokens=tokens,
        reference_kl=kl(before_N, reference_N, moving) if config.kl_coefficient else 0.0,
        importance=weight() if moving and config.importance != "none" else 1.0,
        stale_kl=kl(sampler_logp_N, before_N, moving),
    )


def _token_losses(
    scores: Scores,
    before_M: Tensor,
    reference_M: Tensor,
    advantages_M: Tensor,
    config: RunConfig,
    entropy_bonus: float,
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token and whether it is clipped."""
    loss_M, is_clipped_M = clipped_surrogate(
        scores.logp_M, before_M, advantages_M, config.clip_low, config.clip_high, config.dual_clip
    )
    if config.kl_coefficient:
        kl_M = kl_estimate(config.kl_estimator, scores.logp_M, reference_M)
        loss_M = loss_M + config.kl_coefficient * kl_M
    if entropy_bonus:
        loss_M = loss_M - entropy_bonus * scores.entropy_M
    return loss_M, is_clipped_M


def _weights(batch: Batch, moving: list[int], silent: list[int], sample: list[int]) -> Tensor:
    """Returns for how many of the N tokens each speaks in a mean over all of them."""
    weight_N = torch.zeros(batch.token_count)
    weight_N[batch.places_of(moving)] = 1.0
    if sample:
        spoken_for, speaking = batch.places_of(silent), batch.places_of(sample)
        weight_N[speaking] = len(spoken_for) / len(speaking)
    return weight_N
