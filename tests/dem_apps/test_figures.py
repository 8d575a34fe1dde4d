"""The analytic figures: points of the curves against closed forms, written out here from the paper's equations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from dem_apps.errors import InputError
from dem_apps.figures import adadem, dem_curves, draw, family, leading_reward, main, objectives_curves

POINTS = [0.2, 0.5, 0.9, 0.999]
CLASSES = 10


def probabilities(p: float) -> list[float]:
    return [p] + [(1 - p) / (CLASSES - 1)] * (CLASSES - 1)


def entropy(p: float) -> float:
    return -sum(q * math.log(q) for q in probabilities(p))


def delta(p: float) -> float:
    """‖R_T‖₁ with R_T = pᵢ (zᵢ + T + 1) and z = log p, so that T is the entropy."""
    return sum(abs(q * (math.log(q) + entropy(p) + 1)) for q in probabilities(p))


def expected_dem(p: float, tau: float, alpha: float) -> float:
    """(1/τ) p_τ (T_τ + z + τ) − α p of the first class."""
    z = [math.log(q) for q in probabilities(p)]
    weights = [math.exp(value / tau) for value in z]
    p_tau = [weight / sum(weights) for weight in weights]
    t_tau = -sum(a * b for a, b in zip(p_tau, z, strict=True))
    return p_tau[0] * (t_tau + z[0] + tau) / tau - alpha * p


def drawn(name: str, p: list[float]) -> list[float]:
    curve = objectives_curves(CLASSES)[name]
    return leading_reward(curve, torch.tensor(p, dtype=torch.float64), CLASSES).tolist()


def test_the_family_has_the_probabilities() -> None:
    softmax = family(torch.tensor([0.3, 0.9]), CLASSES).softmax(1)
    assert softmax.shape == (2, CLASSES)
    assert softmax[1].tolist() == pytest.approx(probabilities(0.9))


def test_entropy_collapses_and_cadf_does_not() -> None:
    assert drawn("entropy", POINTS) == pytest.approx([p * (math.log(p) + entropy(p)) for p in POINTS])
    assert drawn("CADF", POINTS) == pytest.approx([p * (math.log(p) + entropy(p) + 1) for p in POINTS])
    assert drawn("entropy", [1 - 1e-9])[0] == pytest.approx(0, abs=1e-6)
    assert drawn("CADF", [1 - 1e-9])[0] == pytest.approx(1, abs=1e-6)


def test_adadem_divides_by_delta_and_takes_the_table_off() -> None:
    norm = [p * (math.log(p) + entropy(p)) / delta(p) for p in POINTS]
    table = [(p * (math.log(p) + entropy(p) + 1) - 1 / CLASSES) / delta(p) for p in POINTS]
    assert drawn("AdaDEM-Norm", POINTS) == pytest.approx(norm, abs=1e-6)
    assert drawn("AdaDEM, class marginals at 1/C", POINTS) == pytest.approx(table, abs=1e-6)


def test_a_point_does_not_depend_on_the_others() -> None:
    together = leading_reward(adadem(CLASSES), torch.tensor([0.3, 0.9]), CLASSES)
    alone = leading_reward(adadem(CLASSES), torch.tensor([0.9]), CLASSES)
    assert together[1].item() == pytest.approx(alone.item(), abs=1e-9)


@pytest.mark.parametrize(("tau", "alpha"), [(0.5, 1.0), (1.5, 1.0), (1.0, 0.0), (1.0, 1.6)])
def test_dem(tau: float, alpha: float) -> None:
    (curve,) = dem_curves([(tau, alpha)]).values()
    rewards = leading_reward(curve, torch.tensor(POINTS, dtype=torch.float64), CLASSES).tolist()
    assert rewards == pytest.approx([expected_dem(p, tau, alpha) for p in POINTS])


def test_the_same_curves_give_the_same_files(tmp_path: Path) -> None:
    curves = dem_curves([(1.0, 1.0)])
    first = [file.read_bytes() for file in draw(tmp_path / "one", "DEM", curves, 4)]
    assert first == [file.read_bytes() for file in draw(tmp_path / "one", "DEM", curves, 4)]
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"\x89PNG")


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--num-classes: expected 2 or more, got 1"):
        main(["--num-classes", "1"])
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be made"):
        main(["--out", str(tmp_path / "file")])
