"""Fixtures of the core's tests."""

import pytest

from dem_apps.fused.build_kernel import load_kernel

needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="no C++ compiler here")


@pytest.fixture(params=["reference", "eager", pytest.param("compiled", marks=needs_kernel)])
def backend(request):
    """Each form of the computation."""
    return request.param
