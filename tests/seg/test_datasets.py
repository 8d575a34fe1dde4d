from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

from dem_apps.errors import InputError
from seg.config import DataConfig, TrainConfig
from seg.data.datasets import SegmentationDataset
from seg.data.labels import CLASS_NAMES, IGNORE_INDEX, LABELS
from seg.data.pair import open_pair


@pytest.fixture
def source(tiny_pair, tmp_path):
    """A private copy of the source domain that a test may damage."""
    return shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")


@pytest.fixture
def target(tiny_pair, tmp_path):
    return shutil.copytree(tiny_pair.target_root, tmp_path / "cityscapes")


def test_source_labels_are_palette_indices_mapped_to_train_ids(source):
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True)
    sample = dataset[0]
    picture = Image.open(source / "labels" / "00001.png")
    assert picture.mode == "P"
    ids = np.asarray(picture)
    table = {label.id: label.train_id for label in LABELS}
    assert sample.label is not None
    np.testing.assert_array_equal(sample.label, np.vectorize(table.get)(ids))
    assert set(np.unique(sample.label)) <= {*range(len(CLASS_NAMES)), IGNORE_INDEX}
    assert sample.image.shape == (48, 96, 3)


def test_target_is_read_in_cityscapes_layout(target):
    dataset = SegmentationDataset(target, "cityscapes", "val", labelled=True, size=(48, 24), resize_labels=False)
    assert len(dataset) == 4
    sample = dataset[0]
    assert sample.image.shape == (24, 48, 3)
    assert sample.label is not None
    assert sample.label.shape == (48, 96)
    assert sample.name.startswith("leftImg8bit/val/")


def test_labels_are_resized_by_nearest_neighbour(source):
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True, size=(48, 24))
    whole = SegmentationDataset(source, "gta5", "train", labelled=True)[0].label
    small = dataset[0].label
    assert small is not None
    assert whole is not None
    assert small.shape == (24, 48)
    assert set(np.unique(small)) <= set(np.unique(whole))


def test_target_training_labels_are_never_opened(target):
    for label in (target / "gtFine" / "train").rglob("*.png"):
        label.write_bytes(b"not an image")
    dataset = SegmentationDataset(target, "cityscapes", "train", labelled=False)
    assert all(dataset[index].label is None for index in range(len(dataset)))
    shutil.rmtree(target / "gtFine" / "train")
    assert SegmentationDataset(target, "cityscapes", "train", labelled=False)[0].label is None


def test_wrong_folders_are_named(tmp_path, source):
    with pytest.raises(InputError, match="no such folder"):
        SegmentationDataset(tmp_path / "nowhere", "gta5", "train", labelled=True)
    with pytest.raises(InputError, match=r"has no folder leftImg8bit/train, as a data set in cityscapes layout"):
        SegmentationDataset(source, "cityscapes", "train", labelled=True)
    shutil.rmtree(source / "images")
    (source / "images").mkdir()
    with pytest.raises(InputError, match=r"images: holds no images that match \*.png"):
        SegmentationDataset(source, "gta5", "train", labelled=True)


def test_an_image_without_its_label_is_named(source):
    (source / "labels" / "00003.png").unlink()
    with pytest.raises(InputError, match=r"00003.png: its label .*labels/00003.png is missing \(1 of 6 have none\)"):
        SegmentationDataset(source, "gta5", "train", labelled=True)


def test_an_unknown_label_id_is_named(source):
    Image.fromarray(np.full((48, 96), 77, np.uint8)).save(source / "labels" / "00001.png")
    with pytest.raises(InputError, match=r"00001.png: label id 77 is not in the table, which has 0 to 33 and 255"):
        SegmentationDataset(source, "gta5", "train", labelled=True)[0]


def test_a_label_in_colours_is_refused(source):
    Image.fromarray(np.zeros((48, 96, 3), np.uint8)).save(source / "labels" / "00001.png")
    with pytest.raises(InputError, match=r"one id per pixel \(mode P or L\), this one is RGB"):
        SegmentationDataset(source, "gta5", "train", labelled=True)[0]


@pytest.mark.parametrize("folder", ["images", "labels"])
@pytest.mark.parametrize("kept", [0, 20, 400])
def test_a_file_cut_short_is_named(source, folder, kept):
    file = source / folder / "00002.png"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"00002.png: the image cannot be read, it is damaged or cut short"):
        SegmentationDataset(source, "gta5", "train", labelled=True)[1]


def test_a_pair_needs_both_roots(source):
    with pytest.raises(InputError, match=r"--target.root is missing: --source.root is given"):
        open_pair(TrainConfig(source=DataConfig(root=str(source), layout="gta5")))


@pytest.mark.parametrize("size", [[96], [0, 5], [1, 2, 3]])
def test_a_wrong_size_is_named(tiny_pair, size):
    source = DataConfig(root=str(tiny_pair.source_root), layout="gta5", size=size)
    with pytest.raises(InputError, match=r"--source.size: expected \[width, height\]"):
        open_pair(TrainConfig(source=source, target=DataConfig(root=str(tiny_pair.target_root))))
