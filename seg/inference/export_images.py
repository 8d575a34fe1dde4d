"""The work of ``python -m seg.export``: predictions, entropy maps and tables of every image in a folder.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from dem_apps.errors import InputError, NotWritten, is_out_of_memory
from dem_apps.report.tables import write_csv
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import new_folder, whole_file
from dem_apps.runtime.progress import track
from seg.data.files import find_images, left_out, output_names, refuse_long_name
from seg.data.label_map import write_label_map, write_mask
from seg.data.rasters import new_geotiff
from seg.data.read_images import ImagePixels, Scene, opened_picture
from seg.inference.settings import ExportConfig, next_command
from seg.maps.entropy_maps import Part, Picture, Prediction
from seg.maps.run_pictures import (
    MOST_SHOWN,
    FileOf,
    map_pictures,
    output_path,
    save_panel,
    write_maps,
)
from seg.trained.open import open_to_predict
from seg.trained.trained_network import TrainedNetwork


@dataclass
class Export:
    """A network's pictures of every image, and the rows of a table."""

    trained: TrainedNetwork
    folder: Path
    config: ExportConfig
    per_image: list[Document] = field(default_factory=list)
    failed: int = 0

    def try_to_add(self, file: Path, relative: Path, name: Path) -> None:
        """Call :meth:`add` with an image, or say on stderr why not."""
        try:
            self.add(file, relative, name)
        except NotWritten:
            raise
        except (InputError, MemoryError, RuntimeError) as error:
            problem = str(error)
            if is_out_of_memory(error):
                problem = "does not fit into memory; a smaller --size W,H or --tile N may help"
            elif not isinstance(error, InputError):
                raise
            self.failed += 1
            where = "" if str(file) in problem else f"{file}: "
            print(f"skipped: {where}{problem}", file=sys.stderr, flush=True)

    def add(self, file: Path, relative: Path, name: Path) -> None:
        """Predict an image and write everything of it, files that begin with ``name``; InputErrors say why not."""
        refuse_long_name(file)
        path, kind = partial(output_path, self.folder, name), self.trained.description.pixels
        classes, config = self.trained.class_set, self.config
        needs_whole = config.raw or config.label_ids or config.pre_labels or self.trained.size
        by_windows = config.tile is not None and not needs_whole
        with opened_picture(file, kind, by_windows) as picture:
            parts = self.trained.parts(picture)
            if "probabilities" in config.raw:
                parts = self._with_probabilities(parts, picture, path)
            prediction, (pixels, sums) = write_maps(
                path, parts, picture, classes, config.min_probability
            )
            size, image = picture.shape, picture.reduced(MOST_SHOWN)
        shown = kind.preview(image.values, image.valid)
        del picture, image  # of a large scene the largest
        if config.pre_labels:
            write_mask(self.folder, relative, prediction.classes, prediction.valid, classes)
        top, total = int(pixels.argmax()), max(int(pixels.sum()), 1)
        self.per_image.append(
            {
                "image": relative.as_posix(),
                "width": size[1],
                "height": size[0],
                "mean_entropy": f"{sums.sum() / total:.6f}",
                "top_class": classes.names[top],
                "top_class_share": f"{pixels[top] / total:.6f}",
            }
        )
        self._write(path, shown, prediction)

    def _with_probabilities(
        self, parts: Iterator[Part], picture: ImagePixels | Scene, path: FileOf
    ) -> Iterator[Part]:
        """The same parts; behind the last one the probabilities are written, (C, H, W) float16 and the names."""
        names = self.trained.class_set.names
        whole = np.empty((len(names), *picture.shape[:2]), np.float16)
        for top, left, logits in parts:
            bottom, right = top + logits.shape[2], left + logits.shape[3]
            whole[:, top:bottom, left:right] = logits[0].softmax(0).cpu().numpy()
            yield top, left, logits
        with whole_file(path("probabilities.npz")) as temporary:
            np.savez_compressed(temporary, probabilities=whole, names=np.asarray(names))
        place = picture.place if isinstance(picture, ImagePixels) else picture.header.place
        if place is not None:
            file, size = path("probabilities.tif"), whole.shape[1:]
            with new_geotiff(file, size, "float32", place, math.nan, names) as target:
                target.write(whole.astype(np.float32))

    def _write(self, path: FileOf, image: Picture, prediction: Prediction) -> None:
        """Pictures and numbers of one image; ``path`` gives the file of a kind."""
        classes = self.trained.class_set
        tiles, panel = map_pictures(image, None, prediction, classes)
        pictures: Document = tiles
        del pictures["image"]
        if "png16" in self.config.raw:
            pictures["entropy16"] = (prediction.entropy * 65535).round().astype(np.uint16)
        if self.config.label_ids:
            pictures["pred_labelIds"] = classes.to_ids(prediction.classes, prediction.valid)
        for kind, picture in pictures.items():
            save_panel(path(f"{kind}.png"), picture)
        save_panel(path("panel.png"), panel)
        if "npz" in self.config.raw:
            with whole_file(path("entropy.npz")) as temporary:
                np.savez_compressed(
                    temporary,
                    entropy=prediction.entropy * np.float32(math.log(len(classes))),
                    entropy_normalised=prediction.entropy,
                    prediction=prediction.classes,
                )


def export_images(config: ExportConfig) -> int:
    """Export; returns how many images could not be predicted."""
    source, out = Path(config.images), Path(config.out)
    files = find_images(source)
    images = [file.relative_to(source if source.is_dir() else source.parent) for file in files]
    if config.pre_labels:
        _refuse_shared_masks(images)
    trained = open_to_predict(config)
    with new_folder(out, "--out") as part:
        if config.pre_labels:
            write_label_map(part, trained.class_set)
        export = Export(trained, part, config)
        pieces = list(zip(files, images, output_names(images), strict=True))
        for piece in track(pieces, len(pieces), "export"):
            export.try_to_add(*piece)
        write_csv(part / "entropy.csv", export.per_image)
    _print_answer(export, f"{len(files)} images{left_out([source])}")
    print(f"pictures: {out}")
    command = next_command("seg.evaluate", config)
    print(f"next:     {command} --images {shlex.quote(config.images)} --labels DIR")
    return export.failed


def _refuse_shared_masks(images: Sequence[Path]) -> None:
    """Raise an InputError for two images of one mask, which CVAT finds by the path without its ending."""
    first: dict[Path, Path] = {}
    for image in images:
        other = first.setdefault(image.with_suffix(""), image)
        if other != image:
            raise InputError(
                f"--pre-labels: {other} and {image} would share a mask; give each image its own name"
            )


def _print_answer(export: Export, images: str) -> None:
    """Print how many images were exported, their mean entropy, and what that assumes."""
    trained, exported = export.trained, len(export.per_image)
    means = [float(row["mean_entropy"]) for row in export.per_image]
    entropy = f", mean entropy {np.mean(means):.3f} of log C" if means else ""
    skipped = f", {export.failed} skipped" if export.failed else ""
    print(f"result:   exported {exported} of {images}{skipped}{entropy}")
    print(f"network:  {trained.spec}")
    print(f"seen as:  {trained.description.described}", *trained.description.notes, sep="\n")
    if trained.size is not None:
        width, height = trained.size
        print(f"size:     images are resized to {width}×{height} (--size or --tile changes that)")
