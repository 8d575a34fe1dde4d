"""Data sets by layout: their files, labels, splits and refusals; CamVid's three layouts."""

import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from support import ROOT, cases, noise, refuses, save

from dem_apps.errors import InputError
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair, open_validation
from seg.data.labels import (
    CITYSCAPES_CLASSES,
    IGNORE_INDEX,
    LABELS,
    ClassSet,
    load_classes,
    named_classes,
)
from seg.data.layouts import found_layout, named_layout
from seg.data.settings import DataConfig, SourceConfig, TargetDataConfig

SYNTHIA_16 = load_classes(str(ROOT / "configs/seg/classes/synthia16.yaml"))
OWN = ClassSet(("ground", "plant"), ((0, 0, 0), (1, 1, 1)), (4, 2), ignored=(9,))


def names(dataset):
    return [dataset.name(index) for index in range(len(dataset))]


def test_source_labels_are_palette_indices_mapped_to_train_ids(source):
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True)
    sample = dataset[0]
    picture = Image.open(source / "labels" / "00001.png")
    assert picture.mode == "P"
    ids = np.asarray(picture)
    table = {label.id: label.train_id for label in LABELS}
    assert sample.label is not None
    np.testing.assert_array_equal(sample.label, np.vectorize(table.get)(ids))
    assert sample.image.shape == (48, 96, 3)
    small = SegmentationDataset(source, "gta5", "train", labelled=True, size=(48, 24))[0]
    assert small.image.shape == (24, 48, 3)
    np.testing.assert_array_equal(
        small.label, Image.fromarray(sample.label).resize((48, 24), Image.Resampling.NEAREST)
    )


def test_what_is_there_and_whole_is_used_and_the_rest_counted(tmp_path):
    for name in "ab":
        save(tmp_path / "images" / f"{name}.png", noise(0, 8, 6))
    assert (
        SegmentationDataset(tmp_path, "folders", "val", labelled=None, classes=OWN)[0].label is None
    )
    save(tmp_path / "labels" / "b.png", np.full((6, 8), 4, np.uint8))
    half = SegmentationDataset(tmp_path, "folders", "val", labelled=None, classes=OWN)
    assert [image.stem for image, _ in half.files] == ["b"]
    assert half.notes[0].startswith("1 of 2 images have no label and are left out, such as ")
    for cut in ("images/b.jpg", "labels/a.png"):
        label = np.full((6, 8), 4, np.uint8)
        save(tmp_path / "labels" / "a.png", label)
        save(tmp_path / cut, noise(0, 8, 6) if "images" in cut else label)
        (tmp_path / cut).write_bytes((tmp_path / cut).read_bytes()[:-30])
    (tmp_path / "images" / "b.png").unlink()
    with pytest.raises(
        InputError, match=r"every image is damaged or cut short, .*images/a.png, .*images/b.jpg"
    ):
        SegmentationDataset(tmp_path, "folders", "val", labelled=None, classes=OWN)
    save(tmp_path / "labels" / "a.png", label)
    whole = SegmentationDataset(tmp_path, "folders", "val", labelled=None, classes=OWN)
    assert ([image.name for image, _ in whole.files], whole.labelled) == (["a.png"], True)


def test_wrong_folders_are_named(tmp_path, source):
    refuses(
        "no such folder",
        open_validation,
        DataConfig(str(tmp_path / "nowhere")),
        CITYSCAPES_CLASSES,
    )
    sentence = r"has no folder leftImg8bit/train \(layout cityscapes\); it looks like layout gta5 or folders: give"
    refuses(sentence, SegmentationDataset, source, "cityscapes", "train", labelled=True)
    shutil.rmtree(source / "images")
    (source / "images").mkdir()
    refuses(
        r"images: holds no images that match \*.png",
        SegmentationDataset,
        source,
        "gta5",
        "train",
        labelled=True,
    )


def test_a_root_one_folder_too_deep_or_too_high_names_the_right_one(source):
    for root in (source / "images", source.parent):
        refuses(
            rf"did you mean {source}\?$", SegmentationDataset, root, "gta5", "train", labelled=True
        )


