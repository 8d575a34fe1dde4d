"""Which labelled image stands at which position: passes over the source or its rare classes, and the target's part."""

from __future__ import annotations

from collections.abc import Sequence

from dem_apps.errors import InputError
from seg.data.class_pixels import class_pixels
from seg.data.datasets import SegmentationDataset
from seg.data.sampling import Draws, InTurn, Passes, RareClasses, Sampler


def labelled_sampler(
    parts: Sequence[SegmentationDataset],
    seed: tuple[int, int],
    temperature: float | None = None,
    enough: float = 0.005,
    workers: int = 0,
) -> Sampler:
    """The sampler of the labelled stream, over the parts joined (:class:`seg.data.datasets.JoinedDataset`).

    Args:
        parts: the source, or what takes its place, and then the labelled part of the target where it stands beside. Of
            two, even positions are the first one's and odd positions the second one's.
        seed: the run's seed and the stream's number.
        temperature: of :class:`RareClasses`, from which the first part is drawn; None passes over it. The second one,
            often a handful of images, is always passed over.
        enough: see there.
        workers: processes that count the pixels of each class, the first time.

    Raises:
        InputError: a label that cannot be read, or no label with any class.
    """
    first, *rest = parts
    sampler: Sampler = Passes(len(first), (*seed, Draws.ORDER))
    if temperature is not None:
        pixels = class_pixels(first, workers)
        if not pixels[:, :-1].any():
            raise InputError(f"--source.rare-class-temperature: every pixel of every label in {first.root} is ignored")
        sampler = RareClasses(pixels, temperature, enough, (*seed, Draws.RARE_CLASSES))
    others = [Passes(len(part), (*seed, Draws.LABELLED_TARGET)) for part in rest]
    return InTurn([sampler, *others], [len(part) for part in parts]) if others else sampler
