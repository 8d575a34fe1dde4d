"""Numberings of labels, and values that are classes: a table of each, and the check and training agree on all."""

import re
import sys

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFilter
from support import cases, noise, save

from dem_apps.errors import InputError
from seg import train
from seg.check import main as check
from seg.data.datasets import SegmentationDataset
from seg.data.label_faults import labels_of
from seg.data.labels import CITYSCAPES_CLASSES, CITYSCAPES_IDS, LABELS, load_classes, named_classes
from seg.data.layouts.synthia import SYNTHIA
from seg.data.numbering import Held, as_numbered, class_values, numbering, together
from seg.data.read_labels import read_label

ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY, PERSON, CAR = 7, 8, 11, 17, 21, 23, 24, 26
TRAIN, COLORS = np.full(256, 255, np.uint8), np.zeros((256, 3), np.uint8)
for label in LABELS:
    TRAIN[label.id], COLORS[label.id] = label.train_id, label.color
#: Cityscapes' label id → SYNTHIA's id of the same name.
SYNTHIAS = np.zeros(256, np.uint8)
for synthia_id, name in SYNTHIA.ids.items():
    SYNTHIAS[[label_id for label_id, own in CITYSCAPES_IDS.items() if own == name]] = synthia_id


def street(index):
    """Label ids of a street, (48, 72)."""
    drawn = np.full((48, 72), SKY, np.uint8)
    drawn[14:], drawn[12:30, : 22 + index] = VEGETATION, BUILDING
    drawn[30:], drawn[30:33], drawn[9:30, 45:47] = ROAD, SIDEWALK, POLE
    drawn[28:36, 30 + 2 * index : 42 + 2 * index], drawn[27:34, 60:63], drawn[45:] = CAR, PERSON, 1
    return drawn


def palette(ids, colors):
    """An image with a palette."""
    picture = Image.fromarray(ids).convert("P")
    picture.putpalette(np.asarray(colors, np.uint8).ravel().tolist())
    return picture


def write(file, pixels):
    """Save pixels, or a picture; 16-bit channels by OpenCV."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, Image.Image):
        pixels.save(file)
    elif pixels.dtype == np.uint16:
        assert cv2.imwrite(str(file), pixels)
    else:
        Image.fromarray(pixels).save(file)


def gta5(root, label, ending=""):
    for index in range(1, 4):
        save(root / "images" / f"{index:05d}.png", noise(index, 72, 48))
        write(root / "labels" / f"{index:05d}{ending}.png", label(street(index)))


def cityscapes(root, label, kind="labelIds"):
    for split in ("train", "val"):
        for index in range(3):
            name = f"{split}/aachen/aachen_{index:06d}_000019"
            save(root / "leftImg8bit" / f"{name}_leftImg8bit.png", noise(index, 72, 48))
            write(root / "gtFine" / f"{name}_gtFine_{kind}.png", label(street(index)))


def synthia(root, label, ending=""):
    for index in range(3):
        save(root / "RGB" / f"{index:07d}.png", noise(index, 72, 48))
        write(root / "GT/LABELS" / f"{index:07d}{ending}.png", label(street(index)))


def folders(root, label, ending=""):
    for index in range(3):
        save(root / "images" / f"photo{index}.png", noise(index, 72, 48))
        write(root / "labels" / f"photo{index}{ending}.png", label(street(index)))


def deep(drawn):
    """SYNTHIA's published form."""
    channels = np.zeros((*drawn.shape, 3), np.uint16)
    channels[..., 2], channels[..., 1] = SYNTHIAS[drawn], 3000
    return channels


def same(drawn):
    return drawn


def train_ids(drawn):
    return TRAIN[drawn]


def colors(drawn):
    return COLORS[drawn]


def rgba(drawn):
    return np.dstack([COLORS[drawn], np.full_like(drawn, 255)])


def train_ids_with_palette(drawn):
    return palette(TRAIN[drawn], COLORS[[*CITYSCAPES_CLASSES.ids, *range(19, 256)]])


def with_static(drawn):
    """As GTA5 was published: static has a colour that Cityscapes has not."""
    colors = COLORS.copy()
    colors[4] = 20
    return palette(np.where(drawn == 1, 4, drawn).astype(np.uint8), colors)


def two_train_ids(drawn):
    return np.where(drawn == SKY, 10, np.where(drawn == ROAD, 0, 255)).astype(np.uint8)


