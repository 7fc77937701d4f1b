"""Whether the trainer learns what it is meant to learn from a batch.

Updates go through `update_policy` itself, on a copy of the model. What takes one pass over tokens (the gap) is looked
at in as many sequences as GAP_TOKENS allows, spread over the batch; what takes several, some with gradients, in a few:
of each group the one with the highest and the one with the lowest advantage, up to PART_SEQUENCES or PART_TOKENS, those
that teach something first. Where no group does, advantages are made up, 1 and -1 in turn, and the figure says so.

Numbers are held to rounding where they are float32 and one engine makes all of them. With weights of bfloat16, or with
vLLM, single tokens may be far apart where logits are large, and what bounds the harm is the mean.

Shape letter N: the sampled tokens of a batch.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainer_client.collate import Batch, pack
from trainer_client.config import RunConfig
from trainer_client.objective import group_advantages
from trainer_client.preflight.check import Check
from trainer_client.trajectory import Trajectory
from trainer_client.update import make_optimizer, score_tokens, update_policy

GAP_TOKENS = 1 << 12
PART_TOKENS = 1 << 10
PART_SEQUENCES = 16
LEAST_SEQUENCES = 4

MEAN_LIMIT, TOKEN_LIMIT = 1e-4, 1e-3
"""In nats, for float32 in one engine: with SmolLM2 a single token is off by up to 3e-5, with larger logits by more."""
GRADIENT_LIMIT = 1e-4
ROUNDED_MEAN_LIMIT, ROUNDED_TOKEN_LIMIT = 0.02, 1.0
"""In nats, for bfloat16 or two engines: above what rounding comes to (below 0.01), below what a wrong policy does."""
ROUNDED_GRADIENT_LIMIT = 0.1
BALANCE_LIMIT = 1e-6
CORRELATION_LIMIT = 0.1
ONE_LINE = 1 << 30


class Watcher(torch.optim.SGD):
    """Takes no step, and keeps the gradient of the first one that it is asked for."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradient: Tensor | None = None
        super().__init__(self._trained, lr=0.0)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Keeps the gradient."""
        assert closure is None
        if self.gradient is None:
            gradients = [each.grad for each in self._trained if each.grad is not None]
            self.gradient = torch.cat([each.float().flatten() for each in gradients])


def check_trainer(
    model: PreTrainedModel,
    episodes: Sequence[Trajectory],
    batch: Batch,
    config: RunConfig,
    reference: PreTrainedModel | None = None,
) -> list[Check]:
    """Carries out all checks of the trainer on the batch that was made of the episodes."""
    groups = [episode.group for episode in episodes]
    part = choose_part(batch, groups)
    few, source = _subset(batch, part), ""
    if not few.advantages_N.any():
        few, source = (
            with_advantages(few, [(-1.0) ** place for place in range(len(part))]),
            " (advantages made up)",
        )
    silent = group_advantages([0.1] * len(groups), groups, config.advantage)
    # Also the gradients are those of the copy, so that nothing of the policy itself is touched.
    trial = copy.deepcopy(model)
    make_optimizer(trial, config)  # Which says in what numbers gradients are summed.
    return [
        mask(episodes, batch, config),
        gap(model, batch, config),
        balance(episodes, batch, config),
        frozen(model, reference, few, config),
        companions(model, few, config),
        *ratios_and_microbatches(trial, few, config),
        silence(trial, with_advantages(few, [silent[index] for index in part]), config),
        direction(trial, few, config, source),
    ]


def choose_part(batch: Batch, groups: Sequence[str]) -> list[int]:
    """Returns a few sequences, the extremes of each group next to each other."""
    values = [batch.advantages_N[batch.places_of([index])].sum().item() for index in range(len(groups))]
    extremes = []
    for group in dict.fromkeys(groups):
        members = sorted((i for i, name in enumerate(groups) if name == group), key=lambda i: -values[i])
        teaches = values[members[0]] != values[members[-1]]
        extremes.append((not teaches, [members[0], members[-1]][: len(members)]))
    part: list[int] = []
    for index in chain.from_iterable(pair for _, pair in sorted(extremes, key=lambda each: each[0])):
        tokens = sum(len(batch.token_ids[i]) for i in (*part, index))
        if len(part) >= LEAST_SEQUENCES and (tokens > PART_TOKENS or len(part) >= PART_SEQUENCES):
            break
        part.append(index)
    return part


def with_advantages(batch: Batch, values: Sequence[float]) -> Batch:
    """Returns the batch with one advantage for each sequence."""
    each = zip(values, batch.sampled, strict=True)
    return replace(batch, advantages=tuple((value,) * len(sampled) for value, sampled in each))


def mask(episodes: Sequence[Trajectory], batch: Batch, config: RunConfig) -> Check:
    """The tokens that are trained are those of the policy's turns, from the batch down to the lines."""
    places: list[tuple[int, int]] = []
    sampled: list[int] = []
    wrong = 0
    for index, episode in enumerate(episodes):
        ids = list(episode.prompt_ids)
        for turn in episode.turns:
            places += ((index, len(ids) + number) for number in range(len(turn.action_ids)))
            sampled += turn.action_ids
            ids += (*turn.action_ids, *turn.observation_ids)
        wrong += tuple(ids) != batch.token_ids[index]
    trained = [(index, place) for index, sequence in enumerate(batch.sampled) for place in sequence]
    wrong += len(set(places) ^ set(trained))
    wrong += [batch.token_ids[index][place] for index, place in trained] != sampled
    logprobs = torch.tensor(
        [value for episode in episodes for turn in episode.turns for value in turn.logprobs]
    )
    wrong += not torch.equal(logprobs, batch.sampler_logp_N)
    if not wrong:
        wrong = _misplaced(batch, trained, config)
    return Check("mask", not wrong, f"{int(wrong)} mismatches in {len(places)} tokens", "0")


