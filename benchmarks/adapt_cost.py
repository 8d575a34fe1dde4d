"""Measure the cost of ``seg.adapt`` against plain prediction, for ``docs/adaptation.md``.

    python benchmarks/adapt_cost.py [--out docs/results/adapt_cost.json] MODEL=IMAGES …

MODEL: a folder of segmentation-models-pytorch with a normalisation of 0.5; IMAGES: a folder, all of one size. A
forward counts 1 for the pixels of an image, so a smaller view counts less. Seconds are CPU time of one thread, in
one process, without imports. Both are by image.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from csv_rows import parser_of
from measuring import machine, write_json
from PIL import Image
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from dem_apps.report.tables import markdown
from seg.adapt import AdaptConfig, adapt
from seg.adaptation.result import Result
from seg.export import ExportConfig, export

#: Every encoder's largest stride, to whose multiples images are padded.
STRIDE = 32


def measured(command: Callable[[], Any], images: list[Path]) -> dict[str, float]:
    """CPU seconds and forwards of a command, per image."""
    pixels = [0]

    def count(module: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        if type(module).__name__.endswith("Encoder"):
            pixels[0] += inputs[0][:, 0].numel()

    hook, start = register_module_forward_hook(count), time.process_time()
    command()
    seconds = time.process_time() - start
    hook.remove()
    width, height = (-(-side // STRIDE) * STRIDE for side in Image.open(images[0]).size)
    return {
        "seconds": seconds / len(images),
        "forwards": pixels[0] / (width * height * len(images)),
    }


def costs(model: str, folder: str) -> dict[str, Any]:
    """The cost of both commands, with a network on a folder."""
    images = sorted(Path(folder).iterdir())
    given = {"model": model, "images": folder, "mean": [0.5] * 3, "std": [0.5] * 3, "device": "cpu"}
    results: list[Result] = []
    with TemporaryDirectory() as made:
        export_config, config = (
            ExportConfig(**given, out=f"{made}/export"),
            AdaptConfig(**given, out=f"{made}/adapt"),
        )
        plain = measured(partial(export, export_config), images)
        ours = measured(lambda: results.append(adapt(config)), images)
    row = {"network": Path(model).name, "images": len(images), "size": Image.open(images[0]).size}
    return row | {"adapted": results[0].adapted, "seg.export": plain, "seg.adapt": ours}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of the page."""
    lines = []
    for row in rows:
        images, (width, height) = row["images"], row["size"]
        times = row["seg.adapt"]["seconds"] / row["seg.export"]["seconds"]
        adapted = "yes" if row["adapted"] else "no"
        forwards = f"{row['seg.adapt']['forwards']:.1f}"
        lines.append(
            [row["network"], f"{images} of {width}×{height}", adapted, forwards, f"{times:.1f}"]
        )
    return markdown(["network", "images", "adapted", "forwards", "time"], lines)


def main() -> None:
    """Measure, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument("pairs", nargs="+", metavar="MODEL=IMAGES")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = [pair.split("=") for pair in options.pairs]
    costs(*pairs[0])  # Imports; the measured run of the first pair is the second one.
    rows = [costs(model, folder) for model, folder in pairs]
    print(table(rows))
    write_json(options.out, {"rows": rows, "machine": machine()})


if __name__ == "__main__":
    main()