def test_a_pair_needs_both_roots_and_two_sides(source):
    refuses(
        r"--target.root is missing: ",
        open_pair,
        SourceConfig(root=str(source), layout="gta5"),
        TargetDataConfig(),
    )
    with pytest.raises(InputError, match=r"--source.size: expected W,H"):
        open_pair(SourceConfig(root=str(source), size=[96]), TargetDataConfig(root=str(source)))


def synthia_label(file, ids):
    """As published: 16 bits, the class in the first channel (red), an instance number in the second."""
    channels = np.zeros((*ids.shape, 3), np.uint16)
    channels[..., 2] = ids
    channels[..., 1] = np.arange(ids.size).reshape(ids.shape) * 7 % 60000
    file.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(file), channels)


@pytest.fixture
def synthia(tmp_path):
    root = tmp_path / "RAND_CITYSCAPES"
    save(root / "RGB" / "0000000.png", noise(0, 23, 4))
    synthia_label(root / "GT" / "LABELS" / "0000000.png", np.tile(np.arange(23), (4, 1)))
    return root


def test_synthia_ids_map_to_cityscapes_classes_by_name(synthia):
    label = SegmentationDataset(synthia, "synthia", "train", labelled=True)[0].label
    # train ids of void, sky, building, …, wall, lane marking: the table of SYNTHIA's README
    expected = [
        255,
        10,
        2,
        0,
        1,
        4,
        8,
        5,
        13,
        7,
        11,
        18,
        17,
        255,
        255,
        6,
        9,
        12,
        14,
        15,
        16,
        3,
        255,
    ]
    assert label.tolist() == [expected] * 4
    label = SegmentationDataset(synthia, "synthia", "train", labelled=True, classes=SYNTHIA_16)[
        0
    ].label
    named = [None if i == IGNORE_INDEX else CITYSCAPES_CLASSES.names[i] for i in expected]
    assert label[0].tolist() == [
        SYNTHIA_16.names.index(n) if n in SYNTHIA_16.names else 255 for n in named
    ]


def test_a_wrong_synthia_label_is_named(synthia):
    file = synthia / "GT" / "LABELS" / "0000000.png"
    dataset = SegmentationDataset(synthia, "synthia", "train", labelled=True)
    synthia_label(file, np.full((4, 23), 300))
    refuses("label id 300 is not in the table, which has 0 to 22", dataset.__getitem__, 0)


def test_a_class_that_the_layout_does_not_have_is_named(source):
    classes = ClassSet(("road", "sidewlk"), ((0, 0, 0), (1, 1, 1)), (7, 8))
    with pytest.raises(
        InputError, match="'sidewlk' is no class of this layout; did you mean 'sidewalk'"
    ):
        SegmentationDataset(source, "gta5", "train", labelled=True, classes=classes)


def test_excluded_images_are_left_out(source):
    whole = names(SegmentationDataset(source, "gta5", "train", labelled=True))
    (source / "labels" / "00004.png").unlink()
    exclude = ["00001", "00003.png", "images/00004.png"]
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True, exclude=exclude)
    assert names(dataset) == [whole[1], *whole[4:]]
    with pytest.raises(InputError, match="every image is excluded"):
        SegmentationDataset(
            source, "gta5", "train", labelled=True, exclude=[Path(name).stem for name in whole]
        )


def test_parts_of_the_validation_set_share_no_image(tmp_path):
    for index in range(20):
        name = f"{index:02d}" if index or sys.platform != "linux" else "0\udcdf"  # one is Latin-1
        save(tmp_path / "images" / "val" / f"{name}.png", noise(0, 8, 6))
    config = DataConfig(root=str(tmp_path), layout="folders")
    whole, tune, score = (
        names(open_validation(config, OWN, part)) for part in ((0, 1), (0, 0.2), (0.2, 1))
    )
    assert whole == sorted(whole)
    assert len(tune) == 4
    assert sorted(tune + score) == whole
    assert tune == sorted(tune) != whole[:4]
    assert names(open_validation(config, OWN, (0, 0.2))) == tune
    refuses(
        r"--validation-part: expected \[from, to\] with 0 <= from < to",
        open_validation,
        config,
        OWN,
        (0.5, 0.2),
    )


