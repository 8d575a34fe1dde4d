"""The network that is adapted: the parameters that learn, its logits, and its first weights.

Shapes: B images, C classes, H × W elements of an image's logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps.errors import (
    InputError,
    NotFiniteError,
    first_words,
    is_out_of_memory,
    number,
    one_of,
    passed_on,
)
from dem_apps.reduction import all_finite
from dem_apps.test_time_methods.copies import State, Values, deep_copy, in_float32, put_values
from dem_apps.test_time_methods.normalisation import (
    BATCH_NORM,
    affine_parameters,
    flags_of,
    own_statistics,
    set_modes,
)

#: The keys of logits in a mapping, from our networks and torchvision's.
LOGITS_KEYS = ("logits", "main", "out")
#: Kinds of modules that :class:`AdaptedNetwork` refuses.
_NOT_ADAPTED = (torch.jit.ScriptModule, nn.parallel.DistributedDataParallel)


def find_logits(output: Any) -> Tensor:
    """The logits in what a network returned: a tensor, ``.logits``, or a mapping's ``logits``, ``main`` or ``out``."""
    logits = getattr(output, "logits", output)
    if isinstance(logits, Mapping):
        logits = next((logits[key] for key in LOGITS_KEYS if key in logits), None)
    if isinstance(logits, Tensor):
        return logits
    raise InputError(
        f"model: its output is a {type(output).__name__} in which no logits were found (a tensor, .logits, or a key "
        f"of {', '.join(LOGITS_KEYS)}); let it return them, or give an adapter logits_of=, a function for it"
    )


#: Fewest values whose range tells: of two logits both are between 0 and 1 often enough.
_TELLING = 32


def refuse_probabilities(output: Tensor, name: str = "model") -> None:
    """Refuse an output (B, C, …) that is probabilities.

    Softmax is found by its sum, and sigmoids by their range where there are enough values to tell.

    Raises:
        InputError: the output is probabilities.
    """
    values, rounding = output.detach().float(), max(1e-3, 4 * torch.finfo(output.dtype).eps)
    if output.shape[1] > 1 and ((values.sum(1) - 1).abs() <= rounding).all():
        what = "sums to one over the classes"
    elif (
        values.numel() >= _TELLING
        and (values >= 0).all()
        and (values <= 1).all()
        and (values > 0).any()
    ):
        what = "lies between 0 and 1 everywhere"
    else:
        return
    raise InputError(
        f"{name}: its output {what}, so it is probabilities and not logits; take the last softmax or sigmoid out, or "
        "the logits from before it; if these are logits, return them minus 1 (in an adapter's logits_of=, for example)"
    )


def refuse_quantised(model: nn.Module, kind: type[nn.Module] = nn.Module) -> None:
    """Refuse a network with a quantised module of a kind.

    Raises:
        InputError: a module of ``torch.ao.nn.quantized``; the error names it.
    """
    for path, module in model.named_modules():
        place = type(module).__module__
        if isinstance(module, kind) and place.startswith("torch.ao.nn") and "quantized" in place:
            raise InputError(
                f"model: its module '{path}' is quantised ({type(module).__name__}); quantised modules pass no "
                "gradient and hold no parameters that can learn, so use the float network"
            )


def check_finite(what: str, *values: Tensor) -> None:
    """Raises a NotFiniteError, which begins with ``what``, for NaN or infinity; the step that it ends is undone."""
    if not all_finite(values):
        raise NotFiniteError(
            f"{what} is NaN or infinite: the images or the network's weights are, or lr is too high; no weight was "
            "changed by this batch, and reset() goes back to the first weights"
        )


def takes(model: nn.Module, images: Tensor) -> bool:
    """Check that a network takes images (B, 3, H, W) and returns logits of each.

    A copy of the network is tried.
    """
    with suppress(AssertionError, IndexError, RuntimeError, TypeError, ValueError), torch.no_grad():
        return len(find_logits(deep_copy(model)(images))) == len(images)
    return False


