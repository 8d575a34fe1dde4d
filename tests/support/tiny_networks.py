"""Networks of two layers, in float64."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.test_time_methods import LEARNING_METHODS

#: Batch norm by the batch alone, and class marginals from 1/C, as the methods are published.
published = partial(TestTimeAdapter, bn_alpha=1.0, marginals="uniform")
CLASSES = 5
NORMS = {
    "batch": lambda: nn.BatchNorm2d(6),
    "group": lambda: nn.GroupNorm(2, 6),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True),
    "none": nn.Identity,
}


class Tiny(nn.Module):
    """Logits (B, C, H, W), or (B, C) of a classifier; statistics and scales differ from a fresh layer's."""

    def __init__(self, norm: str = "batch", dense: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = NORMS[norm]()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Conv2d(6, CLASSES, 1)
        self.dense = dense

    def forward(self, images: Tensor) -> Tensor:
        logits = self.last(self.dropout(self.norm(self.first(images)).relu()))
        return logits if self.dense else logits.mean((2, 3))


def tiny(norm: str = "batch", dense: bool = True, dropout: float = 0.0, seed: int = 0) -> Tiny:
    """A network with certain and uncertain elements."""
    model = Tiny(norm, dense, dropout).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            value.copy_(drawn * (2.5 if "last" in name else 0.7))
        if norm == "batch":
            model.norm.running_mean.copy_(torch.randn(6, generator=generator, dtype=torch.float64))
            model.norm.running_var.copy_(
                torch.rand(6, generator=generator, dtype=torch.float64) + 0.5
            )
    return model


def batches(number: int = 4, size: int = 4, seed: int = 1) -> list[Tensor]:
    """Images of 8 × 8 pixels."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, 3, 8, 8, generator=generator, dtype=torch.float64) for _ in range(number)
    ]


def tented(model: Tiny) -> Tiny:
    """A copy as in Tent's paper: batch statistics; only scale and shift learn."""
    model = copy.deepcopy(model).train().requires_grad_(False)
    model.norm.requires_grad_(True)
    if isinstance(model.norm, nn.BatchNorm2d):
        model.norm.track_running_stats = False
        model.norm.running_mean = model.norm.running_var = None
    return model


def entropy_of(logits: Tensor) -> Tensor:
    """H per element, by its definition."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def assert_same(model: nn.Module, expected: nn.Module, rtol: float = 1e-9) -> None:
    """Every parameter, relative to the largest of its tensor."""
    own = dict(model.named_parameters())
    for name, value in expected.named_parameters():
        error = (own[name] - value).abs().max() / value.abs().max()
        assert error <= rtol, f"{name}: {error:.2e}"


def moved(model: nn.Module, start: nn.Module) -> set[str]:
    """Names of the parameters that differ from the start."""
    first = dict(start.named_parameters())
    return {name for name, value in model.named_parameters() if not torch.equal(value, first[name])}


class Ends(nn.Module):
    """A tiny network whose logits go through a function."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self.inner, self.end = tiny(), end

    def forward(self, images: Tensor) -> Any:
        return self.end(self.inner(images))


#: What a method cannot do without, or what makes it do something on images like these.
NEEDED: dict[str, dict[str, Any]] = {
    "lab": {"source_mean": (60, 0, 5), "source_std": (20, 5, 8)},
    "eta": {"similarity": 1.0},
    "eata": {"source_images": batches(2, seed=9), "fisher_weight": 1.0, "similarity": 0.99},
    "sar": {"reset_below": 0.0},
    "deyo": {"plpd_above": 0.0},
    "cotta": {"restore": 0.1, "objective_weight": 0.5},
}
#: The methods that change weights.
LEARNING = [*LEARNING_METHODS]


def adapter_of(method: str, model: nn.Module | None = None, **arguments: Any) -> TestTimeAdapter:
    """An adapter of a tiny network, with what the method needs."""
    arguments = {"lr": 0.05, "objective": "adadem", **NEEDED.get(method, {}), **arguments}
    return TestTimeAdapter(tiny() if model is None else model, method, **arguments)
