"""The stream of training batches: deterministic and resumable, styled and augmented by seed and position alone.

A resumed run sees the same batches as an unbroken one, with any number of workers and processes.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import cv2
import numpy as np
import scipy.fft
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, default_collate

from dem_apps.errors import InputError, nearest, passed_on
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.labels import IGNORE_INDEX, Ids
from seg.data.pixel_format import RGB, Mask, Numbers, PixelFormat
from seg.data.samplers import Draws, Epochs, Sampler

# Without this, importing it checks for a newer release over the network, and waits where there is none.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
import albumentations

Augmentation: TypeAlias = albumentations.Compose
#: Grey levels below which amplitudes are rounding errors of 32-bit arithmetic (1.4e-5 at most).
_NO_AMPLITUDE = 1e-4
#: Transforms that training does not use. Transforms of spectrograms write 0, a class, into labels.
#: Training itself makes tensors and normalises.
_REFUSED = ("FrequencyMasking", "TimeMasking", "ToTensorV2", "ToTensor3D", "Normalize", "ToFloat")
#: The key of the mask of the pixels that hold data, beside image and label.
_VALID = "valid"
Batch = dict[str, Any]
#: One mapping of a transform's name to its arguments for each transform of albumentations.
Steps = list[dict[str, Any]]
Samples = SegmentationDataset | ConcatDataset[Sample]
#: A change of an image (H, W, B) by the sample's random numbers, as by :func:`target_style`.
Style = Callable[[Numbers, np.random.Generator], Numbers]


def batches(
    dataset: Samples,
    batch_size: int,
    steps: range,
    seed: tuple[int, int],
    augmentation: Steps,
    workers: int = 0,
    process: tuple[int, int] = (0, 1),
    sampler: Sampler | None = None,
    style: Style | None = None,
    styled: int | None = None,
    pixels: PixelFormat = RGB,
) -> Iterator[Batch]:
    """Yield the batches of the given training steps.

    Args:
        dataset: the samples.
        batch_size: images of a batch in all processes together.
        steps: the training steps.
        seed: (run's, stream's).
        augmentation: the list for :func:`build_augmentation`.
        workers: processes that read samples; 0 for this one alone.
        process: (rank, number).
        sampler: says which sample stands at which position; None for :class:`Epochs`.
        style: changes images before the augmentation.
        styled: number of samples, from the first, that get the style; None for all.
        pixels: what the images are.

    Yields:
        ``image`` (B, 3, H, W), ``label`` (B, H, W) int64, ``name``, ``valid`` and ``draw``.
        ``draw`` (B,) int64 seeds what a method draws for a sample. B is this process's share of
        ``batch_size``.

    Raises:
        InputError: a batch that cannot be shared out evenly, or a sample that cannot be read.
    """
    rank, processes = process
    share, rest = divmod(batch_size, processes)
    if rest:
        raise InputError(
            f"--batch-size: {batch_size} cannot be shared out evenly over {processes} processes"
        )
    stream = _Stream(
        dataset,
        sampler or Epochs(len(dataset), (*seed, Draws.ORDER)),
        seed,
        build_augmentation(augmentation, pixels) if augmentation else None,
        style,
        len(dataset) if styled is None else styled,
    )
    positions = (
        step * batch_size + rank * share + place for step in steps for place in range(share)
    )
    loader = DataLoader(
        stream,
        batch_size=share,
        sampler=positions,
        num_workers=min(workers, os.cpu_count() or 1),  # torch warns of more
        pin_memory=torch.cuda.is_available(),
        collate_fn=_collated,
        worker_init_fn=_leave_signals_to_the_main_process,
        # a start would draw from the global one, and a resumed run has one start more
        generator=torch.Generator(),
    )
    for batch in loader:
        if isinstance(batch, InputError):
            raise batch
        yield batch


def build_augmentation(steps: Steps, pixels: PixelFormat = RGB) -> Augmentation:
    """Build albumentations' transforms from a list such as ``[{HorizontalFlip: {p: 0.5}}]``.

    Pixels from outside the image are ``IGNORE_INDEX`` in the label (albumentations writes 0, a
    class) unless ``fill_mask`` is given.

    Args:
        steps: one mapping of a transform's name to its arguments for each transform.
        pixels: what the images are; images of other bands than 8-bit RGB are moved, and keep their
            colours.

    Raises:
        InputError: an unknown transform, one that training cannot use, or arguments that it does
            not take.
    """
    transforms = []
    for step in steps:
        if not isinstance(step, dict) or len(step) != 1:
            raise InputError(
                f"augmentation: expected one 'Name: {{arguments}}' per item, found {step!r}"
            )
        ((name, arguments),) = step.items()
        transform = _transform(str(name), pixels)
        arguments = dict(arguments or {})
        fill = inspect.signature(transform.__init__).parameters.get("fill_mask")
        if fill is not None and fill.default is not None:
            arguments.setdefault("fill_mask", IGNORE_INDEX)
        with passed_on(f"augmentation '{name}'"), warnings.catch_warnings():
            # albumentations only warns of an unknown argument; its advice to use another transform is no error
            warnings.filterwarnings("error", message=r"Argument\(s\)")
            transforms.append(transform(**arguments))
    return albumentations.Compose(transforms, additional_targets={_VALID: "mask"})


def _transform(name: str, pixels: PixelFormat) -> type[albumentations.BasicTransform]:
    """Return albumentations' transform of a name, if training can use it."""
    transform: Any = getattr(albumentations, name, None)
    kind = transform if inspect.isclass(transform) else object
    if name in _REFUSED or not issubclass(kind, albumentations.BasicTransform):
        use = "training does not use" if name in _REFUSED else "albumentations has no"
        hint = nearest(name, vars(albumentations))
        raise InputError(f"augmentation: {use} transform '{name}'{hint}")
    if not pixels.is_rgb and not issubclass(kind, albumentations.DualTransform):
        raise InputError(
            f"augmentation '{name}': changes the colours of 8-bit RGB, and these images have {pixels.described}; "
            "take one that moves pixels, such as HorizontalFlip"
        )
    return kind


