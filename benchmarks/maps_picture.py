"""The first picture of README: one street, the predicted classes and the entropy maps of several runs.

    DEMO=$(ls -d runs/demo-* | tail -n 1)
    python benchmarks/maps_picture.py "source only=$DEMO/source-only/seed0" \\
        "MinEnt + AdaDEM=$DEMO/MinEnt-+-AdaDEM/seed0" --image demostadt_000020_000019_leftImg8bit

reads ``entropy_maps/IMAGE`` of each run, which ``make demo`` writes, and stacks a line of image, prediction and
entropy for each.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot
from PIL import Image


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", metavar="TITLE=RUN", help="title and run folder of each line"
    )
    parser.add_argument(
        "--image", required=True, help="name of a folder in entropy_maps of every run"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images/source_and_adadem.png"), help="file to write"
    )
    given = parser.parse_args()
    matplotlib.use("agg")
    figure, rows = pyplot.subplots(
        len(given.runs),
        3,
        figsize=(12, 2.25 * len(given.runs)),
        layout="constrained",
        squeeze=False,
    )
    for axes, run in zip(rows, given.runs, strict=True):
        title, _, folder = run.partition("=")
        draw_line(axes, title, Path(folder) / "entropy_maps" / given.image)
    for axis, heading in zip(
        rows[0], ("target image", "predicted classes", "entropy / log C"), strict=True
    ):
        axis.set_title(heading)
    scale = matplotlib.cm.ScalarMappable(cmap="magma")
    figure.colorbar(scale, ax=rows[:, 2], fraction=0.03, ticks=[0, 0.5, 1])
    figure.savefig(given.out, dpi=80)


def draw_line(axes: np.ndarray, title: str, folder: Path) -> None:
    """Image, prediction and entropy of one run."""
    for axis, view in zip(axes, ("image", "prediction", "entropy"), strict=True):
        pixels = np.asarray(Image.open(folder / f"{view}.png"))
        axis.imshow(pixels, interpolation="nearest" if view == "prediction" else "bilinear")
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set_visible(False)
    axes[0].set_ylabel(title)


if __name__ == "__main__":
    main()
