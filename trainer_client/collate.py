"""From trajectories to tensors.

Shape letters: B sequences, T positions of the longest one, N sampled tokens of the whole batch, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainer_client.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one update, padded on the right."""

    token_ids_BT: Tensor
    """Token ids, int64; 0 where padded."""
    attention_mask_BT: Tensor
    """True where there is a token."""
    policy_mask_BT: Tensor
    """True where the token at this position was sampled by the policy, so only there it is trained."""
    sampler_logp_BT: Tensor
    """The sampler's log-probability of the token in nats, float32; 0 where the policy did not sample."""
    advantages_B: Tensor
    """Advantage of the sequence, float32; every sampled token carries it."""

    @property
    def token_count(self) -> int:
        """The number of sampled tokens, N."""
        return int(self.policy_mask_BT.sum())

    def rows(self, indices: Sequence[int]) -> "Batch":
        """Returns the sequences with these indices, in this order, with no more padding than they need."""
        chosen = torch.as_tensor(indices, dtype=torch.long, device=self.token_ids_BT.device)
        width = int(self.attention_mask_BT[chosen].sum(dim=1).max())
        return Batch(
            token_ids_BT=self.token_ids_BT[chosen, :width],
            attention_mask_BT=self.attention_mask_BT[chosen, :width],
            policy_mask_BT=self.policy_mask_BT[chosen, :width],
            sampler_logp_BT=self.sampler_logp_BT[chosen, :width],
            advantages_B=self.advantages_B[chosen],
        )

    def to(self, device: torch.device) -> "Batch":
        """Returns the batch on a device."""
        return Batch(
            token_ids_BT=self.token_ids_BT.to(device),
            attention_mask_BT=self.attention_mask_BT.to(device),
            policy_mask_BT=self.policy_mask_BT.to(device),
            sampler_logp_BT=self.sampler_logp_BT.to(device),
            advantages_B=self.advantages_B.to(device),
        )


def collate(trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> Batch:
    """Pads trajectories and their advantages into one batch, in the given order.

    Raises ValueError for an empty list, for a sequence that starts with a sampled token (there is nothing to
    predict it from) and where log-probabilities and sampled tokens are not as many.
    """
    if not trajectories:
        raise ValueError("no trajectories to collate")
    tokens, sampled, logps = [], [], []
    for trajectory in trajectories:
        mask = torch.tensor(trajectory.mask, dtype=torch.bool)
        values = torch.tensor(trajectory.logprobs, dtype=torch.float32)
        if mask[0]:
            raise ValueError(
                f"{trajectory.group}/{trajectory.index} starts with a sampled token: it has no prompt"
            )
        if int(mask.sum()) != len(values):
            raise ValueError(
                f"{trajectory.group}/{trajectory.index} has {int(mask.sum())} sampled tokens "
                f"and {len(values)} log-probabilities"
            )
        tokens.append(torch.tensor(trajectory.token_ids, dtype=torch.long))
        sampled.append(mask)
        logps.append(torch.zeros(len(mask)).masked_scatter(mask, values))
    return Batch(
        token_ids_BT=pad_sequence(tokens, batch_first=True),
        attention_mask_BT=pad_sequence([torch.ones_like(mask) for mask in sampled], batch_first=True),
        policy_mask_BT=pad_sequence(sampled, batch_first=True),
        sampler_logp_BT=pad_sequence(logps, batch_first=True),
        advantages_B=torch.tensor(list(advantages), dtype=torch.float32),
    )
