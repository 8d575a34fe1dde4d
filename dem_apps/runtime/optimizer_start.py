"""The first optimiser of a process, made without torch's compiler."""

from __future__ import annotations

import sys

from torch.optim import Optimizer

#: The attribute that ``torch._compile`` asks for before it imports the compiler; another torch may ignore it.
_ASKED_FOR = "__dynamo_disable"


def start_without_compiler() -> None:
    """Spare a command that compiles nothing the two seconds in which torch imports ``torch._dynamo``.

    Torch keeps its compiler away from a few methods of optimisers, and imports it at the first call of one to do so.
    Here they are called as they are. A process that has the compiler already is left alone.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None and not hasattr(method, _ASKED_FOR):
            setattr(method, _ASKED_FOR, method)
