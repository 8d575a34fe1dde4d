"""AdaDEM's two kernels on a GPU by tile, warps and stages, in copies of the logits: docs/benchmarks.md.

    python benchmarks/gpu_kernel.py --out docs/results/gpu_kernel.csv

The least is 0.5 copies for the sums (the logits are read) and 1 for the gradient (read and written).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import triton.testing
from csv_rows import parser_of
from losses import make_logits
from torch import Tensor

from dem_apps.entropy import ObjectiveSpec
from dem_apps.fused import gpu_kernel

#: Elements of a tile, warps, stages.
SUMS = [
    (tile, warps, stages) for tile, warps in ((64, 1), (64, 2), (128, 2)) for stages in (1, 2, 3)
]
GRADIENT = [(64, 1, 1), (128, 2, 1), (128, 4, 1), (256, 4, 1)]
PLANES, CLASSES_LAST = torch.contiguous_format, torch.channels_last
LOGITS = {
    "8x19x1024x2048 float32": ((8, 19, 1024, 2048), torch.float32, PLANES),
    "8x19x1024x2048 bfloat16": ((8, 19, 1024, 2048), torch.bfloat16, PLANES),
    "8x19x1024x2048 float32, classes last": ((8, 19, 1024, 2048), torch.float32, CLASSES_LAST),
    "8x19x1024x2048 bfloat16, classes last": ((8, 19, 1024, 2048), torch.bfloat16, CLASSES_LAST),
    "1x19x512x1024 float32": ((1, 19, 512, 1024), torch.float32, PLANES),
}
ADADEM = ObjectiveSpec("mec", norm="l1")
#: Milliseconds of a call on the GPU.
median_ms = partial(triton.testing.do_bench, warmup=5, rep=25, return_mode="median")


def calls(logits: Tensor) -> dict[tuple[object, ...], Callable[[], object]]:
    """Kernel, tile, warps, stages and programs of a multiprocessor → one launch."""
    rows = logits.flatten(2)
    gradient = torch.empty_like(rows)
    weights, weighted_rows = torch.rand(19, device="cuda"), torch.randn(19, 19, device="cuda")
    found: dict[tuple[object, ...], Callable[[], object]] = {}
    for size in SUMS:
        for programs in (8, 16):
            found["sums", *size, programs] = partial(
                with_size, "_SUMS", size, programs, rows, None, ADADEM, True
            )
    for size in GRADIENT:
        given = (rows, None, gradient, ADADEM, weights, weighted_rows)
        found["gradient", *size, ""] = partial(with_size, "_GRADIENT", size, 8, *given)
    return found


def with_size(name: str, size: tuple[int, ...], programs: int, *arguments: object) -> None:
    """Launch the sums' or the gradient's kernel with another tile."""
    launch = {"_SUMS": gpu_kernel.gpu_pass, "_GRADIENT": gpu_kernel.gpu_gradient}[name]
    with (
        mock.patch.object(gpu_kernel, name, size),
        mock.patch.object(gpu_kernel, "_PER_PROCESSOR", programs),
    ):
        launch(*arguments)  # type: ignore[operator]


def main() -> None:
    """Measure, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    out = parser.parse_args().out
    with out.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["gpu", "logits", "kernel", "tile", "warps", "stages", "programs", "ms", "copy_ms"]
        )
        for name, (shape, dtype, layout) in LOGITS.items():
            logits = make_logits(shape, "cuda", dtype).detach().contiguous(memory_format=layout)
            copy = median_ms(logits.clone)
            for found, call in calls(logits).items():
                row = [
                    torch.cuda.get_device_name(),
                    name,
                    *found,
                    f"{median_ms(call):.3f}",
                    f"{copy:.4f}",
                ]
                table.writerow(row)
                print(*row)


if __name__ == "__main__":
    main()
