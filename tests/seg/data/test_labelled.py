"""Rare classes and the labelled part of the target, as a training's streams and the commands of the data have them."""

from __future__ import annotations

import io
import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError
from seg.config import SourceConfig, TargetDataConfig
from seg.data.check import check_pair
from seg.data.domains import open_pair
from seg.data.loader import batches
from seg.data.sampling import labelled_sampler

FLIP = [{"HorizontalFlip": {"p": 0.5}}]
SEED = (3, 0)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def target(tiny_pair, tmp_path):
    """A private copy of the target, whose labels a test may damage."""
    return shutil.copytree(tiny_pair.target_root, tmp_path / "cityscapes")


def opened(tiny_pair, target, part=0.4, use="beside", **options):
    source = SourceConfig(root=str(tiny_pair.source_root), layout="gta5")
    return open_pair(source, TargetDataConfig(root=str(target), labelled_part=part, labelled_use=use, **options))


def read(pair, steps=range(6), batch_size=4, process=(0, 1), workers=0, temperature=0.01):
    sampler = labelled_sampler(pair.labelled, SEED, temperature)
    data = ConcatDataset(pair.labelled)
    return list(batches(data, batch_size, steps, SEED, FLIP, workers, process, sampler))


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
        assert names(pair.target_train) == sorted(chosen[-1])  # all of them stay in the unlabelled stream
        assert all(label is None for _, label in pair.target_train.files)
        assert len(pair.source_train) == 6
    for nothing in (None, 0, 0.0):
        assert opened(tiny_pair, target, nothing).target_labelled is None


def test_only_the_named_labels_are_opened(tiny_pair, target):
    pair = opened(tiny_pair, target)
    others = labels_of_others(pair)
    assert len(others) == 3
    others[0].unlink()
    for label in others[1:]:
        label.write_bytes(b"not an image")
    pair = opened(tiny_pair, target)
    assert len(read(pair)) == 6
    for index, (_, label) in enumerate(pair.target_labelled.files):
        np.testing.assert_array_equal(pair.target_labelled.label(index), pair.target_labelled[index].label)
        label.unlink()
    with pytest.raises(InputError, match=r"--target.labelled-part: .*its label .* is missing \(2 of 2 have none\)"):
        opened(tiny_pair, target)


