"""The work of ``python -m seg.export``: predictions, entropy maps and tables of every image in a folder.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError, NotWritten
from dem_apps.report.tables import write_csv
from dem_apps.runtime.command import is_out_of_memory
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import new_folder, refuse_used_folder, whole_file
from dem_apps.runtime.progress import track
from seg.data.annotation import TOOLS, CvatMasks, LabelStudioBrush
from seg.data.files import find_images, left_out, output_names
from seg.data.rasters import Georeference, Header
from seg.data.read_images import ImagePixels, first_header, is_scene, opened_scene, read_image
from seg.inference.protocol import batch_norm_statistics
from seg.inference.settings import ExportConfig
from seg.maps import panels
from seg.maps.entropy_maps import Prediction, Sums
from seg.maps.run_pictures import MOST_SHOWN, output_path, shown_prediction, write_geotiffs, write_scene
from seg.trained.open import open_network
from seg.trained.trained_network import TrainedNetwork

#: A note names images that are made smaller by this factor or more.
_SHRUNK = 4


@dataclass(frozen=True)
class Export:
    """A network's pictures of every image, and its two tables."""

    trained: TrainedNetwork
    folder: Path
    raw: frozenset[str] = frozenset()  #: ``png16``, ``npz`` for entropy as numbers
    label_ids: bool = False  #: whether label ids are written as well
    per_image: list[dict[str, Any]] = field(default_factory=list)  #: rows of ``entropy.csv``
    per_class: list[dict[str, Any]] = field(default_factory=list)  #: those of every image and predicted class

    def write(self, name: Path, image: NDArray[np.uint8], prediction: Prediction, place: Georeference | None) -> None:
        """Write one image's files, which begin with ``name``, GeoTIFF with a ``place``."""
        folder, classes = self.folder, self.trained.class_set
        tiles, panel = panels.map_pictures(image, None, prediction, classes)
        pictures = {kind: tile for kind, tile in tiles.items() if kind != "image"}
        if "png16" in self.raw:
            pictures["entropy16"] = (prediction.entropy * 65535).round().astype(np.uint16)
        if self.label_ids:
            pictures["pred_labelIds"] = prediction.ids(classes)
        for kind, picture in pictures.items():
            panels.save_panel(output_path(folder, name, f"{kind}.png"), Image.fromarray(picture))
        panels.save_panel(output_path(folder, name, "panel.png"), panel)
        if place is not None:
            write_geotiffs(lambda kind: output_path(folder, name, kind), prediction, classes, place)
        if "npz" in self.raw:
            nats = prediction.entropy * np.float32(math.log(len(classes)))
            with whole_file(output_path(folder, name, "entropy.npz")) as temporary:
                np.savez_compressed(
                    temporary, entropy=nats, entropy_normalised=prediction.entropy, prediction=prediction.classes
                )

    def add_rows(self, image: str, shape: tuple[int, ...], counted: Sums) -> None:
        """Add one image of (H, W) pixels to the tables."""
        names, (height, width, *_), (pixels, sums) = self.trained.class_set.names, shape, counted
        top, size = int(pixels.argmax()), max(int(pixels.sum()), 1)
        self.per_image.append({
            "image": image, "width": width, "height": height, "mean_entropy": f"{sums.sum() / size:.6f}",
            "top_class": names[top], "top_class_share": f"{pixels[top] / size:.6f}",
        })  # fmt: skip
        self.per_class.extend(
            {"image": image, "predicted_class": name, "pixels": count, "mean_entropy": f"{total / count:.6f}"}
            for name, count, total in zip(names, pixels, sums, strict=True)
            if count
        )

    def write_tables(self) -> None:
        """Write both tables."""
        write_csv(self.folder / "entropy.csv", self.per_image)
        write_csv(self.folder / "entropy_per_class.csv", self.per_class)


