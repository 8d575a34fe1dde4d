"""The base class of the test-time adaptation methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from dem_apps.entropy import Mask, computed_in
from dem_apps.errors import InputError, number
from dem_apps.test_time_methods.copies import State
from dem_apps.test_time_methods.learner import Learner


class Method:
    """One way to adapt, by :meth:`learn`. A subclass's constructor's arguments are its options."""

    #: Which parameters learn by default; None where nothing learns.
    parameters: ClassVar[str | None] = "normalisation"
    #: Names of attributes, None at first, that the next step depends on besides the learner.
    memory: ClassVar[tuple[str, ...]] = ()
    #: Names of attributes that ``begin`` has computed and ``reset`` leaves.
    lasting: ClassVar[tuple[str, ...]] = ()
    #: By which statistics batch norm normalises by default.
    batch_norm: str = "batch"

    def begin(self, learner: Learner) -> None:
        """Called once, before the first batch."""

    def step(self, learner: Learner, images: Tensor, mask: Mask) -> Tensor:
        """Predict a batch, learn from it if the mask has a True, and return the prediction from before.

        Args:
            learner: the network, the objective and the optimiser.
            images: (B, …).
            mask: boolean, (B,) or (B, H, W) as the logits or the images. False elements count
                nowhere.

        Returns:
            logits (B, C) or (B, C, H, W).
        """
        logits = self.predict(learner, images)
        counted = fitted_mask(mask, images, logits)
        if counted.any():
            self.learn(learner, images, logits, counted)
        return logits

    def predict(self, learner: Learner, images: Tensor) -> Tensor:
        """The logits of images."""
        return learner.logits(images)

    def learn(self, learner: Learner, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """Learn from a batch; the base class learns nothing.

        Args:
            learner: the network, the objective and the optimiser.
            images: (B, …).
            logits: of :meth:`predict`, with their graph.
            counted: boolean, the logits' shape without classes, with at least one True.
        """

    def predictor(self, learner: Learner) -> nn.Module:
        """The network whose logits are returned."""
        return learner.network.model

    def reset(self, learner: Learner) -> None:
        """Forget all batches; the learner is reset already."""
        for name in self.memory:
            setattr(self, name, None)

    def state_dict(self) -> State:
        """The state that the next step depends on besides the learner's."""
        return {name: getattr(self, name) for name in (*self.memory, *self.lasting)}

    def load_state_dict(self, state: State) -> None:
        """Continue from a :meth:`state_dict`."""
        for name in (*self.memory, *self.lasting):
            setattr(self, name, state[name])


def number_or_none(option: str, value: float | None, most: float = math.inf) -> float | None:
    """An option that is a number from 0, or None for a default that depends on the data."""
    return None if value is None else number(option, value, 0.0, most)


def checked_images(name: str, images: Any) -> Tensor:
    """A batch of images without the caller's graph; an InputError for what is no tensor, as a DataLoader's pair."""
    if isinstance(images, Tensor):
        return images.detach()
    raise InputError(
        f"{name}: expected a tensor of images (B, …), got a {type(images).__name__}; take the images out of a "
        "loader's pair or mapping"
    )


def check_dense(method: str, images: Tensor) -> None:
    """Refuse input without height and width."""
    if images.ndim != 4:
        raise InputError(
            f"images: method '{method}' needs (B, C, H, W), got shape {tuple(images.shape)}"
        )


def resized(images: Tensor, size: Sequence[int]) -> Tensor:
    """Resize images (B, C, h, w) to ``size``, bilinear with antialiasing.

    The computation is in float32 or wider: torch has it in half precision on a GPU alone.
    """
    if tuple(images.shape[2:]) == tuple(size):
        return images
    wide = images.to(computed_in(images.dtype))
    new = interpolate(wide, size, mode="bilinear", antialias=True)
    return new.to(images.dtype)


def fitted_mask(mask: Mask, images: Tensor, logits: Tensor) -> Tensor:
    """A copy of a mask at the logits' size, all True for None; coarse elements need all their pixels.

    Args:
        mask: boolean, of the images' or the logits' size.
        images: (B, …).
        logits: (B, C) or (B, C, H, W).

    Raises:
        ValueError: a mask that is not boolean, or of neither size.
    """
    elements = tuple(logits.shape[:1] + logits.shape[2:])
    if mask is None:
        return logits.new_ones(elements, dtype=torch.bool)
    pixels = tuple(images.shape[:1] + images.shape[2:])
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim == len(elements)
    if not fits or tuple(mask.shape) not in (elements, pixels):
        of_images = f" or {pixels} (the images without channels)"
        is_image = len(pixels) == len(elements) and pixels != elements
        raise InputError(
            f"mask: expected a boolean tensor of shape {elements} (the logits without classes){of_images * is_image}"
            f", got {type(mask).__name__} {tuple(getattr(mask, 'shape', ()))} of {getattr(mask, 'dtype', 'no dtype')}"
        )
    if tuple(mask.shape) == elements:
        return mask.clone()  # torch keeps no tensor of inference mode for gradients
    share = interpolate(mask[:, None].float(), elements[1:], mode="area")
    return share[:, 0] > 1 - 1e-6