@cases(
    (("images/00001.png", "labels/00001.png"), CITYSCAPES_CLASSES, "gta5"),
    (("images/00001.png", "labels/00001.png"), SYNTHIA_16, "gta5"),
    (("images/00001.png", "labels/00001.png"), load_classes("crop,weed"), "folders"),
    # names of GTA5 whose ids are their positions, as --classes gives them
    (("images/00001.png", "labels/00001.png"), load_classes("road,sky"), "folders"),
    (("images/00001.png", "labels/00001.png"), named_classes(CITYSCAPES_CLASSES.names), "folders"),
    (("images/photo.png", "labels/photo.png"), CITYSCAPES_CLASSES, "folders"),
    (("images/train/a.jpg",), load_classes("crop,weed"), "folders"),
    (("a.jpg", "more/b.jpg"), load_classes("crop,weed"), "folders"),
    (("leftImg8bit/train/x/x_leftImg8bit.png",), CITYSCAPES_CLASSES, "cityscapes"),
    (("RGB/0000000.png",), CITYSCAPES_CLASSES, "synthia"),
    (("images/00001.png", "masks/00001.png"), CITYSCAPES_CLASSES, "folders"),
    (("train/0001TP_1.png", "trainannot/0001TP_1.png"), load_classes("sky,road"), "camvid"),
    (("train/1.png", "val/b.png"), load_classes("sky,road"), "folders"),
)
def test_the_layout_is_found(files, classes, expected, tmp_path):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    assert found_layout(tmp_path, "train", classes, "--source.layout") == expected


@pytest.mark.parametrize(
    "files",
    [  # of Pascal VOC, LabelMe, KITTI, Supervisely, Roboflow and Cityscapes, and other spellings
        "JPEGImages/a.jpg SegmentationClass/a.png",
        "JPEGImages/a.jpg SegmentationClassPNG/a.png SegmentationClass/a.npy",
        "image_2/a.png semantic/a.png",
        "img/a.jpg masks_machine/a.png ann/a.json",
        "train/a.jpg train/a_mask.png train/_classes.csv",
        "Images/a.jpg Masks/a.png",
        "train/image/a.jpg train/mask/a.png",
        "images/a.jpg masks/a.png labels/a.txt",
        "images/a_leftImg8bit.png labels/a_gtFine_labelIds.png labels/a_gtFine_color.png",
    ],
)
def test_folders_have_the_names_that_other_tools_give(files, tmp_path):
    image, label, *others = (tmp_path / file for file in files.split())
    save(image, noise(0, 8, 6))
    save(label, np.zeros((6, 8), np.uint8))
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"")
    layout = found_layout(tmp_path, "train", load_classes("a,b"), "--source.layout")
    assert named_layout(layout).pairs(tmp_path, "train") == [(image, label)]


def test_what_no_layout_fits_is_told_what_to_do(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(
        InputError,
        match=r"no layout fits.*put images below .*images, or name .* by --source\.layout",
    ):
        found_layout(tmp_path, "train", load_classes("a,b"), "--source.layout")


def test_a_root_beside_the_images_is_told_the_right_one_where_the_layout_is_found(tmp_path):
    image = tmp_path / "set/GTA5/images/a.jpg"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"")
    (tmp_path / "set/GTA5/labels").mkdir()
    for root in ("set", "set/GTA5/labels"):
        refuses(
            rf"no layout fits.*; did you mean {tmp_path}/set/GTA5\?$",
            found_layout,
            tmp_path / root,
            "train",
            OWN,
            "--source.layout",
        )


@cases(("train", "valid", "masks"), ("Training", "test", "annotations"))
def test_folders_of_splits_may_hold_images_and_labels(train, val, labels, tmp_path):
    for folder in (train, val):
        save(tmp_path / folder / "images" / "a.jpg", noise(0, 8, 6))
        save(tmp_path / folder / labels / "a.png", np.zeros((6, 8), np.uint8))
    for split, folder in (("train", train), ("val", val)):
        data = SegmentationDataset(tmp_path, "folders", split, labelled=True, classes=OWN)
        root = tmp_path / folder
        assert data.files == [(root / "images" / "a.jpg", root / labels / "a.png")]
        assert any("are scored" in note for note in data.notes) == (folder == "test")


