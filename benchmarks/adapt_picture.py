"""The README's picture: photographs, and the cracks predicted on them before and after ``seg.adapt``.

    python -m seg.adapt --model NETWORKS/fpn-cracks --images IMAGES --out OUT
    python benchmarks/adapt_picture.py --images IMAGES --labels LABELS --out OUT --names slide1459 slide773

IMAGES are 30 photographs, evenly from PHOTOGRAPHS/cracks/drone/images (``benchmarks/photographs.py``; CC0). Lines are
three pixels wider than predicted. ``docs/results/adapted_cracks.csv`` gets each image's pixels before and after: label
0 predicted 0, 0 predicted 1, 1 predicted 0, 1 predicted 1.
"""

from pathlib import Path

import cv2
import numpy as np
import torch
from csv_rows import CsvRows, parser_of
from numpy.typing import NDArray

from seg.scores.metrics import confusion

WIDTH, RED = 300, (40, 40, 230)
STAGES = ("before", "after")


def predicted(out: Path, stage: str, name: str) -> NDArray[np.bool_]:
    """(H, W): where a crack is."""
    found: NDArray[np.bool_] = cv2.imread(str(out / stage / f"{name}_pred_labelIds.png"), cv2.IMREAD_GRAYSCALE) == 1
    return found


def main() -> None:
    """The command."""
    parser = parser_of(__doc__, "images", "labels", "out")
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--picture", type=Path, default=Path("docs/images/adapted_cracks.jpg"))
    parser.add_argument("--raw", type=Path, default=Path("docs/results/adapted_cracks.csv"))
    options = parser.parse_args()
    options.raw.unlink(missing_ok=True)  # of another adaptation
    rows, lines = CsvRows(options.raw, ["image"], STAGES), []
    for file in sorted(options.labels.iterdir()):
        label = torch.from_numpy(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE) == 1).long()
        found = {stage: torch.from_numpy(predicted(options.out, stage, file.stem)).long() for stage in STAGES}
        counts = {stage: confusion(label, each, 2).flatten().tolist() for stage, each in found.items()}
        rows.add({"image": file.stem} | counts)
    for name in options.names:
        image = cv2.imread(str(options.images / f"{name}.png"))
        shown = [image]
        for stage in STAGES:
            crack = predicted(options.out, stage, name)
            shown.append(image.copy())
            shown[-1][cv2.dilate(crack.astype(np.uint8), np.ones((3, 3))) > 0] = RED
        height = round(WIDTH * image.shape[0] / image.shape[1])
        resized = [cv2.resize(each, (WIDTH, height), interpolation=cv2.INTER_AREA) for each in shown]
        framed = [cv2.copyMakeBorder(each, 3, 3, 3, 3, cv2.BORDER_CONSTANT, value=(255,) * 3) for each in resized]
        lines.append(np.concatenate(framed, 1))
    cv2.imwrite(str(options.picture), np.concatenate(lines, 0), [cv2.IMWRITE_JPEG_QUALITY, 88])


if __name__ == "__main__":
    main()
