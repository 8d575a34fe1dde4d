"""The demo pair: deterministic streets, real layouts, class frequencies, atomic writing, drawing by all cores."""

import numpy as np
import pytest
from PIL import Image
from support import contents

from seg.data.labels import CITYSCAPES_CLASSES, CITYSCAPES_IDS, IGNORE_INDEX, LABELS, id_tables
from seg.data.street import demo_pair as demo
from seg.data.street.figures import SOURCE_LOOK, target_look
from seg.data.street.world import draw_street

SMALL = {"size": (64, 32), "source_train": 3, "target_train": 2, "target_val": 2}


def test_class_frequencies_are_those_of_a_street():
    """Over 24 scenes at the demo's size."""
    table, _ = id_tables(CITYSCAPES_CLASSES, CITYSCAPES_IDS)
    looks = (SOURCE_LOOK, target_look())
    labels = np.stack(
        [draw_street(look, "train", index)[1] for index in range(12) for look in looks]
    )
    counts = np.bincount(table[labels].ravel(), minlength=256)
    share = dict(zip(CITYSCAPES_CLASSES.names, 100 * counts[:19] / counts[:19].sum(), strict=True))
    assert counts[IGNORE_INDEX] > 0
    assert min(share.values()) > 0, share
    assert 28 <= share["road"] <= 42, share
    assert 0.4 <= share["bicycle"] <= 2, share
    assert share["train"] < 1, share
    assert share["building"] > 5 * share["pole"], share


def test_layouts_and_modes(tmp_path):
    pair = demo.write_demo_pair(tmp_path / "pair", **SMALL)
    assert sorted(path.name for path in (pair / "gta5" / "images").iterdir()) == [
        f"0000{i}.png" for i in (1, 2, 3)
    ]
    label = Image.open(pair / "gta5" / "labels/00002.png")
    assert label.mode == "P"
    np.testing.assert_array_equal(
        np.asarray(label), draw_street(SOURCE_LOOK, "train", 1, size=(64, 32))[1]
    )
    assert label.convert("RGB").getpixel((32, 28)) == LABELS[np.asarray(label)[28, 32]].color
    for split, index in (("train", 0), ("train", 1), ("val", 0), ("val", 1)):
        stem = f"{split}/{demo.CITY}/{demo.CITY}_{index:06d}_000019"
        image = Image.open(pair / "cityscapes" / f"leftImg8bit/{stem}_leftImg8bit.png")
        label = Image.open(pair / "cityscapes" / f"gtFine/{stem}_gtFine_labelIds.png")
        assert (image.mode, label.mode, image.size, label.size) == ("RGB", "L", (64, 32), (64, 32))
        drawn = draw_street(target_look(), split, index, size=(64, 32))
        np.testing.assert_array_equal(np.asarray(image), drawn[0])
        np.testing.assert_array_equal(np.asarray(label), drawn[1])
    assert len(contents(tmp_path / "pair")) == 2 * (3 + 2 + 2)


def test_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(look, split, *arguments, **options):
        if split == "val":
            raise KeyboardInterrupt
        return draw_street(look, split, *arguments, **options)

    monkeypatch.setattr(demo, "draw_street", interrupt)
    with pytest.raises(KeyboardInterrupt):
        demo.write_demo_pair(tmp_path / "pair", **SMALL)
    assert [file.name for file in tmp_path.iterdir()] == [".pair.lock"]


def test_a_pair_is_drawn_once(tmp_path, capsys):
    root = demo.write_demo_pair(tmp_path / "pair", **SMALL)
    before = contents(root)
    assert "drawing the demo pair, 7 images" in capsys.readouterr().out
    demo.write_demo_pair(root, **SMALL)
    assert contents(root) == before
    assert not capsys.readouterr().out
    assert [file for file in tmp_path.iterdir() if file.suffix != ".lock"] == [root]


def test_worlds_of_other_seeds_and_gaps_look_different():
    alike, camera = target_look(0, 0.0), target_look()
    assert (alike.numbers, alike.paints) == (SOURCE_LOOK.numbers, SOURCE_LOOK.paints)
    contrast = 2 * camera.numbers["contrast"] - SOURCE_LOOK.numbers["contrast"]
    assert target_look(0, 2.0).numbers["contrast"] == pytest.approx(contrast)
    looks = [target_look(seed) for seed in range(1, 5)]
    assert len({look.numbers["contrast"] for look in looks}) == len(looks)
    start, end = (look.numbers["camera height"] for look in (SOURCE_LOOK, camera))
    assert all(
        0.5 <= (look.numbers["camera height"] - start) / (end - start) <= 1.5 for look in looks
    )
    assert [target_look(seed) for seed in range(1, 5)] == looks
