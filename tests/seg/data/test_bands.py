"""Images of any bands and bits: statistics, nodata that counts nowhere; upright as EXIF says, without alpha channel."""

import sys

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from support import refuses
from support.scenes import SCENE, draw_pair, write_scene

from seg.data import rasters
from seg.data.domains import open_pair
from seg.data.labels import load_classes
from seg.data.loader import batches, build_augmentation
from seg.data.pixel_format import RGB, PixelFormat, resized
from seg.data.read_images import left_out, read_header, read_image
from seg.data.read_labels import read_index_image, read_label
from seg.data.settings import BandConfig, SourceConfig, TargetDataConfig


def measured(bands, dtype="uint16"):
    return PixelFormat(bands, dtype, (0.0,) * bands, (1.0,) * bands, (0, 0, 0))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_pair(tmp_path_factory.mktemp("scenes"))


def opened(root, **bands):
    source, target = (
        SourceConfig(root=str(root / "mine")),
        TargetDataConfig(root=str(root / "theirs")),
    )
    return open_pair(source, target, "field,water,wood", bands=BandConfig(**bands))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_every_band_of_every_number_is_read_as_it_is(tmp_path, dtype):
    values = np.arange(5 * 4 * 6).reshape(5, 4, 6).astype(dtype)
    write_scene(tmp_path / "a.tif", values)
    assert read_header(tmp_path / "a.tif") == rasters.Header((4, 5), 6, dtype)
    image = read_image(tmp_path / "a.tif", measured(6, dtype))
    assert image.values.dtype == values.dtype
    np.testing.assert_array_equal(image.values, values)
    assert image.valid is None
    assert image.place is not None
    assert tuple(image.place["transform"])[:6] == SCENE[1]
    assert image.place["crs"].to_epsg() == 32632
    for other in (measured(4, dtype), measured(6, "uint16" if dtype == "float32" else "float32")):
        refuses(
            rf"has 6 bands of {dtype}, and the network sees \d bands of ",
            read_image,
            tmp_path / "a.tif",
            other,
        )


def test_pixels_without_data(tmp_path):
    values = np.ones((3, 3, 2), np.float32)
    values[0, 0] = -9999  # all of its bands
    values[1, 1, 1] = -9999  # one of them
    values[2, 2, 0] = np.nan
    write_scene(tmp_path / "a.tif", values, nodata=-9999)
    valid = read_image(tmp_path / "a.tif", measured(2, "float32")).valid
    np.testing.assert_array_equal(
        valid, [[False, True, True], [True, True, True], [True, True, False]]
    )


@pytest.mark.parametrize(("channels", "bands"), [(1, 1), (3, 3), (4, 3), (4, 4)])
def test_sixteen_bits_of_a_png_are_kept(tmp_path, channels, bands):
    values = np.random.default_rng(0).integers(0, 4096, (5, 4, channels), dtype=np.uint16)
    order = [2, 1, 0, 3][:channels] if channels > 1 else [0]
    cv2.imwrite(str(tmp_path / "a.png"), values[..., order])
    image = read_image(tmp_path / "a.png", measured(bands))
    np.testing.assert_array_equal(image.values, values[..., :bands])
    refuses(
        r"a\.png: has \d bands? of uint16, and the network sees 8-bit RGB",
        read_image,
        tmp_path / "a.png",
    )