def gap(model: PreTrainedModel, batch: Batch, config: RunConfig) -> Check:
    """Sampler and trainer give each token the same log-probability."""
    every = math.ceil(sum(map(len, batch.token_ids)) / GAP_TOKENS)
    some = range(0, len(batch.token_ids), every)
    gap_N = (
        score(model, batch, some, config.microbatch_tokens, config)
        - batch.sampler_logp_N[batch.places_of(some)]
    ).abs()
    exact = config.dtype == "float32" and config.sampler == "transformers"
    return _near("gap", gap_N, exact)


def balance(episodes: Sequence[Trajectory], batch: Batch, config: RunConfig) -> Check:
    """The advantages of a group cancel out; where credit is given by turn, those of each turn."""
    by_baseline: dict[tuple[str, int], list[float]] = {}
    for index, episode in enumerate(episodes):
        values = batch.advantages_N[batch.places_of([index])].tolist()
        for number, turn in enumerate(episode.turns if config.credit == "turn" else episode.turns[:1]):
            by_baseline.setdefault((episode.group, number), []).append(values[0])
            values = values[len(turn.action_ids) :]
    largest = max(abs(sum(values) / len(values)) for values in by_baseline.values())
    return Check(
        "advantages", largest <= BALANCE_LIMIT, f"mean {largest:.0e} in a group", f"{BALANCE_LIMIT:.0e}"
    )


def frozen(model: PreTrainedModel, reference: PreTrainedModel | None, few: Batch, config: RunConfig) -> Check:
    """The reference is the policy as it starts, and stays so. Without one, the policy is compared with itself."""
    some = range(min(len(few.token_ids), LEAST_SEQUENCES))
    policy_N, other_N = (
        score(each, few, some, config.microbatch_tokens, config) for each in (model, reference or model)
    )
    largest = (policy_N - other_N).abs().max().item()
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    parameters = list(reference.parameters()) if reference is not None else []
    shared = sum(each.untyped_storage().data_ptr() in own for each in parameters)
    learning = sum(each.requires_grad for each in parameters)
    found = f"{shared} weights shared, {learning} can learn" if reference is not None else "no reference kept"
    return Check(
        "reference",
        largest == 0.0 and not shared and not learning,
        f"{largest:.0e} nats from the policy, {found}",
        "0",
    )


def companions(model: PreTrainedModel, few: Batch, config: RunConfig) -> Check:
    """A sequence has the same log-probabilities alone and on a line with others."""
    everything = range(len(few.token_ids))
    alone_N, together_N = (score(model, few, everything, tokens, config) for tokens in (1, ONE_LINE))
    return _near("companions", (alone_N - together_N).abs(), config.dtype == "float32")


def ratios_and_microbatches(trial: PreTrainedModel, few: Batch, config: RunConfig) -> list[Check]:
    """Without a step every ratio is 1, and the gradient is that of the batch, however it is split."""
    # A clip of no width at all counts each token whose ratio is not exactly 1, on the side that is clipped.
    bare = _bare(config, max_grad_norm=1e30)
    first, second = Watcher(trial), Watcher(trial)
    stats = update_policy(trial, first, few, replace(bare, epochs=2, clip_low=1e-12, clip_high=1e-12))
    off = round(stats.clip_fraction * 2 * stats.tokens)
    everything = range(len(few.token_ids))
    whole = len(pack(few, everything, config.microbatch_tokens)) < len(few.token_ids)
    update_policy(trial, second, few, replace(bare, epochs=1, microbatch_tokens=1 if whole else ONE_LINE))
    assert first.gradient is not None
    assert second.gradient is not None
    difference = ((first.gradient - second.gradient).norm() / first.gradient.norm()).item()
    limit = GRADIENT_LIMIT if config.dtype == "float32" else ROUNDED_GRADIENT_LIMIT
    return [
        Check(
            "ratios",
            off == 0,
            f"{off} of {2 * stats.tokens} are not 1",
            "0",
        ),
        Check(
            "microbatches",
            difference <= limit,
            f"gradient differs by {difference:.0e}",
            f"{limit:.0e}",
        ),
    ]


