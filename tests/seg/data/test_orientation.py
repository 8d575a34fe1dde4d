"""Images are read upright as their EXIF says, without their alpha channel."""

import numpy as np
import pytest
from PIL import Image
from support.cases import cases

from seg.data.check import check_file
from seg.data.datasets import SegmentationDataset
from seg.data.pixel_format import RGB, PixelFormat
from seg.data.read import read_index_image
from seg.data.read_images import read_header, read_image

#: Seen upright: no two of the eight orientations of it are alike.
UPRIGHT = np.zeros((12, 20, 3), np.uint8)
UPRIGHT[:6, :10, 0], UPRIGHT[:6, 10:, 1], UPRIGHT[6:, :10, 2] = 250, 200, 150
LOSSLESS = {"png": {}, "tif": {}, "webp": {"lossless": True}}
#: The transposition that undoes what a viewer does.
STORED_AS = {
    1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip


def draw(file, orientation, picture, tags=None):
    """As a camera that was held that way saves it."""
    stored = picture if STORED_AS[orientation] is None else picture.transpose(STORED_AS[orientation])
    exif = Image.Exif()
    exif.update({0x0112: orientation, **(tags or {})})
    file.parent.mkdir(parents=True, exist_ok=True)
    stored.save(file, exif=exif, **LOSSLESS[file.suffix[1:]])
    return file


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("suffix", LOSSLESS)
def test_every_format_is_read_upright(suffix, orientation, tmp_path):
    file = draw(tmp_path / f"a.{suffix}", orientation, Image.fromarray(UPRIGHT))
    np.testing.assert_array_equal(read_image(file).values, UPRIGHT)
    assert read_header(file).size == (20, 12)
    if suffix != "webp":
        ids = draw(tmp_path / f"label.{suffix}", orientation, Image.fromarray(UPRIGHT[..., 0]))
        np.testing.assert_array_equal(read_index_image(ids), UPRIGHT[..., 0])


#: GDAL's: no data, the size of a pixel, and where one lies.
GDAL = {42113: "0", 33550: (2.0, 2.0, 0.0), 33922: (0.0, 0.0, 0.0, 5.0, 5.0, 0.0)}


@pytest.mark.parametrize("orientation", STORED_AS)
def test_masks_and_deep_numbers_of_a_tiff_are_turned_and_its_coordinates_go(orientation, tmp_path):
    pytest.importorskip("rasterio")
    deep = PixelFormat(1, "uint16", (0.0,), (1.0,), (0, 0, 0))
    for picture, wanted in ((UPRIGHT, RGB), (UPRIGHT[..., 0].astype(np.uint16) * 100, deep)):
        image = read_image(draw(tmp_path / "a.tif", orientation, Image.fromarray(picture), GDAL), wanted)
        np.testing.assert_array_equal(image.values.squeeze(), picture)
        np.testing.assert_array_equal(image.valid, picture.any(2) if wanted is RGB else picture > 0)
        assert (image.place is not None) == (orientation == 1)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@cases((1, (12, 20), False), (6, (12, 20), False), (6, (20, 12), True), (3, (12, 20), True))
def test_a_label_that_need_not_fit_its_turned_image_is_a_warning(orientation, label, warned, suffix, tmp_path):
    draw(tmp_path / "images" / f"a.{suffix}", orientation, Image.fromarray(UPRIGHT))
    (tmp_path / "labels").mkdir()
    ids = np.full(label, 7, np.uint8)
    ids[:6] = 8
    Image.fromarray(ids).save(tmp_path / "labels" / "a.png")
    samples = SegmentationDataset(tmp_path, "folders", "train", labelled=True)
    report = check_file(samples, 0)
    assert (report.size, report.errors) == ((20, 12), [])
    for lines in (samples.look_at_labels("mine"), report.warnings):
        said = f"a.{suffix}: is turned upright as its EXIF says (orientation {orientation})"
        assert sum(said in line for line in lines) == warned
    draw(tmp_path / "labels" / "a.png", orientation, Image.fromarray(UPRIGHT[..., 0] // 50 + 7))  # turned as well
    assert not any("turned upright" in line for line in samples.look_at_labels("mine"))


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12", b"junk" * 9])
def test_an_image_with_broken_exif_is_read_as_it_stands(exif, tmp_path):
    Image.fromarray(UPRIGHT).save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").values.shape == UPRIGHT.shape
    assert read_header(tmp_path / "a.jpg").size == (20, 12)
