"""Rare classes and the labelled part of the target, as a training's streams and the commands of the data have them."""

from itertools import pairwise

import numpy as np
import pytest
from support import noise, refuses, save
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError
from seg.data.data_check import check_pair
from seg.data.domains import open_pair
from seg.data.loader import batches
from seg.data.samplers import labelled_sampler
from seg.data.settings import SourceConfig, TargetDataConfig

SEED = (3, 0)


def opened(tiny_pair, target, part=0.4, use="beside", **options):
    source = SourceConfig(root=str(tiny_pair / "gta5"), layout="gta5")
    return open_pair(
        source, TargetDataConfig(root=str(target), labelled_part=part, labelled_use=use, **options)
    )


def drawn_names(pair):
    """The names of 24 samples of the labelled stream."""
    sampler, data = labelled_sampler(pair.labelled, SEED, None), ConcatDataset(pair.labelled)
    stream = batches(data, 4, range(6), SEED, [], sampler=sampler)
    return [name for batch in stream for name in batch["name"]]


def names(dataset):
    return [dataset.name(index) for index in range(len(dataset))]


def labels_of_others(pair):
    """Training labels of the target that the labelled part does not name."""
    own = {label for _, label in pair.target_labelled.files}
    return sorted(set((pair.target_train.root / "gtFine" / "train").rglob("*labelIds.png")) - own)


def test_a_small_part_lies_in_a_larger(tiny_pair, target):
    pairs = {part: opened(tiny_pair, target, part) for part in (0.2, 0.4, 0.8, 1.0)}
    chosen = [set(names(pair.target_labelled)) for pair in pairs.values()]
    assert [len(part) for part in chosen] == [1, 2, 4, 5]
    assert all(small < large for small, large in pairwise(chosen))
    for pair in pairs.values():
        # all of them stay in the unlabelled stream
        assert names(pair.target_train) == sorted(chosen[-1])
        assert all(label is None for _, label in pair.target_train.files)
    assert opened(tiny_pair, target, None).target_labelled is None


def test_only_the_named_labels_are_opened(tiny_pair, target):
    pair = opened(tiny_pair, target)
    others = labels_of_others(pair)
    assert len(others) == 3
    others[0].unlink()
    for label in others[1:]:
        label.write_bytes(b"not an image")
    pair = opened(tiny_pair, target)
    assert len(drawn_names(pair)) == 24
    for index, (_, label) in enumerate(pair.target_labelled.files):
        np.testing.assert_array_equal(
            pair.target_labelled.label(index), pair.target_labelled[index].label
        )
        label.unlink()
    refuses(
        r"--target.labelled-part: .*its label .* is missing \(2 of 2 have none\)",
        opened,
        tiny_pair,
        target,
    )


def test_the_target_may_stand_instead_of_a_source(target, tiny_pair, monkeypatch):
    part = TargetDataConfig(root=str(target), labelled_part=0.4, labelled_use="instead")
    pair = open_pair(SourceConfig(layout="gta5"), part)
    assert pair.source_train is None
    assert pair.labelled == [pair.target_labelled]
    assert set(drawn_names(pair)) == set(names(pair.target_labelled))
    # a source that is named all the same, as by a settings file, is not opened
    pair = open_pair(SourceConfig(root="/nowhere", layout="gta5"), part)
    assert len(pair.target_labelled) == 2
    monkeypatch.setattr("seg.data.domains._demo_pair", lambda *_: tiny_pair)
    pair = open_pair(
        SourceConfig(layout="gta5"), TargetDataConfig(labelled_part=0.4, labelled_use="instead")
    )
    assert pair.target_labelled.root == tiny_pair / "cityscapes"


def test_no_image_is_trained_with_labels_and_scored(tmp_path):
    for index in range(10):
        save(tmp_path / "images" / f"{index}.png", noise(index, 8, 6))
        save(tmp_path / "labels" / f"{index}.png", np.full((6, 8), index % 2, np.uint8))
    source = SourceConfig(root=str(tmp_path), layout="folders")
    target = TargetDataConfig(root=str(tmp_path), layout="folders", labelled_part=0.3)
    refuses(
        r"3 of the 3 images with labels would be .* --validation-part 0.3,1 ",
        open_pair,
        source,
        target,
        "a,b",
    )
    pair = open_pair(source, target, "a,b", (0.3, 1))
    assert len(pair.target_val) == 7
    assert set(names(pair.target_labelled)) | set(names(pair.target_val)) == set(
        names(pair.target_train)
    )
    with pytest.raises(
        InputError,
        match=r"--target.labelled-part: .*: the part 0 to 0.01 of 10 images is none at all",
    ):
        open_pair(
            source,
            TargetDataConfig(root=str(tmp_path), layout="folders", labelled_part=0.01),
            "a,b",
        )


@pytest.mark.parametrize(("use", "images"), [("beside", 15), ("instead", 9)])
def test_the_check_covers_the_labelled_part(tiny_pair, target, use, images, capsys):
    for other in labels_of_others(opened(tiny_pair, target)):
        other.write_bytes(b"not an image")
    pair = opened(tiny_pair, target, use=use)
    assert check_pair(pair) == 0
    assert f"{images} images checked, nothing wrong" in capsys.readouterr().out
    label = pair.target_labelled.files[0][1]
    label.write_bytes(b"not an image")
    assert check_pair(pair) == 1
    error = f"error: labelled target train: {label}: the image cannot be read"
    assert error in capsys.readouterr().out


@pytest.mark.parametrize("whites", [(255, 1), (1, 255)], ids=["source", "target"])
def test_masks_of_0_and_255_and_of_0_and_1_are_the_same_classes(whites, tmp_path):
    drawn = np.repeat([0, 1], (30, 18)).reshape(6, 8).astype(np.uint8)
    for domain, white in zip(("mine", "theirs"), whites, strict=True):
        for name in "abc":
            save(tmp_path / domain / "images" / f"{name}.jpg", noise(0, 8, 6))
            save(tmp_path / domain / "masks" / f"{name}.png", drawn * np.uint8(white))
    source = SourceConfig(root=str(tmp_path / "mine"))
    pair = open_pair(source, TargetDataConfig(root=str(tmp_path / "theirs")), None)
    assert len(pair.classes) == 2
    for split in ("source train", "target val"):
        np.testing.assert_array_equal(pair.splits[split][0].label, drawn)
