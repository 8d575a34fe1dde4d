"""Files as users of other projects reported them: what a raster, a mask, a split or a count says of itself counts."""

import os
import re

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from support import cases, png, refuses, save

from dem_apps.errors import InputError
from seg.check import main as check
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.labels import load_classes, named_classes
from seg.data.pixel_format import PixelFormat
from seg.data.read_images import left_out, read_header, read_image
from seg.data.read_labels import read_index_image, read_label
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.data.statistics import class_pixels
from seg.maps.entropy_maps import Prediction
from seg.maps.run_pictures import geotiffs

rasterio = pytest.importorskip("rasterio")
main_group = pytest.importorskip("rasterio.rio.main").main_group
AB = named_classes(["a", "b"])


def raster(file, pixels, east=0, north=0, step=1, **options):
    """Writes (B, H, W) numbers in UTM; ``colours``, ``scales`` and ``offsets`` are said of the bands."""
    file.parent.mkdir(parents=True, exist_ok=True)
    message = {
        name: options.pop(name) for name in ("colorinterp", "scales", "offsets") if name in options
    }
    profile = {
        "driver": "GTiff",
        "height": pixels.shape[1],
        "width": pixels.shape[2],
        "count": len(pixels),
        "dtype": pixels.dtype.name,
        "crs": "EPSG:32632",
        "transform": rasterio.Affine(step, 0, 1000 + east, 0, -step, 2000 + north),
    } | options
    with rasterio.open(file, "w", **profile) as out:
        for name, values in message.items():
            setattr(out, name, values)
        out.write(pixels)
    return file


GROUND = (np.add.outer(np.arange(40), np.arange(60)) // 7 % 2).astype(np.uint8)


@cases(
    (0, 0, {}, None),
    (0.3, -0.3, {}, None),
    (4, 0, {}, "(1, 0, 1004, 0, -1, 2000) and EPSG:32632"),
    (-6, 3, {}, "(1, 0, 994, 0, -1, 2003) and EPSG:32632"),
    (0, 0, {"crs": "EPSG:32633"}, "(1, 0, 1000, 0, -1, 2000) and EPSG:32633"),
    (
        0,
        0,
        {"transform": rasterio.Affine(1, 0, 1000, 0, 1, 1960)},  # south up
        "(1, 0, 1000, 0, 1, 1960) and EPSG:32632",
    ),
)
def test_a_label_on_other_ground_than_its_image_is_refused(east, north, options, ground, tmp_path):
    """The sentence has both transforms and the command that mends it."""
    image = raster(tmp_path / "i.tif", np.stack([GROUND * 90] * 3))
    label = raster(tmp_path / "l.tif", GROUND[None], east, north, **options)
    if ground is None:
        np.testing.assert_array_equal(read_label(label, AB, image=image), GROUND)
        return
    with pytest.raises(InputError) as refused:
        read_label(label, AB, image=image)
    sentence, _, command = str(refused.value).partition(": rio ")
    assert f"{label}: lies on other ground than its image {image}; the label has" in sentence
    assert f"60x40 pixels, transform {ground}, the image" in sentence
    assert "60x40 pixels, transform (1, 0, 1000, 0, -1, 2000) and EPSG:32632; make" in sentence
    new = tmp_path / "NEW.tif"
    arguments = command.replace("NEW.tif", str(new)).split()
    assert CliRunner().invoke(main_group, arguments).exit_code == 0
    warped = read_label(new, AB, image=image)
    if east == 4:
        np.testing.assert_array_equal(warped[:, 4:], GROUND[:, :-4])
        assert {*warped[:, :4].flat} == {255}


def test_transparent_pixels_hold_no_data_in_every_format(tmp_path):
    pixels = np.full((4, 6, 4), 200, np.uint8)
    pixels[:, 4:] = 0
    colours = [
        getattr(rasterio.enums.ColorInterp, name) for name in ("red", "green", "blue", "alpha")
    ]
    raster(tmp_path / "a.tif", pixels.transpose(2, 0, 1), colorinterp=colours)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels).save(tmp_path / "a.webp", lossless=True)
    deep = np.full((5, 4, 6), 900, np.uint16)
    deep[4] = pixels[..., 3]
    kinds = [
        getattr(rasterio.enums.ColorInterp, name) for name in ("gray", *["undefined"] * 3, "alpha")
    ]
    five = raster(tmp_path / "five.tif", deep, colorinterp=kinds)
    many = read_image(five, PixelFormat(4, "uint16", (0,) * 4, (1,) * 4))
    np.testing.assert_array_equal(many.valid, pixels[..., 3] > 0)
    for name in ("a.tif", "a.png", "a.webp"):
        np.testing.assert_array_equal(read_image(tmp_path / name).valid, pixels[..., 3] > 0)


