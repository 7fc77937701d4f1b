"""Several processes on one machine that make one run: `torchrun --nproc-per-node 2 -m trainer_client.run ...`.

Each process plays its share of the groups and takes its share of the lines of an update. Everything else they do
alike: trajectories are gathered in the order of the groups, gradients are summed, and from equal values each takes
the same step, so that weights and figures are the same in all of them. Only the first one writes files and talks.

Objects and figures go over gloo, gradients over nccl where the model is on GPUs. A process that ends is noticed by
the others at once, because its connections close; one that hangs is noticed after TIMEOUT.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from trainer_client.gym import GymClient
from trainer_client.models.policy import Policy
from trainer_client.rollout import GroupSpec, Played, RolloutSettings, play_groups

TIMEOUT = timedelta(hours=1)
"""As long as one process may play or make a starting policy while the others wait."""
CLOSING = timedelta(seconds=30)
"""How long the first process has for its last words once another one is through."""
BUCKET_ELEMENTS = 1 << 24

T = TypeVar("T")


class PeerLost(Exception):
    """Another process of the run ended or hangs, so this one cannot go on."""

    def __init__(self, reason: object) -> None:
        super().__init__(
            f"Another process of this run ended or does not answer ({reason}). Its own message says why; "
            "once that is repaired, the run goes on from its last checkpoint with --resume."
        )


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run, and which of them this one is."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Returns this process's part: together the processes have each item once."""
        return list(items[self.rank :: self.size])

    async def gather(self, mine: T) -> list[T]:
        """Returns what each process gave, in their order. Waits for all of them."""
        if self.size == 1:
            return [mine]
        everyones: list[T] = [mine] * self.size
        # In a thread, so that meanwhile leases are renewed and Ctrl-C is heard.
        await asyncio.to_thread(_or_peer_lost, dist.all_gather_object, everyones, mine)
        return everyones

    async def from_first(self, mine: T) -> T:
        """Returns what the first process gave."""
        return (await self.gather(mine))[0]

    def add(self, *tensors: Tensor) -> None:
        """Replaces each tensor by its sum over the processes, which is the same in all of them to the last bit."""
        if self.size > 1:
            for tensor in tensors:
                _or_peer_lost(dist.all_reduce, tensor)

    def add_gradients(self, model: nn.Module) -> None:
        """Replaces each gradient by its sum over the processes, many in one message."""
        if self.size == 1:
            return
        bucket: list[Tensor] = []
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # This process had no line.
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
            bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET_ELEMENTS:
                self._add_flattened(bucket)
                bucket = []
        if bucket:
            self._add_flattened(bucket)

    def _add_flattened(self, bucket: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        self.add(flat)
        for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(summed.view_as(tensor))


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """Joins the processes that torchrun started; without it, or for one process, there is nobody to join."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        # Connections are made one side after the other: who is through and leaves would break those of the others.
        _or_peer_lost(dist.all_reduce, torch.zeros(1))
        yield World(rank, size)
    finally:
        # Whoever waits for this process learns now that it will not come. torchrun ends all processes when one
        # has failed; the first one is given the time to save and to report before that.
        with suppress(RuntimeError):
            dist.destroy_process_group()
        with suppress(RuntimeError):
            if rank == 0:
                store.set("first-is-through", "")
            else:
                store.wait(["first-is-through"], CLOSING)


async def play_together(
    world: World, gym: GymClient, policy: Policy, groups: Sequence[GroupSpec], settings: RolloutSettings
) -> Played:
    """Plays the groups, each process its share, and returns in each process what all of them played.

    The timing is this process's own; what it waited for the others it waited for the gym.
    """
    mine = await play_groups(gym, policy, world.share(groups), settings)
    if world.size == 1:
        return mine
    parts = await world.gather(mine)
    order = {spec.group: place for place, spec in enumerate(groups)}
    trajectories = [each for part in parts for each in part.trajectories]
    return replace(
        mine,
        trajectories=sorted(trajectories, key=lambda each: (order[each.group], each.index)),
        lost=sum(part.lost for part in parts),
        replayed=sum(part.replayed for part in parts),
    )


def _or_peer_lost(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except RuntimeError as error:
        raise PeerLost(error) from error
