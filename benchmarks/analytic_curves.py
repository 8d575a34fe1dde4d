"""The paper's reward curves by our functions, the figure of docs/method.md: ``python benchmarks/analytic_curves.py``.

C classes; the leading one has probability p, the others share 1 − p equally. The curve is its reward, −∂L/∂z₁, by
automatic differentiation of the functions that training uses. Source: Decoupled Entropy Minimization (Ma, Li, Xiang,
NeurIPS 2025), Sec. 3.1 to 3.3.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from csv_rows import parser_of
from matplotlib.figure import Figure
from torch import Tensor

from dem_apps import build_objective
from dem_apps.entropy import cadf, shannon_entropy
from dem_apps.report.charts import drawn

CLASSES = 10


def leading_reward(loss: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
    """−∂L/∂z₁ for each p, (N,)."""
    others = ((1 - p) / (CLASSES - 1)).unsqueeze(1).expand(-1, CLASSES - 1)
    logits = torch.cat([p.unsqueeze(1), others], dim=1).log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logits).sum(), logits)
    return -gradient[:, 0]


def main() -> None:
    """The command."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    curves = {"entropy": partial(shannon_entropy, dim=1), "CADF": partial(cadf, dim=1)}
    for title, name in (
        ("AdaDEM-Norm", "adadem-norm"),
        ("AdaDEM, class marginals at 1/C", "adadem"),
    ):
        curves[title] = partial(build_objective(name, CLASSES).eval(), dim=1, reduction="none")
    p = torch.linspace(1 / CLASSES + 1e-6, 1 - 1e-6, 400, dtype=torch.float64)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, loss in curves.items():
        axes.plot(p, leading_reward(loss, p), label=label)
    axes.set(
        xlabel="probability p of the leading class",
        ylabel="its reward, −∂L/∂z",
        title=f"C = {CLASSES}",
    )
    axes.legend(fontsize="small")
    (out / "analytic_objectives.svg").write_bytes(drawn(figure, "svg"))


if __name__ == "__main__":
    main()
