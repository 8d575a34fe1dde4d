"""AdaDEM's two kernels on a GPU by tile, warps and programs, in copies of the logits: docs/benchmarks.md.

    python benchmarks/gpu_kernel.py --out docs/results/gpu_kernel.csv

The least is 0.5 copies for the sums (the logits are read) and 1 for the gradient (read and written).
"""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import torch
import triton.testing
from csv_rows import parser_of
from losses import make_logits

from dem_apps.entropy import ObjectiveSpec
from dem_apps.fused import gpu_kernel

TILES = ((64, 1), (64, 2), (64, 4), (128, 2), (128, 4), (128, 8), (256, 4), (256, 8))
LOGITS = {
    "8x19x1024x2048 float32": ((8, 19, 1024, 2048), torch.float32),
    "8x19x1024x2048 bfloat16": ((8, 19, 1024, 2048), torch.bfloat16),
    "1x19x512x1024 float32": ((1, 19, 512, 1024), torch.float32),
}
ADADEM = ObjectiveSpec("mec", norm="l1")
#: Milliseconds of a call on the GPU.
median_ms = partial(triton.testing.do_bench, warmup=5, rep=25, return_mode="median")


def main() -> None:
    """Measure, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    out = parser.parse_args().out
    gpu = torch.cuda.get_device_name()
    with out.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["gpu", "logits", "kernel", "tile", "warps", "programs", "ms", "copy_ms"])
        for name, (shape, dtype) in LOGITS.items():
            logits = make_logits(shape, "cuda", dtype).detach().flatten(2)
            gradient, copy = torch.empty_like(logits), median_ms(logits.clone)
            weights, rows = torch.rand(19, device="cuda"), torch.randn(19, 19, device="cuda")
            for tile, warps in TILES:
                gpu_kernel._SUMS = gpu_kernel._GRADIENT = (tile, warps)
                kernel_sums = partial(gpu_kernel.gpu_pass, logits, None, ADADEM, True)
                times = {}
                for gpu_kernel._PER_PROCESSOR in (4, 8, 16, 32):
                    times["sums", gpu_kernel._PER_PROCESSOR] = median_ms(kernel_sums)
                finish = partial(gpu_kernel.gpu_gradient, logits, None, gradient, ADADEM, weights, rows)
                times["gradient", ""] = median_ms(finish)
                for (kernel, programs), ms in times.items():
                    row = [gpu, name, kernel, tile, warps, programs, f"{ms:.3f}", f"{copy:.4f}"]
                    table.writerow(row)
                    print(*row)


if __name__ == "__main__":
    main()
