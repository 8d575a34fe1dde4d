"""A plain loop that follows ADVENT (Vu et al., CVPR 2019), with which seg_step.py and a test compare our step.

Written from the published protocol: float32, NCHW, full-size maps of both heads at once, one loss after the other.
"""

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seg import build_model
from seg.config import TrainConfig
from seg.data.labels import IGNORE_INDEX
from seg.methods.advent import build_discriminator
from seg.models.deeplabv2 import AtrousHead


class PlainLoop:
    """MinEnt, AdvEnt or both with everything that a step needs.

    Args:
        config: a run's settings; method, model, optimizer, weights and discriminator are used.
        classes: C.
        device: of the network.
    """

    def __init__(self, config: TrainConfig, classes: int, device: torch.device) -> None:
        config = config.resolved()
        self.config, self.classes, self.device, self.done = config, classes, device, 0
        self.horizon = config.optimizer.horizon
        model = config.model
        network = build_model(
            **model.architecture(), num_classes=classes, weights=model.encoder_weights
        )
        self.model = network.to(device).train()
        for head in ("main_head", "auxiliary_head"):
            setattr(self.model, head, _FourConvolutions(getattr(self.model, head)))
        for layer in self.model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.requires_grad_(model.batch_norm == "trainable")
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        encoder = [p for name, p in trained.items() if name.startswith("encoder.")]
        heads = [p for name, p in trained.items() if not name.startswith("encoder.")]
        settings, groups = config.optimizer, [{"params": encoder}, {"params": heads}]
        self.rates = (settings.lr, settings.lr * settings.head_factor)
        self.optimizer = torch.optim.SGD(
            groups, settings.lr, settings.momentum, 0.0, settings.weight_decay
        )
        judged, own = ("main", "aux") if config.method == "advent" else (), config.discriminator
        self.judges = {
            head: build_discriminator(classes, own.channels).to(device) for head in judged
        }
        self.judge_optimizers = {
            head: torch.optim.Adam(judge.parameters(), own.lr, (0.9, 0.99))
            for head, judge in self.judges.items()
        }

    def step(self, source: dict[str, Any], target: dict[str, Any]) -> dict[str, float]:
        """One step of the network and the discriminators; its losses, by the names of :mod:`seg.training.step`."""
        self._start()
        weights, losses = self.config.weights, dict[str, Tensor]()
        maps = self._predict(source["image"])
        label = source["label"].to(self.device)
        for head in maps:
            losses[f"source/cross_entropy_{head}"] = F.cross_entropy(
                maps[head], label, ignore_index=IGNORE_INDEX
            )
        total = weights.seg_main * losses["source/cross_entropy_main"]
        (total + weights.seg_aux * losses["source/cross_entropy_aux"]).backward()
        source_maps, maps = maps, self._predict(target["image"])
        total = self._fool(maps, losses)
        if self.config.loss == "entropy":
            for head in maps:
                size = maps[head].numel() // self.classes
                losses[f"target/objective_{head}"] = self_information(maps[head]).sum() / size
            total = total + weights.target_main * losses["target/objective_main"]
            total = total + weights.on_target("target")["aux"] * losses["target/objective_aux"]
        total.backward()
        self._judge(source_maps, maps, losses)
        for optimizer in (self.optimizer, *self.judge_optimizers.values()):
            optimizer.step()
        return {name: value.item() for name, value in losses.items()}

    def _start(self) -> None:
        factor = (1 - self.done / self.horizon) ** self.config.optimizer.power
        self.done += 1
        self.optimizer.zero_grad()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        for optimizer in self.judge_optimizers.values():
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = self.config.discriminator.lr * factor

    def _predict(self, images: Tensor) -> dict[str, Tensor]:
        logits = self.model(images.to(self.device))
        size = images.shape[-2:]
        return {
            head: F.interpolate(v, size, mode="bilinear", align_corners=True)
            for head, v in logits.items()
        }

    def _fool(self, maps: dict[str, Tensor], losses: dict[str, Tensor]) -> Tensor:
        total = torch.zeros((), device=self.device)
        for head, judge in self.judges.items():
            judge.requires_grad_(False)
            losses[f"target/fooling_{head}"] = _verdict_loss(
                judge(self_information(maps[head])), 0.0
            )
            total = (
                total
                + self.config.weights.on_target("adversarial")[head]
                * losses[f"target/fooling_{head}"]
            )
        return total

    def _judge(
        self, source: dict[str, Tensor], target: dict[str, Tensor], losses: dict[str, Tensor]
    ) -> None:
        for head, judge in self.judges.items():
            judge.requires_grad_(True)
            halves = []
            for maps, label in ((source, 0.0), (target, 1.0)):
                half = _verdict_loss(judge(self_information(maps[head].detach())), label) / 2
                half.backward()
                halves.append(half.detach())
            losses[f"discriminator/loss_{head}"] = halves[0] + halves[1]


class _FourConvolutions(nn.Module):
    """A head with the same weights that computes its four convolutions one after the other, as ADVENT does."""

    def __init__(self, head: AtrousHead) -> None:
        super().__init__()
        self.branches = head.branches

    def forward(self, features: Tensor) -> Tensor:
        return reduce(torch.add, (branch(features) for branch in self.branches))


def self_information(logits: Tensor) -> Tensor:
    """−p log₂(p + 1e-30) / log₂ C of (B, C, H, W) logits, as ADVENT computes it."""
    p = F.softmax(logits, dim=1)
    return -p * torch.log2(p + 1e-30) / math.log2(logits.shape[1])


def _verdict_loss(verdict: Tensor, label: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, label))