def small_label_ids(drawn):
    return np.where(drawn > 18, BUILDING, drawn).astype(np.uint8)


#: Folders of the layouts, and what each is read as: a piece of the note, None where the layout reads it.
NUMBERINGS = {
    "gta5": (gta5, same, None),
    "gta5 with its palette": (gta5, lambda drawn: palette(drawn, COLORS), None),
    "gta5 with its own colour of static": (gta5, with_static, None),
    "gta5 with small ids": (gta5, small_label_ids, None),
    "gta5 in train ids": (gta5, train_ids, "train ids"),
    "gta5 in two train ids": (gta5, two_train_ids, "train ids"),
    "gta5 in train ids with a palette": (gta5, train_ids_with_palette, "train ids"),
    "gta5 in colours": (gta5, colors, "colours"),
    "cityscapes": (cityscapes, same, None),
    "cityscapes in train ids": (cityscapes, train_ids, "train ids"),
    "cityscapes in colours": (cityscapes, rgba, "colours"),
    "synthia": (synthia, deep, None),
    "synthia in 8 bits": (synthia, lambda drawn: SYNTHIAS[drawn], None),
    "synthia in label ids": (synthia, same, "label ids"),
    "synthia in train ids": (synthia, train_ids, "train ids"),
    "synthia in colours": (synthia, colors, "colours"),
}


@pytest.mark.parametrize("name", NUMBERINGS)
def test_labels_are_read_in_the_numbering_that_they_hold(name, tmp_path):
    layout, label, sentence = NUMBERINGS[name]
    layout(tmp_path, label)
    dataset = SegmentationDataset(tmp_path, layout.__name__, "train", labelled=True)
    drawn = street(1 if layout is gta5 else 0)
    if label is two_train_ids:
        drawn[(drawn != SKY) & (drawn != ROAD)] = 0
    if label is small_label_ids:
        drawn[drawn > 18] = BUILDING
    np.testing.assert_array_equal(dataset[0].label, TRAIN[drawn])
    (note,) = dataset.notes or [None]
    assert note is sentence is None or f"Cityscapes' {sentence}" in note


@cases(
    (gta5, "_labelTrainIds"),
    (synthia, "_labelTrainIds"),
    (cityscapes, "labelTrainIds"),
    (cityscapes, "color"),
)
def test_other_files_are_the_labels_where_they_are_the_only_ones(layout, ending, tmp_path):
    layout(tmp_path, colors if ending == "color" else two_train_ids, ending)
    read = SegmentationDataset(tmp_path, layout.__name__, "train", labelled=None)
    assert all(label.stem.endswith(ending) for _, label in read.files)
    drawn = street(1 if layout is gta5 else 0)
    expected = (
        TRAIN[drawn]
        if ending == "color"
        else np.where(drawn == SKY, 10, np.where(drawn == ROAD, 0, 255))
    )
    np.testing.assert_array_equal(read[0].label, expected)
    layout(
        tmp_path, deep if layout is synthia else same, "labelIds" if layout is cityscapes else ""
    )
    published = SegmentationDataset(tmp_path, layout.__name__, "train", labelled=None)
    assert not any(label.stem.endswith(ending) for _, label in published.files)
    assert published.notes == []


def test_a_missing_label_is_named(tmp_path):
    cityscapes(tmp_path, same, "instanceIds")
    dataset = SegmentationDataset(tmp_path, "cityscapes", "val", labelled=None)
    assert (dataset.labelled, "000019_gtFine_labelIds.png is missing" in dataset.notes[0]) == (
        False,
        True,
    )


