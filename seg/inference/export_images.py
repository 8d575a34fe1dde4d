"""The work of ``python -m seg.export``: predictions, entropy maps and tables of every image in a folder.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
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
from seg.data.files import distinct, find_images, left_out, output_names
from seg.data.rasters import Georeference, Header
from seg.data.read_images import ImagePixels, first_header, is_scene, opened_scene, read_image
from seg.inference.protocol import batch_norm_statistics
from seg.inference.settings import ExportConfig
from seg.maps import panels
from seg.maps.entropy_maps import Prediction
from seg.maps.run_pictures import MOST_SHOWN, output_path, shown_prediction, write_geotiffs, write_scene
from seg.trained.open import open_network
from seg.trained.trained_network import TrainedNetwork

#: :meth:`seg.maps.entropy_maps.Prediction.sums`.
Sums = tuple[NDArray[np.int64], NDArray[np.float64]]
#: A note names images that are made smaller by this factor or more.
_SHRUNK = 4


@dataclass(frozen=True)
class RunPictures:
    """One of the exported runs: its pictures of every image, and its two tables."""

    title: str  #: of its rows in a comparison
    trained: TrainedNetwork  #: its network
    folder: str  #: of its files, below that of the export
    raw: frozenset[str] = frozenset()  #: ``png16``, ``npz`` for entropy as numbers
    label_ids: bool = False  #: whether label ids are written as well
    per_image: list[dict[str, Any]] = field(default_factory=list)  #: rows of ``entropy.csv``
    per_class: list[dict[str, Any]] = field(default_factory=list)  #: those of every image and predicted class

    def write(
        self, out: Path, name: Path, image: NDArray[np.uint8], prediction: Prediction, place: Georeference | None
    ) -> panels.PanelRow:
        """Write one image's files below ``out``, beginning with ``name``, GeoTIFF with a ``place``; returns its row."""
        folder = out / self.folder
        classes = self.trained.class_set
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
        return panels.PanelRow(self.title, tiles["prediction"], tiles["entropy"], prediction.caption)

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

    def write_tables(self, folder: Path) -> None:
        """Write both tables."""
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(folder / "entropy.csv", self.per_image)
        write_csv(folder / "entropy_per_class.csv", self.per_class)


def export_images(config: ExportConfig) -> int:
    """Export; returns how many images could not be predicted."""
    source, out = Path(config.images), Path(config.out)
    refuse_used_folder(out, "--out")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"--out: {out} lies in --images, where a later export would take its pictures for images")
    files = find_images(source)
    runs = _open_runs(config)
    first = first_header(files)
    notes = _notes(config, runs[0], first) if first is not None else ()
    seen = runs[0].trained.description
    print(*seen.notes, f"seen as: {seen.said}", *notes, sep="\n", flush=True)
    images = [file.relative_to(source if source.is_dir() else source.parent) for file in files]
    pieces, failed = list(zip(files, images, output_names(images), strict=True)), 0
    with new_folder(out, "--out") as part:
        tools = [TOOLS[tool](part, runs[0].trained.class_set) for tool in config.pre_labels]
        for file, image, name in track(pieces, len(pieces), "export"):
            problem = _export_image(config, runs, file, image, name, part, tools)
            if problem is not None:
                failed += 1
                print(f"skipped: {problem}", file=sys.stderr, flush=True)
        for tool in tools:
            tool.close()
        for run in runs:
            run.write_tables(part / run.folder)
    for run in runs:
        print(_summary(run, out))
    skipped = f", skipped {failed}" if failed else ""
    print(f"exported {len(files) - failed} of {len(files)} images{skipped}{left_out([source])}")
    return failed


