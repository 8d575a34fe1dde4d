"""Pre-labels for annotation tools, and their exports read back as labels.

CVAT's "Segmentation mask 1.1" is a zip of masks in colours beside a label map; Label Studio's brush regions are JSON
with run lengths, as of thi.ng's rle-pack, over red, green, blue and alpha of the pixels. H × W an image's own size.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import quoteattr
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError, first_words, nearest
from dem_apps.runtime.documents import parsed_json
from dem_apps.runtime.files import read_text, regular_file
from dem_apps.runtime.images import MOST_PIXELS
from seg.data.labels import ClassSet, Ids, chosen_color
from seg.data.pixel_format import Mask
from seg.data.read import label_ids

#: The class that CVAT knows in every task and that no brush paints: pixels without a label are of it.
BACKGROUND = "background"
_MASKS, _MAP, _LIST = "SegmentationClass/", "labelmap.txt", "ImageSets/Segmentation/default.txt"
#: Bits of a run's length, by its two bits of kind.
_SIZES = (3, 4, 8, 16)
#: What Label Studio puts before the name of an uploaded file.
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")


class CvatMasks:
    """``cvat.zip``: to be uploaded as annotations of a task whose images have the same paths and labels by name."""

    def __init__(self, folder: Path, classes: ClassSet) -> None:
        self._file, self._names = ZipFile(folder / "cvat.zip", "w"), list[str]()
        self._colors = [
            (0, 0, 0) if name == BACKGROUND else chosen_color(index + 1)
            for index, name in enumerate(classes.names)
        ]
        rows = {BACKGROUND: (0, 0, 0), **dict(zip(classes.names, self._colors, strict=True))}
        lines = [
            "# label:color_rgb:parts:actions",
            *(f"{n}:{r},{g},{b}::" for n, (r, g, b) in rows.items()),
        ]
        self._write(_MAP, "\n".join(lines).encode())

    def add(self, image: Path, predicted: Ids, valid: Mask) -> None:
        """The prediction, (H, W) train ids, of an image by its path below the folder."""
        mask = np.asarray(self._colors, np.uint8)[predicted]
        if valid is not None:
            mask[~valid] = 0
        png, name = io.BytesIO(), image.with_suffix("").as_posix()
        Image.fromarray(mask).save(png, "PNG")
        self._write(f"{_MASKS}{name}.png", png.getvalue())
        self._names.append(name)

    def close(self) -> None:
        """Write the list of images."""
        self._write(_LIST, "\n".join(self._names).encode())
        self._file.close()

    def _write(self, name: str, content: bytes) -> None:
        # without the time, so that the same command gives the same bytes
        self._file.writestr(ZipInfo(name), content)


class LabelStudioBrush:
    """``label-studio.json``, tasks with predictions on local files, to import; ``label-studio.xml``, their setup."""

    def __init__(self, folder: Path, classes: ClassSet) -> None:
        self._folder, self._classes, self._tasks = folder, classes, list[dict[str, Any]]()

    def add(self, image: Path, predicted: Ids, valid: Mask) -> None:
        """As :meth:`CvatMasks.add`."""
        (height, width), regions = predicted.shape, []
        for index, name in enumerate(self._classes.names):
            mask = predicted == index if valid is None else (predicted == index) & valid
            if name != BACKGROUND and mask.any():
                value = {"format": "rle", "rle": run_lengths(mask), "brushlabels": [name]}
                size = {"original_width": width, "original_height": height, "image_rotation": 0}
                link = {"id": name, "type": "brushlabels", "from_name": "tag", "to_name": "image"}
                regions.append({**link, **size, "value": value})
        data = {
            "image": f"/data/local-files/?d={quote(os.fsencode(image.as_posix()))}",
            "name": image.as_posix(),
        }
        self._tasks.append(
            {"data": data, "predictions": [{"model_version": "dem-apps", "result": regions}]}
        )

    def close(self) -> None:
        """Write both files."""
        (self._folder / "label-studio.json").write_text(json.dumps(self._tasks))
        row = '<Label value={} background="#{:02x}{:02x}{:02x}"/>'
        colors = dict(zip(self._classes.names, self._classes.colors, strict=True))
        labels = "".join(
            row.format(quoteattr(name), *colors[name]) for name in colors if name != BACKGROUND
        )
        brush = f'<BrushLabels name="tag" toName="image">{labels}</BrushLabels>'
        setup = f'<View><Image name="image" value="$image" zoom="true"/>{brush}</View>\n'
        (self._folder / "label-studio.xml").write_text(setup, encoding="utf-8")


#: By the name of a tool, what collects predictions in a folder.
TOOLS: dict[str, type[CvatMasks] | type[LabelStudioBrush]] = {
    "cvat": CvatMasks,
    "label-studio": LabelStudioBrush,
}


def refuse_for_cvat(classes: ClassSet, images: Sequence[Path]) -> None:
    """Raise an InputError for what neither its label map nor its list of images can hold."""
    if wrong := [name for name in classes.names if set(name) & set(":#\n")]:
        raise InputError(
            f"--pre-labels cvat: the class '{wrong[0]}' has a character that a label map cannot hold"
        )
    if twice := [
        name
        for name, count in Counter(image.with_suffix("") for image in images).items()
        if count > 1
    ]:
        raise InputError(
            f"--pre-labels cvat: the suffix alone tells two images {twice[0]} apart; rename one"
        )
    for name in map(str, images):
        if "\n" in name or name.encode(errors="replace").decode() != name:
            raise InputError(
                f"--pre-labels cvat: {name} is no name that CVAT can list, one line of UTF-8; rename it"
            )


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """(H, W) → bytes: 32 bits of the number of values, 5 of their bits - 1, 4 of each of :data:`_SIZES` - 1; the runs.

    A run is a 1, its kind, its length - 1 and its value. A pixel is four values, of 255 or of 0 each.
    """
    flat = mask.ravel()
    ends = [*(np.flatnonzero(flat[1:] != flat[:-1]) + 1).tolist(), flat.size]
    bits = [f"{4 * flat.size:032b}{7:05b}", *(f"{size - 1:04b}" for size in _SIZES)]
    for begin, end in zip([0, *ends], ends, strict=False):
        for length in [1 << 16] * (4 * (end - begin) >> 16) + [4 * (end - begin) % (1 << 16)]:
            if length:
                kind = next(place for place, size in enumerate(_SIZES) if length <= 1 << size)
                bits.append(
                    f"1{kind:02b}{length - 1:0{_SIZES[kind]}b}{255 * bool(flat[begin]):08b}"
                )
    packed = np.packbits(np.frombuffer("".join(bits).encode(), np.uint8) - ord("0"))
    return [int(byte) for byte in packed]


def mask_of_runs(rle: list[int], height: int, width: int) -> NDArray[np.bool_]:
    """(H, W): where the alpha of such bytes, in which a 0 begins values one by one, is above a half.

    Raises ValueError: bytes that are of another size, or cut short.
    """
    bits = iter((np.unpackbits(np.asarray(rle, np.uint8)) + ord("0")).tobytes().decode())

    def read(number: int) -> int:
        return int("".join(islice(bits, number)), 2)

    number, word, sizes = read(32), read(5) + 1, [read(4) + 1 for _ in _SIZES]
    if number != 4 * height * width or number > 4 * MOST_PIXELS:
        raise ValueError(f"{number} values of {width} × {height} pixels")
    values, done = np.zeros(number, np.uint8), 0
    while done < number:
        run, length = read(1), read(sizes[read(2)]) + 1
        values[done : done + length] = read(word) if run else [read(word) for _ in range(length)]
        done += length
    return np.asarray(values.reshape(height, width, 4)[..., 3] > 127)


def annotated(file: Path, classes: ClassSet) -> Iterator[tuple[Path, Ids]]:
    """Relative path without suffix, and label ids (H, W), of each annotated image of either tool's export.

    Pixels without a label are ``background``, else :attr:`ClassSet.no_data`. Raises InputError: another file or label.
    """
    regular_file(file)
    try:
        for name, ids in (_of_cvat if file.suffix.lower() == ".zip" else _of_label_studio)(
            file, classes
        ):
            if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
                raise InputError(f"the image {name} lies outside of its folder")
            yield Path(name), ids
    except InputError as error:
        raise InputError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error
    except Exception as error:  # zipfile raises nearly anything for a damaged file
        raise InputError(
            f"{file}: neither a zip of CVAT's Segmentation mask 1.1 nor JSON of Label Studio ({first_words(error)})"
        ) from error


def _of_cvat(file: Path, classes: ClassSet) -> Iterator[tuple[str, Ids]]:
    archive = ZipFile(file)
    if large := [info for info in archive.infolist() if info.file_size > MOST_PIXELS]:
        raise InputError(
            f"{large[0].filename}: {large[0].file_size:,} bytes; at most {MOST_PIXELS:,} are read"
        )
    rows = [
        line.split(":")
        for line in archive.read(_MAP).decode().splitlines()
        if line[:1] not in ("", "#")
    ]
    colors = {name: tuple(map(int, color.split(","))) for name, color, *_ in rows}
    blank = _blank_id(classes)
    ids = tuple(blank if name == BACKGROUND else _id_of(name, classes) for name in colors)
    painted = ClassSet(tuple(colors), tuple(colors.values()), ids, by_color=True)  # type: ignore[arg-type]
    with archive, TemporaryDirectory() as folder:
        for info in archive.infolist():
            if info.filename.startswith(_MASKS) and info.filename.endswith(".png"):
                mask = Path(folder, "mask.png")
                mask.write_bytes(archive.read(info))
                try:
                    label, valid = label_ids(mask, painted)
                except InputError as error:
                    raise InputError(str(error).replace(str(mask), info.filename)) from error
                name = info.filename.removeprefix(_MASKS).removesuffix(".png")
                yield name, label if valid is None else np.where(valid, label, np.uint8(blank))


def _of_label_studio(file: Path, classes: ClassSet) -> Iterator[tuple[str, Ids]]:
    for task in parsed_json(read_text(file), str(file)):
        made = [each for each in task.get("annotations", ()) if not each.get("was_cancelled")]
        regions = made[-1]["result"] if made else []
        if not regions:
            continue
        height, width = regions[0]["original_height"], regions[0]["original_width"]
        if height * width > MOST_PIXELS:
            raise InputError(
                f"an image of {width} × {height}; at most {MOST_PIXELS:,} pixels are read"
            )
        ids = np.full((height, width), _blank_id(classes), np.uint8)
        for region in regions:
            if region["type"] != "brushlabels":
                raise InputError(f"a region is of {region['type']}; brushlabels alone are read")
            value = region["value"]
            ids[mask_of_runs(value["rle"], height, width)] = _id_of(
                value["brushlabels"][0], classes
            )
        url = urlsplit(task["data"]["image"])
        local = parse_qs(url.query).get("d", [_UPLOADED.sub("", Path(unquote(url.path)).name)])[0]
        yield str(Path(task["data"].get("name", local)).with_suffix("")), ids


def _blank_id(classes: ClassSet) -> int:
    """Of pixels without a label."""
    return _id_of(BACKGROUND, classes) if BACKGROUND in classes.names else classes.no_data


def _id_of(name: str, classes: ClassSet) -> int:
    if name not in classes.names:
        hint = nearest(name, classes.names)
        raise InputError(
            f"the label '{name}' is no class{hint}; --classes names those of the network"
        )
    return classes.ids[classes.names.index(name)]
