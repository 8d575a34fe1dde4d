"""Self-training: a teacher, the average of the student's past weights, labels target images for the student.

Sources: DACS (Tranheden et al., WACV 2021): mix of domains; DAFormer (Hoyer et al., CVPR 2022): strong view; MIC (Hoyer
et al., CVPR 2023): masked consistency, here of the image as it is, where MIC first changes its colours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from dem_apps.entropy import Mask
from dem_apps.test_time_methods.copies import deep_copy
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import RGB, PixelFormat
from seg.methods.minent import MinEnt
from seg.methods.optimization import Loss, Means, MicroBatch, MicroBatches, Summed
from seg.methods.settings import SelfTrainingConfig, Weights
from seg.models.network import HeadLogits

#: Purposes of the draws of one sample.
_MASK, _PASTE, _COLOUR = 1, 2, 3
#: A generator for each image of a batch.
Draws = list[torch.Generator]
#: Blur, and colour jitter before it, of DACS and DAFormer.
_BLUR = v2.RandomApply([v2.GaussianBlur(5, (0.15, 1.15))], 0.5)
_STRONG = v2.Compose([v2.RandomApply([v2.ColorJitter(0.2, 0.2, 0.2, 0.2)], 0.8), _BLUR])


@dataclass(eq=False)
class SelfTraining(MinEnt):
    """Cross-entropy of the student's views of target images, and the objective on them.

    The teacher gives the labels. It sees the plain image and is scored, selected and exported. It
    normalises by the target's batch under the policy ``target``, else by running statistics that
    follow the student's. The objective counts on target pixels of a view.
    """

    self_training: SelfTrainingConfig
    weights: Weights  #: of the cross-entropy per head

    def __post_init__(self) -> None:
        super().__post_init__()
        self.teacher = self.network
        if self.self_training.teacher_decay > 0:
            policy = "target" if self.network.batch_norm == "target" else "frozen"
            averaged = deep_copy(self.network.model).requires_grad_(False)
            self.teacher = replace(self.network, model=averaged, batch_norm=policy)

    def target_loss(self, batch: MicroBatch) -> Loss:
        """The student's loss on its views of the micro-batch's target images."""
        settings = self.self_training
        images = batch.target["image"]
        valid = batch.target.get("valid")
        label, sure = self._labels(images, valid)
        weight = settings.pseudo_weight * sure
        losses = list[Tensor]()
        values = {"target/pseudo_label_weight": sure.mean()}
        # without any pixel or objective that counts in a view the teacher is an average alone
        if settings.mix != "none" or settings.pseudo_weight > 0 or self.objectives.objectives:
            loss, of_view = self._view_loss(batch, images, label, weight, valid)
            losses.append(loss)
            values |= of_view
        if settings.mask_ratio > 0:
            draws = generators(batch.target["draw"], _MASK)
            logits = self.network(hidden(images, settings.mask_ratio, draws), "target")
            losses.append(self._cross_entropy(logits, label, weight))
            values["target/masked_consistency"] = losses[-1].detach()
        return (torch.stack(losses).sum() if losses else None), values

    @torch.no_grad()
    def after_step(self, batches: MicroBatches, step: int) -> Means:
        """Move the teacher once a step, whatever the number of micro-batches."""
        if self.teacher is self.network:
            return {}
        decay = min(1.0 - 1.0 / step, self.self_training.teacher_decay)
        averaged, current = map(self._averaged, (self.teacher.model, self.network.model))
        torch._foreach_lerp_(averaged, current, 1.0 - decay)
        return {}

    def _averaged(self, model: nn.Module) -> list[Tensor]:
        """Return weights, and statistics where the teacher normalises by them."""
        tensors: list[Tensor] = list(model.parameters())
        if self.teacher.batch_norm != "target":
            tensors += [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        return tensors

    def scored_model(self) -> nn.Module:
        """The teacher."""
        return self.teacher.model

    @torch.no_grad()
    def _labels(self, images: Tensor, valid: Mask) -> tuple[Tensor, Tensor]:
        """The teacher's labels of images and how much they count, see :func:`pseudo_labels`."""
        was_training = self.teacher.model.training
        self.teacher.model.eval()  # no dropout; batch normalisation is set by the policy
        logits = self.teacher(images, "target")["main"]
        self.teacher.model.train(was_training)
        return pseudo_labels(logits, self.self_training.threshold, valid)

    def _view_loss(
        self,
        batch: MicroBatch,
        images: Tensor,
        label: Tensor,
        weight: Tensor,
        counted: Mask,
    ) -> Summed:
        """Loss of one strong view of the target ``images``, and values to log.

        Args:
            batch: the micro-batch, whose source pixels are pasted.
            images: (B, 3, H, W).
            label: (B, H, W) of the teacher.
            weight: (B, H, W), how much a label counts.
            counted: (B, H, W), where the images hold data; None is everywhere.
        """
        draws = batch.target["draw"]
        if self.self_training.mix != "none":
            source = around_the_centre(batch.source["image"], images, 0)
            source_label = around_the_centre(batch.source["label"], images, IGNORE_INDEX)
            pasted = pasted_pixels(source_label, generators(draws, _PASTE))
            images = torch.where(pasted[:, None], source, images)
            label = torch.where(pasted, source_label, label)
            weight = torch.where(pasted, 1.0, weight)
            counted = ~pasted if counted is None else ~pasted & counted
        images = recoloured(images, generators(draws, _COLOUR), self.network.pixels)
        logits = self.network(images, "target")
        loss = self._cross_entropy(logits, label, weight)
        objective, values = self.objectives(logits, counted)
        values["target/pseudo_label_loss"] = loss.detach()
        return (loss if objective is None else loss + objective), values

    def _cross_entropy(self, logits: HeadLogits, label: Tensor, weight: Tensor) -> Tensor:
        """Weighted over heads and pixels, the mean over all pixels, so that unsure images count less."""
        losses = [
            self.weights[head] * (weight * F.cross_entropy(values, label, reduction="none")).mean()
            for head, values in logits.items()
        ]
        return torch.stack(losses).sum()