def test_scale_and_offset_apply_and_bands_are_ordered_by_their_names(tmp_path):
    numbers = np.random.default_rng(0).integers(300, 3000, (4, 6, 5)).astype(np.uint16)
    pixels = PixelFormat(4, "uint16", (0.0,) * 4, (1.0,) * 4, colours=(2, 1, 0))
    kinds = [
        getattr(rasterio.enums.ColorInterp, name) for name in ("red", "green", "blue", "undefined")
    ]
    message = {"colorinterp": kinds, "scales": (1e-4,) * 4}
    old = raster(tmp_path / "old.tif", numbers, offsets=(0.0,) * 4, **message)
    new = raster(tmp_path / "new.tif", numbers + np.uint16(1000), offsets=(-0.1,) * 4, **message)
    values = read_image(old, pixels).values
    np.testing.assert_allclose(values, numbers[[2, 1, 0, 3]].transpose(1, 2, 0) * 1e-4, rtol=1e-6)
    np.testing.assert_allclose(values, read_image(new, pixels).values, atol=1e-7)
    level = np.stack([np.full((3, 4), number, np.uint8) for number in (20, 90, 200)])
    bgr = raster(tmp_path / "bgr.tif", level, colorinterp=kinds[2::-1])
    assert read_image(bgr).values[0, 0].tolist() == [200, 90, 20]


def test_pages_are_said(tmp_path):
    pages = [Image.fromarray(np.full((4, 5), level, np.uint8)) for level in (1, 0, 2)]
    for name in ("a.tif", "a.gif"):
        pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
        refuses(
            f"{name}: has 3 pages or frames, and a label is one", read_index_image, tmp_path / name
        )
        message = left_out(tmp_path / name, read_header(tmp_path / name), PixelFormat(is_rgb=True))
        assert message is not None
        assert "has 3 pages or frames, of which the first is read" in message


@cases(
    (("training", "validation"), (4, 2)),
    (("train2017", "val2017"), (4, 2)),
    (("Train", "Test"), (4, 2)),
    (("one", "two"), (6, 6)),
)
def test_splits_are_known_by_their_usual_names(folders, numbers, tmp_path):
    for index in range(6):
        for kind, pixels in (
            ("images", np.full((8, 8, 3), index, np.uint8)),
            ("labels", np.eye(8, dtype=np.uint8)),
        ):
            save(tmp_path / kind / folders[index > 3] / f"{index}.png", pixels)
    sets = [
        SegmentationDataset(tmp_path, "folders", split, True, classes=AB)
        for split in ("train", "val")
    ]
    assert tuple(map(len, sets)) == numbers
    message = " ".join(note for each in sets for note in each.notes)
    assert ("none of its folders, one, two, is a split" in message) == (folders[0] == "one")
    assert ("those in Test are scored" in message) == (folders[1] == "Test")
    with pytest.raises(
        InputError, match="'exclude' names '9', and no image has that path, name or stem"
    ):
        SegmentationDataset(tmp_path, "folders", "train", True, classes=AB, exclude=["0", "9", "5"])


def test_transparent_pixels_of_a_mask_are_unlabelled(tmp_path):
    ids = np.tile(np.array([0, 1, 2, 2], np.uint8), (3, 1))
    colours = np.array([[9, 9, 9], [0, 200, 0], [0, 0, 200]], np.uint8)[ids]
    alpha = np.where(ids, 255, 0).astype(np.uint8)
    Image.fromarray(np.dstack([colours, alpha])).save(tmp_path / "colours.png")
    Image.fromarray(np.dstack([ids, alpha]), "LA").save(tmp_path / "ids.png")
    raster(tmp_path / "ids.tif", np.stack([ids, alpha]), photometric="MINISBLACK", alpha="YES")
    rows = "[{name: a, color: [0, 200, 0]}, {name: b, color: [0, 0, 200]}]"
    (tmp_path / "c.yaml").write_text(f"labels: colors\nclasses: {rows}")
    (tmp_path / "i.yaml").write_text("classes: [{name: a, id: 1}, {name: b, id: 2}]")
    expected = np.array([255, 0, 1, 1])
    for name, classes in (("colours.png", "c"), ("ids.png", "i"), ("ids.tif", "i")):
        found = read_label(tmp_path / name, load_classes(str(tmp_path / f"{classes}.yaml")))
        np.testing.assert_array_equal(found[0], expected)