def apply_augmentation(augmentation: Augmentation, sample: Sample, seed: int) -> Sample:
    """Augment a sample.

    Pixels from outside the image have no label. In images of bands they hold no data either.
    """
    augmentation.set_random_seed(seed)
    image, label, inside = _augmented(augmentation, sample)
    # 0 comes from transforms that fill masks with nothing else, unless it was asked for
    fills = {getattr(each, "fill_mask", None) for each in augmentation.transforms}
    if label is not None and 0 not in fills:
        label = np.where(inside == 0, IGNORE_INDEX, label)
    holds_data: Mask = inside == 1
    if np.all(holds_data) or (sample.pixels.is_rgb and sample.valid is None):
        holds_data = None
    return replace(sample, image=image, label=label, valid=holds_data)


def _augmented(augmentation: Augmentation, sample: Sample) -> tuple[Numbers, Ids | None, Numbers]:
    """Return the augmented image, its label, and where it holds data: 0 or 1, (H, W)."""
    *size, bands = sample.image.shape
    valid = np.ones(size, np.bool_) if sample.valid is None else sample.valid
    parts = {"image": sample.image, "mask": sample.label, _VALID: valid.astype(np.uint8)}
    with passed_on(f"{sample.name}: augmentation failed"):  # such as a crop larger than the image
        augmented = augmentation(**parts)
    image, label, inside = (augmented[part] for part in parts)
    if image.dtype != sample.image.dtype or image.shape != (*inside.shape, bands):
        raise InputError(
            f"{sample.name}: augmentation makes something else than images of {sample.image.dtype} in {bands} bands, "
            "and labels of their size; leave it out"
        )
    return image, label, inside


