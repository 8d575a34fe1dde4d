"""Fixtures of the core's tests."""

import pytest
import torch

from dem_apps.fused.build_kernel import load_kernel

#: Largest error allowed, relative to the largest expected number: about twice what is seen (ten times for float64).
#: Half precision rounds a gradient twice, the first time before the table's part cancels most of it.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}

needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="no C++ compiler here")


@pytest.fixture(params=["reference", "eager", pytest.param("compiled", marks=needs_kernel)])
def backend(request):
    """Each form of the computation."""
    return request.param


@pytest.fixture(scope="session")
def assert_near():
    """``assert_near(actual, expected, dtype)``: equal up to that dtype's rounding."""

    def check(actual, expected, dtype, what="", scale=0.0):
        assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
        actual, expected = actual.detach().double(), expected.detach().double()
        largest = max(expected.abs().max().item() if expected.numel() else 0.0, scale)
        error = (actual - expected).abs().max().item() if expected.numel() else 0.0
        allowed = TOLERANCE[dtype] * largest
        assert error <= allowed, f"{what}: off by {error:.3g}, allowed {allowed:.3g} (values up to {largest:.3g})"

    return check
