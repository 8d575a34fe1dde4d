"""CVAT's masks in colours beside a ``labelmap.txt``: read as labels by the map's names, and written for correction."""

from dataclasses import replace

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from support import noise, refuses, save

from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.label_faults import labels_of
from seg.data.labels import IGNORE_INDEX, load_classes
from seg.data.read_labels import read_label
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.export import ExportConfig, export

LABEL_MAP = "# label:color_rgb:parts:actions\nbackground:0,0,0::\nweed:0,128,0::\ncrop:128,0,0::\n"
COLORS = np.array([[0, 0, 0], [0, 128, 0], [128, 0, 0]], np.uint8)
IDS = np.arange(48 * 64).reshape(48, 64).astype(np.uint8) % 3


@pytest.fixture
def root(tmp_path):
    """Three images and their masks in colours."""
    (tmp_path / "labelmap.txt").write_text(LABEL_MAP)
    for index in range(3):
        save(tmp_path / "images" / "deep" / f"{index}.png", noise(index, 64, 48))
        save(tmp_path / "labels" / "deep" / f"{index}.png", COLORS[IDS])
    return tmp_path


def test_the_map_is_a_class_file(root):
    classes = load_classes(str(root / "labelmap.txt"))
    assert (classes.names, classes.by_color) == (("background", "weed", "crop"), True)
    each = str(root)
    pair = open_pair(
        SourceConfig(root=each), TargetDataConfig(root=each), str(root / "labelmap.txt")
    )
    np.testing.assert_array_equal(pair.source_train[0].label, IDS)


def test_its_names_are_matched_with_other_classes(root):
    classes = load_classes("crop,weed")
    dataset = SegmentationDataset(root, "folders", "train", labelled=True, classes=classes)
    expected = np.array([IGNORE_INDEX, 1, 0], np.uint8)[IDS]
    np.testing.assert_array_equal(dataset[0].label, expected)
    assert "labelmap.txt" in dataset.notes[-1]
    sentence = r"labelmap.txt: has no label soil; --classes .*labelmap.txt"
    other = load_classes("crop,soil")
    refuses(sentence, SegmentationDataset, root, "folders", "train", labelled=True, classes=other)
    (root / "labelmap.txt").write_text("background:0,0,0::\ncrop:1,2::\n")
    refuses(r"classes\[1\]: color: expected 3", load_classes, str(root / "labelmap.txt"))


def test_an_export_is_read_back(root, tmp_path):
    torch.manual_seed(0)
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(tmp_path / "network")
    holes = np.dstack([noise(1, 64, 64), np.full((64, 64), 255, np.uint8)])
    holes[:10, :, 3] = 0
    save(root / "images" / "deep" / "1.png", holes)
    config = ExportConfig(
        model=str(tmp_path / "network"),
        images=str(root / "images"),
        out=str(tmp_path / "out"),
        classes="background,crop,weed",
        label_ids=True,
        pre_labels=True,
        device="cpu",
    )
    assert export(config) == 0
    classes = load_classes("background,crop,weed")
    images = sorted(file.relative_to(root / "images") for file in (root / "images").rglob("*.png"))
    masks = tmp_path / "out" / "SegmentationClass"
    files, layout, _ = labels_of(masks, images, root / "images", classes)
    for image in images:
        name = (tmp_path / "out" / image).with_suffix("")
        written = np.asarray(Image.open(f"{name}_pred_labelIds.png"))
        # where there is no data the mask is black, as the background is
        read = read_label(files[image], classes, layout)
        np.testing.assert_array_equal(read, np.where(written == 255, 0, written))
    save(root / "images" / "deep" / "1.jpg", noise(9, 64, 48))
    sentence = "^--pre-labels: deep/1.jpg and deep/1.png would share a mask"
    refuses(sentence, export, replace(config, out=str(tmp_path / "no")))
