"""Algorithm 1 of the paper as printed, in float64 with autograd, independent of dem_apps.

Added are the options that the paper ablates (α on the calibrator, norm and source of δ, momentum) and the reductions,
each with a loop, and the objectives of other papers.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Paper:
    """One objective with its own ``avg_pred``; call :meth:`loss` once per training step."""

    def __init__(self, name: str, num_classes: int, **options: Any) -> None:
        self.name = name
        self.num_classes = num_classes
        self.tau = options.get("tau", 1.0)
        self.alpha = {"entropy": 1.0, "cadf": 0.0}.get(name, options.get("alpha", 1.0))
        self.momentum = options.get("momentum", 0.1)
        self.norm = None if name == "adadem-mec" else options.get("norm", "l1")
        self.eta = options.get("eta", 2.0)
        self.balance = options.get("balance", 1.0)
        self.delta_of = options.get("delta", "cadf")
        self.largest_inverse_delta = 1.0  # of the last call: how much rounding errors are magnified
        self.avg_pred = torch.ones(num_classes, num_classes, dtype=torch.float64) / num_classes

    def loss(
        self,
        logits: Tensor,
        dim: int = 1,
        mask: Tensor | None = None,
        reduction: str = "mean",
        training: bool = True,
    ) -> Tensor:
        """The reduced loss of logits of any shape."""
        rows = logits.double().movedim(dim, -1)
        elements = rows.shape[:-1]
        rows = rows.reshape(-1, self.num_classes)
        kept = torch.ones(len(rows), dtype=torch.bool) if mask is None else mask.reshape(-1)
        rows = rows[kept]
        if self.name == "info-max" and reduction != "none" and len(rows):
            return self.info_max(rows, reduction)
        values = self.values(rows, training)
        if reduction == "none":
            return (
                torch.zeros(len(kept), dtype=torch.float64)
                .masked_scatter(kept, values)
                .reshape(elements)
            )
        if reduction == "sum" or len(values) == 0:
            return values.sum()
        if reduction == "mean":
            return values.sum() / len(values)
        pseudo_label = rows.argmax(dim=1)
        groups = [pseudo_label == label for label in torch.unique(pseudo_label)]
        return sum(self.share(groups, group) * values[group].mean() for group in groups)

    def share(self, groups: list[Tensor], group: Tensor) -> float:
        """The weight of a predicted class of n elements in a mean over classes, in proportion to n^(1 - γ)."""
        weights = [int(one.sum()) ** (1 - self.balance) for one in groups]
        return int(group.sum()) ** (1 - self.balance) / sum(weights)

    def values(self, logits: Tensor, training: bool = True) -> Tensor:
        """One value per row of (N, C) logits."""
        if self.name == "max-squares":
            return -(F.softmax(logits, dim=1) ** 2).sum(dim=1) / 2
        if self.name == "info-max":
            p = F.softmax(logits, dim=1)
            return -(p * p.log()).sum(dim=1) + (p * p.detach().mean(dim=0).log()).sum(dim=1)
        if self.name == "come":
            logits = (
                logits
                / logits.norm(dim=1, keepdim=True)
                * logits.norm(dim=1, keepdim=True).detach()
            )
            strength = logits.exp().sum(dim=1, keepdim=True) + self.num_classes
            opinion = torch.cat([logits.exp() / strength, self.num_classes / strength], dim=1)
            return -(opinion * opinion.log()).sum(dim=1)
        if self.name == "robust-entropy":
            h = torch.distributions.Categorical(logits=logits).entropy()
            return ((h / math.log(self.num_classes)) ** 2 + 1e-6) ** self.eta
        if self.name in ("entropy", "cadf", "dem"):
            p_tau = F.softmax(logits / self.tau, dim=1)
            cadf = -(p_tau * logits).sum(dim=1)
            gmc = self.alpha * torch.logsumexp(logits, dim=1)
            return cadf + gmc
        p = F.softmax(logits, dim=1)
        pseudo_label = p.argmax(dim=1)
        if training and self.name != "adadem-norm":
            self.update(p.detach(), pseudo_label)
        calibration = (
            p.detach() if self.name == "adadem-norm" else self.avg_pred[pseudo_label].clone()
        )
        delta = self.delta(logits.detach(), p.detach())
        self.largest_inverse_delta = max([1.0, *(1 / delta).flatten().tolist()])
        p = (p - self.alpha * calibration) / delta
        return -(p * logits).sum(dim=1)

    def info_max(self, logits: Tensor, reduction: str) -> Tensor:
        """Mean entropy minus entropy of the mean prediction, as SHOT defines it: the latter has a gradient, too."""
        p = F.softmax(logits, dim=1)
        entropy = -(p * F.log_softmax(logits, dim=1)).sum(dim=1)
        pseudo_label = logits.argmax(dim=1)
        groups = [pseudo_label == label for label in torch.unique(pseudo_label)]
        if reduction != "balanced":
            groups = [torch.ones_like(pseudo_label, dtype=torch.bool)]
        mean_entropy = sum(self.share(groups, group) * entropy[group].mean() for group in groups)
        mean_p = sum(self.share(groups, group) * p[group].mean(dim=0) for group in groups)
        loss = mean_entropy + (mean_p * mean_p.log()).sum()
        return loss * len(logits) if reduction == "sum" else loss

    def update(self, p: Tensor, pseudo_label: Tensor) -> None:
        """The moving average, label by label."""
        for label in torch.unique(pseudo_label):
            mean = p[pseudo_label == label].mean(dim=0)
            self.avg_pred[label] = (1 - self.momentum) * self.avg_pred[label] + self.momentum * mean

    def delta(self, logits: Tensor, p: Tensor) -> Tensor:
        """δ as a column, of CADF's reward or (AdaDEM-V) of the whole entropy's."""
        if self.norm is None:
            return torch.ones(len(p), 1, dtype=torch.float64)
        big_t = -(p * logits).sum(dim=1, keepdim=True)
        grad = (logits + big_t + 1) * p
        if self.delta_of == "entropy":
            grad = grad - p
        if self.norm == "l1":
            delta = grad.abs().sum(dim=1, keepdim=True)
        elif self.norm == "l2":
            delta = (grad**2).sum(dim=1, keepdim=True).sqrt()
        else:
            delta = grad.abs().max(dim=1, keepdim=True).values
        # the δ of a whole entropy can be 0; documented in dem_apps.entropy.ENTROPY_DELTA_FLOOR
        return delta.clamp_min(2.0**-23) if self.delta_of == "entropy" else delta
