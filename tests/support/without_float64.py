"""Stands in for a device without float64, such as Apple's GPUs: the CPU, on which every such operation raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dem_apps import reduction
from dem_apps.test_time_methods import normalisation


@contextmanager
def without_float64() -> Iterator[None]:
    kernel = mock.patch("dem_apps.objective.supports_kernel", return_value=False)  # the CPU's own
    own_pass = mock.patch.object(normalisation, "_OWN_PASS", set())
    with mock.patch.object(reduction, "WITHOUT_FLOAT64", {"cpu"}), kernel, own_pass, _Refused():
        yield


class _Refused(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.batch_norm_update_stats.default:
            raise NotImplementedError(f"{func} is not currently implemented for the MPS device")
        returned = func(*args, **(kwargs or {}))
        if any(
            torch.is_tensor(each) and each.dtype == torch.float64 for each in tree_leaves(returned)
        ):
            raise TypeError(f"{func}: Cannot convert a MPS Tensor to float64 dtype")
        return returned
