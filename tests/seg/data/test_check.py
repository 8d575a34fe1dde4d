from __future__ import annotations

import shutil
from functools import partial

import numpy as np
import pytest
from PIL import Image

from seg.data.__main__ import _main

CLASSES = """
classes: [{name: a, color: [0, 0, 0]}, {name: b, color: [9, 9, 9]}]
ignored: [7]
"""


@pytest.fixture
def seg_data(run_here):
    """Run ``python -m seg.data …`` here; gives (exit status, stdout, stderr)."""

    def command(*arguments: str) -> tuple[int, str, str]:
        done = run_here(_main, *arguments)
        return done.returncode, done.stdout, done.stderr

    return command


@pytest.fixture
def check(seg_data):
    """``python -m seg.data check …``."""
    return partial(seg_data, "check")


@pytest.fixture
def roots(tiny_pair, tmp_path):
    """Private copies of both domains that a test may damage."""
    source = shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")
    target = shutil.copytree(tiny_pair.target_root, tmp_path / "cityscapes")
    return source, target, ["--source.root", str(source), "--target.root", str(target)]


def lines(printed: str, kind: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(f"{kind}: ")]


def test_a_good_pair_passes(roots, check):
    status, printed, errors = check(*roots[2])
    assert (status, errors) == (0, "")
    assert "15 images checked, nothing wrong" in printed
    assert "96x48: 6" in printed
    assert not lines(printed, "error") + lines(printed, "warning")


def test_every_problem_is_listed_with_its_file(roots, check):
    source, target, flags = roots
    images, labels = source / "images", source / "labels"
    (labels / "00001.png").unlink()
    (images / "00002.png").write_bytes((images / "00002.png").read_bytes()[:400])
    Image.fromarray(np.full((48, 96), 77, np.uint8)).save(labels / "00003.png")
    Image.open(labels / "00004.png").resize((50, 40)).save(labels / "00004.png")
    almost_white = np.random.default_rng(0).integers(250, 255, (48, 96, 3), dtype=np.uint8)
    Image.fromarray(almost_white).save(images / "00005.png")
    Image.fromarray(np.zeros((48, 96), np.uint8)).save(labels / "00006.png")
    val_label = next((target / "gtFine" / "val").rglob("*.png"))
    damaged = bytearray(val_label.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    val_label.write_bytes(damaged)
    train_image, other = sorted((target / "leftImg8bit" / "train").rglob("*.png"))[:2]
    train_image.write_bytes(b"")
    other.write_bytes(other.read_bytes()[:-6])

    status, printed, _ = check(*flags)
    assert status == 1
    expected_errors = [
        f"source train: {images}/00001.png: its label {labels}/00001.png is missing",
        f"source train: {images}/00002.png: the image cannot be read, it is damaged or cut short",
        f"source train: {labels}/00003.png: label id 77 is not in the table, which has 0 to 33 and 255",
        f"target train: {train_image}: the image cannot be read",
        f"target val: {val_label}: the image cannot be read",
    ]
    errors = lines(printed, "error")
    assert len(errors) == len(expected_errors)
    assert all(line.startswith(f"error: {start}") for line, start in zip(errors, expected_errors, strict=True))
    assert lines(printed, "warning") == [
        f"warning: source train: {labels}/00004.png: the label is 50x40 pixels, its image 96x48; "
        "it is resized to its image",
        f"warning: source train: {images}/00005.png: the image is blank or nearly so",
        f"warning: source train: {labels}/00006.png: every pixel of the label is ignored",
        f"warning: target train: {other}: can be decoded, but is damaged or cut short (broken PNG file (chunk b'IE'))",
    ]
    assert "9 of 15 images have a problem" in printed


def test_workers_find_the_same(roots, check):
    source, _, flags = roots
    (source / "images" / "00002.png").write_bytes(b"")
    alone = check(*flags)
    assert check(*flags, "--workers", "2") == alone
    assert alone[0] == 1


def test_images_of_gta5_that_are_known_to_be_bad_are_named(roots, check):
    source, _, flags = roots
    for folder in ("images", "labels"):
        (source / folder / "00002.png").rename(source / folder / "15188.png")
    status, printed, _ = check(*flags)
    assert status == 0
    (note,) = lines(printed, "note")
    assert "images/15188.png: known to be bad in the data set as published" in note


def test_classes_are_counted(tmp_path, check):
    for split in ("train", "val"):
        for name, label in (("one", [[0, 0], [0, 1]]), ("two", [[0, 7], [255, 0]])):
            for folder, pixels in (("images", np.arange(12).reshape(2, 2, 3) * 20), ("labels", np.array(label))):
                file = tmp_path / folder / split / f"{name}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    (tmp_path / "classes.yaml").write_text(CLASSES)
    domains = [f"--{domain}.{key}" for domain in ("source", "target") for key in ("root", "layout")]
    values = [str(tmp_path), "folders"] * 2
    flags = [part for pair in zip(domains, values, strict=True) for part in pair]
    status, printed, _ = check(*flags, "--classes", str(tmp_path / "classes.yaml"))
    assert status == 0, printed
    rows = {cells[0]: cells[1:] for cells in (line.replace("│", " ").split() for line in printed.splitlines()) if cells}
    assert rows["a"] == ["83.33", "2"] * 2
    assert rows["b"] == ["16.67", "1"] * 2
    assert rows["(ignored)"] == ["25.00", "1"] * 2


def test_a_missing_folder_is_one_sentence_and_status_2(roots, check):
    status, _, errors = check(*roots[2], "--source.root", "/nowhere")
    assert status == 2
    assert errors == "error: /nowhere: no such folder; it should be the root of a data set\n"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 0, "usage: python -m seg.data check"),
        (["--help"], 0, "usage: python -m seg.data check"),
        (["chek"], 2, "expected check first, found 'chek'; did you mean 'check'?"),
    ],
)
def test_the_command_says_what_it_takes(arguments, status, text, seg_data):
    ended, *printed = seg_data(*arguments)
    assert ended == status
    assert text in "".join(printed)


