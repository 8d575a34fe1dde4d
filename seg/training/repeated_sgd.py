"""SGD that moves a parameter several times with one gradient, as ADVENT's does without saying so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RepeatedSGD(torch.optim.Optimizer):
    """The numbers of ``torch.optim.SGD`` over a group that lists each of its parameters ``repeats`` times.

    ADVENT (Vu et al., CVPR 2019) hands its encoder to SGD module by module, and a convolution once for every module
    that it is in. SGD goes through the list, so each repetition decays the weights again, adds the same gradient to
    the momentum again and takes a step of its own. In the first step every repetition begins with a momentum of its
    own, as in PyTorch's loop since 1.7. PyTorch warns that it is going to refuse a list with repetitions itself.

    ``repeats`` of a group is 1 unless it says otherwise; the other settings are those of ``torch.optim.SGD``.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = RepeatedSGD([{"params": [weight], "repeats": 3}], lr=0.1, momentum=0.9, weight_decay=0.0)
    >>> weight.grad = torch.ones(1)
    >>> optimizer.step()
    >>> weight.data  # three steps of 0.1
    tensor([-0.3000])
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "repeats": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """All repetitions of every group."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._step_group(group, weights)
        return loss

    def _step_group(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        known = [self.state[weight].get("momentum_buffer") for weight in weights]
        for _ in range(group["repeats"]):
            moves = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
            if group["momentum"]:
                moves = [
                    move if velocity is None else velocity.mul_(group["momentum"]).add_(move)
                    for move, velocity in zip(moves, known, strict=True)
                ]
                for weight, velocity in zip(weights, moves, strict=True):
                    self.state[weight]["momentum_buffer"] = velocity
            torch._foreach_add_(weights, moves, alpha=-group["lr"])