@cases(
    ((7, 8, 11, 21, 23, 26), (), CITYSCAPES_IDS, None),
    ((0, 1, 7, 8, 11), (), CITYSCAPES_IDS, None),
    ((7, 8, 11, 255), (), CITYSCAPES_IDS, None),
    ((0, 1, 3, 4, 7, 8), (), CITYSCAPES_IDS, None),
    ((0, 7, 8, 11), (0,), CITYSCAPES_IDS, None),
    ((*range(19), 255), (), CITYSCAPES_IDS, "train ids"),
    ((0, 8, 11, 13, 255), (0,), CITYSCAPES_IDS, "train ids"),
    ((0, 2, 8, 10), (), CITYSCAPES_IDS, "train ids"),
    ((0, 255), (), CITYSCAPES_IDS, "train ids"),
    ((*range(18), 33, 255), (), CITYSCAPES_IDS, None),
    (range(23), (), SYNTHIA.ids, None),
    ((*range(13), 255), (0,), SYNTHIA.ids, "train ids"),
    (range(20), (0, 2, 8, 10), CITYSCAPES_IDS, "train ids"),
    ((*range(22), 255), (), SYNTHIA.ids, None),
    ((7, 8, 11, 26), (), SYNTHIA.ids, "label ids"),
    ((7, 8, 23, 26), (), dict(enumerate(CITYSCAPES_CLASSES.names)), "label ids"),
    ((*range(19), 255), (), dict(enumerate(reversed(CITYSCAPES_CLASSES.names))), None),
    (range(20), (), {**dict(enumerate(CITYSCAPES_CLASSES.names)), 19: ""}, None),
    ((0, 1, 2, 255), (), {0: "road", 1: "sky", 2: "mine"}, None),
    ((0, 1, 2, 7, 8, 255), (), {7: "road", 8: "sidewalk"}, None),
    ((0, 1, 2, 255), (), None, None),
    ((7, 8, 11, 21, 23), (), None, "label ids"),
    ((7, 8, 77), (), CITYSCAPES_IDS, None),
    ((255,), (), CITYSCAPES_IDS, None),
)
def test_ids_that_tell_their_numbering(ids, many, own, sentence, tmp_path):
    """``many`` of the ids have ten times as many pixels as the others."""
    pixels = np.zeros(256, np.int64)
    pixels[list(ids)] = 100
    pixels[list(many)] = 1000
    found = numbering(Held(tmp_path, pixels), own)
    assert found == sentence


def test_several_labels_are_judged_together(tmp_path):
    few, more = (np.bincount(ids, minlength=256) for ids in ([0, 1, 2, 255], [7, 11, 23, 26]))
    alone, both = Held(tmp_path, few), together([Held(tmp_path, few), Held(tmp_path, more)])
    assert (numbering(alone, CITYSCAPES_IDS), numbering(both, CITYSCAPES_IDS)) == (
        "train ids",
        None,
    )


def test_labels_of_a_folder_are_read_in_their_numbering(tmp_path):
    folders(tmp_path, train_ids)
    names = sorted(
        file.relative_to(tmp_path / "images") for file in (tmp_path / "images").iterdir()
    )
    files, layout, notes = labels_of(
        tmp_path / "labels", names, tmp_path / "images", CITYSCAPES_CLASSES
    )
    np.testing.assert_array_equal(
        read_label(files[names[0]], CITYSCAPES_CLASSES, layout), TRAIN[street(0)]
    )
    assert "hold Cityscapes' train ids" in notes[0]


def test_classes_by_colour_read_pictures_of_any_layout_and_ids_by_their_names(tmp_path):
    other = np.array([[9, 9, 9], [9, 200, 9], [200, 9, 9]], np.uint8)
    (tmp_path / "c.yaml").write_text(
        "labels: colors\nclasses:\n- {name: road, color: [9, 200, 9]}\n- {name: sky, color: [200, 9, 9]}\n"
        "ignored: [[9, 9, 9]]"
    )
    classes = load_classes(str(tmp_path / "c.yaml"))
    gta5(tmp_path / "source", lambda drawn: other[(drawn == ROAD) + 2 * (drawn == SKY)])
    cityscapes(tmp_path / "target", same)
    for root, layout in ((tmp_path / "source", "gta5"), (tmp_path / "target", "cityscapes")):
        drawn = street(1 if layout == "gta5" else 0)
        read = SegmentationDataset(root, layout, "train", labelled=True, classes=classes)[0].label
        np.testing.assert_array_equal(
            read, np.where(drawn == ROAD, 0, np.where(drawn == SKY, 1, 255))
        )
    layout, _ = as_numbered([tmp_path / "source/labels/00001.png"], CITYSCAPES_CLASSES, SYNTHIA)
    with pytest.raises(
        InputError,
        match=r"this one is RGB; a picture in .* a file for --classes that has labels: col",
    ):
        read_label(tmp_path / "source/labels/00001.png", CITYSCAPES_CLASSES, layout)


