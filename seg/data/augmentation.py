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
#: The first two write 0, which is a class, into labels; the others make tensors or other numbers, which training does.
_REFUSED = ("FrequencyMasking", "TimeMasking", "ToTensorV2", "ToTensor3D", "Normalize", "ToFloat")
#: The key of the mask of the pixels that hold data, beside image and label.
_VALID = "valid"


def build_augmentation(steps: list[dict[str, Any]], pixels: PixelFormat = RGB) -> Augmentation:
    """Albumentations from YAML: a list such as ``[{HorizontalFlip: {p: 0.5}}]``; an InputError for a wrong one.

    Where a transform moves pixels in from outside the image, the label there is ``IGNORE_INDEX`` (albumentations
    would write 0, the first class) unless ``fill_mask`` is given. Dropouts keep the label, as albumentations does.
    Other images than 8-bit RGB take transforms of space alone: those of colours expect three channels from 0 to 255.
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
            raise InputError(f"augmentation '{name}': is for spectrograms, or training does it itself; leave it out")
        if not pixels.is_rgb and not issubclass(getattr(albumentations, name), albumentations.DualTransform):
            raise InputError(
                f"augmentation '{name}': changes the colours of 8-bit RGB, and these images have {pixels.described}; "
                "leave it out, or take one that moves pixels, such as HorizontalFlip, RandomCrop or Affine"
            )
        arguments = dict(arguments or {})
        if arguments.get("mask_interpolation"):
            raise InputError(f"augmentation '{name}': ids are not interpolated; leave out mask_interpolation")
        try:
            with warnings.catch_warnings():
                # albumentations only warns of an unknown argument; its advice to use another transform is no error
                warnings.filterwarnings("error", message=r"Argument\(s\)")
                transforms.append(_transform(name, arguments))
        except (TypeError, ValueError, UserWarning) as error:
            raise InputError(f"augmentation '{name}': {' '.join(str(error).split())}") from error
    return albumentations.Compose(transforms, additional_targets={_VALID: "mask"})


def apply_augmentation(augmentation: Augmentation, sample: Sample, seed: int) -> Sample:
    """A sample, augmented; pixels that are moved in from outside hold no data where images are no 8-bit RGB."""
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


def _problem(image: Any, label: Any, pixels: PixelFormat) -> str | None:
    """What is wrong with an augmented image or label, as half a sentence, or None."""
    dtype, bands = (np.uint8, 3) if pixels.is_rgb else (np.float32, pixels.bands)
    if not isinstance(image, np.ndarray) or image.dtype != dtype or image.shape[2:] != (bands,):
        kind = f"{getattr(image, 'dtype', type(image).__name__)} of shape {tuple(getattr(image, 'shape', ()))}"
        return f"makes images {kind}, and training takes {dtype.__name__} in {bands} bands; leave it out"
    if label is not None and (label.dtype != np.uint8 or label.shape != image.shape[:2]):
        return f"makes labels {label.dtype} of shape {label.shape} beside images of shape {image.shape}"
    return None
