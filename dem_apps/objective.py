"""The base class of the objectives: checks, masks, reductions, several processes, and the choice of a backend.

A subclass in :mod:`dem_apps.objectives` defines the value of one element; everything else is optional.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

import torch
from torch import Tensor, nn

from dem_apps import entropy
from dem_apps.entropy import Mask, ObjectiveSpec
from dem_apps.errors import InputError, NotFiniteError, number, one_of
from dem_apps.fused.kernel import supports_kernel
from dem_apps.fused.one_pass import FusedPass, weighted_loss
from dem_apps.objective_input import allowed, check_call, predicted_class
from dem_apps.reduction import Batch, class_weights, summed_over_processes, sums_in

if TYPE_CHECKING:
    from dem_apps.fused.numpy_objective import NumpyForm

BACKENDS = ("auto", "compiled", "eager", "reference")

#: With fewer logits in a piece the chunked form costs more in calls than it saves in memory traffic.
_EAGER_FROM = 1 << 16


class EntropyObjective(nn.Module):
    """A loss over logits without labels; the base class of all objectives.

    The sign is that of an entropy: minimise it to sharpen predictions (adaptation), maximise it to explore. Values are
    in nats per element, not divided by log C.

    A subclass defines :meth:`values`. It may define :meth:`observe` and :meth:`reset` (buffers that follow the
    batches), :meth:`fused_spec` and :meth:`numpy_form` (faster forms), and the two class attributes. Without a fast
    form every backend uses :meth:`values` and autograd.

    Buffers move with every call in ``train()``, under ``no_grad`` too, as those of batch norm do, and never in
    ``eval()``. So keep the objective outside of gradient checkpointing, which calls it a second time. Buffers stay
    float32 or wider under ``to``, ``half`` and ``bfloat16``: a moving average in half precision drifts.

    Args:
        num_classes: C.
        backend: ``auto`` chooses by size, device and compiler; ``compiled`` is the one-pass kernel (C++ on a CPU,
            Triton on a GPU); ``eager`` the one-pass form in PyTorch; ``reference`` the plain equations. The
            numbers are the same up to rounding. With ``class_mask``, ``reduction="none"`` or ``torch.func``, or without
            a one-pass form, every backend uses the plain equations. Only these have a second derivative
            (``create_graph=True``), in which δ of AdaDEM and p̄ of ``info-max`` are constants. ``torch.func`` serves
            ``grad``, ``vjp``, ``jvp``, ``linearize``, ``jacrev``, ``jacfwd`` and ``hessian``, of objectives with class
            marginals in ``eval()`` alone, and ``vmap`` of none.
        balance: γ of ``reduction="balanced"``: an element of a predicted class of n elements weighs n^-γ; 1 averages
            within each predicted class first, 0 is the plain mean (see :func:`dem_apps.reduction.class_weights`).

    >>> class Gini(EntropyObjective):  # one of your own
    ...     def values(self, logits, dim, class_mask, batch):
    ...         return 1 - entropy.probabilities(logits, dim, class_mask=class_mask).square().sum(dim)
    >>> Gini(num_classes=2)(torch.tensor([[1.0, 3.0]]).log())  # p = (1/4, 3/4): 1 − (1/16 + 9/16)
    tensor(0.3750)
    """

    #: True if weights for a share of log C, such as ADVENT's, expect the value divided by it.
    divided_by_log_c: ClassVar[bool] = False
    #: True if ``values`` or ``observe`` use the sums of p per predicted class.
    needs_class_sums: bool = False

    def __init__(self, num_classes: int, backend: str = "auto", balance: float = 1.0) -> None:
        super().__init__()
        if not isinstance(num_classes, SupportsIndex) or num_classes < 2:
            raise InputError(f"num_classes: expected an integer of at least 2, got {num_classes!r}")
        self.num_classes = num_classes
        self.backend = one_of("backend", backend, BACKENDS)
        self.balance = number("balance", balance, 0.0, 1.0)

    def values(self, logits: Tensor, dim: int, class_mask: Mask, batch: Batch) -> Tensor:
        """The equation: one value per element, float32 or wider, the logits' shape without ``dim``.

        The logits are finite in elements that count nowhere and at forbidden classes, ``dim`` is not negative, and
        ``class_mask`` of the logits' shape leaves every element a class.
        """
        raise NotImplementedError

    def observe(self, sums: Tensor, counts: Tensor) -> None:
        """Move the objective's buffers.

        Called before :meth:`values`, in ``train()`` mode, without gradients. The arguments are
        parts of :class:`Batch`; ``needs_class_sums`` asks for them.
        """

    def reset(self) -> None:
        """Set the buffers back to their first values.

        After :meth:`start` these are the values that it has set.
        """

    def begin(self, sums: Tensor, further: bool) -> None:
        """Start the buffers from class sums.

        Called by :meth:`start`. Without buffers there is nothing to do.

        Args:
            sums: the sums of :class:`Batch`.
            further: start from the sums of earlier calls as well.
        """

    @torch.no_grad()
    def start(
        self,
        logits: Tensor,
        dim: int = 1,
        mask: Mask = None,
        class_mask: Mask = None,
        further: bool = False,
    ) -> None:
        """Start the class marginals from predictions: row k is the mean of p over the elements predicted as k.

        Rows of classes that are not predicted are 1/C. Without a start all rows are, and after n batches with momentum
        π a share (1 − π)ⁿ of them is left, 0.66 after four: AdaDEM's calibrator is hardly there. On a long stream both
        end alike. The start is in ``state_dict``, :meth:`reset` goes back to it, and ``eval()`` does not hold it back.
        Objectives without class marginals have nothing to start.

        Args:
            logits, dim, mask, class_mask: see :meth:`forward`. With torch.distributed initialised
                every process makes the call, and all start from the joined batch.
            further: add to the predictions of the calls before, as for the batches of a folder: rows are the means
                over all of them. False begins anew.

        Raises:
            ValueError: as :meth:`forward`, and for a prediction that is NaN; nothing has started then.

        >>> from dem_apps import AdaDEM
        >>> objective = AdaDEM(num_classes=2)
        >>> objective.start(torch.tensor([[0.9, 0.1], [0.7, 0.3]]).log())  # both predicted as class 0
        >>> objective.class_marginals
        tensor([[0.8000, 0.2000],
                [0.5000, 0.5000]])
        """
        dim = check_call(logits, dim, mask, class_mask, "none", self)
        logits, counted, class_mask = allowed(logits, dim, mask, class_mask)
        (sums,) = summed_over_processes(self._class_sums(logits, dim, counted, class_mask)[1])
        if not sums.isfinite().all():
            raise NotFiniteError(
                "logits: a prediction is NaN or infinite, and class marginals cannot start from it"
            )
        self.begin(sums, further)

    def fused_spec(self) -> ObjectiveSpec | None:
        """The case of the one-pass forms that this objective is, or None.

        With the calibrator ``mec`` it has a buffer ``class_marginals`` (C, C), which :meth:`observe` moves.
        """
        return None

    def numpy_form(self) -> NumpyForm | None:
        """The mean and its gradient on small minibatches, in numpy, sharing this objective's buffers; or None."""
        return None

    def forward(
        self,
        logits: Tensor,
        dim: int = 1,
        mask: Mask = None,
        class_mask: Mask = None,
        reduction: str = "mean",
    ) -> Tensor:
        """The loss of a batch.

        Args:
            logits: any shape and floating dtype, classes on ``dim``; computed in float32 or wider. A logit of −inf, or
                of −1e8 and below (−65504 in float16), forbids its class as ``class_mask`` does. NaN and +inf that are
                neither masked nor forbidden make the loss NaN or infinite.
            dim: the class dimension.
            mask: boolean, the logits' shape without ``dim``. False elements count nowhere: not in the mean, not
                in the class marginals, and their gradient is 0. A mask without a True gives 0.
            class_mask: boolean, broadcastable to the logits, True where a class is forbidden (a masked action).
                A forbidden class has probability 0 and gradient 0; an element without any allowed class counts
                nowhere.
            reduction: ``mean`` over elements; ``balanced``, the mean within each predicted class and then over
                the classes present; ``sum``; or ``none``, one value per element (0 where the mask is False).

        Returns:
            a float32 scalar (float64 for float64 logits), or with ``none`` the logits' shape without ``dim``. With
            torch.distributed initialised, counts and class sums are those of all processes, so every process has to
            make the call; the mean of their results is the loss of the joined batch, under ``mean`` and ``balanced``.

        Raises:
            ValueError: integer logits, a class count, mask or reduction that does not fit.
        """
        dim = check_call(logits, dim, mask, class_mask, reduction, self)
        spec = self.fused_spec()
        if spec is not None and class_mask is None and reduction != "none" and logits.numel():
            backend = self._chosen_backend(logits, dim)
            if backend != "reference":
                return self._in_one_pass(
                    logits, dim, mask, reduction, spec, compiled=backend == "compiled"
                )
        return self._by_equations(logits, dim, mask, class_mask, reduction)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"num_classes={self.num_classes}, backend={self.backend}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EntropyObjective:
        """Keep buffers float32 or wider; called by ``to``, ``cuda``, ``half``, …"""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self.get_buffer(name)
            if new.itemsize < 4:
                self._buffers[name] = old.to(new.device)
        return self

    def _by_equations(
        self,
        logits: Tensor,
        dim: int,
        mask: Mask,
        class_mask: Mask,
        reduction: str,
    ) -> Tensor:
        """The loss from :meth:`values`, with autograd's own gradient."""
        logits, counted, class_mask = allowed(logits, dim, mask, class_mask)
        batch = self._batch(logits.detach(), dim, counted, class_mask, reduction)
        values = self.values(logits, dim, class_mask, batch)
        if class_mask is not None and self.fused_spec() is None:
            # an equation in p alone takes +inf for certainty; the fused family's multiply by the logit itself
            values = torch.where(logits.isfinite().all(dim), values, torch.nan)
        values = torch.where(counted, values, 0.0)
        if reduction == "none":
            return values
        return (values * batch.weights.to(values.dtype)[batch.predicted]).sum()

    @torch.no_grad()
    def _batch(
        self, logits: Tensor, dim: int, counted: Tensor, class_mask: Mask, reduction: str
    ) -> Batch:
        sums: Tensor | None = None
        if self.needs_class_sums:
            predicted, sums, counts = self._class_sums(logits, dim, counted, class_mask)
        elif reduction == "balanced":
            predicted = predicted_class(logits, dim, class_mask)
            counts = torch.bincount(predicted[counted], minlength=self.num_classes)
        else:
            predicted = torch.zeros_like(counted, dtype=torch.long)
            counts = counted.sum().view(1)
        sums, counts = self._observed(sums, counts.to(sums_in(counts)), reduction)
        weights = class_weights(counts, "mean" if reduction == "none" else reduction, self.balance)
        return Batch(predicted, sums, counts, weights)

    def _class_sums(
        self, logits: Tensor, dim: int, counted: Tensor, class_mask: Mask
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each element's predicted class, and per class the sum of p over the counted elements and their number."""
        predicted = predicted_class(logits, dim, class_mask)
        p = entropy.probabilities(logits, dim, class_mask=class_mask).movedim(dim, -1)
        return predicted, *entropy.class_sums(p[counted], predicted[counted], self.num_classes)

    @torch.no_grad()
    def _observed(
        self, sums: Tensor | None, counts: Tensor, reduction: str
    ) -> tuple[Tensor | None, Tensor]:
        """Sums and counts over all processes; the objective's buffers have moved."""
        if self.needs_class_sums and sums is not None:
            sums, counts = summed_over_processes(sums, counts)
            if self.training:
                self.observe(sums, counts)
        elif reduction in ("mean", "balanced"):
            (counts,) = summed_over_processes(counts)
        return sums, counts

    def _in_one_pass(
        self,
        logits: Tensor,
        dim: int,
        mask: Mask,
        reduction: str,
        spec: ObjectiveSpec,
        compiled: bool,
    ) -> Tensor:
        """The loss from :mod:`dem_apps.fused.one_pass`."""
        grouped = self.needs_class_sums or reduction == "balanced"
        one_pass = FusedPass(spec, dim, mask, grouped, compiled)
        with_gradient = torch.is_grad_enabled() and logits.requires_grad
        sums = one_pass(logits, with_gradient)
        if not sums.ordinary:
            return self._by_equations(logits, dim, mask, None, reduction)
        _, counts = self._observed(sums.probabilities, sums.counts, reduction)
        weights = class_weights(counts, reduction, self.balance)
        rows = None
        if spec.calibrator == "mec":
            rows = spec.alpha * self.get_buffer("class_marginals").to(counts.dtype)
        return weighted_loss(logits, one_pass, sums, weights, rows, with_gradient)

    def _chosen_backend(self, logits: Tensor, dim: int) -> str:
        if not entropy.can_branch_on(logits):
            return "reference"  # torch.compile and torch.func can trace it
        if self.backend in ("eager", "reference"):
            return self.backend
        if supports_kernel(logits, self.num_classes):
            return "compiled"
        if self.backend == "compiled":
            raise InputError(
                f"backend: 'compiled' cannot serve {logits.dtype} logits of {self.num_classes} classes on this machine "
                "(it needs a C++ compiler and at most 256 classes on a CPU, torch 2.9 with Triton and at most 64 on a "
                "GPU, and a dtype of at most 32 bits); use 'auto'"
            )
        classes_last = logits.movedim(dim, -1).is_contiguous()
        at_once = logits.numel() if classes_last else math.prod(logits.shape[dim:])
        return "eager" if at_once >= _EAGER_FROM else "reference"
