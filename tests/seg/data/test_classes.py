"""Class files, names alone, label images in the classes' colours, and ids in every mode that people save."""

import json

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support import ROOT, cases, png, refuses

from seg.data.labels import CITYSCAPES_CLASSES, IGNORE_INDEX, id_tables, load_classes, named_classes
from seg.data.read_images import read_image
from seg.data.read_labels import label_pixels, read_index_image

CONFIGS = ROOT / "configs/seg/classes"
GREY = [9, 9, 9]


@pytest.fixture
def write(tmp_path):
    def write(document):
        file = tmp_path / "classes.yaml"
        file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return str(file)

    return write


def test_a_file_names_classes_colours_and_ids(write):
    rows = [
        {"name": "a", "color": [1, 2, 3]},
        {"name": "b", "color": GREY, "id": 40},
        {"name": "c", "color": GREY},
    ]
    classes = load_classes(write({"classes": rows, "ignored": [7, 5]}))
    assert classes.names == ("a", "b", "c")
    assert classes.colors[0] == (1, 2, 3)
    assert (classes.ids, classes.ignored) == ((0, 40, 2), (5, 7))
    assert classes.to_ids(np.arange(4, dtype=np.uint8)).tolist() == [0, 40, 2, 0]
    table, known = id_tables(classes)
    assert table[[0, 40, 2, 5, 255, 9]].tolist() == [0, 1, 2, *[IGNORE_INDEX] * 3]
    assert np.flatnonzero(known).tolist() == [0, 2, 5, 7, 40, 255]


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_files_in_the_repository_load(file):
    classes = load_classes(str(file))
    assert len(classes) >= 2
    if file.stem == "synthia16":
        kept = [
            i
            for i, name in enumerate(CITYSCAPES_CLASSES.names)
            if name not in ("terrain", "truck", "train")
        ]
        for field in ("names", "colors", "ids"):
            assert getattr(classes, field) == tuple(
                getattr(CITYSCAPES_CLASSES, field)[i] for i in kept
            )


@cases(
    ({"classes": ["a", "a"]}, "the name 'a' is given to more than one class"),
    (
        {"classes": [{"name": "a", "color": [1, 2]}, "b"]},
        r"classes\[0\]: color: expected 3 numbers",
    ),
    (
        {"classes": ["a", 3]},
        r"classes\[1\]: expected a mapping, found int",
    ),
    ({"classes": ["a", "b"], "ignored": [1]}, "ignored: the id 1 is that of class 'b'"),
    ({"classes": ["a", "b"], "ignore": []}, "'ignore'"),
    ("classes: !!python/object/apply:os.getcwd []", "not valid YAML"),
)
def test_a_mistake_is_one_sentence(document, message, write):
    file = write(document)
    assert refuses(message, load_classes, file).startswith(file)


def test_names_alone_are_enough(write):
    expected = named_classes(["background", "crop", "weed"])
    assert load_classes(write("classes: [background, crop, weed]")) == expected
    assert (
        load_classes(
            write({"classes": [{"name": "background"}, {"name": "crop"}, {"name": "weed"}]})
        )
        == expected
    )
    assert load_classes("background, crop,weed") == expected
    refuses(
        "--classes: expected a file, or different names such as a,b,c, got 'a,,b'",
        load_classes,
        "a,,b",
    )
    refuses(
        "--classes: expected a file, or names such as a,b,c; there is no file '7'",
        load_classes,
        "7",
    )


def test_labels_in_colours(write, tmp_path):
    rows = [{"name": "a", "color": [0, 0, 0]}, {"name": "b", "color": [255, 0, 0]}]
    classes = load_classes(write({"labels": "colors", "classes": rows, "ignored": [GREY]}))
    (tmp_path / "classes.json").write_text(json.dumps(classes.document()))
    assert load_classes(str(tmp_path / "classes.json")) == classes
    ids = np.array([[0, 1], [255, 1]], np.uint8)
    colours = np.array([[0, 0, 0], [255, 0, 0], *[GREY] * 254], np.uint8)[ids]
    Image.fromarray(colours).save(tmp_path / "a.png")
    found, valid, *_ = label_pixels(tmp_path / "a.png", classes)
    np.testing.assert_array_equal(np.where(valid, found, 255), ids)
    colours[0, 0] = 0, 128, 255
    Image.fromarray(colours).save(tmp_path / "a.png")
    refuses(
        r"the colour \[0, 128, 255\] is no class's and not ignored \(1",
        label_pixels,
        tmp_path / "a.png",
        classes,
    )


IDS = np.random.default_rng(0).integers(0, 2, (5, 7)).astype(np.uint8)
LEVELS, PALETTE = Image.fromarray(IDS), Image.fromarray(IDS)
PALETTE.putpalette([9, 9, 9, 0, 200, 0])
MODES = {
    "1": Image.fromarray(IDS > 0),
    "L": LEVELS,
    "P": PALETTE,
    "LA": LEVELS.convert("LA"),
    "I;16": Image.fromarray(IDS.astype(np.uint16)),
    "RGB": LEVELS.convert("RGB"),
    "RGBA": LEVELS.convert("RGBA"),
}


def packed_png(ids, depth, colour, palette=b""):
    """A PNG of (H, W) ids of ``depth`` bits."""
    bits = np.unpackbits(ids[..., None], axis=2)[..., 8 - depth :].reshape(len(ids), -1)
    rows = b"".join(b"\0" + line.tobytes() for line in np.packbits(bits, axis=1))
    return png(ids.shape[1], len(ids), rows, depth, colour, palette)


@cases(
    ("1", "png tif bmp"),
    ("L", "png tif gif"),
    ("P", "png tif gif"),
    ("LA", "png tif"),
    ("I;16", "png tif"),
)
def test_ids_of_every_mode(mode, suffixes, tmp_path):
    for suffix in suffixes.split():
        MODES[mode].save(tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(read_index_image(tmp_path / f"a.{suffix}"), IDS, suffix)


@pytest.mark.parametrize(
    ("mode", "suffix"), [("RGB", "png"), ("RGBA", "png"), ("RGB", "tif"), ("L", "jpg")]
)
def test_what_holds_no_ids_is_refused(mode, suffix, tmp_path):
    MODES[mode].save(tmp_path / f"a.{suffix}")
    refuses(f"a.{suffix}", read_index_image, tmp_path / f"a.{suffix}")


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_png_of_any_bits(tmp_path, depth, width, seed):
    """Palettes and grey of 1 to 16 bits hold ids, although decoders spread grey of 2 and 4 bits over 0 to 255."""
    ids = np.random.default_rng(seed).integers(0, 2**depth, (3, width)).astype(np.uint8)
    file = tmp_path / "label.png"
    file.write_bytes(packed_png(ids, depth, 3, bytes(range(255, -1, -1)) * 3))
    assert np.array_equal(read_index_image(file), ids)
    file.write_bytes(packed_png(ids, depth, 0))
    assert np.array_equal(read_index_image(file), ids)
    Image.fromarray(ids.astype(np.uint16)).save(file)
    assert np.array_equal(read_index_image(file), ids)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_a_picture_of_any_mode_is_rgb(mode, tmp_path):
    MODES[mode].save(tmp_path / "photo.png")
    image = read_image(tmp_path / "photo.png").values
    assert (image.dtype, image.shape) == (np.uint8, (5, 7, 3))