def test_what_happens_to_a_fourth_band(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    file = tmp_path / "a.png"
    Image.fromarray(values, "RGBA").save(file)
    np.testing.assert_array_equal(read_image(file).values, values[..., :3])
    sentence = left_out(file, read_header(file), RGB)
    assert sentence is not None
    assert "its last band is transparency: where it is 0 there is no data" in sentence
    assert "--bands.number 4" in sentence
    np.testing.assert_array_equal(read_image(file, measured(4, "uint8")).values, values)
    assert left_out(file, read_header(file), measured(4, "uint8")) is None


def test_statistics_are_those_of_the_labelled_pixels_that_hold_data(root):
    pixels = opened(root).pixels
    values = [
        read_image(file, measured(6)) for file in sorted((root / "mine" / "images").glob("*.tif"))
    ]
    joined = np.concatenate([image.values[image.valid] for image in values]).astype(np.float64)
    assert all(image.valid is not None for image in values)
    np.testing.assert_allclose(pixels.mean, joined.mean(0), rtol=1e-12)
    np.testing.assert_allclose(pixels.std, joined.std(0), rtol=1e-10)


def test_samples_hold_the_mean_where_there_is_no_data(root):
    pair = opened(root)
    (batch,) = batches(pair.target_train, 2, range(1), (0, 0), [], pixels=pair.pixels)
    assert batch["image"].shape == (2, 6, 24, 32)
    assert batch["valid"].dtype == torch.bool
    assert not batch["valid"].all()
    assert (batch["image"].movedim(1, -1)[~batch["valid"]] == 0).all()
    sample = pair.target_val[0]
    assert sample.label is not None
    assert (sample.label[~sample.valid] == 255).all()
    assert (sample.label[sample.valid] != 255).all()


def test_nodata_does_not_spread_by_resizing(root):
    pair = opened(root)
    pair.target_val.size = (32, 20)  # the border of the nodata is no border of pixels any more
    small = pair.target_val[0]
    assert small.valid is not None
    darkest = min(
        image.values[image.valid].min()
        for image in [read_image(pair.target_val.files[0][0], pair.pixels)]
    )
    assert small.image[small.valid].min() > darkest - 150
    flat = np.full((9, 7, 5), 3.0)
    np.testing.assert_allclose(resized(flat, (4, 6)), np.full((6, 4, 5), 3.0), rtol=1e-6)


def test_space_is_augmented_and_colours_are_refused(root):
    pair = opened(root)
    affine = {"Affine": {"rotate": [30, 30], "p": 1.0}}
    (batch,) = batches(pair.labelled[0], 2, range(1), (0, 0), [affine], pixels=pair.pixels)
    # what comes from outside holds no data
    assert (batch["label"][~batch["valid"]] == 255).all()
    assert (~batch["valid"]).float().mean() > 0.3
    sentence = "'ColorJitter': changes the colours of 8-bit RGB, and these images have 6 bands"
    refuses(sentence, build_augmentation, [{"ColorJitter": {}}], pair.pixels)


def test_a_preview_shows_the_chosen_bands(root):
    pixels = opened(root, shown=[6, 1, 1]).pixels
    image = read_image(sorted((root / "mine" / "images").glob("*.tif"))[0], pixels)
    shown = pixels.preview(image.values, image.valid)
    assert shown.dtype == np.uint8
    assert (shown[~image.valid] == 0).all()
    np.testing.assert_array_equal(shown[..., 1], shown[..., 2])
    seen = image.values[..., 5][image.valid].astype(float)
    low, high = np.percentile(seen, [2, 98])
    expected = ((image.values[..., 5] - low) / (high - low) * 255).clip(0, 255)
    assert np.abs(shown[..., 0].astype(float) - expected)[image.valid].max() <= 1.0


def test_without_rasterio_a_raster_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rasterio", None)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.tif")
    cv2.imwrite(str(tmp_path / "b.png"), np.ones((4, 4), np.uint16))
    for name, wanted in (("a.tif", RGB), ("b.png", measured(1))):
        sentence = r"need rasterio, which is not installed here; pip install 'dem-apps\[geo\]'"
        refuses(sentence, read_image, tmp_path / name, wanted)


@pytest.mark.parametrize(("dtype", "nodata"), [("int16", -1), ("uint8", None)])
def test_a_label_may_be_a_tiff(tmp_path, dtype, nodata):
    ids = np.array([[0, 1, 2, 255]], np.uint8).repeat(3, axis=0)
    values = np.where(ids == 255, nodata, ids.astype(np.int16)) if nodata else ids
    write_scene(tmp_path / "a.tif", values[..., None].astype(dtype), nodata)
    np.testing.assert_array_equal(read_label(tmp_path / "a.tif", load_classes("a,b,c")), ids)


#: Seen upright: no two of the eight orientations of it are alike.
UPRIGHT = np.zeros((12, 20, 3), np.uint8)
UPRIGHT[:6, :10, 0], UPRIGHT[:6, 10:, 1], UPRIGHT[6:, :10, 2] = 250, 200, 150
LOSSLESS = {"png": {}, "tif": {}, "webp": {"lossless": True}}
#: The transposition that undoes what a viewer does.
STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def draw(file, orientation, picture, tags=None):
    """As a camera that was held that way saves it."""
    stored = (
        picture if STORED_AS[orientation] is None else picture.transpose(STORED_AS[orientation])
    )
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
        image = read_image(
            draw(tmp_path / "a.tif", orientation, Image.fromarray(picture), GDAL), wanted
        )
        np.testing.assert_array_equal(image.values.squeeze(), picture)
        np.testing.assert_array_equal(image.valid, picture.any(2) if wanted is RGB else picture > 0)
        assert (image.place is not None) == (orientation == 1)


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12", b"junk" * 9])
def test_an_image_with_broken_exif_is_read_as_it_stands(exif, tmp_path):
    Image.fromarray(UPRIGHT).save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").values.shape == UPRIGHT.shape
    assert read_header(tmp_path / "a.jpg").size == (20, 12)
