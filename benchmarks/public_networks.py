"""Published segmentation networks, ESPNetv2, DiCENet and ESPNet of Cityscapes, and W-Net, for docs/adaptation.md.

Their code and weights are read from clones, laid out as in ``benchmarks/photographs.py``, such as in ``CLONES=…
PYTHONPATH=benchmarks python -m seg.adapt --model public_networks:dicenet_05 …``. All are under the MIT licence.

sacmehta/EdgeNets  ESPNetv2 (Mehta et al., CVPR 2019), widths 0.5 to 2.0 at 512×256 ("_small" in the name), and DiCENet
                   (Mehta et al., TPAMI 2020), 0.5 to 1.5, at 1024×512 as well; both of Cityscapes
sacmehta/ESPNet    ESPNet (Mehta et al., ECCV 2018), p = 2, q = 3 and 8, Cityscapes
agaldran/lwnet     W-Net (Galdran et al., 2022), retinal vessels of DRIVE
"""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from photographs import files_of
from torch import Tensor, nn

#: CamVid's classes, and the train ids of Cityscapes that each joins; its terrain, walls' background and void have none.
CAMVID = {
    "sky": [10],
    "building": [2],
    "pole": [5],
    "road": [0],
    "pavement": [1],
    "tree": [8, 9],
    "sign": [6, 7],
    "fence": [3, 4],
    "car": [13, 14, 15, 16],
    "pedestrian": [11],
    "bicyclist": [12, 17, 18],
}
IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])


def _opened(repository: str, *starts: str) -> Path:
    """The folder of a repository's files, put on Python's path."""
    root = files_of(Path(os.environ["CLONES"]), repository, *starts)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return root


def _weights(file: Path) -> dict[str, Tensor]:
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    return {name.removeprefix("module."): value for name, value in loaded.items()}


class OnCamVid(nn.Module):
    """A network of Cityscapes' train ids as one of CamVid's classes, each the sum of its train ids' probabilities.

    Args:
        network: (B, 3, H, W) as it takes them → logits (B, 20, h, w).
        mean: of the images that it takes, of RGB from 0 to 255; those given to this module have ImageNet's mean and
            deviation.
        std: likewise.
        bgr: whether it takes blue first.
    """

    def __init__(self, network: nn.Module, mean: Tensor, std: Tensor, bgr: bool = False) -> None:
        super().__init__()
        self.network, self.bgr = network, bgr
        self.scale = nn.Buffer((255 * IMAGENET[1] / std).view(1, 3, 1, 1))
        self.shift = nn.Buffer(((255 * IMAGENET[0] - mean) / std).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, 11, h, w)."""
        images = images * self.scale + self.shift
        logits = self.network(images.flip(1) if self.bgr else images)
        return torch.stack([logits[:, ids].logsumexp(1) for ids in CAMVID.values()], 1)


def edgenet(name: str, width: float, seen: str) -> nn.Module:
    """``espnetv2`` or ``dicenet`` of a width, trained at a size."""
    root = _opened("sacmehta/EdgeNets", "nn_layers/", "model/", "utilities/", "commons/")
    module = importlib.import_module(f"model.segmentation.{name}")
    build = module.ESPNetv2Segmentation if name == "espnetv2" else module.DiCENetSegmentation
    options = SimpleNamespace(s=width, channels=3, model_width=224, model_height=224)
    network = build(options, classes=20, dataset="city")
    network.load_state_dict(
        _weights(root / f"model/segmentation/model_zoo/{name}/{name}_s_{width}_city_{seen}.pth")
    )
    return OnCamVid(network, 255 * IMAGENET[0], 255 * IMAGENET[1])


def espnet(depth: int) -> nn.Module:
    """ESPNet of a depth; its images are divided by 255 after their normalisation, as in its authors' script."""
    root = _opened("sacmehta/ESPNet", "test/", "pretrained/decoder/")
    sys.path.insert(0, str(root / "test"))
    network = importlib.import_module("Model").ESPNet(classes=20, p=2, q=depth)
    network.load_state_dict(_weights(root / f"pretrained/decoder/espnet_p_2_q_{depth}.pth"))
    mean = torch.tensor([73.15840149, 82.90893555, 72.3923111])
    return OnCamVid(
        network, mean, 255 * torch.tensor([44.91483307, 46.15289307, 45.3192215]), bgr=True
    )


class Vessels(nn.Module):
    """W-Net, which takes RGB from 0 to 1, as a network of background and vessel at its authors' threshold."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.moments = nn.Buffer(IMAGENET.view(2, 1, 3, 1, 1).clone())

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, 2, H, W)."""
        logits = self.network(images * self.moments[1] + self.moments[0])
        return torch.cat([torch.zeros_like(logits), logits + 0.3234], 1)  # 0.3234 = −logit(0.4196)


def wnet() -> nn.Module:
    """W-Net of DRIVE."""
    root = _opened("agaldran/lwnet", "models/", "utils/", "experiments/wnet_drive/")
    network = importlib.import_module("models.get_model").get_arch("wnet")
    network.mode = "eval"
    saved = torch.load(
        root / "experiments/wnet_drive/model_checkpoint.pth", map_location="cpu", weights_only=False
    )
    network.load_state_dict(saved["model_state_dict"])
    return Vessels(network)


def _described(
    build: Callable[..., nn.Module], *arguments: Any
) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """A function for ``--model``: the network, and what it takes and returns."""
    facts = {
        "multiple": 32,
        "mean": IMAGENET[0].tolist(),
        "std": IMAGENET[1].tolist(),
        "channels": "rgb",
    }
    classes = ["background", "vessel"] if build is wnet else list(CAMVID)
    return lambda: (build(*arguments), {**facts, "classes": classes})


def _of_widths(
    name: str, seen: str, *widths: float
) -> list[Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    return [_described(edgenet, name, width, seen) for width in widths]


espnetv2_05_small, espnetv2_10_small, espnetv2_20_small = _of_widths(
    "espnetv2", "512x256", 0.5, 1.0, 2.0
)
dicenet_05_small, dicenet_10_small, dicenet_15_small = _of_widths(
    "dicenet", "512x256", 0.5, 1.0, 1.5
)
dicenet_05, dicenet_10, dicenet_15 = _of_widths("dicenet", "1024x512", 0.5, 1.0, 1.5)
espnet_q3, espnet_q8 = (_described(espnet, depth) for depth in (3, 8))
wnet_drive = _described(wnet)
