"""The paper's reward curves, drawn by our functions: ``python benchmarks/analytic_curves.py --out docs/images``.

C classes; the leading one has probability p, the others share 1 − p equally. The curve is its reward, −∂L/∂z₁, by
automatic differentiation of the functions that training uses. Source: Decoupled Entropy Minimization (Ma, Li, Xiang,
NeurIPS 2025), Sec. 3.1 to 3.3.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from dem_apps import build_objective
from dem_apps.entropy import cadf, dem, shannon_entropy

CLASSES = 10


def leading_reward(loss: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
    """−∂L/∂z₁ for each p, (N,)."""
    others = ((1 - p) / (CLASSES - 1)).unsqueeze(1).expand(-1, CLASSES - 1)
    logits = torch.cat([p.unsqueeze(1), others], dim=1).log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logits).sum(), logits)
    return -gradient[:, 0]


def objective(name: str) -> Callable[[Tensor], Tensor]:
    """An objective with the class marginals of before training, 1/C."""
    return partial(build_objective(name, CLASSES).eval(), dim=1, reduction="none")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    pairs = {
        "analytic_tau": [(0.5, 1.0), (0.8, 1.0), (1.0, 1.0), (1.2, 1.0), (1.5, 1.0)],
        "analytic_alpha": [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (1.0, 1.3), (1.0, 1.6)],
    }
    figures: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
        "analytic_objectives": {
            "entropy": partial(shannon_entropy, dim=1), "CADF": partial(cadf, dim=1),
            "AdaDEM-Norm": objective("adadem-norm"), "AdaDEM, class marginals at 1/C": objective("adadem"),
        },
        **{name: {f"τ = {tau:g}, α = {alpha:g}": partial(dem, dim=1, tau=tau, alpha=alpha) for tau, alpha in values}
           for name, values in pairs.items()},
    }  # fmt: skip
    p = torch.linspace(1 / CLASSES + 1e-6, 1 - 1e-6, 400, dtype=torch.float64)
    for name, curves in figures.items():
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        for label, loss in curves.items():
            axes.plot(p, leading_reward(loss, p), label=label)
        axes.set(xlabel="probability p of the leading class", ylabel="its reward, −∂L/∂z", title=f"C = {CLASSES}")
        axes.legend(fontsize="small")
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        print(out / f"{name}.svg")


if __name__ == "__main__":
    main()
