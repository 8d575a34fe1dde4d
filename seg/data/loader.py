"""The stream of training batches: shuffled, augmented, and a function of seed and position alone.

A resumed run sees the same batches as an unbroken one, with any number of workers and processes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, DataLoader, Dataset, default_collate

from dem_apps.errors import InputError
from seg.data.augmentation import Augmentation, apply_augmentation, build_augmentation
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.pixel_format import RGB, PixelFormat
from seg.data.sampling import Draws, Epochs, Sampler

Batch = dict[str, Any]
Samples = SegmentationDataset | ConcatDataset[Sample]
#: Changes an image, (H, W, B), with the sample's random numbers; see :mod:`seg.data.style`.
Style = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]


def batches(
    dataset: Samples,
    batch_size: int,
    steps: range,
    seed: tuple[int, int],
    augmentation: list[dict[str, Any]],
    workers: int = 0,
    process: tuple[int, int] = (0, 1),
    sampler: Sampler | None = None,
    style: Style | None = None,
    styled: int | None = None,
    pixels: PixelFormat = RGB,
) -> Iterator[Batch]:
    """Batches for the given training steps: ``image`` (B, 3, H, W), ``label`` (B, H, W) int64 if read, ``name`` and
    ``draw``; ``valid`` (B, H, W) bool where an image has pixels without data.

    ``draw`` (B,) int64 is a random number from 0 to 2**62 - 1 per sample, which seeds what a method draws for it.

    Args:
        dataset: what to draw from.
        batch_size: samples of a step, over all processes; B is this one's share, in the order of the ranks.
        steps: the steps to serve; a resumed run starts where it stopped.
        seed: the run's seed and the stream's number, so that source and target differ.
        augmentation: see :func:`build_augmentation`.
        workers: processes that read ahead; 0 reads in this one.
        process: (rank, number of processes).
        sampler: which sample stands at which position; None is :class:`Epochs`.
        style: changes the images before the augmentation.
        styled: how many samples of ``dataset``, from the first on, get the style; None for all. Labelled target
            images, which come after the source's, have it already.
        pixels: of the images, for the augmentation.
    """
    rank, processes = process
    share, rest = divmod(batch_size, processes)
    if rest:
        raise InputError(f"--batch-size: {batch_size} cannot be shared out evenly over {processes} processes")
    stream = _Stream(
        dataset, sampler or Epochs(len(dataset), (*seed, Draws.ORDER)), steps, batch_size, rank * share, share, seed,
        build_augmentation(augmentation, pixels) if augmentation else None,
        style, len(dataset) if styled is None else styled,
    )  # fmt: skip
    loader = DataLoader(
        stream, batch_size=share, num_workers=workers, pin_memory=torch.cuda.is_available(), collate_fn=_collated,
        worker_init_fn=_leave_signals_to_the_main_process,
        # a start would draw from the global one, and a resumed run has one start more
        generator=torch.Generator(),
    )  # fmt: skip
    for batch in loader:
        if isinstance(batch, InputError):
            raise batch
        yield batch


@dataclass(frozen=True)
class _Stream(Dataset[Batch | InputError]):
    """Samples by their place among those of this process: ``share`` a step, from ``first`` on of ``batch_size``."""

    dataset: Samples
    sampler: Sampler
    steps: range
    batch_size: int
    first: int
    share: int
    seed: tuple[int, int]
    augmentation: Augmentation | None
    style: Style | None
    styled: int

    def __len__(self) -> int:
        return len(self.steps) * self.share

    def __getitem__(self, item: int) -> Batch | InputError:
        step, place = divmod(item, self.share)
        try:
            return self._at(self.steps[step] * self.batch_size + self.first + place)
        except InputError as error:
            return error

    def _at(self, position: int) -> Batch:
        index = self.sampler.index(position)
        sample = self.dataset[index]
        if self.style is not None and index < self.styled:
            # before the augmentation, as FDA does: of the whole image, and colour augmentation stays
            sample = replace(sample, image=self.style(sample.image, self._random(Draws.STYLE, position)))
        if self.augmentation is not None:
            seed = int(self._random(Draws.AUGMENTATION, position).integers(2**31))
            sample = apply_augmentation(self.augmentation, sample, seed)
        draw = int(self._random(Draws.METHOD, position).integers(2**62))
        batch: Batch = {"name": sample.name, "image": sample.normalised(), "draw": draw}
        if sample.label is not None:
            batch["label"] = torch.from_numpy(sample.label.astype(np.int64))
        if sample.valid is not None:
            batch["valid"] = torch.from_numpy(np.ascontiguousarray(sample.valid))
        return batch

    def _random(self, purpose: Draws, position: int) -> np.random.Generator:
        return np.random.default_rng([*self.seed, purpose, position])


def _collated(samples: list[Batch | InputError]) -> Batch | InputError:
    """A batch, or the first error among its samples: after an exception in a worker a loader takes 5 s to end."""
    whole: list[Batch] = []
    for sample in samples:
        if isinstance(sample, InputError):
            return sample
        whole.append(sample)
    if any("valid" in sample for sample in whole):
        for sample in whole:  # all samples have it, so that they can be stacked
            sample.setdefault("valid", torch.ones(sample["image"].shape[1:], dtype=torch.bool))
    names = {tuple(sample["image"].shape[:0:-1]): sample["name"] for sample in whole}
    if len(names) > 1:
        differing = ", ".join(f"{name} is {width}x{height}" for (width, height), name in names.items())
        return InputError(
            f"a batch needs images of one size, and {differing}: set --source.size and --target.size, or --batch-size 1"
        )
    batch: Batch = default_collate(whole)
    return batch


def _leave_signals_to_the_main_process(_worker: int) -> None:
    """Ignore Ctrl-C and a launcher's SIGTERM: the main process finishes its step, then ends the workers by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # Python's only way to know which process sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_main_process, daemon=True).start()


def _end_with_the_main_process() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
