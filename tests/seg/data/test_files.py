"""Which files of a folder are images, which are their labels, and the names of outputs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support import cases, refuses

from seg.data.datasets import SegmentationDataset
from seg.data.files import find_images, find_labels, flat_names, left_out, output_names
from seg.data.label_faults import labels_of
from seg.data.labels import ClassSet, named_classes
from seg.data.read_images import read_image
from seg.data.read_labels import read_label

CLASSES = named_classes(["ground", "plant"])


def save(file, shape=(6, 8, 3), value=1):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(file)
    return file


def test_suffixes_case_links_and_hidden_files(tmp_path):
    images = tmp_path / "images"
    for name in (
        "b.jpg",
        "more/a.PNG",
        "c.webp",
        "d.bmp",
        "e.gif",
        "f.ppm",
        "i.jfif",
        "._b.jpg",
        ".trash/g.png",
    ):
        save(images / name)
    (images / "notes.txt").write_text("no image")
    save(tmp_path / "elsewhere" / "h.png")
    (images / "linked").symlink_to(tmp_path / "elsewhere")
    (images / "more" / "loop").symlink_to(images)
    expected = [
        "b.jpg",
        "c.webp",
        "d.bmp",
        "e.gif",
        "f.ppm",
        "i.jfif",
        "linked/h.png",
        "more/a.PNG",
    ]
    assert [file.relative_to(images).as_posix() for file in find_images(images)] == expected
    dataset = SegmentationDataset(tmp_path, "folders", "train", labelled=False, classes=CLASSES)
    assert [
        dataset.name(index).removeprefix("images/") for index in range(len(dataset))
    ] == expected
    assert find_images(images / "b.jpg") == [images / "b.jpg"]
    refuses("is no folder and no image", find_images, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    refuses(
        r"--images: .*empty and its subfolders hold no image \(\.png \.jpg",
        find_images,
        tmp_path / "empty",
    )


def test_the_label_of_an_image(tmp_path):
    images = [
        Path(name)
        for name in ("a.jpg", "deep/b.png", "c.png", "d.png", "IMG_1.JPG", "\u00e9.jpg", "none.png")
    ]
    names = (
        "a.png",
        "deep/b_mask.PNG",
        "c.tif",
        "c_label.png",
        "d_labels.tiff",
        "img_1_MASK.PNG",
        "e\u0301.bmp",
    )
    for name in names:
        save(tmp_path / name, (6, 8), np.arange(8) % 2)
    found = {
        str(image): str(label.relative_to(tmp_path))
        for image, label in find_labels(tmp_path, images, tmp_path / "images").items()
    }
    expected = [
        "a.png",
        "deep/b_mask.PNG",
        "c.tif",
        "d_labels.tiff",
        "img_1_MASK.PNG",
        "e\u0301.bmp",
        "none.png",
    ]
    assert found == dict(zip(map(str, images), expected, strict=True))
    for image in images[:6]:
        np.testing.assert_array_equal(
            read_label(tmp_path / found[str(image)], CLASSES)[0], np.arange(8) % 2
        )
    save(tmp_path / "f.jpg.png", (6, 8), np.zeros(8))
    assert find_labels(tmp_path, [Path("f.jpg")], tmp_path / "images") == {
        Path("f.jpg"): tmp_path / "f.jpg.png"
    }
    refuses(
        r"a\.png: shares the label .*a\.png with a\.jpg",
        find_labels,
        tmp_path,
        [Path("a.jpg"), Path("a.png")],
        tmp_path / "images",
    )


def test_the_label_beside_an_image_is_no_image(tmp_path, monkeypatch):
    images = tmp_path / "images"
    for name in ("a.jpg", "b.png", "c.jpeg", "d.png", "d_mask_2.png"):
        save(images / name)
    for name in ("a_mask.png", "b_Segmentation.png", "c.png"):
        save(images / name, (6, 8), np.arange(8) % 2)
    (images / "e.heic").write_bytes(b"")
    (images / "f.HEIC").write_bytes(b"")
    found = find_images(images)
    assert [file.name for file in found] == ["a.jpg", "b.png", "c.jpeg", "d.png", "d_mask_2.png"]
    assert left_out([images, images]) == ", left out: 2 .heic, 3 .png"
    assert left_out([images], [images / "c.png", None]) == ", left out: 2 .heic, 2 .png"
    expected = ["a_mask.png", "b_Segmentation.png", "c.png", None, None]
    dataset = SegmentationDataset(tmp_path, "folders", "train", True, classes=CLASSES)
    assert [label.name for _, label in dataset.files] == expected[:3]
    assert [said.split(": its label ")[0] for said in dataset.left_out] == [
        f"{images}/d.png",
        f"{images}/d_mask_2.png",
    ]
    flat = SegmentationDataset(images, "folders", "train", True, classes=CLASSES)
    assert flat.image_folder == images
    names = [file.relative_to(images) for file in found]
    labels, _, _ = labels_of(images, names, images, CLASSES)
    assert [labels[name].name if name in labels else None for name in names] == expected
    for name in ("Labels/a_mask.png", "Labels/d.png", "Labels/lone.png", "images/labels/b.png"):
        save(tmp_path / name, (6, 8), np.arange(8) % 2)
    others = [file for file in find_images(tmp_path) if file.parent != images]
    assert others == [tmp_path / "Labels" / "lone.png"]
    monkeypatch.chdir(tmp_path)
    assert len(find_images(Path("."))) == len(find_images(tmp_path))


@cases(
    {"photometric": "RGB"},
    {"interleave": "band", "compress": "lzw"},
    {"photometric": "PALETTE", "count": 1},
)
def test_eight_bit_tiffs_of_any_kind_are_pictures_and_labels_in_colours(options, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    colours = np.array([[0, 99, 255], [200, 10, 30]], np.uint8)
    ids = np.random.default_rng(0).integers(0, 2, (6, 8), dtype=np.uint8)
    profile = {
        "driver": "GTiff",
        "height": 6,
        "width": 8,
        "count": 3,
        "dtype": "uint8",
        "crs": "EPSG:32632",
        "transform": rasterio.Affine(1, 0, 0, 0, -1, 0),
    } | options
    with rasterio.open(tmp_path / "a.tif", "w", **profile) as file:
        file.write(ids[None] if "count" in options else np.moveaxis(colours[ids], -1, 0))
        if "count" in options:
            file.write_colormap(1, dict(enumerate((*colour, 255) for colour in colours.tolist())))
    image = read_image(tmp_path / "a.tif")
    np.testing.assert_array_equal(image.values, colours[ids])
    assert image.place is not None
    classes = ClassSet(("a", "b"), tuple(map(tuple, colours.tolist())), (0, 1), by_color=True)
    np.testing.assert_array_equal(read_label(tmp_path / "a.tif", classes), ids)


#: Few letters, so that names collide in every way: by stem, suffix, case and number behind them.
PART = st.sampled_from(["a", "A", "a_2", "b", "0", "0.png", "a_0", "val"])
SUFFIX = st.sampled_from([".png", ".jpg", ".PNG"])
FOLDERS = st.lists(PART, max_size=3)
IMAGE = st.builds(
    lambda above, stem, suffix: "/".join([*above, stem + suffix]), FOLDERS, PART, SUFFIX
)
IMAGES = st.lists(IMAGE, min_size=1, max_size=12, unique=True)


@given(IMAGES)
def test_flat_names_share_no_file(images):
    names = flat_names(images)
    entries = [entry.lower() for name in names for entry in (name, f"{name}.png")]
    assert len(set(entries)) == 2 * len(images)
    assert not any("/" in name for name in names)


@given(IMAGES)
def test_names_of_an_export_share_no_file(images):
    names = output_names([Path(image) for image in images])
    assert len({str(name).lower() for name in names}) == len(images)


def test_names_that_are_no_utf8_can_be_written():
    # Latin-1, as Python reads it from a folder
    names = flat_names(["stra\udcdfe.png", "stra\udcdee.png"])
    assert len({name.encode().lower() for name in names}) == 2


def test_a_stem_of_its_own_is_the_name():
    assert flat_names(["val/a/0.png", "val/b/0.png", "val/b/1.png"]) == ["val_a_0", "val_b_0", "1"]


def test_cityscapes_own_folders_are_images_and_labels(tmp_path):
    names = [f"frankfurt/frankfurt_000000_00000{number}" for number in range(2)]
    for name in names:
        save(tmp_path / "leftImg8bit" / f"{name}_leftImg8bit.png")
        for kind in ("color", "instanceIds", "labelIds", "labelTrainIds"):
            save(tmp_path / "gtFine" / f"{name}_gtFine_{kind}.png", (6, 8), 7)
    images = find_images(tmp_path)  # of the whole data set as well
    assert images == find_images(tmp_path / "leftImg8bit")
    relative = [image.relative_to(tmp_path / "leftImg8bit") for image in images]
    labels = find_labels(tmp_path / "gtFine", relative, tmp_path / "leftImg8bit")
    expected = [tmp_path / "gtFine" / f"{name}_gtFine_labelIds.png" for name in names]
    assert [*labels.values()] == expected
