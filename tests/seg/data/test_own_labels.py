"""Labels and folders as people have them: masks in colours, names with ``_mask``, layouts that nobody names."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dem_apps.errors import InputError
from seg.config import SourceConfig, TargetDataConfig
from seg.data.check import check_pair
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.labels import CITYSCAPES_CLASSES, load_classes
from seg.data.layouts.find import found_layout
from seg.data.read import label_ids

IDS = np.repeat(np.array([[0, 1, 2, 255]], np.uint8), 6, axis=0).repeat(4, axis=1)
COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 128, 255], *[[9, 9, 9]] * 253], np.uint8)


def draw(
    root: Path, label: np.ndarray, name: str = "a", folder: str = "labels", ending: str = "", split: str = ""
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*label.shape[:2], 3), dtype=np.uint8)
    for kind, pixels, stem in (("images", image, name), (folder, label, name + ending)):
        file = root / kind / split / f"{stem}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)


def printed_by_check(root: Path, classes: str | None = None) -> str:
    console = Console(width=200, file=(text := io.StringIO()), soft_wrap=True)
    source, target = SourceConfig(root=str(root)), TargetDataConfig(root=str(root))
    check_pair(open_pair(source, target, classes, labels_must_exist=False, measure=False), console=console)
    return text.getvalue()


def test_the_printed_file_reads_masks_in_colours(tmp_path):
    draw(tmp_path / "data", COLOURS[IDS])
    said = printed_by_check(tmp_path / "data", "one,two")
    found = re.search(r"(labels: colors\nclasses:\n(?:[- ] .*\n)+)", said)
    assert found is not None
    (tmp_path / "classes.yaml").write_text(found[1])
    assert "nothing wrong" in printed_by_check(tmp_path / "data", str(tmp_path / "classes.yaml"))
    assert "- name: a_b\n  color: [0, 128, 255]\n" in printed_by_check(tmp_path / "data", "one,a_b,three,four")
    assert "- name: 'no'\n  color: [0, 128, 255]\n" in printed_by_check(tmp_path / "data", "one,no,three,four")
    dataset = SegmentationDataset(
        tmp_path / "data", "folders", "train", labelled=True, classes=load_classes(str(tmp_path / "classes.yaml"))
    )
    label = dataset[0].label
    assert label is not None
    order = [[0, 0, 0], [0, 128, 255], [9, 9, 9], [255, 0, 0]]
    np.testing.assert_array_equal(np.array(order)[label], COLOURS[IDS])


def test_colours_that_no_class_has(tmp_path):
    (tmp_path / "classes.yaml").write_text(
        "labels: colors\nclasses:\n- {name: a, color: [0, 0, 0]}\n- {name: b, color: [255, 0, 0]}\n"
        "ignored: [[9, 9, 9]]\n"
    )
    classes = load_classes(str(tmp_path / "classes.yaml"))
    assert load_classes_again(classes, tmp_path) == classes
    Image.fromarray(COLOURS[IDS]).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"the colour \[0, 128, 255\] is no class's and not ignored \(24 pixels"):
        label_ids(tmp_path / "a.png", classes)
    Image.fromarray(COLOURS[np.where(IDS == 2, 0, IDS)]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(label_ids(tmp_path / "a.png", classes), np.where(IDS == 2, 0, IDS))
    (tmp_path / "classes.yaml").write_text("labels: colours\nclasses: [a, b]\n")
    with pytest.raises(InputError, match="labels: expected ids, or colors of pictures in the classes' colours, found"):
        load_classes(str(tmp_path / "classes.yaml"))


def load_classes_again(classes, folder: Path):
    (folder / "classes.json").write_text(json.dumps(classes.document()))
    return load_classes(str(folder / "classes.json"))


def test_photographs_as_labels_are_no_masks(tmp_path):
    draw(tmp_path, np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    assert "pictures in more than 40 colours: no masks" in printed_by_check(tmp_path, "one,two")


@pytest.mark.parametrize(("folder", "ending"), [("labels", "_mask"), ("masks", ""), ("masks", "_mask")])
def test_masks_beside_images_are_found(tmp_path, folder, ending):
    draw(tmp_path, IDS, folder=folder, ending=ending)
    # as source, target and validation image
    assert "3 images checked, nothing wrong" in printed_by_check(tmp_path, "a,b,c")


def test_a_label_may_be_a_tiff(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    draw(tmp_path, IDS)
    (tmp_path / "labels" / "a.png").unlink()
    profile = {"driver": "GTiff", "width": 16, "height": 6, "count": 1, "dtype": "int16", "nodata": -1,
               "crs": "EPSG:4326", "transform": rasterio.Affine(2, 0, 0, 0, -2, 0)}  # fmt: skip
    with rasterio.open(tmp_path / "labels" / "a.tif", "w", **profile) as file:
        file.write(np.where(IDS == 255, -1, IDS.astype(np.int16)), 1)
    dataset = SegmentationDataset(tmp_path, "folders", "train", True, classes=load_classes("a,b,c"))
    np.testing.assert_array_equal(dataset[0].label, IDS)


def test_what_a_raster_calls_no_data_is_said_as_it_lies_there(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    draw(tmp_path, IDS)
    (tmp_path / "labels" / "a.png").unlink()
    profile = {"driver": "GTiff", "width": 16, "height": 6, "count": 1, "dtype": "uint8", "nodata": 0,
               "crs": "EPSG:4326", "transform": rasterio.Affine(2, 0, 0, 0, -2, 0)}  # fmt: skip
    with rasterio.open(tmp_path / "labels" / "a.tif", "w", **profile) as file:
        file.write(np.where(IDS == 255, 3, IDS), 1)
    said = printed_by_check(tmp_path, "a,b,c")
    assert "the labels hold the ids 1, 2, 3, and 0 as no data, which is ignored; this file reads them" in said
    assert "- {name: a, id: 1}\n- {name: b, id: 2}\n- {name: c, id: 3}\n" in said


@pytest.mark.parametrize(
    ("files", "names", "expected"),
    [
        (("images/00001.png", "labels/00001.png"), CITYSCAPES_CLASSES.names, "gta5"),
        (("images/00001.png", "labels/00001.png"), ("crop", "weed"), "folders"),
        (("images/photo.png", "labels/photo.png"), CITYSCAPES_CLASSES.names, "folders"),
        (("images/train/a.jpg",), ("crop", "weed"), "folders"),
        (("leftImg8bit/train/x/x_leftImg8bit.png",), CITYSCAPES_CLASSES.names, "cityscapes"),
        (("RGB/0000000.png",), CITYSCAPES_CLASSES.names, "synthia"),
        (("train/0001TP_1.png", "test/0001TP_2.png", "val/b.png"), ("sky", "road"), "camvid"),
    ],
)  # fmt: skip
def test_the_layout_is_found(tmp_path, files, names, expected):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    assert found_layout(tmp_path, "train", names, "--source.layout") == expected


def test_what_no_layout_fits_is_told_what_to_do(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"no layout fits.*put images below .*images, or name .* by --source\.layout"):
        found_layout(tmp_path, "train", ("a", "b"), "--source.layout")