class AdaptedNetwork:
    """A network, the parameters of it that learn (none with ``parameters=None``), and a copy of whatever can change."""

    def __init__(
        self,
        model: nn.Module,
        parameters: str | None,
        batch_norm: str,
        logits_of: Callable[[Any], Any],
        bn_alpha: float | None,
    ) -> None:
        if not isinstance(model, nn.Module) or isinstance(model, _NOT_ADAPTED):
            raise InputError(
                f"model: expected an nn.Module with ordinary parameters on one device, got a {type(model).__name__}; "
                "a ScriptModule, a DistributedDataParallel, lazy layers and an exported network cannot be adapted"
            )
        self.batch_norm = one_of("batch_norm", batch_norm, BATCH_NORM)
        if bn_alpha is not None and batch_norm != "batch":
            raise InputError(
                f"bn_alpha: batch norm uses the {batch_norm} statistics here; leave it out"
            )
        if batch_norm == "batch":
            refuse_quantised(model, _BatchNorm)
        self.bn_alpha = None if bn_alpha is None else number("bn_alpha", bn_alpha, 0.0, 1.0)
        self.learning = {} if parameters is None else _chosen(model, parameters)
        self.model = model
        self.logits_of = logits_of
        self._checked = False
        self._stepping = False
        self._flags = flags_of(model)
        model.requires_grad_(False)
        for parameter in self.learning.values():
            parameter.requires_grad_(True)
        #: The optimiser's parameters, which are the ones that learn, or their float32 copies.
        #: See :func:`in_float32`.
        self.weights = in_float32(self.learning)
        pairs = zip(self.learning.values(), self.weights.values(), strict=True)
        self._rounded = [pair for pair in pairs if pair[0] is not pair[1]]
        self._start = self._copies()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Open a step, around forwards and their backward.

        The backward runs layers again under gradient checkpointing.
        """
        with self._statistics(self.model):
            self._stepping = True
            try:
                yield
            finally:
                self._stepping = False

    def _statistics(self, model: nn.Module) -> AbstractContextManager[None]:
        """Let the model's batch norm normalise by the chosen statistics inside."""
        within_step = self._stepping and model is self.model
        if self.batch_norm == "stored" or within_step:
            return nullcontext()
        return own_statistics(model, self.bn_alpha)

    def gradients(self) -> list[Tensor]:
        """The gradients of the weights; those in half precision move to the float32 copies."""
        for parameter, weight in self._rounded:
            if parameter.grad is not None:
                weight.grad, parameter.grad = parameter.grad.float(), None
        return [weight.grad for weight in self.weights.values() if weight.grad is not None]

    @torch.no_grad()
    def write(self) -> None:
        """Write the weights that have moved into the network.

        This matters where the network's own are in half precision.
        """
        for parameter, weight in self._rounded:
            parameter.copy_(weight)
        # else a forward in the same autocast goes by the weights before
        torch.clear_autocast_cache()

    def logits(self, images: Tensor, model: nn.Module | None = None) -> Tensor:
        """Return the network's logits in the modes that adapting needs.

        Args:
            images: (B, …).
            model: another network instead, such as a teacher.

        Returns:
            logits (B, C) or (B, C, H, W).
        """
        model = self.model if model is None else model
        set_modes(model)
        try:
            with self._statistics(model):
                # a clone, since the network may normalise it in place
                output = model(images.clone())
        except (RuntimeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise InputError(
                f"images: the network does not take {images.dtype} of shape {tuple(images.shape)}: {first_words(error)}"
            ) from error
        logits = self.logits_of(output)
        if (
            not isinstance(logits, Tensor)
            or not logits.is_floating_point()
            or logits.ndim not in (2, 4)
        ):
            got = type(logits).__name__
            if isinstance(logits, Tensor):
                got = f"{tuple(logits.shape)} of {logits.dtype}"
            raise InputError(
                f"model: expected logits (B, C) or (B, C, H, W), got {got}; logits_of= may take them out"
            )
        if not self._checked and logits.numel():
            refuse_probabilities(logits)
            self._checked = True
        return logits

    @property
    def start(self) -> Values:
        """The first values of the weights."""
        return self._start["parameters"]

    def reset(self) -> None:
        """The first weights and buffers, bit for bit."""
        self._put(self._start)

    def close(self) -> None:
        """Restore the flags of layers and parameters; the weights stay adapted."""
        for owner, flag, value in self._flags:
            setattr(owner, flag, value)

    def state_dict(self) -> State:
        """The current and the first values."""
        return {"now": self._copies(), "start": self._start}

    def load_state_dict(self, state: State) -> None:
        """Continue from a :meth:`state_dict`.

        The weights that never learn must be the same.
        """
        if state["now"]["parameters"].keys() != self.weights.keys():
            raise InputError(
                "state: its parameters are not those that learn here; use the same model and options"
            )
        self._put(state["now"])
        self._start = state["start"]

    def _copies(self) -> dict[str, Values]:
        """Everything that adapting may change."""
        return {
            "parameters": {name: value.detach().clone() for name, value in self.weights.items()},
            "buffers": {name: value.detach().clone() for name, value in self.model.named_buffers()},
        }

    @torch.no_grad()
    def _put(self, values: dict[str, Values]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(values["parameters"][name])
        self.write()
        put_values(self.model, values["buffers"])


def _chosen(model: nn.Module, parameters: str) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    if parameters == "normalisation":
        chosen = affine_parameters(model)
    else:
        with passed_on(f"parameters: '{parameters}' is no regular expression", re.error, TypeError):
            pattern = re.compile("" if parameters == "all" else parameters)
        chosen = {name: each for name, each in model.named_parameters() if pattern.search(name)}
    if not chosen:
        refuse_quantised(model)
        raise InputError(
            f"parameters: nothing would learn with parameters='{parameters}'; TestTimeAdapter takes "
            "'normalisation' (scale and shift of batch, group, layer, instance or RMS norm), 'all', or a regular "
            "expression over the names of model.named_parameters()"
        )
    return chosen