def export_images(config: ExportConfig) -> int:
    """Export; returns how many images could not be predicted."""
    source, out = Path(config.images), Path(config.out)
    refuse_used_folder(out, "--out")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"--out: {out} lies in --images, where a later export would take its pictures for images")
    files = find_images(source)
    trained = open_network(config, config.run).seeing(config.size, config.tile)
    trained.network.to(torch_device(config.device))
    first, seen = first_header(files), trained.description
    notes = _notes(config, trained, first) if first is not None else ()
    print(*seen.notes, f"seen as: {seen.said}", *notes, sep="\n", flush=True)
    images = [file.relative_to(source if source.is_dir() else source.parent) for file in files]
    pieces, failed = list(zip(files, images, output_names(images), strict=True)), 0
    with new_folder(out, "--out") as part:
        export = Export(trained, part, frozenset(config.raw), config.label_ids)
        tools = [TOOLS[tool](part, trained.class_set) for tool in config.pre_labels]
        for file, image, name in track(pieces, len(pieces), "export"):
            problem = _export_image(config, export, file, image, name, tools)
            if problem is not None:
                failed += 1
                print(f"skipped: {problem}", file=sys.stderr, flush=True)
        for tool in tools:
            tool.close()
        export.write_tables()
    print(_summary(export, out))
    skipped = f", skipped {failed}" if failed else ""
    print(f"exported {len(files) - failed} of {len(files)} images{skipped}{left_out([source])}")
    return failed


def _notes(config: ExportConfig, trained: TrainedNetwork, first: tuple[Path, Header]) -> Iterator[str]:
    """Notes on what the first image shows: the network's size, images made much smaller."""
    file, header = first
    own, size, (width, height) = trained.description.size, trained.size, header.size
    if config.size == "auto" and config.tile is not None and own is not None:
        yield f"--tile: images at their own size; this run was trained at {own[0]}×{own[1]} (--size own)"
    if size is not None and min(width / size[0], height / size[1]) >= _SHRUNK:
        yield (
            f"{file.name} has {width}×{height} pixels, and the network sees it at {size[0]}×{size[1]}; "
            "--tile 512 shows it all of them"
        )


def _export_image(
    config: ExportConfig, export: Export, file: Path, relative: Path, name: Path,
    tools: list[CvatMasks | LabelStudioBrush],
) -> str | None:  # fmt: skip
    """Everything of one image; a sentence if it cannot be had."""
    trained = export.trained
    seen_as = trained.description.pixels
    try:
        if config.by_windows(trained.size) and is_scene(file):
            image, size, prediction, sums = _scene(export, file, name)
        else:
            image = read_image(file, seen_as)
            prediction = trained.maps(image)
            size, sums = image.shape, prediction.sums(len(trained.class_set))
    except NotWritten:
        raise
    except InputError as error:
        return str(error) if str(file) in str(error) else f"{file}: {error}"
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return f"{file}: does not fit into memory; a smaller --size W,H or --tile N may help"
    shown, place = seen_as.preview(image.values, image.valid), image.place
    del image  # of a large scene the largest
    for tool in tools:
        tool.add(relative, prediction.classes, prediction.valid)
    export.add_rows(relative.as_posix(), size, sums)
    export.write(name, shown, prediction, place)
    return None


def _scene(export: Export, file: Path, name: Path) -> tuple[ImagePixels, tuple[int, ...], Prediction, Sums]:
    """Write the GeoTIFF of a scene by windows; the scene for pictures, its size, their prediction, and the sums."""
    path, classes = partial(output_path, export.folder, name), export.trained.class_set
    with opened_scene(file, export.trained.description.pixels) as scene:
        sums = write_scene(path, export.trained.parts(scene), scene, classes)
        shown = replace(scene.reduced(MOST_SHOWN), place=None)
        return shown, scene.shape, shown_prediction(path, shown.shape[:2], classes), sums


def _summary(export: Export, out: Path) -> str:
    own, means = export.trained.training, [float(row["mean_entropy"]) for row in export.per_image]
    entropy = f"mean entropy {np.mean(means):.3f}" if means else "nothing exported"
    if own is None:
        return f"{export.trained.spec}; {entropy}"
    statistics = batch_norm_statistics(own, export.trained.network)
    return f"{out}: {own.config.title}, {own.described}, batch norm statistics {statistics}; {entropy}"