@cases(("labels/a.jpg", "a.jpg"), ("labels/b.png", "b.png"), ("annotations/all.json", "all.json"))
def test_an_absent_label_says_what_is_there(file, held, tmp_path):
    save(tmp_path / "images" / "a.jpg", noise(0, 8, 6))
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes(b"")
    (tmp_path / file).with_name(".DS_Store").write_bytes(b"")
    folder = (tmp_path / file).parent
    sentence = f"its label {folder}/a.png is missing .*; {folder} holds {held}; labels are .png, "
    refuses(sentence, SegmentationDataset, tmp_path, "folders", "train", labelled=True, classes=OWN)


@cases(
    ("images/train/a.jpg", "images/val"),
    ("train/images/a.jpg", "val/images"),
    ("leftImg8bit/train/x/x_leftImg8bit.png", "leftImg8bit/val"),
)
def test_the_missing_folder_of_validation_images_is_named_where_the_layout_is_found(
    file, missing, tmp_path
):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(b"")
    refuses(
        rf"has no folder {missing} \(layout", open_validation, DataConfig(root=str(tmp_path)), OWN
    )


CAMVID_FILE = str(ROOT / "configs/seg/classes/camvid.yaml")
CAMVID = load_classes(CAMVID_FILE)
FRAMES = {
    "train": ("0001TP_006690", "0001TP_006720", "0006R0_f00930", "0016E5_00390", "0016E5_00420"),
    "val": ("0016E5_07959", "0016E5_07961"),
    "test": ("0001TP_008550", "Seq05VD_f00000", "Seq05VD_f00030"),
}
DUSK_TRAIN, DUSK_VAL = ["train/0001TP_006690", "train/0001TP_006720"], ["test/0001TP_008550"]


@pytest.fixture
def camvid(tmp_path):
    """Pictures of 12 columns; column i of every label has the id i."""
    root = tmp_path / "CamVid"
    for folder, each in FRAMES.items():
        for kind in ("", "annot"):
            (root / f"{folder}{kind}").mkdir(parents=True)
        for frame in each:
            Image.new("RGB", (12, 9)).save(root / folder / f"{frame}.png")
            Image.fromarray(np.tile(np.arange(12, dtype=np.uint8), (9, 1))).save(
                root / f"{folder}annot/{frame}.png"
            )
    return root


def opened(camvid, layout, split):
    return SegmentationDataset(camvid, layout, split, True, classes=CAMVID)


def frames(dataset):
    return [dataset.name(index).removesuffix(".png") for index in range(len(dataset))]


def test_the_frames_of_each_layout(camvid):
    official = {
        folder: [f"{folder}/{frame}" for frame in frames] for folder, frames in FRAMES.items()
    }
    assert frames(opened(camvid, "camvid", "train")) == official["train"]
    assert frames(opened(camvid, "camvid", "val")) == official["test"]
    assert frames(opened(camvid, "camvid-dusk", "train")) == DUSK_TRAIN
    assert frames(opened(camvid, "camvid-dusk", "val")) == DUSK_VAL
    day = frames(opened(camvid, "camvid-day", "train"))
    assert day == frames(opened(camvid, "camvid-day", "val"))
    assert sorted([*day, *DUSK_TRAIN, *DUSK_VAL]) == sorted(
        frame for frames in official.values() for frame in frames
    )


def test_day_to_dusk_is_a_pair_of_one_root_whose_target_labels_may_be_missing(camvid):
    for frame in DUSK_TRAIN:
        (camvid / f"{frame.replace('/', 'annot/')}.png").unlink()
    source = SourceConfig(root=str(camvid), layout="camvid-day", size=[6, 4])
    target = TargetDataConfig(root=str(camvid), layout="camvid-dusk", size=[6, 4])
    pair = open_pair(source, target, CAMVID_FILE)
    assert [len(part) for part in (pair.source_train, pair.target_train, pair.target_val)] == [
        7,
        2,
        1,
    ]
    assert (pair.source_train.labelled, pair.target_train.labelled, pair.target_val.labelled) == (
        True,
        False,
        True,
    )
    scored = pair.target_val[0]
    assert scored.image.shape == (4, 6, 3)
    assert scored.label.tolist() == [[*range(11), IGNORE_INDEX]] * 9
