"""Deterministic, resumable samplers.

They say which sample stands at which position of a training stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum, unique
from functools import partial

import numpy as np
from scipy.special import softmax

from dem_apps.errors import InputError
from seg.data.datasets import SegmentationDataset
from seg.data.pixel_format import Counts, Floats
from seg.data.statistics import class_pixels

#: Largest rate of an image in :class:`RareClasses`, in multiples of its usual rate.
#: A single image is not to become all that is trained on.
MOST_DRAWS = 10
#: A function from a position in a stream, from 0, to the sample's index in the data set.
Sampler = Callable[[int], int]


@unique
class Draws(IntEnum):
    """Purposes of random numbers.

    A generator's seed is (run's seed, stream's number, purpose, position).
    """

    ORDER = 0
    AUGMENTATION = 1
    METHOD = 2
    LABELLED_TARGET = 4
    STYLE = 5
    RARE_CLASSES = 6


class Epochs:
    """Shuffled epochs over ``count`` samples, in a new order each epoch."""

    def __init__(self, count: int, seed: Sequence[int]) -> None:
        self._count = count
        self._seed = seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __call__(self, position: int) -> int:
        """Return the sample's index in its data set."""
        epoch, place = divmod(position, self._count)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([*self._seed, epoch]).permutation(self._count)
        return int(self._order[place])


class RareClasses:
    """Rare class sampling of DAFormer (Hoyer et al., CVPR 2022).

    It draws a class, then an image that shows enough of it. P(c) ∝ exp((1 − f_c) / T) with f_c the
    share of class c among the labelled pixels. Without an image with the share ``enough`` of a
    class, all that show it count. Uniform draws among these keep every image below
    :data:`MOST_DRAWS` times its usual rate. Images are not cropped.
    """

    def __init__(
        self, pixels: Counts, temperature: float, enough: float, seed: Sequence[int]
    ) -> None:
        totals = pixels[:, :-1].sum(0)
        present = np.flatnonzero(totals)
        exponents = (1.0 - totals / totals.sum()) / temperature
        self.probabilities: Floats = softmax(np.where(totals > 0, exponents, -np.inf))
        """(C,) how often each class is drawn."""
        self._count = len(pixels)
        self._shares = self.probabilities[present]
        self._images = []
        for index in present:
            shown = pixels[:, index]
            images = np.flatnonzero((shown > 0) & (shown >= enough * pixels.sum(1)))
            self._images.append(images if len(images) else np.flatnonzero(shown))
        rates = np.zeros(len(pixels))  # times the number of images
        for probability, images in zip(self._shares, self._images, strict=True):
            rates[images] += probability * len(pixels) / len(images)
        self._alike = max(0.0, (rates.max() - MOST_DRAWS) / max(rates.max() - 1, 1))
        self._seed = seed

    def __call__(self, position: int) -> int:
        """Return the sample's index in its data set."""
        random = np.random.default_rng([*self._seed, position])
        if self._alike and random.random() < self._alike:
            return int(random.integers(self._count))
        images = self._images[random.choice(len(self._images), p=self._shares)]
        return int(images[random.integers(len(images))])


def interleaved(samplers: Sequence[Sampler], counts: Sequence[int], position: int) -> int:
    """Return the index of a position in the joined parts of ``counts`` samples.

    Parts take turns, each by its sampler.
    """
    place, part = divmod(position, len(samplers))
    return sum(counts[:part]) + samplers[part](place)


def labelled_sampler(
    parts: Sequence[SegmentationDataset],
    seed: tuple[int, int],
    temperature: float | None = None,
    enough: float = 0.005,
    workers: int = 0,
) -> Sampler:
    """Return the sampler of the labelled stream over the parts, which take turns.

    ``seed`` is the run's and the stream's. With a temperature the first part is sampled by
    :class:`RareClasses`.
    """
    first, *others = parts
    sampler: Sampler = Epochs(len(first), (*seed, Draws.ORDER))
    if temperature is not None:
        pixels = class_pixels(first, workers)
        if not pixels[:, :-1].any():
            raise InputError(
                f"--source.rare-class-temperature: every pixel of every label in {first.root} is ignored"
            )
        sampler = RareClasses(pixels, temperature, enough, (*seed, Draws.RARE_CLASSES))
    samplers = [sampler]
    samplers += [Epochs(len(part), (*seed, Draws.LABELLED_TARGET)) for part in others]
    return partial(interleaved, samplers, [len(part) for part in parts])