def histogram(shares):
    pixels = np.zeros(256, np.int64)
    for value, share in shares.items():
        pixels[value] = 1000 * share
    return pixels


JPEG = dict.fromkeys((*range(1, 8), *range(40, 60), *range(248, 255)), 0.2)
#: Per cent of the pixels by value, number of names, and the values that are classes; None: smoothed.
HISTOGRAMS = {
    "binary": ({0: 70, 1: 30}, None, [0, 1]),
    "black and white": ({0: 97, 255: 3}, None, [0, 255]),
    "black, white and grey": ({0: 40, 127: 29, 255: 31}, None, [0, 127, 255]),
    "REFUGE": ({0: 2, 128: 6, 255: 92}, None, [0, 128, 255]),
    "rare white": ({0: 80, 85: 15, 170: 4, 255: 1}, None, [0, 85, 170, 255]),
    "grey of colours": (
        {29: 20, 76: 20, 150: 20, 179: 20, 226: 15, 255: 5},
        None,
        [29, 76, 150, 179, 226, 255],
    ),
    "a border": ({0: 70, 1: 20, 2: 5, 255: 5}, None, [0, 1, 2]),
    "VOC": ({**dict.fromkeys(range(21), 4.5), 255: 5}, None, list(range(21))),
    "tens": ({**dict.fromkeys(range(10, 110, 10), 9), 255: 10}, None, list(range(10, 110, 10))),
    "a third": ({0: 40, 1: 27, 255: 33}, None, [0, 1, 255]),
    "three names": ({0: 70, 1: 25, 255: 5}, 3, [0, 1, 255]),
    "two names": ({0: 40, 127: 29, 255: 31}, 2, [0, 127]),
    "rare classes": ({0: 90, 1: 4, 2: 0.5, 3: 0.5, 255: 5}, None, [0, 1, 2, 3]),
    "rare and far": ({0: 97, 85: 2, 170: 0.7, 255: 0.3}, None, [0, 85, 170, 255]),
    "enlarged": ({0: 58, 64: 2, 191: 2, 255: 38}, None, None),
    "enlarged greys": (
        {0: 38, 32: 1, 95: 1, 127: 28, 159: 1, 223: 1, 64: 0.5, 191: 0.5, 255: 30},
        None,
        None,
    ),
    "JPEG": ({0: 60, 255: 33, **JPEG}, None, None),
    "a photograph": (dict.fromkeys(range(256), 0.4), None, None),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_values_that_are_classes(name):
    shares, number, expected = HISTOGRAMS[name]
    pixels = histogram(shares)
    assert class_values(pixels, number) == expected


def drawn_by(shares):
    """A label with these shares of its pixels, in rows."""
    values = np.repeat([*shares], [round(34.56 * share) for share in shares.values()])
    return np.resize(values, (48, 72)).astype(np.uint8)


def jpeg(drawn, tmp_path):
    """Greys that were a JPEG once."""
    Image.fromarray(np.array([0, 127, 255], np.uint8)[drawn % 3]).save(
        tmp_path / "once.jpg", quality=60
    )
    return Image.open(tmp_path / "once.jpg").copy()


def enlarged(drawn):
    grey = Image.fromarray(np.array([0, 255], np.uint8)[drawn[::2, ::2] % 2])
    return grey.resize((72, 48), Image.Resampling.BILINEAR)


def blurred(drawn):
    return Image.fromarray(COLORS[drawn]).filter(ImageFilter.GaussianBlur(2))


def opened_by(main, arguments, monkeypatch, capsys):
    """What a command prints, with its refusal as a line."""
    monkeypatch.setattr(sys, "argv", [main.__module__, *map(str, arguments)])
    refused = ""
    try:
        main()
    except SystemExit:
        pass
    except InputError as error:
        refused = f"error: {error}"
    return f"{capsys.readouterr().out}{refused}"


class Begun(Exception):
    """A training that took its data."""


def agree(source, target, monkeypatch, capsys, *more):
    """Compare the check with a training that ends before its first step; returns the error, or the classes."""
    flags = [*source, *target, *more, "--device", "cpu", "--workers", "0"]

    def begin(parts, *_):
        raise Begun(parts[0].classes.names)

    monkeypatch.setattr("seg.training.setup.labelled_sampler", begin)
    names = error = None
    try:
        error = opened_by(train.main, flags, monkeypatch, capsys).partition("error: ")[2]
    except Begun as begun:
        (names,) = begun.args
    printed = opened_by(check, ["check", *flags], monkeypatch, capsys)
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    if names is None:
        assert error
        title = re.sub(r"^(source train|target val): | \(source looks like .*", "", error)
        assert any(title in line for line in errors), (error, printed)
        return error
    assert errors == [], printed
    rows = [
        re.split("[│┃|]", line)[1].strip()
        for line in printed.splitlines()
        if line[:1] in "│|" and line
    ]
    assert rows[: len(names)] == list(names)
    return names


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *(("numbering", name) for name in NUMBERINGS),
        *(("histogram", name) for name in HISTOGRAMS),
    ],
)
def test_the_check_and_training_agree_on_every_folder(table, name, tmp_path, monkeypatch, capsys):
    """Both refuse the folder by the same sentence, or both take it with the same classes."""
    if table == "numbering":
        layout, label, _ = NUMBERINGS[name]
        layout(tmp_path / "source", label)
        cityscapes(tmp_path / "target", label if layout is cityscapes else same)
        source = ["--source.root", tmp_path / "source", "--source.layout", layout.__name__]
        target = ["--target.root", tmp_path / "target", "--target.layout", "cityscapes"]
        assert agree(source, target, monkeypatch, capsys) == CITYSCAPES_CLASSES.names
        return
    shares, number, expected = HISTOGRAMS[name]
    folders(tmp_path, lambda _drawn: drawn_by(shares))
    named = [] if number is None else ["--classes", ",".join(named_classes(number).names)]
    roots = [f"--source.root={tmp_path}"], [f"--target.root={tmp_path}"]
    verdict = agree(*roots, monkeypatch, capsys, *named)
    if expected is None:
        assert "smoothed, resized or saved as JPEG" in verdict or "no masks" in verdict
    elif number is None:
        assert len(verdict) == len(expected)


