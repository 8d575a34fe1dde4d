"""CamVid's three layouts on a tiny tree: day and dusk, which images are scored, and what the ids mean."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.labels import IGNORE_INDEX, load_classes
from seg.data.settings import SourceConfig, TargetDataConfig

CLASSES_FILE = str(Path(__file__).parents[3] / "configs/seg/classes/camvid.yaml")
CLASSES = load_classes(CLASSES_FILE)
FRAMES = {
    "train": ("0001TP_006690", "0001TP_006720", "0006R0_f00930", "0016E5_00390", "0016E5_00420"),
    "val": ("0016E5_07959", "0016E5_07961"),
    "test": ("0001TP_008550", "Seq05VD_f00000", "Seq05VD_f00030"),
}
DUSK_TRAIN, DUSK_VAL = ["train/0001TP_006690", "train/0001TP_006720"], ["test/0001TP_008550"]


@pytest.fixture
def root(tmp_path):
    """Pictures of 12 columns; column i of every label has the id i."""
    root = tmp_path / "CamVid"
    for folder, frames in FRAMES.items():
        for kind in ("", "annot"):
            (root / f"{folder}{kind}").mkdir(parents=True)
        for frame in frames:
            Image.new("RGB", (12, 9)).save(root / folder / f"{frame}.png")
            Image.fromarray(np.tile(np.arange(12, dtype=np.uint8), (9, 1))).save(root / f"{folder}annot/{frame}.png")
    return root


def opened(root, layout, split):
    return SegmentationDataset(root, layout, split, True, classes=CLASSES)


def names(dataset):
    return [dataset.name(index).removesuffix(".png") for index in range(len(dataset))]


def test_the_frames_of_each_layout(root):
    official = {folder: [f"{folder}/{frame}" for frame in frames] for folder, frames in FRAMES.items()}
    assert names(opened(root, "camvid", "train")) == official["train"]
    assert names(opened(root, "camvid", "val")) == official["test"]
    assert names(opened(root, "camvid-dusk", "train")) == DUSK_TRAIN
    assert names(opened(root, "camvid-dusk", "val")) == DUSK_VAL
    day = names(opened(root, "camvid-day", "train"))
    assert day == names(opened(root, "camvid-day", "val"))
    assert sorted([*day, *DUSK_TRAIN, *DUSK_VAL]) == sorted(frame for frames in official.values() for frame in frames)


def test_day_to_dusk_is_a_pair_of_one_root_whose_target_labels_may_be_missing(root):
    for frame in DUSK_TRAIN:
        (root / f"{frame.replace('/', 'annot/')}.png").unlink()
    source = SourceConfig(root=str(root), layout="camvid-day", size=[6, 4])
    target = TargetDataConfig(root=str(root), layout="camvid-dusk", size=[6, 4])
    pair = open_pair(source, target, CLASSES_FILE)
    assert [len(part) for part in (pair.source_train, pair.target_train, pair.target_val)] == [7, 2, 1]
    assert (pair.source_train.labelled, pair.target_train.labelled, pair.target_val.labelled) == (True, False, True)
    scored = pair.target_val[0]
    assert scored.image.shape == (4, 6, 3)
    assert scored.label.tolist() == [[*range(11), IGNORE_INDEX]] * 9
