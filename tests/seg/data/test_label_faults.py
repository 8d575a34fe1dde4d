"""Labels that the classes do not fit: the same sentences in training, evaluation, adaptation and the check."""

import re

import numpy as np
import pytest
from PIL import Image
from support.cases import cases
from support.pictures import noise, save

from dem_apps.errors import InputError
from seg import adapt, evaluate, train
from seg.check import main as check
from seg.data.label_faults import look_at_labels
from seg.data.labels import load_classes
from seg.scores.metrics import other_numbering

QUICK = ["--max-steps", "1", "--maps", "0", "--workers", "0", "--loss", "none", "--classes", "background,road",
         "--model.encoder", "resnet18", "--model.encoder-weights", "null", "--device", "cpu"]  # fmt: skip


def draw(root, ids, number=3):
    """Images in layout ``folders`` whose labels hold these ids in columns."""
    label = np.repeat(np.array([ids], np.uint8), 32, 0).repeat(48 // len(ids), 1)
    for index in range(number):
        save(root / "images" / f"{index:05d}.png", noise(index, 48, 32))
        save(root / "labels" / f"{index:05d}.png", label)
    return root


def looked_at(root, classes):
    """What is said of the labels, be it a refusal."""
    files = [(file, root / "labels" / file.name) for file in sorted((root / "images").iterdir())]
    try:
        return look_at_labels("x", files, load_classes(classes))
    except InputError as error:
        return [str(error)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A data set with the ids 0 and 1, and a run that was trained on it."""
    root = tmp_path_factory.mktemp("run")
    good = draw(root / "good", (0, 1))
    roots = ["--source.root", str(good), "--target.root", str(good)]
    train.main([*QUICK, *roots, "--run-dir", str(root / "run")])
    return root / "run", good


def test_masks_of_0_and_255_are_refused_in_every_command(run, run_here, tmp_path):
    trained, good = run
    wrong = draw(tmp_path / "wrong", (0, 255))
    roots, out = ["--source.root", str(good), "--target.root", str(wrong)], str(tmp_path / "out")
    labels = ["--images", str(wrong / "images"), "--labels", str(wrong / "labels"), "--out", out, "--method", "none"]
    commands = [
        (train.main, [*QUICK, *roots, "--run-dir", out]),
        (evaluate.main, ["--run", str(trained), "--target.root", str(wrong)]),
        (adapt.main, ["--model", str(trained), *labels]),
        (check, ["check", *QUICK, *roots]),
    ]
    for main, arguments in commands:
        said = "".join(run_here(main, *arguments, status=1 if main is check else 2))
        assert "3 labels hold one class alone, 'background', of which nothing can be learnt or scored" in said
        assert "255 is in 3 of 3 labels and ignored, since --classes does not name it, and 'road' is in none" in said
        assert "100.0" not in said or main is check
    assert not (tmp_path / "out").exists()


@cases(
    ((0, 1), "a,b", None),
    ((0, 1, 255), "a,b", None),
    ((0, 1, 255), "a,b,c", r"warning: x: 255 is in 3 of 3 labels and ignored, .* and 'c' is in none; if 255 is"),
    ((0, 1), "a,b,c", r"note: x: no pixel of 3 labels is 'c'"),
    ((0, 0), "a,b", r"x: 3 labels hold one class alone, 'a', of which nothing"),
    ((255, 255), "a,b", r"x: 3 labels hold no class, of which nothing"),
    ((0, 255), "a,b", r"'a', of which nothing can be learnt or scored; 255 is in 3 of 3 labels and ignored, since"),
    ((0, 255), "classes: [a, b]\nignored: [255]", r"one class alone, 'a', of which nothing can .* scored$"),
    ((0, 128, 7), "a,b", r"label id 7 and 128 is not in the table, which has 0 to 1 and 255; a file for --classes"),
)
def test_what_is_said_of_labels(ids, classes, said, tmp_path):
    draw(tmp_path, ids)
    if "\n" in classes:
        (tmp_path / "c.yaml").write_text(classes)
        classes = str(tmp_path / "c.yaml")
    found = looked_at(tmp_path, classes)
    assert len(found) == (said is not None)
    assert said is None or re.search(said, found[0])


GREEN, RED = (0, 255, 0), (255, 0, 0)


@cases(
    ([GREEN, RED], 0, None),
    ([(9, 9, 9), GREEN], 0, r"1\.png: the colour \[0, 255, 0\] is id 1 in its palette and id 0 in that of .*0\."),
    ([(9, 9, 9), (9, 9, 9)], 0, None),
    ([GREEN, RED], 1, r"1\.png: the label is 32x48 pixels, its image 48x32, which is another shape"),
)
def test_palettes_that_differ_and_labels_that_are_turned(colors, turned, said, tmp_path):
    draw(tmp_path, (0, 1), 2)
    for index, palette in enumerate([[GREEN, RED], colors]):
        ids = np.rot90(np.eye(48, dtype=np.uint8)[:32], turned * index)
        label = Image.fromarray(np.ascontiguousarray(ids)).convert("P")
        label.putpalette(sum(palette, ()))
        label.save(tmp_path / "labels" / f"{index:05d}.png")
    found = "\n".join(looked_at(tmp_path, "a,b"))
    assert re.search(said, found) if said else found == ""


SHIFTED = np.diag([0, 50, 30, 20, 9]) @ np.eye(5, k=-1, dtype=int)  # label k is predicted as k - 1


@cases(
    (SHIFTED, "0% of the labelled pixels agree, and 100% with 1 subtracted from the labels' ids"),
    (SHIFTED.T, "0% of the labelled pixels agree, and 100% with 1 added to the labels' ids"),
    (np.diag([50, 30, 20, 9, 0]), None),
    (SHIFTED * [[0], [1], [0], [0], [0]], None),  # a single class, as a network that predicts one class has it
    (np.zeros((5, 5), int), None),
)
def test_labels_that_are_numbered_otherwise(table, said):
    found = other_numbering(table, range(5))
    assert found is None if said is None else found.startswith(said)
