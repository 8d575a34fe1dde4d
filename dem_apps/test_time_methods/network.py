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
from torch.func import functional_call

from dem_apps.errors import InputError, NotFiniteError, first_words, number, one_of, passed_on, warn
from dem_apps.reduction import all_finite
from dem_apps.test_time_methods.copies import deep_copy, in_float32, make_adaptable, put_values
from dem_apps.test_time_methods.normalisation import (
    BATCH_NORM,
    affine_parameters,
    flags_of,
    own_statistics,
    set_modes,
)

#: Where logits are looked for in a mapping: our networks, and torchvision's.
LOGITS_KEYS = ("logits", "main", "out")
#: Parts of torch's messages, and the sentences for them.
_TORCH_SAYS = {
    (
        "type (",
        "scalar type",
        "same dtype",
        "channels, but got",
        "D input (got",
        "cannot be multiplied",
    ): "images: the network does not take {0.dtype} of shape {1}; give what it was trained on, mostly normalised "
    "floats (B, C, H, W) of its dtype ({2})",
    (
        "Inference tensors cannot",
    ): "model: it keeps tensors that were made under torch.inference_mode(), which torch cannot learn with; make the "
    "network anew, and predict under torch.no_grad() before it is adapted",
    (
        "more than 1 value per channel",
    ): "images: a batch norm got a single value per channel, which has no variance; give at least two at a time",
}