def test_even_positions_are_the_sources_and_odd_ones_the_targets(tiny_pair, target):
    pair = opened(tiny_pair, target)
    plain = list(batches(pair.source_train, 2, range(6), SEED, []))
    for batch_size in (1, 4):
        steps = range(24 // batch_size)
        drawn = [name for batch in read(pair, steps, batch_size, temperature=None) for name in batch["name"]]
        assert drawn[::2] == [name for batch in plain for name in batch["name"]]
        assert sorted(drawn[1::2]) == sorted(names(pair.target_labelled) * 6)


def test_rare_classes_are_drawn_from_the_source_alone(tiny_pair, target):
    pair = opened(tiny_pair, target)
    plain = [name for batch in read(pair, temperature=None) for name in batch["name"]]
    drawn = [name for batch in read(pair) for name in batch["name"]]
    assert drawn[1::2] == plain[1::2]
    assert drawn[::2] != plain[::2]
    pixels = np.array([np.bincount(pair.source_train.label(index).ravel(), minlength=256)[:19] for index in range(6)])
    rarest = np.argsort(np.where(pixels.sum(0) > 0, pixels.sum(0), 10**9))[0]
    # at the lowest temperature every image shows the rarest class
    sampler = labelled_sampler([pair.source_train], SEED, 0.0001, enough=0)
    assert all(pixels[sampler.index(position), rarest] for position in range(50))


def test_the_target_may_stand_instead_of_a_source(target, tiny_pair, monkeypatch):
    part = TargetDataConfig(root=str(target), labelled_part=0.4, labelled_use="instead")
    pair = open_pair(SourceConfig(layout="gta5"), part)
    assert pair.source_train is None
    assert pair.labelled == [pair.target_labelled]
    drawn = [name for batch in read(pair) for name in batch["name"]]
    assert set(drawn) == set(names(pair.target_labelled))
    # a source that is named all the same, as by a settings file, is not opened
    pair = open_pair(SourceConfig(root="/nowhere", layout="gta5"), part)
    assert len(pair.target_labelled) == 2
    monkeypatch.setattr("seg.data.domains._demo_pair", lambda *_: tiny_pair)
    pair = open_pair(SourceConfig(layout="gta5"), TargetDataConfig(labelled_part=0.4, labelled_use="instead"))
    assert pair.target_labelled.root == tiny_pair.target_root
    with pytest.raises(InputError, match=r"--source.root is missing: --target.root is given"):
        open_pair(SourceConfig(layout="gta5"), TargetDataConfig(root=str(target), labelled_part=0.4))


def test_no_image_is_trained_with_labels_and_scored(tmp_path):
    classes = tmp_path / "classes.yaml"
    classes.write_text("classes:\n- {name: a, color: [0, 0, 0]}\n- {name: b, color: [1, 1, 1]}\n")
    for folder, shape in (("images", (6, 8, 3)), ("labels", (6, 8))):
        (tmp_path / folder).mkdir()
        for index in range(10):
            Image.fromarray(np.full(shape, index % 2, np.uint8)).save(tmp_path / folder / f"{index}.png")
    source = SourceConfig(root=str(tmp_path), layout="folders")
    target = TargetDataConfig(root=str(tmp_path), layout="folders", labelled_part=0.3)
    with pytest.raises(InputError, match=r"3 of the 3 images with labels would be scored .* --validation-part 0.3,1 "):
        open_pair(source, target, str(classes))
    pair = open_pair(source, target, str(classes), (0.3, 1))
    assert len(pair.target_val) == 7
    assert set(names(pair.target_labelled)) | set(names(pair.target_val)) == set(names(pair.target_train))
    with pytest.raises(InputError, match=r"--target.labelled-part: .*: the part 0 to 0.01 of 10 images is none at all"):
        open_pair(source, TargetDataConfig(root=str(tmp_path), layout="folders", labelled_part=0.01), str(classes))


def checked(pair):
    printed = io.StringIO()
    wrong = check_pair(pair, console=Console(file=printed, soft_wrap=True, markup=False, emoji=False))
    return wrong, printed.getvalue()


@pytest.mark.parametrize(("part", "use"), [(0.4, "beside"), (0.4, "instead")])
def test_the_check_covers_the_labelled_part(tiny_pair, target, part, use):
    for other in labels_of_others(opened(tiny_pair, target, part)):
        other.write_bytes(b"not an image")
    pair = opened(tiny_pair, target, part, use)
    images = 9 if use == "instead" else 15
    wrong, printed = checked(pair)
    assert wrong == 0
    assert f"{images} images checked, nothing wrong" in printed
    image, label = pair.target_labelled.files[0]
    label.write_bytes(b"not an image")
    image.write_bytes(b"")
    wrong, printed = checked(pair)
    assert wrong == 1
    assert f"error: labelled target train: {label}: the image cannot be read" in printed
    assert printed.count(f"{image}: the image cannot be read") == 1


@pytest.mark.slow
def test_a_training_says_how_many_target_images_were_labelled(tiny_pair, target, tiny_flags, run_command, tmp_path):
    for label in labels_of_others(opened(tiny_pair, target)):
        label.write_bytes(b"not an image")
    flags = [*tiny_flags, "--max-steps", "2", "--maps", "0", "--target.root", str(target)]
    flags += ["--target.labelled-part", "0.4", "--source.rare-class-temperature", "0.01"]
    beside = run_command("seg.train", *flags, "--run-dir", str(tmp_path / "beside"))
    assert beside.returncode == 0, beside.stderr
    assert ": 6 source (rare classes first, T = 0.01), 5 target (2 of them with labels), 4 vali" in beside.stdout
    how = json.loads((tmp_path / "beside" / "eval.json").read_text())["protocol"]
    assert how["labelled_images"] == {"source": 6, "target": 2}
    assert (how["labelled_part"], how["labelled_use"], how["rare_class_temperature"]) == (0.4, "beside", 0.01)
    assert how["used_target_labels"] is True
    instead = run_command("seg.train", *flags, "--target.labelled-use", "instead", "--run-dir", str(tmp_path / "alone"))
    assert instead.returncode == 0, instead.stderr
    how = json.loads((tmp_path / "alone" / "eval.json").read_text())["protocol"]
    assert how["labelled_images"] == {"source": 0, "target": 2}
    assert how["batch_norm_statistics"] == "moved by target alone"
    assert (
        f"data     {target}: no source, 5 target (2 of them with labels; rare classes first, T = 0.01), 4"
        in instead.stdout
    )
