"""``python -m seg.data check``: every fault with its file; labels that the classes do not fit, in every command."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from support import cases, noise, refuses, save

from dem_apps.errors import InputError
from seg import adapt, evaluate, train
from seg.check import main
from seg.data.datasets import SegmentationDataset
from seg.data.label_faults import look_at_labels
from seg.data.labels import load_classes
from seg.scores.segmentation_scores import other_numbering

IDS = np.repeat(np.array([[0, 1, 2, 255]], np.uint8), 6, axis=0).repeat(4, axis=1)
COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 128, 255], *[[9, 9, 9]] * 253], np.uint8)


@pytest.fixture
def check(run_here):
    """Run ``python -m seg.data check …`` here, which says all on stdout; gives that."""
    return lambda *arguments, status=1: run_here(main, "check", *arguments, status=status).out


@pytest.fixture
def flags(source, target):
    return ["--source.root", str(source), "--target.root", str(target)]


def lines(printed, kind):
    return [line for line in printed.splitlines() if line.startswith(f"{kind}: ")]


def test_a_good_pair_passes(flags, check):
    printed = check(*flags, status=0)
    assert "15 images checked, nothing wrong" in printed
    assert not lines(printed, "error") + lines(printed, "warning")


def test_every_problem_is_listed_with_its_file(source, target, flags, check):
    images, labels = source / "images", source / "labels"
    (labels / "00001.png").unlink()
    (images / "00002.png").write_bytes((images / "00002.png").read_bytes()[:400])
    Image.fromarray(np.full((48, 96), 77, np.uint8)).save(labels / "00003.png")
    Image.open(labels / "00004.png").resize((50, 25)).save(labels / "00004.png")
    val_label = next((target / "gtFine" / "val").rglob("*.png"))
    damaged = bytearray(val_label.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    val_label.write_bytes(damaged)
    train_image = min((target / "leftImg8bit" / "train").rglob("*.png"))
    train_image.write_bytes(b"")

    printed = check(*flags)
    (error,) = lines(printed, "error")
    assert error.startswith(
        f"error: source train: {labels}/00003.png: label id 77 is not in the table, which has 0, "
    )
    expected = [
        f"source train: {images}/00002.png: the image cannot be read; it is damaged, cut short, .* is left out",
        f"source train: {images}/00001.png: its label {labels}/00001.png is missing; the image is left out",
        f"source train: {labels}/00004.png: the label is 50x25 pixels, its image 96x48",
        f"target train: {train_image}: the image cannot be read; .* is left out",
        f"target val: {val_label}: the image cannot be read; .* is left out",
    ]
    warnings = lines(printed, "warning")
    assert len(warnings) == len(expected)
    assert all(
        re.match(f"warning: {each}$", line) for line, each in zip(warnings, expected, strict=True)
    )
    assert (
        "note: source looks like layout gta5, with ids of its own; --source.layout names another"
        in printed
    )
    assert "6 of 15 images have a problem" in printed
    assert check(*flags, "--workers", "2") == printed


def write(root, label, name="a", folder="labels", ending=""):
    """An image with that label in layout ``folders``; returns the flags that take it as source and target."""
    save(root / "images" / f"{name}.png", noise(0, label.shape[1], label.shape[0]))
    save(root / folder / f"{name}{ending}.png", label)
    return ["--source.root", str(root), "--target.root", str(root)]


def masks(root, ids, count=5):
    generator = np.random.default_rng(0)
    return [
        write(root, generator.choice(ids, (40, 60)).astype(np.uint8), str(number))
        for number in range(count)
    ][-1]


def saved_file(printed, file):
    """The class file that was printed, saved."""
    start = (
        printed.index("labels: colors\n")
        if "labels: colors\n" in printed
        else printed.index("classes:\n")
    )
    file.write_text(printed[start:].partition("\n\n")[0])
    return str(file)


def test_classes_are_counted(tmp_path, check):
    write(tmp_path, np.array([[0, 0], [0, 1]], np.uint8), "one")
    flags = write(tmp_path, np.array([[0, 7], [255, 0]], np.uint8), "two")
    (tmp_path / "classes.yaml").write_text("classes: [a, b]\nignored: [7]")
    (tmp_path / "images" / "three.heic").write_bytes(b"")
    printed = check(*flags, "--classes", tmp_path / "classes.yaml", status=0)
    assert "6 images checked, left out: 1 .heic, nothing wrong" in printed
    rows = {
        cells[0]: cells[1:]
        for cells in (line.replace("│", " ").split() for line in printed.splitlines())
        if cells
    }
    assert rows["a"] == ["83.33", "2"] * 2
    assert rows["b"] == ["16.67", "1"] * 2
    assert rows["(ignored)"] == ["25.00", "1"] * 2


@cases(
    (
        COLOURS[IDS],
        "one,two",
        "the labels are pictures in 4 colours; this file",
    ),
    (COLOURS[IDS], "one,no,a_b,four", "with your names in this order, reads them"),
    (
        IDS[:, :12] * 100,
        "one,two,three",
        "the labels hold the ids 0, 100, 200; this file",
    ),
)
def test_the_printed_file_reads_the_labels(label, names, sentence, check, tmp_path):
    flags = write(tmp_path / "data", label.astype(np.uint8), ending="_mask", folder="masks")
    printed = check(*flags, "--classes", names)
    assert sentence in printed
    file = saved_file(printed, tmp_path / "classes.yaml")
    assert "3 images checked, nothing wrong" in check(*flags, "--classes", file, status=0)
    classes = load_classes(file)
    read = SegmentationDataset(
        tmp_path / "data", "folders", "train", labelled=True, classes=classes
    )[0].label
    if classes.by_color:
        np.testing.assert_array_equal(np.array(classes.colors)[read], label)
    else:
        np.testing.assert_array_equal(classes.to_ids(read), label)


def test_the_printed_file_says_what_to_do_where_0_means_unlabelled(check, tmp_path):
    label = IDS[:, :12]
    flags = write(tmp_path / "data", label)
    printed = check(*flags, status=0)
    assert "if 0 means unlabelled, delete its row and list 0 under ignored:\n" in printed
    file = tmp_path / "classes.yaml"
    document = yaml.safe_load(Path(saved_file(printed, file)).read_text())
    file.write_text(yaml.safe_dump({"classes": document["classes"][1:], "ignored": [0]}))
    assert "nothing wrong" in check(*flags, "--classes", file, status=0)
    classes = load_classes(str(file))
    data = SegmentationDataset(tmp_path / "data", "folders", "train", True, classes=classes)
    np.testing.assert_array_equal(data[0].label, np.where(label == 0, 255, label - 1))


def test_photographs_as_labels_are_no_masks(tmp_path, check):
    flags = write(tmp_path, noise(0, 30, 20))
    assert "pictures in more than 40 colours: no masks" in check(*flags, "--classes", "one,two")


def test_one_problem_of_many_files_is_one_line(check, tmp_path):
    flags = masks(tmp_path / "data", (0, 7), count=6)
    (tmp_path / "data" / "labels" / "0.png").unlink()
    printed = check(*flags, "--classes", "a,b")
    (found,) = [line for line in lines(printed, "error") if "source train" in line]
    assert found.startswith("error: source train: 5 files, such as ")
    assert (
        "1.png: label id 7 is not in the table, which has 0, 1, 255; in layout folders a file for --classes gives"
        in found
    )
    assert f"warning: source train: {tmp_path / 'data' / 'images' / '0.png'}: its label " in printed


def test_a_class_that_a_raster_calls_no_data_is_a_class(tmp_path):
    from support.scenes import write_scene  # where rasterio is installed

    write(tmp_path, IDS)
    (tmp_path / "labels" / "a.png").unlink()
    write_scene(tmp_path / "labels" / "a.tif", np.where(IDS == 255, 3, IDS)[..., None], nodata=0)
    read = SegmentationDataset(
        tmp_path, "folders", "train", labelled=True, classes=load_classes("a,b,c,d")
    )[0].label
    np.testing.assert_array_equal(read, np.where(IDS == 255, 3, IDS))


QUICK = [
    "--max-steps",
    "1",
    "--maps",
    "0",
    "--workers",
    "0",
    "--loss",
    "none",
    "--classes",
    "background,road",
    "--model.encoder",
    "resnet18",
    "--model.encoder-weights",
    "null",
    "--device",
    "cpu",
]


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
    labels = [
        "--images",
        str(wrong / "images"),
        "--labels",
        str(wrong / "labels"),
        "--out",
        out,
        "--method",
        "none",
    ]
    commands = [
        (train.main, [*QUICK, *roots, "--run-dir", out]),
        (evaluate.main, ["--run", str(trained), "--target.root", str(wrong)]),
        (adapt.main, ["--model", str(trained), *labels]),
        (main, ["check", *QUICK, *roots]),
    ]
    for command, arguments in commands:
        sentence = "".join(run_here(command, *arguments, status=1 if command is main else 2))
        assert (
            "3 labels hold one class alone, 'background', of which nothing can be learnt or scored"
            in sentence
        )
        assert (
            "255 is in 3 of 3 labels and ignored, since --classes does not name it, and 'road' is in none"
            in sentence
        )
        assert "100.0" not in sentence or command is main
    assert not (tmp_path / "out").exists()


@cases(
    ((0, 1), "a,b", None),
    ((0, 1, 255), "a,b", None),
    (
        (0, 1, 255),
        "a,b,c",
        r"warning: x: 255 is in 3 of 3 labels and ignored, .* and 'c' is in none; if it is",
    ),
    ((0, 1), "a,b,c", r"note: x: no pixel of 3 labels is 'c'"),
    ((0, 0), "a,b", r"x: 3 labels hold one class alone, 'a', of which nothing"),
    ((255, 255), "a,b", r"x: 3 labels hold no class, of which nothing"),
    (
        (0, 255),
        "a,b",
        r"'a', of which nothing can be learnt or scored; 255 is in 3 of 3 labels and ignored, since",
    ),
    (
        (0, 255),
        "classes: [a, b]\nignored: [255]",
        r"one class alone, 'a', of which nothing can .* scored$",
    ),
    (
        (0, 128, 7),
        "a,b",
        r"label id 7, 128 is not in the table, which has 0, 1, 255; in layout folders a file for --classes",
    ),
)
def test_what_is_said_of_labels(ids, classes, sentence, tmp_path):
    draw(tmp_path, ids)
    if "\n" in classes:
        (tmp_path / "c.yaml").write_text(classes)
        classes = str(tmp_path / "c.yaml")
    found = looked_at(tmp_path, classes)
    assert len(found) == (sentence is not None)
    assert sentence is None or re.search(sentence, found[0])


GREEN, RED = (0, 255, 0), (255, 0, 0)


@cases(
    ([GREEN, RED], 0, None),
    ([GREEN, RED], 1, r"1\.png: the label is 32x48 pixels, its image 48x32"),
)
def test_labels_that_are_turned(colors, turned, sentence, tmp_path):
    draw(tmp_path, (0, 1), 2)
    for index, palette in enumerate([[GREEN, RED], colors]):
        ids = np.rot90(np.eye(48, dtype=np.uint8)[:32], turned * index)
        label = Image.fromarray(np.ascontiguousarray(ids)).convert("P")
        label.putpalette(sum(palette, ()))
        label.save(tmp_path / "labels" / f"{index:05d}.png")
    found = "\n".join(looked_at(tmp_path, "a,b"))
    assert re.search(sentence, found) if sentence else found == ""


SHIFTED = np.diag([0, 50, 30, 20, 9]) @ np.eye(5, k=-1, dtype=int)  # label k is predicted as k - 1


@cases(
    (SHIFTED, "0% of the labelled pixels agree, and 100% with 1 subtracted from the labels' ids"),
    (SHIFTED.T, "0% of the labelled pixels agree, and 100% with 1 added to the labels' ids"),
    (np.diag([50, 30, 20, 9, 0]), None),
    # a single class, as a network that predicts one class has it
    (SHIFTED * [[0], [1], [0], [0], [0]], None),
    (np.zeros((5, 5), int), None),
)
def test_labels_that_are_numbered_otherwise(table, sentence):
    found = other_numbering(table, range(5))
    assert found is None if sentence is None else found.startswith(sentence)


def test_a_label_of_the_image_before_it_was_turned_is_an_error(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = tmp_path / "a.jpg"
    Image.fromarray(noise(0, 48, 32)).save(image, exif=exif)
    label = save(tmp_path / "a.png", np.arange(48 * 32).reshape(32, 48).astype(np.uint8) % 2)
    sentence = "a.png: the label is 48x32 pixels, its image 32x48, turned by its EXIF tag"
    refuses(sentence, look_at_labels, "x", [(image, label)], load_classes("a,b"))
