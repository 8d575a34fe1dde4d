"""The README's picture: photographs, and the cracks predicted on them before and after ``seg.adapt``.

    python -m seg.adapt --model NETWORKS/fpn-cracks --images IMAGES --out OUT
    python benchmarks/adapt_picture.py --images IMAGES --out OUT --names slide1459 slide773

IMAGES are 30 photographs, evenly from PHOTOGRAPHS/cracks/drone/images (``benchmarks/photographs.py``; CC0). Lines are
three pixels wider than predicted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np

WIDTH, RED = 300, (40, 40, 230)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("images", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--picture", type=Path, default=Path("docs/images/adapted_cracks.jpg"))
    options = parser.parse_args()
    lines = []
    for name in options.names:
        image = cv2.imread(str(options.images / f"{name}.png"))
        shown = [image]
        for stage in ("before", "after"):
            crack = cv2.imread(str(options.out / stage / f"{name}_pred_labelIds.png"), cv2.IMREAD_GRAYSCALE) == 1
            shown.append(image.copy())
            shown[-1][cv2.dilate(crack.astype(np.uint8), np.ones((3, 3))) > 0] = RED
        height = round(WIDTH * image.shape[0] / image.shape[1])
        resized = [cv2.resize(each, (WIDTH, height), interpolation=cv2.INTER_AREA) for each in shown]
        framed = [cv2.copyMakeBorder(each, 3, 3, 3, 3, cv2.BORDER_CONSTANT, value=(255,) * 3) for each in resized]
        lines.append(np.concatenate(framed, 1))
    cv2.imwrite(str(options.picture), np.concatenate(lines, 0), [cv2.IMWRITE_JPEG_QUALITY, 88])


if __name__ == "__main__":
    main()