@cases(
    (
        folders,
        jpeg,
        "no masks, or some that were smoothed, .* such as .*/labels/photo.*; save one value per class",
    ),
    (folders, enlarged, "no masks, or some that were smoothed"),
    (folders, blurred, "are pictures in more than 40 colours: no masks"),
    (gta5, blurred, "are pictures in more than 40 colours: no masks"),
    (folders, same, None),
    (folders, train_ids, None),
    (folders, colors, None),
    (folders, small_label_ids, None),
)
def test_the_check_and_training_agree_on_own_folders(
    layout, label, sentence, tmp_path, monkeypatch, capsys
):
    layout(tmp_path, lambda drawn: jpeg(drawn, tmp_path) if label is jpeg else label(drawn))
    found = agree([f"--source.root={tmp_path}"], [f"--target.root={tmp_path}"], monkeypatch, capsys)
    assert re.search(sentence, found) if sentence else isinstance(found, tuple)
    found = agree(
        [f"--source.root={tmp_path}"],
        [f"--target.root={tmp_path}"],
        monkeypatch,
        capsys,
        "--classes=a,b",
    )
    assert not sentence or re.search(sentence, found)


@cases(
    (["labels/photo0.png"], [], None),
    (
        ["labels/photo0.png", "labels/photo1.png", "labels/photo2.png"],
        [],
        "its label .*photo0.png is missing",
    ),
    ([], ["labels/photo0.png", "images/photo1.png"], None),
    (
        [],
        ["images/photo0.png", "images/photo1.png", "images/photo2.png"],
        "every image is damaged or cut short",
    ),
)
def test_the_check_and_training_agree_on_what_is_missing_or_damaged(
    missing, damaged, sentence, tmp_path, request, capsys
):
    monkeypatch = request.getfixturevalue("monkeypatch")
    for part in ("source", "target"):
        folders(tmp_path / part, lambda drawn: (drawn == ROAD).astype(np.uint8))
    for file in missing:
        (tmp_path / "source" / file).unlink()
    for file in damaged:
        whole = (tmp_path / "source" / file).read_bytes()
        (tmp_path / "source" / file).write_bytes(whole[: len(whole) // 2])
    roots = [f"--source.root={tmp_path / 'source'}"], [f"--target.root={tmp_path / 'target'}"]
    found = agree(*roots, monkeypatch, capsys)
    assert re.search(sentence, found) if sentence else found == ("class 0", "class 1")
