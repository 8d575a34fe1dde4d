"""Augmentation by albumentations, from YAML, with checks that labels stay valid."""

from __future__ import annotations

import inspect
import os
import warnings
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError, nearest
from seg.data.datasets import Sample
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import RGB, PixelFormat

# Without this, importing it checks for a newer release over the network, and waits where there is none.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
import albumentations

Augmentation: TypeAlias = albumentations.Compose
#: The first two write 0, which is a class, into labels; the others make tensors, which training does itself.
_REFUSED = ("FrequencyMasking", "TimeMasking", "ToTensorV2", "ToTensor3D")
#: Two labels that a transform is tried on: others in the result show that it mixes labels.
_TRIED = (3, 200)
#: The key of the mask of the pixels that hold data, beside image and label.
_VALID = "valid"


def build_augmentation(steps: list[dict[str, Any]], pixels: PixelFormat = RGB) -> Augmentation:
    """Albumentations from YAML: a list such as ``[{HorizontalFlip: {p: 0.5}}]``.

    Where a transform moves pixels in from outside the image, the label there is ``IGNORE_INDEX`` (albumentations
    would write 0, the first class) unless ``fill_mask`` is given. Dropouts keep the label, as albumentations does.
    Other images than 8-bit RGB take transforms of space alone: those of colours expect three channels from 0 to 255.

    Raises:
        InputError: an unknown transform, arguments that it does not take, one of colours where there are none, or a
            transform after which images are no uint8 RGB any more or labels are others.
    """
    transforms = []
    for step in steps:
        if not isinstance(step, dict) or len(step) != 1:
            raise InputError(f"augmentation: expected one 'Name: {{arguments}}' per item, found {step!r}")
        ((name, arguments),) = step.items()
        known = [key for key in dir(albumentations) if _is_transform(getattr(albumentations, key))]
        if name not in known:
            raise InputError(f"augmentation: albumentations has no transform '{name}'{nearest(str(name), known)}")
        if name in _REFUSED:
            raise InputError(f"augmentation '{name}': is for spectrograms or for making tensors; leave it out")
        if not pixels.is_rgb and not issubclass(getattr(albumentations, name), albumentations.DualTransform):
            raise InputError(
                f"augmentation '{name}': changes the colours of 8-bit RGB, and these images have {pixels.described}; "
                "leave it out, or take one that moves pixels, such as HorizontalFlip, RandomCrop or Affine"
            )
        try:
            with warnings.catch_warnings():
                # albumentations only warns of an unknown argument; its advice to use another transform is no error
                warnings.filterwarnings("error", message=r"Argument\(s\)")
                transforms.append(_transform(name, dict(arguments or {})))
        except (TypeError, ValueError, UserWarning) as error:
            raise InputError(f"augmentation '{name}': {' '.join(str(error).split())}") from error
        _try(name, dict(arguments or {}))
    return albumentations.Compose(transforms, additional_targets={_VALID: "mask"})


def apply_augmentation(augmentation: Augmentation, sample: Sample, seed: int) -> Sample:
    """A sample, augmented, at any size; all random numbers follow from the seed.

    Of images that are no 8-bit RGB, pixels that are moved in from outside hold no data.
    """
    augmentation.set_random_seed(seed)
    image, name = sample.image, sample.name
    parts: dict[str, Any] = {"image": image} if sample.label is None else {"image": image, "mask": sample.label}
    if not sample.pixels.is_rgb or sample.valid is not None:
        parts[_VALID] = np.ones(image.shape[:2], np.uint8) if sample.valid is None else sample.valid.astype(np.uint8)
    try:
        augmented = augmentation(**parts)
    except Exception as error:  # a crop larger than the image, …: the transforms' errors have no common class
        raise InputError(f"{name}: augmentation failed: {' '.join(str(error).split())}") from error
    problem = _problem(augmented["image"], augmented.get("mask"), sample.pixels)
    if problem is not None:
        raise InputError(f"{name}: augmentation {problem}")
    valid: NDArray[np.bool_] | None = augmented[_VALID] == 1 if _VALID in parts else None
    if valid is not None and valid.all():
        valid = None
    return replace(sample, image=augmented["image"], label=augmented.get("mask"), valid=valid)


def _is_transform(value: Any) -> bool:
    """Whether it is a transform, and not a base class or a list of transforms."""
    return (
        inspect.isclass(value)
        and issubclass(value, albumentations.BasicTransform)
        and not value.__module__.startswith("albumentations.core")
    )


def _transform(name: str, arguments: dict[str, Any]) -> Any:
    transform = getattr(albumentations, name)
    fill = inspect.signature(transform.__init__).parameters.get("fill_mask")
    if fill is not None and fill.default is not None:
        arguments.setdefault("fill_mask", IGNORE_INDEX)
    return transform(**arguments)


def _try(name: str, arguments: dict[str, Any]) -> None:
    """Try a transform on a synthetic image, so that a fault that every image would have is found before training."""
    image = np.random.default_rng(0).integers(256, size=(96, 128, 3), dtype=np.uint8)
    label = np.full((96, 128), _TRIED[0], np.uint8)
    label[::2, 64:] = _TRIED[1]
    given = {value for value in arguments.values() if isinstance(value, int)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = _transform(name, {**arguments, "p": 1.0})(image=image, mask=label)
        except Exception:  # such as a crop larger than this image, which may fit the training's images
            return
    problem = _problem(result["image"], result["mask"], RGB)
    if problem is not None:
        raise InputError(f"augmentation '{name}': {problem}")
    strange = set(np.unique(result["mask"]).tolist()) - {*_TRIED, IGNORE_INDEX, *given}
    if strange:
        raise InputError(
            f"augmentation '{name}': it writes values into labels that were not there, such as {min(strange)}; leave "
            "it out, or let labels not be interpolated (mask_interpolation: 0)"
        )


def _problem(image: Any, label: Any, pixels: PixelFormat) -> str | None:
    """What is wrong with an augmented image or label, as half a sentence, or None."""
    dtype, bands = (np.uint8, 3) if pixels.is_rgb else (np.float32, pixels.bands)
    if not isinstance(image, np.ndarray) or image.dtype != dtype or image.shape[2:] != (bands,):
        kind = f"{getattr(image, 'dtype', type(image).__name__)} of shape {tuple(getattr(image, 'shape', ()))}"
        return f"makes images {kind}, and training takes {dtype.__name__} in {bands} bands; leave it out"
    if label is not None and (label.dtype != np.uint8 or label.shape != image.shape[:2]):
        return f"makes labels {label.dtype} of shape {label.shape} beside images of shape {image.shape}"
    return None
