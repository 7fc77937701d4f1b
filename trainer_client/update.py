"""One update of the policy from one batch.

The batch passes the model line by line (`trainer_client.collate`), and each process of a run takes its share of the
lines. Every term of the loss is divided by the same number, the sampled tokens of the whole batch, so that neither
split changes anything beyond rounding. Logits exist for sampled tokens only, and for some of them at a time: with
the vocabulary of a real model they would be larger than everything else together.

What is computed for the figures alone is read off every fourth sequence: the entropy and the gap of those that
have no advantage, and so no gradient, and the KL, which takes a pass after the update.
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
from trainer_client.objective import clipped_surrogate, entropy, kl_k3
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
    """Norm of the gradient before clipping, mean over the epochs; 0 where no sequence has an advantage."""
    clip_fraction: float
    """Share of tokens whose ratio was clipped, mean over the epochs."""
    entropy: float
    """Entropy of the policy before the update, in nats; sequences without advantage are represented by a quarter."""
    kl: float
    """Estimate of KL(before || after the update) from a quarter of the sequences, in nats."""
    sampler_gap: float
    """Mean absolute difference between the sampler's log-probability and the trainer's, in nats; over the same
    tokens as the entropy."""
    tokens: int
    """Sampled tokens."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The policy's view of the M sampled tokens of a line, in the order of the line."""

    logp_M: Tensor
    """Log-probability of each token, in nats, float32."""
    entropy_M: Tensor
    """Entropy of the distribution that the token was drawn from, in nats; without gradient."""


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
    model: PreTrainedModel, line: Line, config: RunConfig, chunk_logits: int = CHUNK_LOGITS
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
        scored = [_score(model, config.temperature, *chunk) for chunk in chunks]
    else:
        scored = [
            checkpoint(
                _score, model, config.temperature, *chunk, use_reentrant=False, preserve_rng_state=False
            )
            for chunk in chunks
        ]
    logps, entropies = zip(*scored, strict=True)
    return Scores(logp_M=torch.cat(logps), entropy_M=torch.cat(entropies))


def _score(
    model: PreTrainedModel, temperature: float, hidden_CD: Tensor, targets_C: Tensor
) -> tuple[Tensor, Tensor]:
    logp_CV = torch.log_softmax(logits_of(model, hidden_CD) / temperature, dim=-1)
    return logp_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1), entropy(logp_CV.detach())


def update_policy(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    config: RunConfig,
    world: World = ALONE,
) -> UpdateStats:
    """Takes config.epochs steps of the optimizer on the batch, in place, and returns what was seen on the way.

    The log-probabilities that ratios are taken against are the trainer's own, of the first pass: before the first
    step every ratio is exactly 1. A batch without any advantage leaves weights and optimizer as they are.

    All processes of `world` call it with the same batch and equal weights, and have equal weights and figures
    afterwards. Raises PeerLost when another process ended and ValueError when the gradient is not finite; the weights
    may then be between two steps.
    """
    device = next(model.parameters()).device
    teaching = [index for index, advantage in enumerate(batch.advantages) if advantage != 0.0]
    silent = [index for index, advantage in enumerate(batch.advantages) if advantage == 0.0]
    sample = silent[::FIGURES_EVERY]
    normaliser, advantages_N = batch.token_count, batch.advantages_N.to(device)
    before_N, entropy_N, after_N = torch.zeros(3, normaliser, device=device)

    def lines_of(indices: list[int]) -> list[Line]:
        return [line.to(device) for line in world.share(pack(batch, indices, config.microbatch_tokens))]

    def look(indices: list[int], logp_N: Tensor, entropy_N: Tensor) -> None:
        with torch.no_grad():
            for line in lines_of(indices):
                scores = score_tokens(model, line, config)
                logp_N[line.places_M], entropy_N[line.places_M] = scores.logp_M, scores.entropy_M

    look(sample, before_N, entropy_N)
    lines = lines_of(teaching)
    seen, grad_norms = torch.zeros(config.epochs, 2, dtype=torch.float64, device=device), []
    for epoch in range(config.epochs if teaching else 0):
        optimizer.zero_grad(set_to_none=True)
        for line in lines:
            scores, places_M = score_tokens(model, line, config), line.places_M
            if epoch == 0:
                before_N[places_M], entropy_N[places_M] = scores.logp_M.detach(), scores.entropy_M
            loss, clipped = clipped_surrogate(
                scores.logp_M,
                before_N[places_M],
                advantages_N[places_M],
                config.clip_low,
                config.clip_high,
            )
            (loss / normaliser).backward()
            seen[epoch] += torch.stack((loss.detach(), clipped))
        world.add_gradients(model)
        grad_norms.append(clip_grad_norm_(model.parameters(), config.max_grad_norm).item())
        if not math.isfinite(grad_norms[-1]):
            raise ValueError(
                f"the norm of the gradient is {grad_norms[-1]}: start a run with a lower learning_rate; "
                "the checkpoints so far are good"
            )
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    again = [*teaching[::FIGURES_EVERY], *sample] if teaching else []
    look(again, after_N, torch.empty_like(after_N))
    world.add(before_N, entropy_N, after_N, seen)
    weight_N = _weights(batch, teaching, silent, sample).to(device)
    gap_N = (batch.sampler_logp_N.to(device) - before_N).abs()
    again_N = batch.places_of(again).to(device)
    kl = kl_k3(after_N[again_N], before_N[again_N]).mean().item() if again else 0.0
    losses, clipped_tokens = (seen / normaliser).unbind(dim=1)
    return UpdateStats(
        loss=losses[0].item(),
        grad_norm=sum(grad_norms) / len(grad_norms) if grad_norms else 0.0,
        clip_fraction=clipped_tokens.mean().item(),
        entropy=(weight_N * entropy_N).sum().item() / normaliser,
        kl=kl,
        sampler_gap=(weight_N * gap_N).sum().item() / normaliser,
        tokens=normaliser,
    )


def _weights(batch: Batch, teaching: list[int], silent: list[int], sample: list[int]) -> Tensor:
    """Returns for how many of the N tokens each speaks in a mean over all of them."""
    weight_N = torch.zeros(batch.token_count)
    weight_N[batch.places_of(teaching)] = 1.0
    if sample:
        spoken_for, speaking = batch.places_of(silent), batch.places_of(sample)
        weight_N[speaking] = len(spoken_for) / len(speaking)
    return weight_N