@torch.no_grad()
def pseudo_labels(logits: Tensor, threshold: float, valid: Mask = None) -> tuple[Tensor, Tensor]:
    """Return the most probable class of each pixel and its weight.

    Every pixel of an image counts as the share of its pixels whose confidence is at least the threshold (DACS,
    Tranheden et al., WACV 2021); pixels without data, where ``valid`` is False, count 0.

    Returns:
        The classes, (B, H, W) int64, and their weights, 0 to 1.
    """
    confidence, label = logits.float().softmax(1).max(1)
    sure = (confidence >= threshold).float()
    if valid is None:
        return label, sure.mean((1, 2), keepdim=True).expand_as(sure)
    pixels = valid.sum((1, 2), keepdim=True).clamp_min(1)
    return label, (sure * valid).sum((1, 2), keepdim=True) / pixels * valid


def generators(draws: Tensor, purpose: int) -> Draws:
    """Return a generator per sample from the batch's ``draw`` (B,).

    Draws of one ``purpose`` do not depend on another's.
    """
    return [torch.Generator().manual_seed((int(draw) + 7919 * purpose) % 2**63) for draw in draws]


def pasted_pixels(label: Tensor, draws: Draws) -> Tensor:
    """Choose the pixels to paste from source.

    Half of the classes in the label are pasted, rounded up (ClassMix, Olsson et al., WACV 2021).
    Ignored pixels are never pasted.

    Args:
        label: (B, H, W) of the source.
        draws: a generator per image.

    Returns:
        The mask (B, H, W).
    """
    masks = []
    for one, draw in zip(label, draws, strict=True):
        present = one.unique()
        present = present[present != IGNORE_INDEX]
        order = torch.randperm(len(present), generator=draw).to(one.device)
        masks.append(torch.isin(one, present[order[: (len(present) + 1) // 2]]))
    return torch.stack(masks)


def around_the_centre(maps: Tensor, like: Tensor, value: float) -> Tensor:
    """Cut or pad maps (..., h, w) around their centre to the height and width of ``like``; borders hold ``value``."""
    sides = list[int]()
    for dim in (-1, -2):
        missing = like.shape[dim] - maps.shape[dim]
        sides += [missing // 2, missing - missing // 2]
    return F.pad(maps, sides, value=value)


def recoloured(images: Tensor, draws: Draws, pixels: PixelFormat = RGB) -> Tensor:
    """Jitter images (B, 3, H, W) in colour and blur them, as in DACS and DAFormer.

    Each image has its own draws. Bands other than RGB are blurred alone.
    """
    if not pixels.is_rgb:
        return _transformed(_BLUR, images, draws)
    mean, std = (
        torch.tensor(each, device=images.device)[:, None, None]
        for each in (pixels.mean, pixels.std)
    )
    plain = (images * std + mean).clamp(0, 1)
    return (_transformed(_STRONG, plain, draws) - mean) / std


def _transformed(transform: nn.Module, images: Tensor, draws: Draws) -> Tensor:
    """Each image by a transform that draws from its own generator."""
    changed = []
    with torch.random.fork_rng(devices=[]):
        for image, draw in zip(images, draws, strict=True):
            torch.default_generator.set_state(draw.get_state())
            changed.append(transform(image))
    return torch.stack(changed)


def hidden(images: Tensor, ratio: float, draws: Draws) -> Tensor:
    """Hide a share of the blocks of images (B, 3, H, W).

    The blocks become the mean (MIC, Hoyer et al., CVPR 2023).
    """
    height, width = images.shape[-2:]
    side = max(1, min(height, width) // 8)  # as 64 of 512 in the paper
    rows = -(-height // side)
    columns = -(-width // side)
    shown = torch.stack([torch.rand(rows, columns, generator=draw) >= ratio for draw in draws])
    shown = shown.to(images.device).repeat_interleave(side, 1).repeat_interleave(side, 2)
    return images * shown[:, None, :height, :width]
