"""Which files of a folder are images, which are their labels, and the names of outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dem_apps.errors import InputError
from seg.adaptation.images import Labels
from seg.data.datasets import SegmentationDataset
from seg.data.files import find_images, find_labels, flat_names, output_names
from seg.data.labels import named_classes
from seg.data.read import read_image

CLASSES = named_classes(["ground", "plant"])


def save(file: Path, shape: tuple[int, ...] = (6, 8, 3), value: int | np.ndarray = 1) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(file)
    return file


def test_suffixes_case_links_and_hidden_files(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in ("b.jpg", "more/a.PNG", "c.webp", "d.bmp", "e.gif", "f.ppm", "i.jfif", "._b.jpg", ".trash/g.png"):
        save(images / name)
    (images / "notes.txt").write_text("no image")
    save(tmp_path / "elsewhere" / "h.png")
    (images / "linked").symlink_to(tmp_path / "elsewhere")
    (images / "more" / "loop").symlink_to(images)
    expected = ["b.jpg", "c.webp", "d.bmp", "e.gif", "f.ppm", "i.jfif", "linked/h.png", "more/a.PNG"]
    assert [file.relative_to(images).as_posix() for file in find_images(images)] == expected
    dataset = SegmentationDataset(tmp_path, "folders", "train", labelled=False, classes=CLASSES)
    assert [dataset.name(index).removeprefix("images/") for index in range(len(dataset))] == expected
    assert find_images(images / "b.jpg") == [images / "b.jpg"]
    with pytest.raises(InputError, match="is no folder and no image"):
        find_images(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"--images: .*empty and its subfolders hold no image \(\.png \.jpg"):
        find_images(tmp_path / "empty")


def test_the_label_of_an_image(tmp_path: Path) -> None:
    images = [Path(name) for name in ("a.jpg", "deep/b.png", "c.png", "d.png", "none.png")]
    names = ("a.png", "deep/b_mask.PNG", "c.tif", "c_label.png", "d_labels.tiff")
    for name in names:
        save(tmp_path / name, (6, 8), np.arange(8) % 2)
    found = {str(image): str(label.relative_to(tmp_path)) for image, label in find_labels(tmp_path, images).items()}
    expected = ["a.png", "deep/b_mask.PNG", "c.tif", "d_labels.tiff", "none.png"]
    assert found == dict(zip(map(str, images), expected, strict=True))
    assert set(Labels(tmp_path, images, CLASSES, tmp_path).files) == set(images[:4])
    with pytest.raises(InputError, match=r"a\.png: shares the label .*a\.png with a\.jpg; give each its own name"):
        find_labels(tmp_path, [Path("a.jpg"), Path("a.png")])


def test_tiffs_that_pillow_does_not_know_are_read_by_rasterio(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    values = np.random.default_rng(0).integers(0, 256, (3, 6, 8), dtype=np.uint8)
    options = {"driver": "GTiff", "height": 6, "width": 8, "count": 3, "dtype": "uint8", "crs": "EPSG:32632",
               "transform": rasterio.Affine(1, 0, 0, 0, -1, 0)}  # fmt: skip
    for name, more in (("rgb", {"photometric": "RGB"}), ("grey", {"photometric": "MINISBLACK"})):
        with rasterio.open(tmp_path / f"{name}.tif", "w", **options, **more) as file:
            file.write(values)
        image = read_image(tmp_path / f"{name}.tif")
        np.testing.assert_array_equal(image.values, np.moveaxis(values, 0, -1))
        assert image.place is not None


#: Few letters, so that names collide in every way: by stem, suffix, case and number behind them.
PART = st.sampled_from(["a", "A", "a_2", "b", "0", "0.png", "a_0", "val"])
SUFFIX = st.sampled_from([".png", ".jpg", ".PNG"])
IMAGE = st.builds(
    lambda folders, stem, suffix: "/".join([*folders, stem + suffix]), st.lists(PART, max_size=3), PART, SUFFIX
)
IMAGES = st.lists(IMAGE, min_size=1, max_size=12, unique=True)


@given(IMAGES)
def test_flat_names_share_no_file(images: list[str]) -> None:
    names = flat_names(images)
    entries = [entry.lower() for name in names for entry in (name, f"{name}.png")]
    assert len(set(entries)) == 2 * len(images)
    assert not any("/" in name for name in names)


@given(IMAGES)
def test_names_of_an_export_share_no_file(images: list[str]) -> None:
    names = output_names([Path(image) for image in images])
    assert len({str(name).lower() for name in names}) == len(images)


def test_a_stem_of_its_own_is_the_name() -> None:
    assert flat_names(["val/a/0.png", "val/b/0.png", "val/b/1.png"]) == ["val_a_0", "val_b_0", "1"]
