"""The one stateful class of the core: an entropy objective over logits, with AdaDEM's class table if it needs one.

The mathematics is in :mod:`dem_apps.entropy` (one value per element) and :mod:`dem_apps.fused.one_pass` (value and
gradient of the whole at once); this class checks the input, keeps the table and picks the faster of the two.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from dem_apps import entropy
from dem_apps.entropy import ObjectiveSpec
from dem_apps.errors import InputError, nearest
from dem_apps.fused.one_pass import finish_gradient, one_pass, supports_kernel
from dem_apps.reduction import REDUCTIONS, class_weights, summed_over_processes

BACKENDS = ("auto", "compiled", "eager", "reference")

#: Below this many logits the chunked form costs more in calls than it saves in memory traffic.
_EAGER_FROM = 1 << 16


class EntropyObjective(nn.Module):
    """A member of the Decoupled Entropy Minimization family as a loss over logits.

    The sign is that of an entropy: minimise it to sharpen predictions (adaptation), maximise it to explore.
    Values are in nats per element, not divided by log C.

    Args:
        terms: which member; see :class:`dem_apps.entropy.ObjectiveSpec`, or :func:`dem_apps.build_objective` by name.
        num_classes: C.
        momentum: π, the weight of the batch in the table's moving average (Sec. 3.3).
        balance: γ of ``reduction="balanced"``: an element of a predicted class of n elements weighs n^-γ; 1 averages
            within each predicted class first, 0 is the plain mean (see :func:`dem_apps.reduction.class_weights`).
        backend: ``auto`` chooses by size, device and what the machine has; ``compiled`` is the one-pass kernel
            (C++ on a CPU, torch.compile on a GPU); ``eager`` the one-pass form in PyTorch; ``reference`` the
            plain equations. The numbers are the same up to rounding. With ``class_mask`` or
            ``reduction="none"`` every backend uses the plain equations.

    State: with the calibrator MEC the buffer ``class_marginals`` (C, C), row k being the mean prediction over
    elements predicted as k. It starts at 1/C, is in ``state_dict`` and moves once per call, before the loss uses
    it, in ``train()`` mode only. A batch whose probabilities are NaN does not move it.

    Source: Ma, Li, Xiang, Decoupled Entropy Minimization, NeurIPS 2025, Eq. 10, Eq. 11 and Algorithm 1.

    >>> objective = EntropyObjective(ObjectiveSpec("mec", norm="l1"), num_classes=2)  # AdaDEM
    >>> loss = objective(torch.tensor([[9.0, 0.0], [8.0, 0.0]]))  # all predicted as class 0: its row moves
    >>> objective.class_marginals
    tensor([[0.5500, 0.4500],
            [0.5000, 0.5000]])
    """

    class_marginals: Tensor

    def __init__(
        self, terms: ObjectiveSpec, num_classes: int, momentum: float = 0.1, backend: str = "auto", balance: float = 1.0
    ) -> None:
        super().__init__()
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise InputError(f"num_classes: expected an integer of at least 2, got {num_classes!r}")
        if not isinstance(momentum, (int, float)) or not 0.0 <= momentum <= 1.0:
            raise InputError(f"momentum: expected a number from 0 to 1, got {momentum!r}")
        if not isinstance(balance, (int, float)) or not 0.0 <= balance <= 1.0:
            raise InputError(f"balance: expected a number from 0 to 1, got {balance!r}")
        if backend not in BACKENDS:
            raise InputError(f"backend: '{backend}' is not one of {', '.join(BACKENDS)}{nearest(backend, BACKENDS)}")
        self.terms = terms
        self.num_classes = num_classes
        self.momentum = momentum
        self.backend = backend
        self.balance = float(balance)
        if self.has_table:
            self.register_buffer("class_marginals", torch.empty(num_classes, num_classes))
            self.reset()

    @property
    def has_table(self) -> bool:
        """Whether this member keeps ``class_marginals``."""
        return self.terms.calibrator == "mec"

    def reset(self) -> None:
        """Forget what was seen: every row of the table becomes uniform, 1/C."""
        if self.has_table:
            self.class_marginals.fill_(1.0 / self.num_classes)

    def forward(
        self,
        logits: Tensor,
        dim: int = 1,
        mask: Tensor | None = None,
        class_mask: Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """The loss of a batch.

        Args:
            logits: any shape and floating dtype, classes on ``dim``; computed in float32 or wider. One that is NaN or
                infinite, and is neither masked nor forbidden, makes the loss NaN or infinite.
            dim: the class dimension.
            mask: boolean, the logits' shape without ``dim``. False elements count nowhere: not in the mean, not
                in the table, and their gradient is 0. A mask without a True gives 0.
            class_mask: boolean, broadcastable to the logits, True where a class is forbidden (a masked action).
                A forbidden class has probability 0 and gradient 0; an element without any allowed class counts
                nowhere.
            reduction: ``mean`` over elements; ``balanced``, the mean within each predicted class and then over
                the classes present; ``sum``; or ``none``, one value per element (0 where the mask is False).

        Returns:
            a float32 scalar (float64 for float64 logits), or with ``none`` the logits' shape without ``dim``.
            With torch.distributed initialised, counts and table sums are those of all processes, so every
            process has to make the call; the mean of the processes' results is the loss of the joined batch.

        Raises:
            ValueError: integer logits, a class count, mask or reduction that does not fit.
        """
        dim = self._check(logits, dim, mask, class_mask, reduction)
        if class_mask is not None or reduction == "none" or logits.numel() == 0:
            return self._by_equations(logits, dim, mask, class_mask, reduction)
        backend = self._chosen_backend(logits)
        if backend == "reference":
            return self._by_equations(logits, dim, mask, None, reduction)
        return self._in_one_pass(logits, dim, mask, reduction, compiled=backend == "compiled")

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.terms}, num_classes={self.num_classes}, momentum={self.momentum}, backend={self.backend}"

    def _by_equations(
        self, logits: Tensor, dim: int, mask: Tensor | None, class_mask: Tensor | None, reduction: str
    ) -> Tensor:
        """The loss from :mod:`dem_apps.entropy`, with autograd's own gradient."""
        elements = logits.shape[:dim] + logits.shape[dim + 1 :]
        counted = logits.new_ones(elements, dtype=torch.bool) if mask is None else mask
        if class_mask is not None:
            class_mask = class_mask.expand_as(logits)
            counted = counted & ~class_mask.all(dim)
            class_mask = class_mask & counted.unsqueeze(dim)
        if mask is not None or class_mask is not None:
            # whatever stands at an element that does not count, NaN included, must not reach value or gradient
            logits = logits.masked_fill(~counted.unsqueeze(dim), 0.0)
        p = entropy.probabilities(logits.detach(), dim, forbidden=class_mask)
        predicted = p.new_zeros(elements, dtype=torch.long)
        if self.has_table or reduction == "balanced":
            # of the logits, since different logits may have the same float32 probability
            ranked = logits.detach()
            predicted = (ranked if class_mask is None else ranked.masked_fill(class_mask, -torch.inf)).argmax(dim)
        if self.has_table:
            counts = self._update_table(
                *entropy.class_sums(p.movedim(dim, -1)[counted], predicted[counted], self.num_classes)
            )
        else:
            groups = self.num_classes if reduction == "balanced" else 1
            counts = torch.bincount(predicted[counted], minlength=groups).double()
            if reduction in ("mean", "balanced"):
                (counts,) = summed_over_processes(counts)
        values = self._values(logits, dim, p, predicted, class_mask)
        values = torch.where(counted, values, 0.0)
        if reduction == "none":
            return values
        weights = class_weights(counts, reduction, self.balance).to(values.dtype)
        return (values * weights[predicted]).sum()

    def _values(self, logits: Tensor, dim: int, p: Tensor, predicted: Tensor, class_mask: Tensor | None) -> Tensor:
        """One value per element."""
        terms = self.terms
        if terms.calibrator == "gmc":
            return entropy.dem(logits, dim, terms.tau, terms.alpha, class_mask)
        if terms.calibrator == "mec":
            calibration = entropy.marginal_entropy_calibrator(self.class_marginals, predicted, dim, class_mask)
        else:
            calibration = p
        delta = 1.0 if terms.norm is None else entropy.reward_norm(logits, dim, terms.norm, terms.delta, class_mask)
        return entropy.calibrated_cadf(logits, terms.alpha * calibration.to(p.dtype), delta, dim, class_mask)

    def _in_one_pass(self, logits: Tensor, dim: int, mask: Tensor | None, reduction: str, compiled: bool) -> Tensor:
        """The loss from :mod:`dem_apps.fused.one_pass`; the table's part is added to value and gradient here."""
        per_class = self.has_table or reduction == "balanced"
        with_gradient = torch.is_grad_enabled() and logits.requires_grad
        run = functools.partial(one_pass, dim=dim, mask=mask, terms=self.terms, per_class=per_class, compiled=compiled)
        result = run(logits, with_gradient=with_gradient)
        values, weighted_rows = result.values, None
        if self.has_table:
            counts = self._update_table(result.probabilities, result.counts)
        elif reduction in ("mean", "balanced"):
            (counts,) = summed_over_processes(result.counts)
        else:
            counts = result.counts
        weights = class_weights(counts, reduction, self.balance)
        if self.has_table:
            rows = self.terms.alpha * self.class_marginals.double()
            values = values + (rows * result.scaled_logits).sum(1)
            weighted_rows = rows * weights.unsqueeze(1)
        value = (weights * values).sum().to(entropy.computed_in(logits.dtype))
        if not with_gradient:
            return value
        loss: Tensor = _ReadyGradient.apply(logits, value, result, run, dim, weights, weighted_rows, compiled)
        return loss

    @torch.no_grad()
    def _update_table(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Move the table towards this batch (training only); returns the counts over all processes."""
        sums, counts = summed_over_processes(sums, counts)
        if self.training:
            moved = entropy.updated_class_marginals(self.class_marginals, sums, counts, self.momentum)
            # NaN would stay in the table for good; the loss of this batch is NaN, which says enough
            self.class_marginals.copy_(torch.where(sums.isfinite().all(), moved, self.class_marginals))
        return counts

    def _chosen_backend(self, logits: Tensor) -> str:
        if self.backend == "compiled" and logits.device.type == "cpu" and not supports_kernel(logits, self.num_classes):
            raise InputError(
                f"backend: 'compiled' cannot serve {logits.dtype} logits of {self.num_classes} classes on this machine "
                "(it needs a C++ compiler, a dtype of at most 32 bits and at most 256 classes); use 'auto'"
            )
        if self.backend != "auto":
            return self.backend
        if torch.compiler.is_compiling():
            return "reference"  # what torch.compile of the surrounding model can follow
        if supports_kernel(logits, self.num_classes):
            return "compiled"
        return "eager" if logits.numel() >= _EAGER_FROM else "reference"

    def _check(self, logits: Tensor, dim: int, mask: Tensor | None, class_mask: Tensor | None, reduction: str) -> int:
        """The class dimension as a non-negative number, after checking that everything fits."""
        if not logits.is_floating_point():
            raise InputError(
                f"logits: expected a floating dtype, got {logits.dtype} (scores before softmax, not labels)"
            )
        if not -logits.dim() <= dim < logits.dim():
            raise InputError(f"dim: {dim} is no dimension of logits of shape {tuple(logits.shape)}")
        dim %= logits.dim()
        if logits.shape[dim] != self.num_classes:
            raise InputError(
                f"logits: dimension {dim} of shape {tuple(logits.shape)} has {logits.shape[dim]} classes, "
                f"but the objective was built for {self.num_classes}"
            )
        elements = logits.shape[:dim] + logits.shape[dim + 1 :]
        if mask is not None and (mask.dtype != torch.bool or mask.shape != elements):
            raise InputError(
                f"mask: expected bool of shape {tuple(elements)} (the logits without dimension {dim}), "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        if class_mask is not None and (class_mask.dtype != torch.bool or not _broadcasts(class_mask, logits)):
            raise InputError(
                f"class_mask: expected bool that broadcasts to {tuple(logits.shape)}, "
                f"got {class_mask.dtype} of shape {tuple(class_mask.shape)}"
            )
        if reduction not in REDUCTIONS:
            known = ", ".join(REDUCTIONS)
            raise InputError(f"reduction: '{reduction}' is not one of {known}{nearest(reduction, REDUCTIONS)}")
        return dim


class _ReadyGradient(torch.autograd.Function):
    """Hands autograd a value and the gradient that was made with it."""

    @staticmethod
    def forward(ctx, logits, value, result, run, dim, weights, weighted_rows, compiled):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(logits)
        ctx.result, ctx.run = result, run
        ctx.dim, ctx.weights, ctx.weighted_rows, ctx.compiled = dim, weights, weighted_rows, compiled
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming):  # type: ignore[no-untyped-def]
        # The gradient is finished in place and given away, so a second backward (retain_graph) makes it anew.
        result, ctx.result = ctx.result or ctx.run(*ctx.saved_tensors, with_gradient=True), None
        weights = ctx.weights * incoming
        weighted_rows = None if ctx.weighted_rows is None else ctx.weighted_rows * incoming
        gradient = finish_gradient(result, ctx.dim, weights, weighted_rows, ctx.compiled)
        return gradient, None, None, None, None, None, None, None


def _broadcasts(mask: Tensor, logits: Tensor) -> bool:
    try:
        return bool(torch.broadcast_shapes(mask.shape, logits.shape) == logits.shape)
    except RuntimeError:
        return False
