"""``python -m dem_apps.figures --out docs/images``: the paper's reward curves, redrawn from our own functions.

The family of predictions: C classes, the leading one has probability p, the others share 1 − p equally, 1/C ≤ p < 1.
What is drawn is the reward of the leading class, −∂L/∂z₁, which a step of gradient descent adds to its logit. It comes
from automatic differentiation of the functions that training uses; the tests compare it with closed forms.

Source: Decoupled Entropy Minimization (Ma, Li, Xiang, NeurIPS 2025), Sec. 3.1 to 3.3 and Figs. on reward collapse,
τ and α.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from dem_apps.entropy import cadf, dem, shannon_entropy
from dem_apps.errors import InputError
from dem_apps.objectives import build_objective
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.settings import option, parse_config

#: Okabe and Ito's colours, which people who see few colours can tell apart; each with a dash pattern of its own.
_STYLES = (
    ("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#cc79a7", ":"), ("#000000", (0, (5, 1))),
)  # fmt: skip
_POINTS = 400

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FiguresConfig:
    """Redraw the paper's analytic figures as SVG and PNG; figures of that name are replaced."""

    out: str = option("docs/images", "folder for analytic_objectives, analytic_tau and analytic_alpha", value="DIR")
    num_classes: int = option(10, "number of classes C of the predictions", at_least=2)


def family(p: Tensor, num_classes: int) -> Tensor:
    """Logits (N, C), float64, whose softmax is p for class 0 and (1 − p)/(C − 1) for each other class.

    Args:
        p: (N,), within (0, 1).
        num_classes: C, at least 2.
    """
    p = p.double()
    others = ((1 - p) / (num_classes - 1)).unsqueeze(1).expand(-1, num_classes - 1)
    return torch.cat([p.unsqueeze(1), others], dim=1).log()


def leading_reward(loss: Loss, p: Tensor, num_classes: int) -> Tensor:
    """−∂L/∂z₀ at :func:`family`, (N,).

    Args:
        loss: (N, C) logits to one value per row, (N,).
        p: (N,), probability of the leading class.
        num_classes: C.
    """
    logits = family(p, num_classes).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logits).sum(), logits)
    return -gradient[:, 0]


def adadem(num_classes: int, name: str = "adadem") -> Loss:
    """AdaDEM, or a relative of it, whose class marginals are as before training: every entry 1/C."""
    objective = build_objective(name, num_classes=num_classes)
    # in eval() they stand still; a row must not depend on which other rows are drawn
    objective.eval()
    return lambda logits: objective(logits, dim=1, reduction="none")


def objectives_curves(num_classes: int) -> dict[str, Loss]:
    """The curves of the first figure: where the reward collapses, and what is done about it."""
    return {
        "entropy": lambda logits: shannon_entropy(logits, 1),
        "CADF": lambda logits: cadf(logits, 1),
        "AdaDEM-Norm": adadem(num_classes, "adadem-norm"),
        "AdaDEM, class marginals at 1/C": adadem(num_classes),
    }


def dem_curves(pairs: Sequence[tuple[float, float]]) -> dict[str, Loss]:
    """DEM(τ, α) for each pair."""
    return {f"τ = {tau:g}, α = {alpha:g}": partial(dem, dim=1, tau=tau, alpha=alpha) for tau, alpha in pairs}


def draw(path: Path, title: str, curves: dict[str, Loss], num_classes: int) -> list[Path]:
    """Draw rewards against p as ``path`` with the endings .svg and .png; equal curves give equal files.

    Returns:
        the two files.
    """
    least = 1 / num_classes
    p = torch.linspace(least + 1e-6, 1 - 1e-6, _POINTS, dtype=torch.float64)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0.0, color="grey", linewidth=0.8)
    for (name, loss), (colour, dashes) in zip(curves.items(), _STYLES, strict=False):
        axes.plot(p, leading_reward(loss, p, num_classes), color=colour, linestyle=dashes, linewidth=2, label=name)
    axes.set(xlabel="probability p of the leading class", ylabel="its reward, −∂L/∂z", xlim=(least, 1.0))
    axes.set_title(f"{title}, C = {num_classes}", fontsize="medium")
    axes.legend(fontsize="small")
    files = []
    for ending, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        content = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": path.name}):
            figure.savefig(content, format=ending, dpi=120, metadata=metadata)
        file = path.with_name(f"{path.name}.{ending}")
        write_atomically(file, content.getvalue())
        files.append(file)
    return files


def draw_all(folder: Path, num_classes: int) -> list[Path]:
    """The three figures.

    Raises:
        InputError: fewer than two classes, or a folder that cannot be made.
    """
    if num_classes < 2:
        raise InputError(f"--num-classes: expected 2 or more, got {num_classes}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InputError(f"--out: {folder} cannot be made ({error.strerror}); give another folder") from error
    figures = (
        ("analytic_objectives", "Reward of entropy and of its parts", objectives_curves(num_classes)),
        ("analytic_tau", "DEM over τ", dem_curves([(0.5, 1.0), (0.8, 1.0), (1.0, 1.0), (1.2, 1.0), (1.5, 1.0)])),
        ("analytic_alpha", "DEM over α", dem_curves([(1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (1.0, 1.3), (1.0, 1.6)])),
    )
    return [file for name, title, curves in figures for file in draw(folder / name, title, curves, num_classes)]


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    config = parse_config(
        FiguresConfig, "python -m dem_apps.figures", "python -m dem_apps.figures --out docs/images", argv
    )
    for file in draw_all(Path(config.out), config.num_classes):
        print(file)


if __name__ == "__main__":
    run_command(main)
