"""Supervised learning from episodes: the model learns to say what the policy of an episode said.

A microbatch passes the model as one packed line in which the beginning that its episodes share is laid out once, and
the language-model head runs only where something is learned. Every term is divided by what the whole batch of a step
has of its kind, so that the split into microbatches changes nothing beyond rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from trainer_client.distributed import ALONE, World
from trainer_client.models.packed import SharedPrefix, common_length, hidden_states, logits_of
from trainer_client.optimizer import MasterAdamW
from trainer_client.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SupervisedSettings:
    """How a model learns from episodes."""

    seed: int
    """Fixes which episodes make which step."""
    steps: int
    batch_size: int
    """Episodes per step."""
    learning_rate: float
    """At its highest; falls to 0 in a straight line."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises to that line."""
    foresight: float = 0.0
    """Weight of the loss on observations next to that on the policy's own ids, both as means."""
    max_grad_norm: float = 1.0
    microbatch_tokens: int = 1 << 14
    """Tokens that pass the model at once."""


@dataclass(frozen=True, slots=True)
class SupervisedStep:
    """What one step came to."""

    step: int
    """From 1."""
    loss: float
    """Mean over the policy's ids, before the step, in nats."""
    tokens: int
    """The policy's ids that were learned from."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Line:
    """A microbatch, laid out."""

    token_ids_T: Tensor
    positions_T: Tensor
    layout: SharedPrefix
    predicting_N: Tensor
    """Where in the line something is predicted that can be learned from."""
    targets_N: Tensor
    """The ids that follow there."""
    said_N: Tensor
    """Which of them the policy said; the others are observations."""


def supervise(
    model: PreTrainedModel,
    episodes: Sequence[Trajectory],
    settings: SupervisedSettings,
    world: World = ALONE,
) -> Iterator[SupervisedStep]:
    """Trains the model in place, a step each time that the next one is asked for."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = MasterAdamW(parameters, lr=settings.learning_rate, weight_decay=0.0)
    draw = Random(settings.seed)
    for step in range(settings.steps):
        started = perf_counter()
        chosen = draw.sample(episodes, min(settings.batch_size, len(episodes)))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _rate(step, settings)
        optimizer.zero_grad(set_to_none=True)
        loss = add_gradient(model, chosen, settings.foresight, settings.microbatch_tokens, world)
        clip_grad_norm_(parameters, settings.max_grad_norm)
        optimizer.step()
        tokens = sum(len(turn.action_ids) for episode in chosen for turn in episode.turns)
        yield SupervisedStep(step + 1, loss, tokens, perf_counter() - started)
    optimizer.zero_grad(set_to_none=True)


def _rate(step: int, settings: SupervisedSettings) -> float:
    falling = 1 - step / settings.steps
    return min((step + 1) / (settings.warmup_steps + 1), falling)


def add_gradient(
    model: PreTrainedModel,
    episodes: Sequence[Trajectory],
    foresight: float,
    microbatch_tokens: int,
    world: World = ALONE,
) -> float:
    """Adds the gradient of the loss over these episodes to the model's; returns the loss on the policy's ids.

    Each process of `world` takes its share of the microbatches, and all have the sums.
    """
    said = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
    answered = sum(len(turn.observation_ids) for episode in episodes for turn in episode.turns)
    total = torch.zeros((), device=model.device)
    for piece in world.share(_split(episodes, microbatch_tokens)):
        line = _lay_out(piece, with_observations=foresight > 0, device=model.device)
        hidden_TD = hidden_states(model, line.token_ids_T, line.positions_T, line.layout)
        loss_N = cross_entropy(
            logits_of(model, hidden_TD[line.predicting_N]), line.targets_N, reduction="none"
        )
        own = loss_N[line.said_N].sum() / said
        other = loss_N[~line.said_N].sum() / max(answered, 1)
        (own + foresight * other).backward()
        total += own.detach()
    world.add_gradients(model)
    world.add(total)
    return total.item()


def _split(episodes: Sequence[Trajectory], microbatch_tokens: int) -> list[list[Trajectory]]:
    """Splits episodes into microbatches of at most so many tokens; one that has more is alone."""
    shared = _shared_length(episodes)
    pieces: list[list[Trajectory]] = []
    room = 0
    for episode in episodes:
        own = len(episode.token_ids) - shared
        if not pieces or own > room:
            pieces.append([])
            room = microbatch_tokens - shared
        pieces[-1].append(episode)
        room -= own
    return pieces


def _shared_length(episodes: Sequence[Trajectory]) -> int:
    """The ids at the beginning that all have, without the last one of a prompt, which predicts what was said."""
    return common_length([episode.prompt_ids[:-1] for episode in episodes])


def _lay_out(episodes: Sequence[Trajectory], *, with_observations: bool, device: torch.device) -> _Line:
    shared = _shared_length(episodes)
    ids, positions = list(episodes[0].prompt_ids[:shared]), list(range(shared))
    lengths, predicting, targets, said = [], [], [], []
    for episode in episodes:
        offset = len(ids) - shared
        own, mask = episode.token_ids, episode.mask
        for place in range(len(episode.prompt_ids), len(own)):
            if mask[place] or with_observations:
                predicting.append(offset + place - 1)
                targets.append(own[place])
                said.append(mask[place])
        ids += own[shared:]
        positions += range(shared, len(own))
        lengths.append(len(own) - shared)
    return _Line(
        token_ids_T=torch.tensor(ids, device=device),
        positions_T=torch.tensor(positions, device=device),
        layout=SharedPrefix(shared, tuple(lengths)),
        predicting_N=torch.tensor(predicting, device=device),
        targets_N=torch.tensor(targets, device=device),
        said_N=torch.tensor(said, device=device),
    )
