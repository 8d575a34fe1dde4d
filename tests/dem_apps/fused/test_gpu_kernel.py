"""The Triton kernels against the PyTorch form, in Triton's interpreter on a CPU; ``tests/test_gpu.py`` runs them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dem_apps.entropy import ObjectiveSpec
from dem_apps.fused.one_pass import FusedPass, chunked_finish, chunked_pass

ROOT = Path(__file__).resolve().parents[3]
SPECS = [
    *(ObjectiveSpec("gmc", tau, alpha) for tau in (1.0, 1.7) for alpha in (0.0, 0.6, 1.0)),
    *(ObjectiveSpec("mec", 1.0, alpha, "l1") for alpha in (0.6, 1.0)),
    *(
        ObjectiveSpec("self", 1.0, 0.6, norm, delta)
        for norm in ("l1", "l2", "linf")
        for delta in ("cadf", "entropy")
    ),
    *(
        ObjectiveSpec("mec", 1.0, 1.0, norm, delta)
        for norm in ("l2", "linf", None)
        for delta in ("cadf", "entropy")
    ),
]
#: maps, rows of classes, and more classes than a power of two
SHAPES = [(2, 5, 70), (40, 19), (1, 33, 30)]


def test_the_kernels_equal_the_pytorch_form() -> None:
    # earlier interpreters do not run under newer numpy
    pytest.importorskip("triton", minversion="3.8")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "compared\n"


@pytest.mark.parametrize("capability", [75, 90])
def test_the_kernels_compile_for_gpus_that_are_not_here(capability: int) -> None:
    compiler, backends = (
        pytest.importorskip(f"triton.{name}.compiler") for name in ("compiler", "backends")
    )
    from dem_apps.fused import gpu_kernel

    for kernel, block, warps, stages in (
        (gpu_kernel._sums_kernel, *gpu_kernel._SUMS),
        (gpu_kernel._gradient_kernel, *gpu_kernel._GRADIENT),
    ):
        constants = {
            "counted": None,
            "C": 19,
            "BLOCK_C": 32,
            "BLOCK": block,
            "CALIBRATOR": "mec",
            "NORM": "l1",
            "OF_ENTROPY": False,
            "TEMPERED": False,
            "MASKED": False,
            "GROUPED": True,
            "CLASSES_LAST": True,
            "PTX": capability >= 80,
        }
        types = dict.fromkeys(
            ["logits", "partial", "gradient", "weights", "weighted_rows"], "*fp32"
        )
        types |= dict.fromkeys(["tau", "alpha", "floor"], "fp32") | dict.fromkeys(
            constants, "constexpr"
        )
        signature = {name: types.get(name, "i32") for name in kernel.arg_names}
        source = compiler.ASTSource(
            kernel, signature, {k: v for k, v in constants.items() if k in signature}
        )
        target = backends.GPUTarget("cuda", capability, 32)
        made = compiler.compile(source, target, {"num_warps": warps, "num_stages": stages})
        assert made.asm["cubin"]


def main() -> None:
    """Every member, shape, mask and grouping; sums and gradients."""
    torch.manual_seed(0)
    pairs = [(spec, SHAPES[0]) for spec in SPECS]
    pairs += itertools.product(SPECS[::5], SHAPES[1:])
    for (spec, shape), (masked, grouped) in itertools.product(pairs, ((0, 0), (0, 1), (1, 1))):
        if grouped or spec.calibrator != "mec":
            compare(spec, 2 * torch.randn(shape), bool(masked), bool(grouped))
    print("compared")


def compare(spec: ObjectiveSpec, logits: torch.Tensor, masked: bool, grouped: bool) -> None:
    from dem_apps.fused.gpu_kernel import gpu_gradient, gpu_pass

    mask = torch.rand(logits.movedim(1, -1).shape[:-1]) > 0.3 if masked else None
    _, rows, counted = FusedPass(spec, 1, mask, grouped, True).views(logits)
    outer, classes, inner = rows.shape
    expected, actual = torch.empty_like(rows), torch.full_like(rows, torch.nan)
    predicted = torch.empty(outer, inner, dtype=torch.int32) if grouped else None
    inverse_delta = torch.empty(outer, inner) if spec.calibrator == "mec" else None
    sums = chunked_pass(rows, counted, (expected, predicted, inverse_delta), spec, grouped)
    torch.testing.assert_close(gpu_pass(rows, counted, spec, grouped), sums, rtol=2e-5, atol=2e-4)
    weights = torch.rand(classes if grouped else 1, dtype=torch.float64)
    weighted_rows = (
        torch.randn(classes, classes, dtype=torch.float64) if spec.calibrator == "mec" else None
    )
    if predicted is None:
        expected.mul_(weights.float())
    else:
        chunked_finish(expected, predicted, inverse_delta, weights, weighted_rows)
    gpu_gradient(rows, counted, actual, spec, weights, weighted_rows)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-5)


if __name__ == "__main__":
    main()
