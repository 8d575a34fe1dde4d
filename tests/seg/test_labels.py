"""Predictions to CVAT and Label Studio, and what comes back as labels."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
import yaml
from PIL import Image
from support import cases, noise, refuses, save

from seg.data.annotation import LabelStudioBrush, mask_of_runs, refuse_for_cvat, run_lengths
from seg.data.labels import load_classes, named_classes
from seg.data.layouts.layout import OWN_IDS
from seg.data.read import read_label
from seg.export import ExportConfig, export
from seg.labels import LabelsConfig, write_labels


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of an export of two photographs, one with a hole without data, by a network of three classes."""
    root = tmp_path_factory.mktemp("exported")
    save(root / "images" / "a.png", noise(0, 64, 64))
    hole = np.dstack([noise(1, 64, 96), np.full((96, 64), 255, np.uint8)])
    hole[:10, :, 3] = 0
    save(root / "images" / "deep" / "b.png", hole)
    torch.manual_seed(0)
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(root / "network")
    where = {
        "model": str(root / "network"),
        "images": str(root / "images"),
        "out": str(root / "out"),
    }
    settings = {
        "classes": "background,crop,weed",
        "pre_labels": ["cvat", "label-studio"],
        "label_ids": True,
    }
    assert export(ExportConfig(**where, **settings)) == 0
    return root / "out"


def corrected(exported, folder):
    """Both tools' exports: as they took the predictions."""
    tasks = json.loads((exported / "label-studio.json").read_text())
    for task in tasks:
        task["annotations"] = [{"result": []}, {"was_cancelled": True, "result": []}]
        task["annotations"][0]["result"] = task.pop("predictions")[0]["result"]
    file = folder / "project.json"
    file.write_text(json.dumps([*tasks, {"data": {"image": "/x.png"}, "annotations": []}]))
    return exported / "cvat.zip", file


@pytest.mark.parametrize("tool", [0, 1], ids=["cvat", "label-studio"])
@pytest.mark.parametrize(
    ("classes", "unlabelled"), [("background,crop,weed", 0), ("crop,weed", 255)]
)
def test_what_goes_out_comes_back(tool, classes, unlabelled, exported, tmp_path, capsys):
    write_labels(
        LabelsConfig(str(corrected(exported, tmp_path)[tool]), classes, str(tmp_path / "labels"))
    )
    for name in ("a", "deep/b"):
        ids = np.asarray(Image.open(exported / f"{name}_pred_labelIds.png"))
        assert len(set(np.unique(ids)) - {255}) > 1
        painted = (ids != 255) & (ids != 0)
        expected = np.where(painted, ids - (classes == "crop,weed"), unlabelled)
        np.testing.assert_array_equal(
            np.asarray(Image.open(tmp_path / "labels" / f"{name}.png")), expected
        )
    assert "2 label images in" in capsys.readouterr().out


def test_pixels_without_a_label_are_what_is_said(exported, tmp_path, capsys):
    shouted = tmp_path / "CV.ZIP"
    shouted.write_bytes((exported / "cvat.zip").read_bytes())
    for classes, said in (
        ("background,crop,weed", "are background"),
        ("crop,weed", "count nowhere"),
    ):
        write_labels(LabelsConfig(str(shouted), classes, str(tmp_path / classes)))
        assert f"pixels without a label {said}" in capsys.readouterr().out


def test_labels_are_read_where_255_is_a_class(exported, tmp_path):
    rows = [{"name": "crop", "id": 0}, {"name": "weed", "id": 255}]
    (tmp_path / "classes.yaml").write_text(yaml.safe_dump({"classes": rows}))
    classes = load_classes(str(tmp_path / "classes.yaml"))
    write_labels(
        LabelsConfig(
            str(exported / "cvat.zip"), str(tmp_path / "classes.yaml"), str(tmp_path / "labels")
        )
    )
    label = read_label(tmp_path / "labels/a.png", classes, OWN_IDS)
    assert set(np.unique(label)) == {0, 1, 255}


def test_two_images_of_one_name_are_refused(tmp_path):
    region = {"type": "brushlabels", "original_width": 3, "original_height": 2}
    region["value"] = {"rle": run_lengths(np.eye(2, 3, dtype=bool)), "brushlabels": ["crop"]}
    images = ("/data/upload/1/0123abcd-1.png", "/data/upload/1/1123abcd-1.png")
    tasks = [{"data": {"image": image}, "annotations": [{"result": [region]}]} for image in images]
    (tmp_path / "a.json").write_text(json.dumps(tasks))
    given = LabelsConfig(str(tmp_path / "a.json"), "crop,weed", str(tmp_path / "labels"))
    refuses("a.json has two images 1; rename one in its task", write_labels, given)
    said = "the suffix alone tells two images b/a apart; rename one"
    refuses(said, refuse_for_cvat, named_classes(2), [Path("b/a.png"), Path("b/a.jpg")])


