"""AdamW for weights of any precision.

A step of learning rate 1e-6 changes a weight of bfloat16 by less than it can show: rounded into the weight, nearly
all steps would be lost. So weights of fewer bits than float32 have a copy in float32, which takes the steps, and are
the rounded copy after each. Their gradients are float32, too, because they are summed over many microbatches.
For weights in float32 this is torch's AdamW.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import Parameter


class MasterAdamW(torch.optim.AdamW):
    """AdamW over float32 copies of the parameters that are not float32 themselves."""

    def __init__(self, parameters: Iterable[Parameter], **settings: Any) -> None:
        self._trained = list(parameters)
        self._masters = [
            parameter if parameter.dtype == torch.float32 else Parameter(parameter.detach().float())
            for parameter in self._trained
        ]
        for parameter in self._trained:
            parameter.grad_dtype = torch.float32
        super().__init__(self._masters, **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Takes one step with the gradients of the parameters."""
        assert closure is None
        for parameter, master in self._copied():
            master.grad = parameter.grad
        super().step()
        for parameter, master in self._copied():
            master.grad = None
            parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the parameters."""
        for parameter in self._trained:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def read_weights(self) -> None:
        """Goes on from the parameters as they are now, after something else has changed them."""
        for parameter, master in self._copied():
            master.copy_(parameter)

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's state with the copies."""
        return {**super().state_dict(), "masters": [master.detach() for _, master in self._copied()]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state with its copies, and rounds them into the parameters."""
        copies = state_dict.get("masters", [])
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "masters"})
        for (parameter, master), copy in zip(self._copied(), copies, strict=True):
            master.copy_(copy)
            parameter.copy_(master)

    def _copied(self) -> list[tuple[Parameter, Parameter]]:
        return [
            (parameter, master)
            for parameter, master in zip(self._trained, self._masters, strict=True)
            if master is not parameter
        ]