def folders(root, *, ids=(0, 255), count=5, suffix=""):
    """Images beside masks in two shades, in layout ``folders``."""
    generator = np.random.default_rng(0)
    for number in range(count):
        for kind, name in (("images", f"{number}.png"), ("labels", f"{number}{suffix}.png")):
            (root / kind).mkdir(parents=True, exist_ok=True)
            shape = (40, 60, 3) if kind == "images" else (40, 60)
            pixels = generator.integers(0, 256, shape) if kind == "images" else generator.choice(ids, shape)
            Image.fromarray(pixels.astype(np.uint8)).save(root / kind / name)
    return ["--source.root", str(root), "--target.root", str(root)] + [
        f"--{domain}.layout=folders" for domain in ("source", "target")
    ]


def test_masks_in_black_and_white_are_told_how_to_be_read(check, tmp_path):
    """What is printed, saved as a file, reads them."""
    flags = folders(tmp_path / "data", ids=(0, 128, 255), suffix="_mask")
    status, printed, _ = check(*flags, "--classes", "background,crop,weed")
    assert status == 1
    assert "the labels hold the ids 0, 128, 255; this file reads them, if your names are in this order" in printed
    file = tmp_path / "classes.yaml"
    file.write_text(printed[printed.index("classes:\n") :].partition("\n\n")[0].partition("\n ")[0])
    assert "{name: weed, id: 255}" in file.read_text()
    status, printed, _ = check(*flags, "--classes", str(file))
    assert (status, "nothing wrong" in printed) == (0, True)


@pytest.mark.parametrize(
    ("ids", "rows", "warned"),
    [
        ((0, 255), "[no one, 'yes']", True),
        ((0, 255), "[no one, 'yes']\nignored: [255]", False),
        ((0, 1, 255), "[a, b]", False),
    ],
)
def test_an_ignored_255_beside_a_class_without_pixels_is_a_warning(check, tmp_path, ids, rows, warned):
    (tmp_path / "classes.yaml").write_text(f"classes: {rows}")
    status, printed, _ = check(*folders(tmp_path / "data", ids=ids), "--classes", str(tmp_path / "classes.yaml"))
    assert list(lines(printed, "error")) == []
    found = [line for line in lines(printed, "warning") if "source train" in line]
    assert (len(found), status) == ((1, 1) if warned else (0, 0))
    assert all("255 is in" in line and "give that class a row with id: 255" in line for line in found)
    assert ("id: 255}" in printed) == warned


def test_one_problem_of_many_files_is_one_line(check, tmp_path):
    flags = folders(tmp_path / "data", ids=(0, 7), count=6)
    (tmp_path / "data" / "labels" / "0.png").unlink()
    _, printed, _ = check(*flags, "--classes", "a,b")
    found = [line for line in lines(printed, "error") if "source train" in line]
    assert len(found) == 2
    assert found[0].startswith(f"error: source train: {tmp_path / 'data' / 'images' / '0.png'}: its label ")
    assert found[1].startswith("error: source train: 5 files, such as ")
    assert found[1].endswith("1.png: label id 7 is not in the table, which has 0 to 1 and 255")


def test_a_layout_that_would_fit_is_named(check, tmp_path):
    folders(tmp_path / "data")
    (tmp_path / "data" / "images" / "train").mkdir()
    for file in (tmp_path / "data" / "images").glob("*.png"):
        file.rename(tmp_path / "data" / "images" / "train" / file.name)
    root = str(tmp_path / "data")
    status, _, errors = check("--source.root", root, "--target.root", root, "--source.layout", "gta5")
    assert status == 2
    assert "it looks like layout folders: give --source.layout or --target.layout" in errors