def silence(trial: PreTrainedModel, few: Batch, config: RunConfig) -> Check:
    """Where all rewards of a group are equal there is nothing to learn."""
    watcher = Watcher(trial)
    update_policy(trial, watcher, few, _bare(config, epochs=1))
    largest = 0.0 if watcher.gradient is None else watcher.gradient.abs().max().item()
    return Check("silent groups", largest == 0.0, f"largest gradient {largest:.0e}", "0")


def direction(trial: PreTrainedModel, few: Batch, config: RunConfig, source: str) -> Check:
    """An update raises what did better than its group and lowers what did worse. Leaves the copy changed.

    By the means of sequences: single tokens are pulled up and down by all sequences that begin like theirs.
    """
    everything = range(len(few.token_ids))
    before_N = score(trial, few, everything, config.microbatch_tokens, config)
    update_policy(trial, make_optimizer(trial, config), few, _bare(config, epochs=1))
    moved_N = score(trial, few, everything, config.microbatch_tokens, config) - before_N
    means = [
        [values_N[few.places_of([index])].mean().item() for index in everything]
        for values_N in (few.advantages_N, moved_N)
    ]
    correlation = torch.corrcoef(torch.tensor(means))[0, 1].nan_to_num().item()
    return Check(
        "direction",
        correlation >= CORRELATION_LIMIT,
        f"correlation {correlation:.2f}{source}",
        f"{CORRELATION_LIMIT}",
    )


def score(
    model: PreTrainedModel, batch: Batch, indices: Sequence[int], line_tokens: int, config: RunConfig
) -> Tensor:
    """Returns the log-probabilities of the sampled tokens of some sequences, one sequence after the other."""
    logp_N = torch.zeros(batch.token_count)
    with torch.no_grad():
        for line in pack(batch, indices, line_tokens):
            scores = score_tokens(model, line.to(model.device), config)
            logp_N[line.places_M] = scores.logp_M.cpu()
    return logp_N[batch.places_of(indices)]


def _subset(batch: Batch, indices: Sequence[int]) -> Batch:
    return Batch(
        token_ids=tuple(batch.token_ids[index] for index in indices),
        sampled=tuple(batch.sampled[index] for index in indices),
        advantages=tuple(batch.advantages[index] for index in indices),
        sampler_logp_N=batch.sampler_logp_N[batch.places_of(indices)],
    )


def _misplaced(batch: Batch, trained: Sequence[tuple[int, int]], config: RunConfig) -> int:
    """Counts the tokens that are not on exactly one line, behind what they follow in their sequence."""
    token_N, before_N, position_N = torch.tensor(
        [
            (batch.token_ids[index][place], batch.token_ids[index][place - 1], place - 1)
            for index, place in trained
        ]
    ).T
    seen_N, wrong = torch.zeros(len(trained), dtype=torch.long), 0
    for line in pack(batch, range(len(batch.token_ids)), config.microbatch_tokens):
        seen_N[line.places_M] += 1
        wrong_M = line.targets_M != token_N[line.places_M]
        wrong_M |= line.token_ids_T[line.sources_M] != before_N[line.places_M]
        wrong_M |= line.positions_T[line.sources_M] != position_N[line.places_M]
        wrong += int(wrong_M.sum())
    return wrong + int((seen_N != 1).sum())


def _near(name: str, difference_N: Tensor, exact: bool) -> Check:
    largest, mean = difference_N.max().item(), difference_N.mean().item()
    mean_limit = MEAN_LIMIT if exact else ROUNDED_MEAN_LIMIT
    limit = TOKEN_LIMIT if exact else ROUNDED_TOKEN_LIMIT
    return Check(
        name,
        mean <= mean_limit and largest <= limit,
        f"{mean:.0e} nats, at most {largest:.0e}",
        f"{mean_limit:g}, at most {limit:g}",
    )


def _bare(config: RunConfig, **changes: Any) -> RunConfig:
    """Returns the settings with the terms of the loss that come from the advantage alone, and the default clip."""
    default = RunConfig()
    return replace(
        config,
        importance="none",
        importance_cap=default.importance_cap,
        kl_coefficient=0.0,
        kl_estimator=default.kl_estimator,
        entropy_bonus=0.0,
        entropy_target=0.0,
        entropy_step=default.entropy_step,
        clip_low=default.clip_low,
        clip_high=default.clip_high,
        dual_clip=default.dual_clip,
        **changes,
    )
