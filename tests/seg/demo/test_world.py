"""The demo pair: deterministic streets, real layouts, honest frequencies, atomic writing."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seg.data.labels import (
    CITYSCAPES_CLASSES,
    CITYSCAPES_IDS,
    IGNORE_INDEX,
    LABEL_ID_PALETTE,
    LABELS,
    id_tables,
)
from seg.demo import demo_pair as demo
from seg.demo.street.looks import CAMERA_STREET, GAME_STREET, Domain, target_look
from seg.demo.street.world import draw_street

_UNKNOWN = 254
SMALL: dict[str, Any] = {"size": (64, 32), "source_train": 3, "target_train": 2, "target_val": 2}


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def histograms() -> dict[str, np.ndarray]:
    """Pixels per train id, (256,), over 72 scenes of each domain at the demo's size."""
    table, known = id_tables(CITYSCAPES_CLASSES, CITYSCAPES_IDS)
    found = {}
    for name, domain in (("source", GAME_STREET), ("target", CAMERA_STREET)):
        counts = np.zeros(256, np.int64)
        for index in range(72):
            _, labels = draw_street(domain, "train", index)
            counts += np.bincount(np.where(known[labels], table[labels], _UNKNOWN).ravel(), minlength=256)
        found[name] = counts
    return found


def test_label_tables() -> None:
    table, known = id_tables(CITYSCAPES_CLASSES, CITYSCAPES_IDS)
    assert table.dtype == np.uint8
    assert [table[label.id] for label in LABELS] == [label.train_id for label in LABELS]
    assert table[255] == IGNORE_INDEX
    assert known.nonzero()[0].tolist() == [*range(34), 255]
    names, colors = CITYSCAPES_CLASSES.names, CITYSCAPES_CLASSES.colors
    assert (names[0], names[18]) == ("road", "bicycle")
    assert len(names) == len(colors) == len(set(names)) == 19
    to_ids = CITYSCAPES_CLASSES.to_ids()
    assert table[to_ids[:19]].tolist() == list(range(19))
    assert to_ids[IGNORE_INDEX] == 0
    assert len(LABEL_ID_PALETTE) == 768
    assert LABEL_ID_PALETTE[21:24] == (128, 64, 128)


@pytest.mark.parametrize("domain", [GAME_STREET, CAMERA_STREET], ids=["source", "target"])
def test_same_arguments_give_the_same_street(domain: Domain) -> None:
    image, labels = draw_street(domain, "train", 5, seed=3)
    again, labels_again = draw_street(domain, "train", 5, seed=3)
    assert image.shape == (96, 192, 3)
    assert labels.shape == (96, 192)
    assert image.dtype == labels.dtype == np.uint8
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(labels, labels_again)
    for other in (("train", 5, 4), ("train", 6, 3), ("val", 5, 3)):
        split, index, seed = other
        assert (draw_street(domain, split, index, seed=seed)[0] != image).any(), other


def test_class_frequencies_are_those_of_a_street(histograms: dict[str, np.ndarray]) -> None:
    for name, counts in histograms.items():
        share = dict(zip(CITYSCAPES_CLASSES.names, 100 * counts[:19] / counts[:19].sum(), strict=True))
        assert counts[IGNORE_INDEX] > 0, name
        assert min(share.values()) > 0, (name, share)
        assert 28 <= share["road"] <= 42, (name, share)
        assert 0.4 <= share["bicycle"] <= 2, (name, share)
        assert share["train"] < 0.5, (name, share)
        assert share["building"] > 5 * share["pole"], (name, share)


def test_layouts_and_modes(tmp_path: Path) -> None:
    pair = demo.write_demo_pair(tmp_path / "pair", **SMALL)
    assert (pair.source_root, pair.target_root) == (tmp_path / "pair/gta5", tmp_path / "pair/cityscapes")
    assert sorted(path.name for path in (pair.source_root / "images").iterdir()) == [
        "00001.png",
        "00002.png",
        "00003.png",
    ]
    label = Image.open(pair.source_root / "labels/00002.png")
    assert label.mode == "P"
    np.testing.assert_array_equal(np.asarray(label), draw_street(GAME_STREET, "train", 1, size=(64, 32))[1])
    assert label.convert("RGB").getpixel((32, 28)) == LABELS[np.asarray(label)[28, 32]].color
    for split in ("train", "val"):
        for index in range(2):
            stem = f"{split}/{demo.CITY}/{demo.CITY}_{index:06d}_000019"
            image = Image.open(pair.target_root / f"leftImg8bit/{stem}_leftImg8bit.png")
            label = Image.open(pair.target_root / f"gtFine/{stem}_gtFine_labelIds.png")
            assert (image.mode, label.mode, image.size, label.size) == ("RGB", "L", (64, 32), (64, 32))
            drawn = draw_street(CAMERA_STREET, split, index, size=(64, 32))
            np.testing.assert_array_equal(np.asarray(image), drawn[0])
            np.testing.assert_array_equal(np.asarray(label), drawn[1])
    assert len(_files(tmp_path / "pair")) == 2 * (3 + 2 + 2) + 1