def test_a_name_that_is_no_utf8_is_refused_by_cvat_alone(tmp_path):
    given = Path("stra\udcdfe.png"), np.zeros((4, 4), np.uint8), None
    for name in given[0], Path("a\nb.png"):
        refuses(
            "no name that CVAT can list",
            refuse_for_cvat,
            named_classes(["crop", "weed"]),
            [Path("a.png"), name],
        )
    brush = LabelStudioBrush(tmp_path, named_classes(["crop", "weed"]))
    brush.add(*given)
    brush.close()
    (task,) = json.loads((tmp_path / "label-studio.json").read_text())
    assert task["data"]["image"].endswith("?d=stra%DFe.png")


def test_classes_may_be_a_number(tmp_path):
    region = {"type": "brushlabels", "original_width": 3, "original_height": 2}
    region["value"] = {"rle": run_lengths(np.eye(2, 3, dtype=bool)), "brushlabels": ["class 2"]}
    task = {
        "data": {"image": "/data/upload/1/0123abcd-a.b.png"},
        "annotations": [{"result": [region]}],
    }
    (tmp_path / "a.json").write_text(json.dumps([task]))
    assert write_labels(LabelsConfig(str(tmp_path / "a.json"), "3", str(tmp_path / "labels"))) == 1
    expected = np.where(np.eye(2, 3), 2, 255)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "labels" / "a.b.png")), expected)


def test_the_files_are_what_the_tools_document(exported):
    with zipfile.ZipFile(exported / "cvat.zip") as archive:
        rows = [
            "# label:color_rgb:parts:actions",
            "background:0,0,0::",
            "crop:0,128,0::",
            "weed:128,128,0::",
        ]
        assert archive.read("labelmap.txt").decode().splitlines() == rows
        assert archive.read("ImageSets/Segmentation/default.txt") == b"a\ndeep/b"
        mask = np.asarray(Image.open(io.BytesIO(archive.read("SegmentationClass/deep/b.png"))))
    assert mask.shape == (96, 64, 3)
    assert not mask[:10].any()
    task = json.loads((exported / "label-studio.json").read_text())[1]
    assert task["data"] == {"image": "/data/local-files/?d=deep/b.png", "name": "deep/b.png"}
    region = task["predictions"][0]["result"][0]
    size = (region["original_width"], region["original_height"])
    assert (region["type"], region["from_name"], region["to_name"], size) == (
        "brushlabels",
        "tag",
        "image",
        (64, 96),
    )
    assert '<Label value="crop"' in (exported / "label-studio.xml").read_text()


def test_runs_are_label_studios():
    mask = np.array([[1, 0, 0], [0, 1, 1]], bool)
    # of mask2rle in label_studio_converter 0.0.59, which adds a byte of zeros to whole bytes
    theirs = [0, 0, 0, 24, 57, 27, 252, 127, 246, 192, 39, 255, 0]
    ours = run_lengths(mask)
    assert ours == theirs[: len(ours)]
    assert set(theirs[len(ours) :]) <= {0}
    # its editor writes values one by one, too: a 0, the kind of length, the length - 1, the values
    bits = (
        f"{24:032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16)) + f"010{23:08b}"
    )
    bits += "".join(f"{255 * bool(value):08b}" for value in mask.repeat(4))
    text = bits + "0" * (-len(bits) % 8)
    literal = [int(text[place : place + 8], 2) for place in range(0, len(text), 8)]
    for rle in (ours, theirs, literal):
        np.testing.assert_array_equal(mask_of_runs(rle, 2, 3), mask)
    large = np.zeros((300, 300), bool)
    large[1:] = True
    np.testing.assert_array_equal(mask_of_runs(run_lengths(large), 300, 300), large)


@cases(
    ("a.zip", b"x", "neither a zip of CVAT's Segmentation mask 1.1 nor JSON of Label Studio"),
    ("a.json", b'[{"data": {}}]', "has no annotated image"),
    ("a.json", b'{"a": 1}', "nor JSON of Label Studio"),
    ("a.json", b"[[", "not valid JSON"),
)
def test_other_files_are_one_sentence(name, content, sentence, tmp_path):
    (tmp_path / name).write_bytes(content)
    refuses(
        sentence, write_labels, LabelsConfig(str(tmp_path / name), "a,b", str(tmp_path / "labels"))
    )
    assert not (tmp_path / "labels").exists()


@cases(
    ({"name": "../b.png"}, "the image ../b lies outside of its folder"),
    ({"rle": [0, 0, 0]}, "nor JSON of Label Studio"),
    ({"rle": [-1]}, "nor JSON of Label Studio"),
    ({"name": "a\0.png"}, "lies outside of its folder"),
    (
        {"brushlabels": ["wed"]},
        r"the label 'wed' is no class; did you mean 'weed'\?; --classes names",
    ),
    ({"type": "polygonlabels"}, "a region is of polygonlabels; brushlabels alone are read"),
)
def test_faults_inside_an_export_are_one_sentence(change, sentence, exported, tmp_path):
    _, file = corrected(exported, tmp_path)
    tasks = json.loads(file.read_text())
    region = tasks[0]["annotations"][0]["result"][-1]
    for part in (tasks[0]["data"], region, region["value"]):
        part.update({key: value for key, value in change.items() if key in part})
    file.write_text(json.dumps(tasks))
    refuses(
        sentence,
        write_labels,
        LabelsConfig(str(file), "background,crop,weed", str(tmp_path / "labels")),
    )
