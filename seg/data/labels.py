"""Classes: the label table of Cityscapes, as torchvision has it from cityscapesScripts, and class sets from YAML files.

A *label id* (0 to 33) is what an annotation PNG holds, a *train id* (0 to 18) the index of an
evaluated class, and ``IGNORE_INDEX`` (255) marks a pixel that no loss and no metric counts. The
licence plate (id -1) is stored as 255.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from torchvision.datasets import Cityscapes

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.arguments import found
from dem_apps.runtime.documents import Document, read_json, read_yaml, required, shaped
from dem_apps.runtime.files import read_text
from seg.data.files import distinct
from seg.data.pixel_format import Bools, Mask

Color = tuple[int, int, int]
Colors = tuple[Color, ...]
#: (H, W) train ids, or ids of a label image.
Ids = NDArray[np.uint8]
IGNORE_INDEX = 255
_LONGEST_NAME = 100
#: Names of a class that may be black on pictures.
_BLACK = ("background", "void", "unlabelled", "unlabeled")
_PLATE = {"id": 34, "train_id": IGNORE_INDEX}
#: Rows with ``name``, ``id``, ``train_id`` and ``color``. The licence plate is 34 as in GTA5; in Cityscapes it is -1.
LABELS = [label if label.id >= 0 else label._replace(**_PLATE) for label in Cityscapes.classes]
CITYSCAPES_IDS: dict[int, str] = {label.id: label.name for label in LABELS}
LABEL_ID: dict[str, int] = {label.name: label.id for label in LABELS}

# in the order of their train ids
_TRAIN_LABELS = [label for label in LABELS if label.train_id != IGNORE_INDEX]


@dataclass(frozen=True)
class ClassSet:
    """The C classes that a network predicts; the position in these tuples is the train id."""

    names: tuple[str, ...]  #: C names
    colors: Colors  #: C RGB colours for display
    #: id of each class in a label image in the class set's own numbering
    ids: tuple[int, ...]
    #: Ids of label images that no loss and no metric counts; 255 is one of them unless a class has it.
    ignored: tuple[int, ...] = ()
    #: whether label images are pictures in the classes' colours instead, and hold no ids
    by_color: bool = False
    ignored_colors: Colors = ()  #: colours in such pictures that nothing counts

    def __len__(self) -> int:
        return len(self.names)

    @property
    def numbering(self) -> dict[int, str]:
        """Name of each class by its id."""
        return dict(zip(self.ids, self.names, strict=True))

    @property
    def no_data(self) -> int:
        """Value for no data in ids that are written.

        It is 255, or the largest id of no class where a class has 255.
        """
        return max(set(range(256)) - set(self.ids))

    def to_ids(self, predicted: Ids, valid: Mask = None) -> Ids:
        """Convert train ids, (H, W), to ids of label images in this numbering.

        Pixels are :attr:`no_data` where ``valid`` is False.
        """
        table = np.zeros(256, np.uint8)
        table[: len(self)] = self.ids
        # as table[predicted], without its eight bytes a pixel
        ids: Ids = np.asarray(cv2.LUT(predicted, table), np.uint8)
        return ids if valid is None else np.where(valid, ids, self.no_data)

    def ignoring(self, ids: Sequence[int]) -> ClassSet:
        """Return the class set for label images in which further ids count nowhere.

        Raises:
            InputError: an id is a class, or labels are colours.
        """
        for each in ids:
            if self.by_color or each in self.ids:
                raise InputError(
                    f"--ignore: {each} is a class, or labels are colours; a file for --classes says what is ignored"
                )
        return replace(self, ignored=tuple(sorted({*self.ignored, *ids})))

    def document(self) -> Document:
        """Return the class set as :func:`load_classes` reads it."""
        rows = [
            {"name": name, "color": list(color), "id": label_id}
            for name, color, label_id in zip(self.names, self.colors, self.ids, strict=True)
        ]
        if not self.by_color:
            return {"classes": rows, "ignored": list(self.ignored)}
        ignored = [list(color) for color in self.ignored_colors]
        return {"labels": "colors", "classes": rows, "ignored": ignored}


CITYSCAPES_CLASSES = ClassSet(
    tuple(label.name for label in _TRAIN_LABELS),
    tuple(label.color for label in _TRAIN_LABELS),
    tuple(label.id for label in _TRAIN_LABELS),
    ignored=tuple(label.id for label in LABELS if label.train_id == IGNORE_INDEX),
)
#: Classes of pictures in Cityscapes' colours; GTA5 has a colour of its own for static.
CITYSCAPES_COLORS = replace(
    CITYSCAPES_CLASSES,
    ignored=(),
    by_color=True,
    # the licence plate has the car's colour
    ignored_colors=(
        *(each.color for each in LABELS if each.train_id == IGNORE_INDEX and each.id != 34),
        (20, 20, 20),
    ),
)


def id_tables(classes: ClassSet, numbering: Mapping[int, str] | None = None) -> tuple[Ids, Bools]:
    """Build look-up tables for the ids in label images, (256,) each.

    Args:
        classes: the class set.
        numbering: id → class name of a data set's own ids; None for the class set's ids.

    Returns:
        Train id or ``IGNORE_INDEX`` of each id; whether each id is known.

    Raises:
        InputError: a class that the numbering lacks; the error names it.
    """
    table = np.full(256, IGNORE_INDEX, np.uint8)
    known = np.zeros(256, np.bool_)
    known[IGNORE_INDEX] = True
    if numbering is None:
        known[[*classes.ignored, classes.no_data]] = True
        numbering = classes.numbering
    known[list(numbering)] = True
    id_of = {name: label_id for label_id, name in numbering.items()}
    for train_id, name in enumerate(classes.names):
        if name not in id_of:
            raise InputError(
                f"--classes: '{name}' is no class of this layout{nearest(name, id_of)} "
                f"(its classes: {', '.join(id_of)}); name yours, such as --classes {','.join([*id_of][:2])}"
            )
        table[id_of[name]] = train_id
    return table, known


def named_classes(names: Sequence[str] | int) -> ClassSet:
    """Return the class set of these names, with their positions as ids.

    A number stands for as many names: class 0, class 1, …. Repeated names get a number.
    Names of Cityscapes alone have its colours, all others Pascal VOC's.
    VOC's black, which also means no data, is for a background alone.
    """
    if isinstance(names, int):
        names = [f"class {index}" for index in range(names)]
    known = {label.name: label.color for label in _TRAIN_LABELS}
    colors = [known[name] for name in names if name in known]
    if len(colors) < len(names):
        numbers = itertools.count(1)
        black = next((name for name in names if name.strip().lower() in _BLACK), None)
        colors = [chosen_color(0 if name == black else next(numbers)) for name in names]
    return ClassSet(tuple(distinct(names)), tuple(colors), tuple(range(len(names))))


def chosen_color(index: int) -> Color:
    """Return the colour of class ``index`` in Pascal VOC's map.

    Bits 0, 3 and 6 of the index are the top bits of red, bits 1, 4 and 7 of green, and so on.
    """
    bits = f"{index:024b}"[::-1]
    return int(bits[0::3], 2), int(bits[1::3], 2), int(bits[2::3], 2)


def load_classes(file: str | None) -> ClassSet:
    """Load the classes of a file, or of names with commas between.

    A YAML file has a list ``classes`` of ``{name: road, color: [128, 64, 128], id: 7}``, in the
    order of the network's outputs, or of names alone. It may have a list ``ignored`` of ids.
    Without ``id`` a class has its position. With ``labels: colors`` label images are pictures in
    the classes' colours, and ``ignored`` is a list of colours. A text file is CVAT's
    ``labelmap.txt``, with a line such as ``crop:0,128,0::`` for each class.

    Args:
        file: the file, or the names; None for Cityscapes' 19 classes.

    Raises:
        InputError: a file that cannot be read, or what is wrong in it.
    """
    if file is None:
        return CITYSCAPES_CLASSES
    # Path fails at a long text
    if "," in file and not os.path.splitext(file)[1] and not os.path.exists(file):
        names = [name.strip() for name in file.split(",")]
        if "" in names or len(names) != len(set(names)) or len(names) > IGNORE_INDEX:
            raise InputError(
                f"--classes: expected a file, or different names such as a,b,c, got '{file}'"
            )
        return named_classes(names)
    path = found(file)
    if not os.path.exists(path):
        raise InputError(
            f"--classes: expected a file, or names such as a,b,c; there is no file '{file}'"
        )
    # a run's own file is JSON, whose escapes beyond U+FFFF are not YAML's
    readers: dict[str, Callable[[Path], Any]] = {".txt": _label_map, ".json": read_json}
    return _from_document(file, readers.get(path.suffix, read_yaml)(path))


def _label_map(file: Path) -> Document:
    """Return the content of a label map in the form of a class file."""
    rows = []
    for line in read_text(file).splitlines():
        if line.strip() and not line.startswith("#"):
            name, color, *_ = [*line.split(":"), ""]
            numbers = [int(part) for part in color.split(",") if part.strip().isdecimal()]
            rows.append({"name": name, "color": numbers})
    return {"labels": "colors", "classes": rows}


@dataclass(frozen=True)
class _Row:
    """One class of a class file, or one id or colour that it ignores."""

    name: str
    id: int
    color: Color | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.name.strip()) <= _LONGEST_NAME or not self.name.isprintable():
            raise ValueError(f"name: expected a text of 1 to {_LONGEST_NAME} characters")
        numbers = list(self.color or (0, 0, 0))
        if len(numbers) != 3:
            raise ValueError(f"color: expected 3 numbers, found {numbers}")
        if not {self.id, *numbers} <= {*range(256)}:
            raise ValueError("id and color: expected numbers from 0 to 255")


@dataclass(frozen=True)
class _ClassFile:
    """Content of a class file.

    ``classes`` are rows, or names alone. ``ignored`` are ids, or colours, that count nowhere.
    """

    classes: tuple[Any, ...]
    labels: Literal["ids", "colors"] = "ids"
    ignored: tuple[Any, ...] | None = None


def _from_document(file: str, document: Any) -> ClassSet:
    """Return the classes of a file's content.

    Raises:
        InputError: what is wrong in it; the error begins with the file's name.
    """
    content = shaped(_ClassFile, document, file)
    if not 2 <= len(content.classes) <= 255:
        raise InputError(f"{file}, classes: expected 2 to 255, found {len(content.classes)}")
    rows = [
        _row(value, place, f"{file}, classes[{place}]")
        for place, value in enumerate(content.classes)
    ]
    names, ids, colors = zip(*((row.name, row.id, row.color) for row in rows), strict=True)
    by_color = content.labels == "colors"
    if None in colors and (by_color or any(colors)):
        raise InputError(f"{file}, classes: some have a color, and others none")
    _refuse_repeated(file, "name", names)
    _refuse_repeated(file, "id", ids)
    ignored = _ignored(file, content)
    if by_color:
        _refuse_repeated(file, "color", colors)
        return ClassSet(names, colors, ids, by_color=True, ignored_colors=ignored)
    if both := {*ignored} & {*ids}:
        name = names[ids.index(min(both))]
        raise InputError(f"{file}, ignored: the id {min(both)} is that of class '{name}'")
    return ClassSet(names, named_classes(names).colors if None in colors else colors, ids, ignored)


def _ignored(file: str, content: _ClassFile) -> tuple[Any, ...]:
    """Return the ids, or with labels in colours the colours, that count nowhere, sorted."""
    key = "color" if content.labels == "colors" else "id"
    rows = [
        shaped(_Row, {"name": "ignored", "id": 0, key: value}, f"{file}, ignored")
        for value in content.ignored or ()
    ]
    return tuple(sorted({getattr(row, key) for row in rows} - {None}))


def _row(value: Any, place: int, where: str) -> _Row:
    """Return a class by its name alone, or by its keys; ``place`` is its id unless it has one."""
    keys = {"name": value} if isinstance(value, str) else required(value, where)
    return shaped(_Row, {"id": place, **keys}, where)


def _refuse_repeated(file: str, key: str, values: Sequence[object]) -> None:
    ((value, number),) = Counter(values).most_common(1)
    if number > 1:
        raise InputError(f"{file}, classes: the {key} {value!r} is given to more than one class")