@pytest.mark.parametrize("domain", [GAME_STREET, CAMERA_STREET], ids=["source", "target"])
def test_a_finer_street_is_the_same_street(domain: Domain) -> None:
    image, labels = draw_street(domain, "val", 7, seed=2)
    finer, finer_labels = draw_street(domain, "val", 7, seed=2, finer=4)
    assert (finer.shape, finer_labels.shape) == ((384, 768, 3), (384, 768))
    assert (finer_labels[2::4, 2::4] == labels).mean() > 0.95  # but for edges: another street has under 0.8
    reduced = finer.reshape(96, 4, 192, 4, 3).mean((1, 3))
    assert np.abs(reduced - image).mean() < 8
    other, other_labels = draw_street(domain, "val", 8, seed=2)
    assert (other_labels == labels).mean() < 0.8
    assert np.abs(reduced - other).mean() > 16


def test_a_validation_picture_is_drawn_finer_by_its_name(tmp_path: Path) -> None:
    pair = demo.write_demo_pair(tmp_path / "pair", seed=3, gap=1.5, source_train=1, target_train=1, target_val=2)
    (file,) = (pair.target_root / "leftImg8bit" / "val").glob("*/*_000001_*")
    (label,) = (pair.target_root / "gtFine" / "val").glob("*/*_000001_*")
    image, labels = demo.finer_picture(file, seed=3, gap=1.5)
    assert (labels[2::4, 2::4] == np.asarray(Image.open(label))).mean() > 0.95
    assert np.abs(image.reshape(96, 4, 192, 4, 3).mean((1, 3)) - np.asarray(Image.open(file))).mean() < 8


def test_interrupted_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path, job: Any, *arguments: Any) -> None:
        genuine(folder, job, *arguments)
        if job.split == "val":
            raise KeyboardInterrupt

    genuine = demo._write
    monkeypatch.setattr(demo, "_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        demo.write_demo_pair(tmp_path / "pair", **SMALL)
    assert [file.name for file in tmp_path.iterdir()] == [".pair.lock"]


def test_ensure_writes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    genuine = demo._write
    monkeypatch.setattr(demo, "_write", lambda *arguments: (seen.append(arguments[1]), genuine(*arguments)))
    pair = demo.ensure_demo_pair(tmp_path, **SMALL)
    assert len(seen) == len(set(seen)) == 7
    assert demo.ensure_demo_pair(tmp_path, **SMALL) == pair
    assert len(seen) == 7
    other = demo.ensure_demo_pair(tmp_path, seed=1, **SMALL)
    assert other != pair
    assert len(seen) == 14


def test_ensure_draws_a_pair_of_another_world_anew(tmp_path: Path) -> None:
    root = demo.ensure_demo_pair(tmp_path, **SMALL).source_root.parent
    good = _files(root)
    manifest = json.loads((root / demo.MANIFEST).read_text())
    (root / demo.MANIFEST).write_text(json.dumps({**manifest, "world_version": -1}))
    (root / "gta5/images/00001.png").write_bytes(b"old")
    demo.ensure_demo_pair(tmp_path, **SMALL)
    assert _files(root) == good
    assert [file for file in tmp_path.iterdir() if file.suffix != ".lock"] == [root]


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no demo pair"):
        demo.write_demo_pair(tmp_path, **SMALL)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="counts at least 1"):
        demo.write_demo_pair(tmp_path / "pair", source_train=0)


def test_worlds_of_other_seeds_and_gaps_look_different() -> None:
    assert target_look() is CAMERA_STREET
    alike = target_look(0, 0.0)
    assert dataclasses.replace(alike, code=0, frame_border=False, jpeg_quality=None) == GAME_STREET
    beyond = target_look(0, 2.0)
    assert beyond.contrast == pytest.approx(2 * CAMERA_STREET.contrast - GAME_STREET.contrast)
    assert beyond.palette.sky_top == pytest.approx((168, 194, 216))
    looks = [target_look(seed) for seed in range(1, 5)]
    assert len({look.contrast for look in looks}) == len(looks)
    for look in looks:  # each number between half and one and a half of the way
        share = (look.camera_height - GAME_STREET.camera_height) / (
            CAMERA_STREET.camera_height - GAME_STREET.camera_height
        )
        assert 0.5 <= share <= 1.5
        assert target_look(looks.index(look) + 1) == look
    with pytest.raises(ValueError, match="gap must be from 0 to 2"):
        target_look(0, 2.5)


@pytest.mark.parametrize("damage", ["missing label", "missing image", "empty"])
def test_a_pair_with_a_picture_missing_is_drawn_anew(damage: str, tmp_path: Path) -> None:
    """It would train on fewer images without a word."""
    root = demo.ensure_demo_pair(tmp_path, **SMALL).source_root.parent
    before = {file.relative_to(root): file.read_bytes() for file in root.rglob("*.png")}
    file = next(file for file in sorted(root.rglob("*.png")) if ("labels" in file.parts) == (damage == "missing label"))
    file.unlink()
    if damage == "empty":
        file.touch()
    demo.ensure_demo_pair(tmp_path, **SMALL)
    assert {file.relative_to(root): file.read_bytes() for file in root.rglob("*.png")} == before
