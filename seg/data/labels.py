"""The Cityscapes label table: label ids on disk, train ids in memory, colours for people.

Three numberings exist and are easily mixed up:

- a *label id* (0 to 33) is what an annotation PNG holds;
- a *train id* (0 to 18) is the index of one of the 19 evaluated classes;
- ``IGNORE_INDEX`` (255) marks every pixel that no loss and no metric counts.

The 35th Cityscapes label, the licence plate (id -1), does not fit into eight bits; files store
it as 255, which maps to ``IGNORE_INDEX``. Source: ``labels.py`` of the public cityscapesScripts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IGNORE_INDEX = 255
UNKNOWN = 254
"""What ``id_to_train_id`` gives for an id that is not in the table, for a reader to complain."""


@dataclass(frozen=True)
class Label:
    """One row of the table; ``train_id`` is ``IGNORE_INDEX`` where the class is not evaluated."""

    name: str
    id: int
    train_id: int
    color: tuple[int, int, int]


LABELS: tuple[Label, ...] = (
    Label("unlabeled", 0, 255, (0, 0, 0)),
    Label("ego vehicle", 1, 255, (0, 0, 0)),
    Label("rectification border", 2, 255, (0, 0, 0)),
    Label("out of roi", 3, 255, (0, 0, 0)),
    Label("static", 4, 255, (0, 0, 0)),
    Label("dynamic", 5, 255, (111, 74, 0)),
    Label("ground", 6, 255, (81, 0, 81)),
    Label("road", 7, 0, (128, 64, 128)),
    Label("sidewalk", 8, 1, (244, 35, 232)),
    Label("parking", 9, 255, (250, 170, 160)),
    Label("rail track", 10, 255, (230, 150, 140)),
    Label("building", 11, 2, (70, 70, 70)),
    Label("wall", 12, 3, (102, 102, 156)),
    Label("fence", 13, 4, (190, 153, 153)),
    Label("guard rail", 14, 255, (180, 165, 180)),
    Label("bridge", 15, 255, (150, 100, 100)),
    Label("tunnel", 16, 255, (150, 120, 90)),
    Label("pole", 17, 5, (153, 153, 153)),
    Label("polegroup", 18, 255, (153, 153, 153)),
    Label("traffic light", 19, 6, (250, 170, 30)),
    Label("traffic sign", 20, 7, (220, 220, 0)),
    Label("vegetation", 21, 8, (107, 142, 35)),
    Label("terrain", 22, 9, (152, 251, 152)),
    Label("sky", 23, 10, (70, 130, 180)),
    Label("person", 24, 11, (220, 20, 60)),
    Label("rider", 25, 12, (255, 0, 0)),
    Label("car", 26, 13, (0, 0, 142)),
    Label("truck", 27, 14, (0, 0, 70)),
    Label("bus", 28, 15, (0, 60, 100)),
    Label("caravan", 29, 255, (0, 0, 90)),
    Label("trailer", 30, 255, (0, 0, 110)),
    Label("train", 31, 16, (0, 80, 100)),
    Label("motorcycle", 32, 17, (0, 0, 230)),
    Label("bicycle", 33, 18, (119, 11, 32)),
)

LABEL_ID: dict[str, int] = {label.name: label.id for label in LABELS}
"""Label id of a name: ``LABEL_ID["road"]`` is 7."""

_TRAIN_LABELS = sorted((label for label in LABELS if label.train_id != IGNORE_INDEX), key=lambda label: label.train_id)

CLASS_NAMES: tuple[str, ...] = tuple(label.name for label in _TRAIN_LABELS)
PALETTE: tuple[tuple[int, int, int], ...] = tuple(label.color for label in _TRAIN_LABELS)
LABEL_ID_PALETTE: tuple[int, ...] = tuple(channel for label in LABELS for channel in label.color) + (0,) * (
    768 - 3 * len(LABELS)
)
"""256 RGB colours in a row, indexed by label id: what ``Image.putpalette`` takes."""


def id_to_train_id() -> np.ndarray:
    """Look-up table, (256,) uint8, from label id to train id: ``table[label_ids]``.

    Ids outside the Cityscapes table give ``UNKNOWN``; 255 (a stored -1) gives ``IGNORE_INDEX``.
    """
    table = np.full(256, UNKNOWN, np.uint8)
    for label in LABELS:
        table[label.id] = label.train_id
    table[255] = IGNORE_INDEX
    return table


def train_id_to_id() -> np.ndarray:
    """Look-up table, (256,) uint8, from train id to label id; anything else gives 0, unlabeled."""
    table = np.zeros(256, np.uint8)
    for label in _TRAIN_LABELS:
        table[label.train_id] = label.id
    return table