def fourier(image: Numbers, reference: Numbers, beta: float) -> Numbers:
    """Return the image with the amplitudes of the reference's low frequencies.

    All phases stay the image's own. FDA (Yang and Soatto, CVPR 2020, arXiv 2004.05498), Eq. (3), as
    its authors' numpy code counts frequencies: from −b to b on both axes, b = ⌊β · the shorter
    side⌋. Albumentations' window (2.0.8) is one off the centre where a side is even.

    Args:
        image: (H, W, 3) uint8 RGB or (H, W, B) float32.
        reference: an image of the same kind, of any size.
        beta: β.
    """
    height, width, bands = image.shape
    if reference.shape != image.shape:
        # OpenCV takes four bands at a time
        resized = [
            cv2.resize(reference[..., band], (width, height), interpolation=cv2.INTER_AREA)
            for band in range(bands)
        ]
        reference = np.dstack(resized)
    spectrum = scipy.fft.rfft2(image.astype(np.float32), axes=(0, 1))
    other = scipy.fft.rfft2(reference.astype(np.float32), axes=(0, 1))
    b = int(beta * min(height, width))
    # the frequencies of the second axis below 0 are the complex conjugates, and rfft2 does without
    window = np.ix_(np.arange(-b, b + 1), np.arange(b + 1))
    low = spectrum[window]
    # a frequency without amplitude, as in an image of one colour, has no phase and is kept;
    # the mean always has a phase
    exchanged = np.abs(low) > _NO_AMPLITUDE * height * width
    exchanged[b, 0] = True
    spectrum[window] = np.where(exchanged, np.abs(other[window]) * np.exp(1j * np.angle(low)), low)
    result = scipy.fft.irfft2(spectrum, s=(height, width), axes=(0, 1))
    if image.dtype == np.uint8:
        result = np.rint(result).clip(0, 255)
    styled: Numbers = result.astype(image.dtype)
    return styled


def target_style(
    references: SegmentationDataset,
    beta: float,
    probability: float,
    image: Numbers,
    random: np.random.Generator,
) -> Numbers:
    """Give a source image, with this probability, a random target style.

    Args:
        references: the target's images.
        beta: β is uniform from 0 to it.
        probability: share of the images that get a style.
        image: (H, W, 3) uint8 RGB or (H, W, B) float32.
        random: the sample's random numbers.
    """
    if random.random() >= probability:
        return image
    reference = references[int(random.integers(len(references)))].image
    return fourier(image, reference, random.uniform(0.0, beta))


@dataclass(frozen=True)
class _Stream(Dataset[Batch | InputError]):
    """Samples by their position in the stream of all processes."""

    dataset: Samples
    sampler: Sampler
    seed: tuple[int, int]
    augmentation: Augmentation | None
    style: Style | None
    styled: int

    def __getitem__(self, position: int) -> Batch | InputError:
        index = self.sampler(position)
        try:
            sample = self.dataset[index]
            if self.style is not None and index < self.styled:
                # before the augmentation, as FDA does: of the whole image, and colour augmentation stays
                image = self.style(sample.image, self._random(Draws.STYLE, position))
                sample = replace(sample, image=image)
            if self.augmentation is not None:
                seed = int(self._random(Draws.AUGMENTATION, position).integers(2**31))
                sample = apply_augmentation(self.augmentation, sample, seed)
        except InputError as error:
            return error
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
    """Return a batch, or the first error among its samples.

    A loader takes 5 s to end after an exception in a worker.
    """
    whole = list[Batch]()
    for sample in samples:
        if isinstance(sample, InputError):
            return sample
        whole.append(sample)
    if any("valid" in sample for sample in whole):
        for sample in whole:  # all samples have it, so that they can be stacked
            sample.setdefault("valid", torch.ones(sample["image"].shape[1:], dtype=torch.bool))
    name_of = {tuple(sample["image"].shape[1:]): sample["name"] for sample in whole}
    if len(name_of) > 1:
        sizes = ", ".join(
            f"{name} is {width}x{height}" for (height, width), name in name_of.items()
        )
        return InputError(
            f"a batch needs images of one size, and {sizes}: set --source.size and --target.size, or --batch-size 1"
        )
    batch: Batch = default_collate(whole)
    return batch


def _leave_signals_to_the_main_process(_worker: int) -> None:
    """Ignore Ctrl-C and a launcher's SIGTERM.

    The main process finishes its step, then ends the workers by SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # Python's only way to know which process sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_main_process, daemon=True).start()


def _end_with_the_main_process() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
