"""An endless, shuffled, augmented stream of training batches that is a function of its seed and position alone.

That is what makes a resumed run see what the unbroken one would have seen, with any number of workers: position n
of a stream is the same sample with the same augmentation, whoever asks for it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dem_apps.errors import InputError, nearest
from seg.data.datasets import SegmentationDataset

# Without this its import asks the network for a newer release and waits where there is none to reach.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
import albumentations

#: Mean and standard deviation of ImageNet in RGB, 0 to 1: what the encoders' published weights expect.
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

Batch = dict[str, Any]


def normalised(image_hwc: NDArray[np.uint8]) -> Tensor:
    """(H, W, 3) uint8 RGB → (3, H, W) float32 with ImageNet's mean 0 and deviation 1."""
    scaled = (image_hwc.astype(np.float32) / 255.0 - MEAN) / STD
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1)))


def build_augmentation(steps: list[dict[str, Any]]) -> albumentations.Compose:
    """Albumentations from YAML: a list such as ``[{HorizontalFlip: {p: 0.5}}]``.

    Raises:
        InputError: an unknown transform, or arguments that it does not take.
    """
    transforms = []
    for step in steps:
        if not isinstance(step, dict) or len(step) != 1:
            raise InputError(f"augmentation: expected one 'Name: {{arguments}}' per item, found {step!r}")
        ((name, arguments),) = step.items()
        known = [key for key in dir(albumentations) if key[0].isupper()]
        if name not in known:
            raise InputError(f"augmentation: albumentations has no '{name}'{nearest(name, known)}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                transforms.append(getattr(albumentations, name)(**(arguments or {})))
        except (TypeError, ValueError, UserWarning) as error:
            raise InputError(f"augmentation '{name}': {' '.join(str(error).split())}") from error
    return albumentations.Compose(transforms)


def batches(
    dataset: SegmentationDataset,
    batch_size: int,
    steps: range,
    seed: tuple[int, int],
    augmentation: list[dict[str, Any]],
    workers: int = 0,
) -> Iterator[Batch]:
    """Batches for the given training steps: ``image`` (B, 3, H, W), ``label`` (B, H, W) int64 if read, ``name``.

    Args:
        dataset: what to draw from; every sample once per pass, in a new order each pass.
        batch_size: B.
        steps: the steps to serve; a resumed run starts where it stopped.
        seed: the run's seed and the stream's number, so that source and target differ.
        augmentation: see :func:`build_augmentation`.
        workers: processes that read ahead; 0 reads in this one.

    Raises:
        InputError: a file that cannot be read, or an id that is not in the table.
    """
    positions = range(steps.start * batch_size, steps.stop * batch_size)
    shuffled = _Shuffled(dataset, positions, seed, build_augmentation(augmentation))
    loader = DataLoader(shuffled, batch_size=batch_size, num_workers=workers, pin_memory=torch.cuda.is_available())
    try:
        yield from loader
    except InputError as error:
        # from a worker the sentence arrives as the last line of a stack trace
        raise InputError(str(error).strip().splitlines()[-1].removeprefix("dem_apps.errors.InputError: ")) from error


class _Shuffled(Dataset[Batch]):
    """Maps positions of the stream to samples."""

    def __init__(
        self,
        dataset: SegmentationDataset,
        positions: range,
        seed: tuple[int, int],
        augmentation: albumentations.Compose,
    ) -> None:
        self._dataset = dataset
        self._positions = positions
        self._seed = seed
        self._augmentation = augmentation
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, item: int) -> Batch:
        position = self._positions[item]
        epoch, place = divmod(position, len(self._dataset))
        sample = self._dataset[int(self._epoch_order(epoch)[place])]
        self._augmentation.set_random_seed(int(np.random.default_rng([*self._seed, 1, position]).integers(2**31)))
        parts = {"image": sample.image} if sample.label is None else {"image": sample.image, "mask": sample.label}
        augmented = self._augmentation(**parts)
        batch: Batch = {"name": sample.name, "image": normalised(augmented["image"])}
        if sample.label is not None:
            batch["label"] = torch.from_numpy(augmented["mask"].astype(np.int64))
        return batch

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([*self._seed, 0, epoch]).permutation(len(self._dataset)))
        return self._order[1]