def _open_runs(config: ExportConfig) -> list[RunPictures]:
    device, paths = torch_device(config.device), [Path(run) for run in config.run or [str(config.model)]]
    opened = [open_network(config, run) for run in config.run or [""]]
    first = opened[0]
    for path, trained in zip(paths, opened, strict=True):
        trained.network.to(device)
        if trained.class_set != first.class_set:
            raise InputError(f"--run: {path} does not predict the classes of {paths[0]}; compare runs of one class set")
        pixels, others = trained.description.pixels.described, first.description.pixels.described
        if pixels != others:
            raise InputError(f"--run: {path} sees {pixels}, and {paths[0]} {others}; export them one after the other")
    titles = [
        path.name if each.training is None else each.training.config.title
        for path, each in zip(paths, opened, strict=True)
    ]
    # a run named like the folder of the comparison gives way to it
    folders = distinct(["comparison", *(path.resolve().name for path in paths)])[1:]
    return [
        RunPictures(
            own if titles.count(own) == 1 else f"{folder}: {own}",
            trained.seeing(config.size, config.tile),
            folder if len(paths) > 1 else "",
            frozenset(config.raw),
            config.label_ids,
        )
        for own, trained, folder in zip(titles, opened, folders, strict=True)
    ]


def _notes(config: ExportConfig, run: RunPictures, first: tuple[Path, Header]) -> Iterator[str]:
    """Notes on what the first image shows: the network's size, images made much smaller."""
    file, header = first
    own, size, (width, height) = run.trained.description.size, run.trained.size, header.size
    if config.size == "auto" and config.tile is not None and own is not None:
        yield f"--tile: images at their own size; this run was trained at {own[0]}×{own[1]} (--size own)"
    if size is not None and min(width / size[0], height / size[1]) >= _SHRUNK:
        yield (
            f"{file.name} has {width}×{height} pixels, and the network sees it at {size[0]}×{size[1]}; "
            "--tile 512 shows it all of them"
        )


def _export_image(
    config: ExportConfig,
    runs: list[RunPictures],
    file: Path,
    relative: Path,
    name: Path,
    out: Path,
    tools: list[CvatMasks | LabelStudioBrush],
) -> str | None:
    """Everything of one image; a sentence if it cannot be had."""
    seen_as, classes = runs[0].trained.description.pixels, runs[0].trained.class_set
    try:
        if config.by_windows(runs[0].trained.size) and is_scene(file):
            image, size, predictions, sums = _scene(runs, file, name, out)
        else:
            image = read_image(file, seen_as)
            predictions = [run.trained.maps(image) for run in runs]
            size, sums = image.shape, [each.sums(len(classes)) for each in predictions]
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
        tool.add(relative, predictions[0].classes, predictions[0].valid)
    rows = []
    for run, prediction, counted in zip(runs, predictions, sums, strict=True):
        run.add_rows(relative.as_posix(), size, counted)
        rows.append(run.write(out, name, shown, prediction, place))
    if len(runs) > 1:
        pixels = np.sum([prediction.pixels(len(classes)) for prediction in predictions], 0)
        picture = panels.comparison(shown, rows, panels.legend(pixels, classes))
        panels.save_panel(output_path(out / "comparison", name, "comparison.png"), picture)
    return None


def _scene(
    runs: list[RunPictures], file: Path, name: Path, out: Path
) -> tuple[ImagePixels, tuple[int, ...], list[Prediction], list[Sums]]:
    """Write the GeoTIFF of a scene, which is read by windows.

    Returns the scene for pictures, without coordinates, its size, and by run the prediction for pictures and the sums.
    """
    paths = [partial(output_path, out / run.folder, name) for run in runs]
    with opened_scene(file, runs[0].trained.description.pixels) as scene:
        try:
            sums = [
                write_scene(path, run.trained.parts(scene), scene, run.trained.class_set)
                for path, run in zip(paths, runs, strict=True)
            ]
        except BaseException:  # of several runs one that fails is enough
            for path, kind in product(paths, ("prediction.tif", "entropy.tif")):
                path(kind).unlink(missing_ok=True)
            raise
        shown = replace(scene.reduced(MOST_SHOWN), place=None)
        size = shown.shape[:2]
        predictions = [
            shown_prediction(path, size, run.trained.class_set) for path, run in zip(paths, runs, strict=True)
        ]
        return shown, scene.shape, predictions, sums


def _summary(run: RunPictures, out: Path) -> str:
    own, means = run.trained.training, [float(row["mean_entropy"]) for row in run.per_image]
    entropy = f"mean entropy {np.mean(means):.3f}" if means else "nothing exported"
    if own is None:
        return f"{run.folder}: {run.trained.spec}; {entropy}"
    statistics = batch_norm_statistics(own, run.trained.network)
    return f"{out / run.folder}: {run.title}, {own.described}, batch norm statistics {statistics}; {entropy}"