def pair_of(root, source, target, dtype):
    """A pair of one band with 30 ± 1, times and plus (scale, fill of four columns; NaN for none)."""
    for name, (scale, fill) in (("source", source), ("target", target)):
        for index in range(3):
            random = np.random.default_rng(index)
            numbers = random.normal(30, 1, (1, 24, 32)) * scale
            if not np.isnan(fill):
                numbers[..., :4] = fill
            raster(root / name / "images" / f"{index}.tif", numbers.astype(dtype))
            save(root / name / "labels" / f"{index}.png", np.eye(24, 32, dtype=np.uint8))
    each = (str(root / "source"), str(root / "target"))
    return open_pair(SourceConfig(root=each[0]), TargetDataConfig(root=each[1]), "a,b")


@cases(
    ((1, np.nan), (1, np.nan), "float32", "range: target train: band 1 holds 2"),
    ((1, -9999), (1, np.nan), "int16", "range: source train: band 1 holds -9999 to "),
    ((1, np.nan), (255, np.nan), "float32", "range: target val: band 1 holds 6"),
)
def test_the_check_prints_the_range_of_each_band(
    source, target, dtype, message, tmp_path, run_here
):
    assert pair_of(tmp_path, source, target, dtype).note == ""
    flags = [f"--{name}.root={tmp_path / name}" for name in ("source", "target")]
    assert message in run_here(check, "check", "--classes", "a,b", *flags, status=0).out


def test_a_number_beyond_all_measures_is_refused_with_its_file(tmp_path, run_here):
    message = r"source/images/\d.tif: holds -3.4028235e\+38; if .*gdal_edit.py -a_nodata"
    refuses(message, pair_of, tmp_path, (1, -3.4028234663852886e38), (1, np.nan), "float32")
    flags = [f"--{name}.root={tmp_path / name}" for name in ("source", "target")]
    checked = run_here(check, "check", "--classes", "a,b", *flags, status=1).out
    assert re.search(f"error: source train: .*{message}", checked)


def test_no_data_and_a_class_never_share_a_value_in_what_is_written(tmp_path):
    (tmp_path / "c.yaml").write_text("classes: [{name: ground, id: 0}, {name: building, id: 255}]")
    classes = load_classes(str(tmp_path / "c.yaml"))
    valid = np.ones((4, 6), bool)
    valid[0] = False
    prediction = Prediction(
        np.tile(np.arange(6, dtype=np.uint8) % 2, (4, 1)), np.zeros((4, 6), np.float32), valid
    )
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(1, 0, 0, 0, -1, 0)}
    with geotiffs(lambda kind: tmp_path / kind, valid.shape, classes, place) as write:
        write(0, 0, prediction)
    with rasterio.open(tmp_path / "prediction.tif") as file:
        np.testing.assert_array_equal(file.read_masks(1) > 0, valid)
        assert set(np.unique(file.read(1)[1:])) == {0, 255}


@pytest.mark.parametrize(
    ("ids", "classes"), [(range(26), 26), (range(34), 34), ((7, 8, 11, 21, 23), 19)]
)
def test_ids_are_their_own_classes_unless_they_are_cityscapes_by_more_than_their_range(
    tmp_path, ids, classes
):
    for index in range(2):
        label = np.resize(np.array(ids, np.uint8), (40, 1)).repeat(8, 1)
        save(
            tmp_path / "images" / f"{index}.png",
            np.random.default_rng(index).integers(0, 255, (40, 8, 3), np.uint8),
        )
        save(tmp_path / "labels" / f"{index}.png", label)
    pair = open_pair(
        SourceConfig(root=str(tmp_path)), TargetDataConfig(root=str(tmp_path), layout="folders")
    )
    assert len(pair.classes) == classes
    assert pair.note


def test_labels_that_were_corrected_in_place_are_counted_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path / "cache"))
    save(tmp_path / "images" / "0.png", np.zeros((32, 32, 3), np.uint8))
    for first, expected in ((30, [960, 64, 0]), (4, [128, 896, 0])):
        file = tmp_path / "labels" / "0.bmp"
        save(file, np.tile(np.arange(32) >= first, (32, 1)).astype(np.uint8))
        os.utime(file, (1e9, 1e9))
        dataset = SegmentationDataset(tmp_path, "folders", "train", True, (32, 32), classes=AB)
        assert class_pixels(dataset).sum(0).tolist() == expected


def test_a_png_is_as_large_as_a_tiff_may_be(tmp_path):
    (tmp_path / "p.png").write_bytes(png(9500, 9500, bytes(9)))  # its header alone
    assert read_header(tmp_path / "p.png").size == (9500, 9500)
