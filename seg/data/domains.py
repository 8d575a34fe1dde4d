"""Opens the data sets of source and target, or, without roots, the built-in demo pair."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.files import cache_dir
from seg.data.datasets import SegmentationDataset
from seg.data.files import checked_size, left_out
from seg.data.found_classes import FoundClasses, found_classes
from seg.data.labels import ClassSet, load_classes
from seg.data.layouts import AUTO, found_layout
from seg.data.layouts.folders import FOLDERS
from seg.data.pixel_format import RGB, PixelFormat
from seg.data.rasters import Header
from seg.data.read_images import read_header, refuse_other
from seg.data.settings import BandConfig, DataConfig, DemoConfig, SourceConfig, TargetDataConfig
from seg.data.statistics import measured_format
from seg.data.street.demo_pair import write_demo_pair
from seg.data.street.world import WORLD_VERSION

_DEMO, _BANDS = DemoConfig(), BandConfig()


#: Data sets by their title.
Splits = dict[str, SegmentationDataset]


@dataclass(frozen=True)
class DomainPair:
    """The data sets of a training."""

    #: ``target train``, every training image of the target, without labels; ``target val``, for scores, with labels
    #: where there are any; ``source train``, but where labelled target images take its place; ``labelled target
    #: train``, where labels of the target may be read
    splits: Splits
    note: str = ""  #: how labels are read where no classes were given
    class_file: str = ""  #: the class file of classes that were found

    @property
    def target_train(self) -> SegmentationDataset:
        """Training images of the target."""
        return self.splits["target train"]

    @property
    def target_val(self) -> SegmentationDataset:
        """Validation images of the target."""
        return self.splits["target val"]

    @property
    def source_train(self) -> SegmentationDataset | None:
        """Labelled images of the source."""
        return self.splits.get("source train")

    @property
    def target_labelled(self) -> SegmentationDataset | None:
        """Labelled training images of the target."""
        return self.splits.get("labelled target train")

    @property
    def labelled(self) -> list[SegmentationDataset]:
        """Parts of the labelled stream, source, labelled target, or both in this order."""
        return [part for part in (self.source_train, self.target_labelled) if part is not None]

    @property
    def classes(self) -> ClassSet:
        """The classes of all data sets."""
        return self.target_val.classes

    @property
    def pixels(self) -> PixelFormat:
        """What the network sees of all images."""
        return self.target_val.pixels

    def look_at_labels(self) -> list[str]:
        """Return warnings and notes about all labels.

        Raises:
            InputError: labels that give nothing to learn or to score.
        """
        about = [self.note] if self.note else []
        for title, dataset in self.splits.items():
            about += dataset.look_at_labels(title)
        return about

    def left_out(self) -> str:
        """Count the files beside the images that are none, by suffix.

        The text is empty where there are none.
        """
        datasets = [*self.splits.values()]
        labels = [label for dataset in datasets for _, label in dataset.files]
        return left_out((dataset.image_folder for dataset in datasets), labels)

    def layouts_found(self) -> str:
        """Return which layouts were found where none was named, and the flags that name others.

        The text is empty where all were named.
        """
        sentences = dict.fromkeys(dataset.found_as for dataset in self.splits.values())
        return "; ".join(filter(None, sentences))


def open_pair(
    source: SourceConfig,
    target: TargetDataConfig,
    classes_file: str | ClassSet | None = None,
    validation_part: Sequence[float] = (0.0, 1.0),
    demo: DemoConfig = _DEMO,
    bands: BandConfig = _BANDS,
    pixels: PixelFormat | None = None,
    measure: bool = True,
    workers: int = 0,
    rgb: PixelFormat = RGB,
) -> DomainPair:
    """Open the data sets of a training.

    The demo pair is drawn into the cache where it is missing. Without ``classes_file`` the classes
    are Cityscapes', or found in the labels. Without ``pixels`` the images decide: 8-bit RGB is
    normalised by ``rgb``, other bands as measured; ``measure=False`` accepts any.
    """
    target_alone = target.replaces_source() and target.root is not None
    if (source.root is None) != (target.root is None) and not target_alone:
        present, missing = ("source", "target") if source.root else ("target", "source")
        raise InputError(
            f"--{missing}.root is missing: --{present}.root is given, and a pair needs both (or none: demo)"
        )
    classes = classes_file if isinstance(classes_file, ClassSet) else load_classes(classes_file)
    opened = functools.partial(_splits, source, target, validation_part, demo)
    splits, fitting = opened(classes), FoundClasses(classes)
    if classes_file is None:
        fitting = _looked_for(splits.values(), classes, workers)
        if fitting.classes is not classes:
            splits = opened(fitting.classes)
    if pixels is None:
        pixels = _pixels(splits, bands, measure, workers, rgb)
    for dataset in splits.values():
        dataset.pixels = pixels
    return DomainPair(splits, fitting.note, fitting.file)


def _looked_for(
    datasets: Iterable[SegmentationDataset], classes: ClassSet, workers: int
) -> FoundClasses:
    """Return the classes that the labels hold, or ``classes`` where a data set has its own numbering."""
    labelled = [each for each in datasets if each.labelled]
    fitting, note = None, ""
    # numbers of five digits look like GTA5, which has the ids that are looked for
    if all(
        each.layout_name == "folders" or (each.layout_name == "gta5" and each.found_as)
        for each in labelled
    ):
        fitting = found_classes(labelled, workers=workers)
    if any(each.layout == FOLDERS for each in labelled):
        note = "classes  labels are read as Cityscapes' label ids; --classes FILE says what else they are"
    return fitting or FoundClasses(classes, note)


def _splits(
    source: SourceConfig,
    target: TargetDataConfig,
    validation_part: Sequence[float],
    demo: DemoConfig,
    classes: ClassSet,
) -> Splits:
    """Open the data sets of a pair.

    Of the target's training labels only the labelled part's are opened.
    """
    train = functools.partial(_open, split="train", classes=classes, world=demo)
    splits = Splits()
    if not target.replaces_source():
        splits["source train"] = train("source", source, labelled=True)
    unlabelled = train("target", target, labelled=False)
    target_val = open_validation(target, classes, validation_part, demo)
    if target.labelled_part:
        with passed_on("--target.labelled-part", InputError):
            # the first part of a fixed shuffle, so that a small part lies in a larger
            labelled = train("target", target, labelled=True, part=(0.0, target.labelled_part))
            # a target without a validation split is scored on its training images
            if both := {*labelled.images} & {*target_val.images}:
                raise InputError(
                    f"{len(both)} of the {len(labelled)} images with labels would be scored as well, such as "
                    f"{min(both)}; --validation-part {target.labelled_part:g},1 scores the others"
                )
        splits["labelled target train"] = labelled
    return splits | {"target train": unlabelled, "target val": target_val}


def open_validation(
    target: DataConfig,
    classes: ClassSet,
    part: Sequence[float] = (0.0, 1.0),
    demo: DemoConfig = _DEMO,
) -> SegmentationDataset:
    """Open the target's validation set.

    Images have the training size, labels, if any, their own. ``part`` is (from, to) of a fixed
    shuffle, such as (0, 0.2) to tune on and (0.2, 1) to score.
    """
    if len(part) != 2 or not 0 <= part[0] < part[1] <= 1:
        raise InputError(
            f"--validation-part: expected [from, to] with 0 <= from < to <= 1, got {list(part)}"
        )
    return _open(
        "target",
        target,
        "val",
        classes,
        demo,
        labelled=None,
        part=(part[0], part[1]),
    )


def _open(
    domain: str, data: DataConfig, split: str, classes: ClassSet, world: DemoConfig, **options: Any
) -> SegmentationDataset:
    """Open one split of ``source`` or ``target``."""
    layout, flag = data.layout, f"--{domain}.layout"
    guessed = layout == AUTO and data.root is not None
    demo = "gta5" if domain == "source" else "cityscapes"
    root = _demo_pair(world) / demo if data.root is None else Path(data.root)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; it should be the root of a data set")
    if guessed:
        layout = found_layout(root, split, classes, flag)
    elif layout == AUTO:
        layout = demo
    size = checked_size(data.size, f"--{domain}.size")
    dataset = SegmentationDataset(
        root, layout, split, size=size, classes=classes, exclude=data.exclude, **options
    )
    if guessed:
        ids = "the ids of the classes" if dataset.layout.ids is None else "ids of its own"
        dataset.found_as = f"{domain} looks like layout {layout}, with {ids}; {flag} names another"
    return dataset


def _pixels(
    splits: Splits, bands: BandConfig, measure: bool, workers: int, rgb: PixelFormat
) -> PixelFormat:
    """Return the format of the first labelled image.

    The first images of the other splits must have it too.
    """
    files = next(iter(splits.values())).images
    wanted = _seen_bands(read_header(files[0]), bands, rgb)
    if not measure:
        return wanted
    for dataset in splits.values():
        first = dataset.images[0]
        refuse_other(first, read_header(first), wanted)
    return wanted if wanted.is_rgb else measured_format(files, wanted, workers)


def _seen_bands(header: Header, bands: BandConfig, rgb: PixelFormat) -> PixelFormat:
    """Return the format of images with this header, before their statistics are measured."""
    number = bands.number or header.bands
    if header.is_rgb and number in (header.bands, 3):
        return rgb
    colours = header.colours
    if colours is not None and max(colours) >= number:
        colours = None
    first_three = (0, min(1, number - 1), min(2, number - 1))
    shown = bands.shown_from_0(number) or colours or first_three
    zeros, ones = (0.0,) * number, (1.0,) * number
    return PixelFormat(number, header.dtype, zeros, ones, shown, colours=colours)


def _demo_pair(world: DemoConfig) -> Path:
    name = f"street-world-v{WORLD_VERSION}-seed{world.seed}-gap{world.gap:g}"
    folder = cache_dir() / "demo" / name
    where = f"{folder}: the demo pair cannot be written; name another folder in DEM_APPS_CACHE"
    with passed_on(where, OSError):
        return write_demo_pair(folder, seed=world.seed, gap=world.gap)