def find_logits(output: Any) -> Any:
    """The logits in what a network returned: a tensor, ``.logits``, or a mapping's ``logits``, ``main`` or ``out``."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    for key in LOGITS_KEYS:
        if isinstance(output, Mapping) and key in output:
            return output[key]
    raise InputError(
        f"model: its output is a {type(output).__name__} in which no logits were found (a tensor, .logits, or a key "
        f"of {', '.join(LOGITS_KEYS)}); give logits_of=, a function that takes them out"
    )


def refuse_probabilities(
    output: Tensor,
    name: str = "model",
    remedy: str = "if these are logits, give logits_of=lambda output: output - 1",
) -> None:
    """Raises an InputError for an output (B, C, …) of softmax, by its sum, or of sigmoids, by its range."""
    values, rounding = output.detach().float(), max(1e-3, 4 * torch.finfo(output.dtype).eps)
    softmax = output.shape[1] > 1 and bool(((values.sum(1) - 1).abs() <= rounding).all())
    if softmax or bool((values >= 0).all() and (values <= 1).all() and (values > 0).any()):
        what = "sums to one over the classes" if softmax else "lies between 0 and 1 everywhere"
        raise InputError(
            f"{name}: its output {what}, so it is probabilities and not logits; take the last "
            f"{'softmax' if softmax else 'sigmoid'} out, or the logits from before it; {remedy}"
        )


def check_finite(what: str, *values: Tensor) -> None:
    """Raises a NotFiniteError, which begins with ``what``, for NaN or infinity; the step that it ends is undone."""
    if not all_finite(values):
        raise NotFiniteError(
            f"{what} is NaN or infinite: the images or the network's weights are, or lr is too high; no weight was "
            "changed by this batch, and reset() goes back to the first weights"
        )


def takes(model: nn.Module, images: Tensor) -> bool:
    """Whether a network takes (B, 3, H, W) images, and returns logits of each; tried on a copy."""
    with suppress(AssertionError, IndexError, RuntimeError, TypeError, ValueError), torch.no_grad():
        return len(find_logits(deep_copy(model)(images))) == len(images)
    return False


class AdaptedNetwork:
    """A network, the parameters of it that learn (none with ``parameters=None``), and a copy of whatever can change."""

    def __init__(
        self,
        model: nn.Module,
        parameters: str | None,
        skip: str | None,
        batch_norm: str,
        logits_of: Callable[[Any], Any],
        bn_alpha: float | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.batch_norm = one_of("batch_norm", batch_norm, BATCH_NORM)
        if bn_alpha is not None and batch_norm != "batch":
            raise InputError(
                f"bn_alpha: batch norm uses the {batch_norm} statistics here; leave it out"
            )
        self.bn_alpha = None if bn_alpha is None else number("bn_alpha", bn_alpha, 0.0, 1.0)
        make_adaptable(model)
        self.learning = {} if parameters is None else _chosen(model, parameters, skip)
        self.model, self.logits_of, self._seen, self._stepping = model, logits_of, False, False
        own = {id(each) for each in self.learning.values()}
        self._fixed = [
            (id(each), each._version) for each in model.parameters() if id(each) not in own
        ]
        self._flags = flags_of(model)
        self.freeze()
        #: The optimiser's: the parameters that learn, or their float32 copies, see :func:`in_float32`.
        self.weights = in_float32(self.learning)
        pairs = zip(self.learning.values(), self.weights.values(), strict=True)
        self._in_half = [
            (parameter, weight) for parameter, weight in pairs if weight is not parameter
        ]
        apart = max(
            (torch.finfo(parameter.dtype).eps for parameter, _ in self._in_half), default=0.0
        )
        if apart:
            warn(
                f"model: its numbers above 1 are {apart:.1g} apart; what learns is kept in float32, and less shows "
                "once it adds up, or at once in a float32 network under torch.autocast"
            )
        self._in_float16 = any(parameter.dtype == torch.float16 for parameter in model.parameters())
        #: whether it normalises its input in place; None is not known yet
        self._writes_images: bool | None = None
        self.used_float16 = False  #: whether the last forward was, or in part
        self._start = self._copies()

    def freeze(self) -> None:
        """Only the parameters that learn require gradients."""
        self.model.requires_grad_(False)
        for parameter in self.learning.values():
            parameter.requires_grad_(True)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around forwards and their backward, which runs layers again under gradient checkpointing."""
        with self._statistics(self.model):
            self._stepping = True
            try:
                yield
            finally:
                self._stepping = False

    def _statistics(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within, batch norm of the model normalises as it should."""
        own = self.batch_norm == "batch" and not (self._stepping and model is self.model)
        return own_statistics(model, self.bn_alpha) if own else nullcontext()

    @torch.no_grad()
    def _read(self) -> None:
        """Take over half precision weights that were written from outside since, such as a checkpoint's."""
        for parameter, weight in self._in_half:
            if not torch.equal(weight.to(parameter.dtype), parameter):
                weight.copy_(parameter)

    @torch.no_grad()
    def write(self) -> None:
        """Called when the weights have moved: the network's own follow where they are in half precision."""
        for parameter, weight in self._in_half:
            parameter.copy_(weight)
        # else a forward in the same autocast goes by the weights before
        torch.clear_autocast_cache()

    def take_gradients(self, factor: float) -> list[Tensor]:
        """The weights' gradients, of a loss that was multiplied by ``factor``."""
        for parameter, weight in self._in_half:
            if parameter.grad is not None:
                own, parameter.grad = parameter.grad.float(), None
                # a penalty's is there already
                weight.grad = own if weight.grad is None else weight.grad + own
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        for gradient in gradients if factor != 1.0 else ():
            gradient /= factor
        return gradients

    def first_logits(self, images: Tensor) -> Tensor:
        """The logits of the first weights."""
        start = {name: value.to(self.learning[name].dtype) for name, value in self.start.items()}
        # a forward may move them
        start |= {name: value.clone() for name, value in self._start["buffers"].items()}
        return self.logits(
            images, forward=lambda given: functional_call(self.model, start, (given,))
        )

    def logits(
        self,
        images: Tensor,
        model: nn.Module | None = None,
        forward: Callable[[Tensor], Any] | None = None,
    ) -> Tensor:
        """(B, C) or (B, C, H, W) logits, in the modes that adapting needs; of another ``model`` such as a teacher."""
        model = self.model if model is None else model
        set_modes(model)
        if self._writes_images is not False or images.is_inference():
            images = images.clone()
        version = images._version
        try:
            with self._statistics(model):
                output = (forward or model)(images)
        except (RuntimeError, ValueError) as error:
            for parts, sentence in _TORCH_SAYS.items():
                if any(part in str(error) for part in parts):
                    raise InputError(
                        sentence.format(images, tuple(images.shape), first_words(error))
                    ) from error
            raise
        self._writes_images = self._writes_images or images._version != version
        logits = self.logits_of(output)
        if (
            not isinstance(logits, Tensor)
            or not logits.is_floating_point()
            or logits.ndim not in (2, 4)
        ):
            what = (
                f"{logits.dtype} of shape {tuple(logits.shape)}"
                if isinstance(logits, Tensor)
                else type(logits)
            )
            raise InputError(
                f"model: expected logits (B, C) or (B, C, H, W), got {what}; logits_of= may take them out"
            )
        device = logits.device.type
        half = (
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
        )
        self.used_float16 = half or self._in_float16 or logits.dtype == torch.float16
        if not self._seen and logits.numel():
            refuse_probabilities(logits)
            self._seen = True
        return logits

    @property
    def start(self) -> dict[str, Tensor]:
        """The first values of the weights."""
        return self._start["parameters"]

    @torch.no_grad()
    def reset(self) -> None:
        """The first weights and buffers, bit for bit."""
        versions = {id(each): each._version for each in self.model.parameters()}
        # of a copy none is known
        if any(versions.get(known, version) != version for known, version in self._fixed):
            raise InputError(
                "model: weights that do not learn were written since the adapter was made; make a new one"
            )
        self.freeze()
        self._put(self._start)

    def close(self) -> None:
        """Restore the flags of layers and parameters; the weights stay adapted."""
        for owner, flag, value in self._flags:
            setattr(owner, flag, value)

    def state_dict(self) -> dict[str, Any]:
        """The current and the first values."""
        return {"now": self._copies(), "start": self._start}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; the weights that never learn must be the same."""
        given, own = state["now"]["parameters"], self.weights
        if given.keys() != own.keys() or any(given[name].shape != own[name].shape for name in own):
            raise InputError(
                "state: its parameters are not those that learn here; use the same model and options"
            )
        self._put(state["now"])
        self._start = state["start"]

    def _copies(self) -> dict[str, dict[str, Tensor]]:
        """Everything that adapting may change."""
        self._read()
        return {
            "parameters": {name: value.detach().clone() for name, value in self.weights.items()},
            "buffers": {name: value.detach().clone() for name, value in self.model.named_buffers()},
        }

    def _put(self, values: dict[str, dict[str, Tensor]]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(values["parameters"][name])
        self.write()
        put_values(self.model, values["buffers"])


def _chosen(model: nn.Module, parameters: str, skip: str | None) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    if parameters == "normalisation":
        chosen = affine_parameters(model)
    else:
        pattern = _pattern("parameters", "" if parameters == "all" else parameters)
        chosen = {name: each for name, each in model.named_parameters() if pattern.search(name)}
    # whole numbers, as of quantised layers, have no gradient
    chosen = {name: each for name, each in chosen.items() if each.is_floating_point()}
    if skip is not None:
        chosen = {
            name: each for name, each in chosen.items() if not _pattern("skip", skip).search(name)
        }
    if not chosen:
        raise InputError(
            f"parameters: nothing would learn with parameters='{parameters}' and skip={skip!r}; TestTimeAdapter "
            "takes 'normalisation' (scale and shift of batch, group, layer, instance or RMS norm), 'all', or a regular "
            "expression over the names of model.named_parameters()"
        )
    return chosen


def _pattern(argument: str, pattern: str) -> re.Pattern[str]:
    with passed_on(f"{argument}: '{pattern}' is no regular expression", re.error, TypeError):
        return re.compile(pattern)
