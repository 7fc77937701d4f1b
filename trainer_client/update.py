"""One update of the policy from one batch.

The batch passes the model in microbatches of sequences of like length. Every term of the loss is divided by the
same number, the sampled tokens of the whole batch, so that the split changes nothing beyond rounding. Sequences
without an advantage have no gradient: they are scored for the figures and never passed backward.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from trainer_client.collate import Batch
from trainer_client.config import RunConfig
from trainer_client.objective import clipped_surrogate, entropy, kl_k3
from trainer_client.optimizer import MasterAdamW


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
    """Entropy of the policy before the update, in nats."""
    kl: float
    """Estimate of KL(before || after the update), in nats."""
    sampler_gap: float
    """Mean absolute difference between the sampler's log-probability and the trainer's, in nats."""
    tokens: int
    """Sampled tokens."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The policy's view of the N sampled tokens of a batch, row by row."""

    logp_N: Tensor
    """Log-probability of each token, in nats."""
    entropy_N: Tensor
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


def score_tokens(model: PreTrainedModel, batch: Batch, temperature: float) -> Scores:
    """Scores the sampled tokens of a batch. The language-model head runs on their positions only.

    No attention mask is passed: padding is on the right, and a causal model looks only to the left.
    """
    hidden_BTD = model.base_model(input_ids=batch.token_ids_BT, use_cache=False).last_hidden_state
    # The token at position t is predicted at t - 1.
    wanted_N = batch.policy_mask_BT[:, 1:].flatten().nonzero().squeeze(1)
    hidden_ND = hidden_BTD[:, :-1].flatten(0, 1).index_select(0, wanted_N)
    token_ids_N = batch.token_ids_BT[:, 1:].flatten().index_select(0, wanted_N)
    logp_NV = torch.log_softmax(model.get_output_embeddings()(hidden_ND).float() / temperature, dim=-1)
    return Scores(
        logp_N=logp_NV.gather(1, token_ids_N.unsqueeze(1)).squeeze(1),
        entropy_N=entropy(logp_NV.detach()),
    )


def split(batch: Batch, indices: list[int], microbatch_tokens: int) -> list[Batch]:
    """Splits the sequences with these indices into microbatches of at most so many tokens, padding included.

    Sequences of like length share a microbatch; equal lengths keep their order. A sequence that is longer than the
    limit gets a microbatch of its own.
    """
    length = batch.attention_mask_BT.sum(dim=1).tolist()
    pieces: list[list[int]] = []
    for index in sorted(indices, key=lambda index: (-length[index], index)):
        # The first of a microbatch is its longest.
        if pieces and length[pieces[-1][0]] * (len(pieces[-1]) + 1) <= microbatch_tokens:
            pieces[-1].append(index)
        else:
            pieces.append([index])
    return [batch.rows(piece) for piece in pieces]


def update_policy(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Batch, config: RunConfig
) -> UpdateStats:
    """Takes config.epochs steps of the optimizer on the batch, in place, and returns what was seen on the way.

    The log-probabilities that ratios are taken against are the trainer's own, of the first pass: before the first
    step every ratio is exactly 1. A batch without any advantage leaves weights and optimizer as they are.
    """
    batch = batch.to(next(model.parameters()).device)
    advantages = batch.advantages_B.tolist()
    teaching = split(
        batch, [i for i, advantage in enumerate(advantages) if advantage != 0.0], config.microbatch_tokens
    )
    silent = split(
        batch, [i for i, advantage in enumerate(advantages) if advantage == 0.0], config.microbatch_tokens
    )
    normaliser = batch.token_count

    with torch.no_grad():
        silent_before = [score_tokens(model, piece, config.temperature) for piece in silent]
    before: list[Scores] = []
    losses, clipped, grad_norms = [], 0.0, []
    for epoch in range(config.epochs if teaching else 0):
        optimizer.zero_grad(set_to_none=True)
        losses.append(0.0)
        for place, piece in enumerate(teaching):
            scores = score_tokens(model, piece, config.temperature)
            if epoch == 0:
                before.append(Scores(scores.logp_N.detach(), scores.entropy_N))
            advantages_N = piece.advantages_B.repeat_interleave(piece.policy_mask_BT.sum(dim=1))
            loss, clipped_tokens = clipped_surrogate(
                scores.logp_N, before[place].logp_N, advantages_N, config.clip_low, config.clip_high
            )
            (loss / normaliser).backward()
            losses[-1] += loss.item() / normaliser
            clipped += clipped_tokens.item() / normaliser / config.epochs
        grad_norms.append(clip_grad_norm_(model.parameters(), config.max_grad_norm).item())
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    pieces, scored = [*teaching, *silent], [*before, *silent_before]
    with torch.no_grad():
        after = [score_tokens(model, piece, config.temperature) for piece in pieces] if teaching else scored
    kl = sum(kl_k3(new.logp_N, old.logp_N).sum().item() for new, old in zip(after, scored, strict=True))
    gap = sum(
        (piece.sampler_logp_BT[piece.policy_mask_BT] - scores.logp_N).abs().sum().item()
        for piece, scores in zip(pieces, scored, strict=True)
    )
    return UpdateStats(
        loss=losses[0] if losses else 0.0,
        grad_norm=sum(grad_norms) / len(grad_norms) if grad_norms else 0.0,
        clip_fraction=clipped,
        entropy=sum(scores.entropy_N.sum().item() for scores in scored) / normaliser,
        kl=kl / normaliser,
        sampler_gap=gap / normaliser,
        tokens=normaliser,
    )
