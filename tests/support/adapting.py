"""Small networks that ``seg.adapt`` adapts, its settings, and what it has written."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dem_apps.runtime.settings import parse_config
from seg.adapt import AdaptConfig
from seg.trained.description import Description

NETWORKS = """
import torch
from torch import nn
class Own(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), norm or nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.last.weight.data *= 8
    def seen(self, images): return images
    def forward(self, images): return self.last(self.norm(self.first(self.seen(images))).relu())
def build(): return Own()
def group(): return Own(nn.GroupNorm(2, 8))
def bare(): return Own(nn.Identity())
def mostly_layer_norm(): return nn.Sequential(nn.LayerNorm(8), Own(), nn.LayerNorm(8))
def nan():
    model = Own()
    model.last.bias.data[1] = float("nan")
    return model
class Fixed(Own):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(3, 16, 24))
    def seen(self, images): return images + self.positions
class Single(Own):
    def seen(self, images): return images.view(1, 3, *images.shape[2:])
"""
IMAGENET = {"mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}


def spec(networks: Any, name: str, folder: Path) -> dict[str, str]:
    """Flags of one of the networks, whose weights are saved."""
    torch.save(getattr(networks, name)().state_dict(), folder / f"{name}.pth")
    return {"model": f"own_adapted:{name}", "weights": str(folder / f"{name}.pth")}


def parsed(**flags: Any) -> AdaptConfig:
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
    return parse_config(AdaptConfig, "python -m seg.adapt", "python -m seg.adapt", arguments)


def moved(before: str, folder: Path) -> set[str]:
    """The weights that an adaptation has changed."""
    (file,) = (folder / "adapted").iterdir()
    old, new = (torch.load(each, weights_only=True) for each in (before, file))
    return {name for name in old if not torch.equal(old[name], new[name])}


def predicted(config: AdaptConfig, name: str) -> np.ndarray:
    return np.asarray(Image.open(Path(str(config.out)) / "after" / f"{name}_pred_labelIds.png"))


def as_seen(config: AdaptConfig, *names: str) -> torch.Tensor:
    pictures = [np.asarray(Image.open(Path(str(config.images)) / f"{name}.png")) for name in names]
    return torch.stack([Description().normalised(picture) for picture in pictures])
