from __future__ import annotations

import collections
import errno
import os
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dem_apps.errors import InputError
from seg.config import SourceConfig, TargetDataConfig
from seg.data.build_cache import fill_cache
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.labels import CITYSCAPES_CLASSES, load_classes

SIZE = (64, 32)
SYNTHIA_16 = load_classes(str(Path(__file__).parents[3] / "configs/seg/classes/synthia16.yaml"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DEM_APPS_CACHE", str(folder))
    return folder


@pytest.fixture
def root(tiny_pair, tmp_path):
    """A private copy of the source domain that a test may damage."""
    return shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")


def opened(root, size=SIZE, classes=CITYSCAPES_CLASSES):
    return SegmentationDataset(root, "gta5", "train", labelled=True, size=size, classes=classes)


def fill(dataset):
    fill_cache({"source train": dataset})


def copies(dataset):
    return sorted(file for file in dataset.copies.folder.rglob("*") if file.is_file())


def assert_same(dataset, expected):
    for index, sample in enumerate(expected):
        assert dataset[index].name == sample.name
        for mine, its in ((dataset[index].image, sample.image), (dataset[index].label, sample.label)):
            assert mine.dtype == its.dtype == np.uint8
            np.testing.assert_array_equal(mine, its)


@pytest.fixture
def no_decoding(monkeypatch):
    """From here on decoding an original fails, so that whatever is read comes from a copy."""

    def forbid():
        def refuse(*_):
            raise AssertionError("an original was decoded")

        monkeypatch.setattr("seg.data.datasets.read_pixels", refuse)
        monkeypatch.setattr("seg.data.image_io.opened_image", refuse)

    return forbid


@pytest.mark.parametrize("size", [SIZE, (96, 48), None])
def test_copies_are_used_and_give_the_same_sample(root, size, no_decoding):
    dataset = opened(root, size)
    expected = list(dataset)
    fill(dataset)
    no_decoding()
    assert_same(opened(root, size), expected)


def test_real_sizes_give_the_same_sample(tmp_path, no_decoding):
    noise = np.random.default_rng(0).integers(0, 256, (263, 479, 3), dtype=np.uint8)
    for folder, picture in (("images", Image.fromarray(noise)), ("labels", Image.fromarray(noise[..., 0] % 34))):
        (tmp_path / folder).mkdir()
        picture.resize((1914, 1052), Image.Resampling.NEAREST).save(tmp_path / folder / "00001.png", compress_level=1)
    dataset = opened(tmp_path, (1280, 720))
    expected = [dataset[0]]
    fill(dataset)
    no_decoding()
    assert_same(opened(tmp_path, (1280, 720)), expected)


def test_copies_serve_every_class_set(root, no_decoding):
    expected = list(opened(root, classes=SYNTHIA_16))
    fill(opened(root))
    no_decoding()
    assert_same(opened(root, classes=SYNTHIA_16), expected)


def test_an_image_and_a_folder_with_the_longest_names_are_copied(root):
    for folder in ("images", "labels"):
        (root / folder / "00001.png").rename(root / folder / f"{'n' * 251}.png")
    long = root.rename(root.with_name("r" * 255))
    fill(opened(long))
    assert len(copies(opened(long))) == 2 * len(opened(long))


def test_copies_of_another_size_are_not_used(root):
    fill(opened(root, (32, 16)))
    assert opened(root)[0].image.shape == (32, 64, 3)
    assert not copies(opened(root))


def test_a_changed_original_wins_over_its_copy(root):
    fill(opened(root))
    for folder, pixels in (("images", np.full((48, 96, 3), 7)), ("labels", np.full((48, 96), 7))):
        Image.fromarray(pixels.astype(np.uint8)).save(root / folder / "00001.png")
    dataset = opened(root)
    with pytest.warns(UserWarning, match=r"00001.png.raw: this copy is damaged or older than its original") as caught:
        sample = dataset[0]
    assert len(caught) == 1
    assert (sample.image == 7).all()
    assert (sample.label == CITYSCAPES_CLASSES.names.index("road")).all()
    fill(dataset)
    assert_same(opened(root), [sample])


DAMAGE = {
    "one bit": lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
    "one bit of the header": lambda content: content[:30] + bytes([content[30] ^ 1]) + content[31:],
    "cut": lambda content: content[: len(content) // 2],
    "cut in the header": lambda content: content[:10],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("folder", ["images", "labels"])
def test_a_damaged_copy_is_never_used_and_made_anew(root, damage, folder, recwarn):
    expected = list(opened(root))
    dataset = opened(root)
    fill(dataset)
    copy = dataset.copies.path(root / folder / "00002.png")
    intact = copy.read_bytes()
    copy.write_bytes(damage(intact))
    assert_same(opened(root), expected)
    assert [str(warning.message).split(":")[0] for warning in recwarn] == [str(copy)]
    fill(opened(root))
    assert copy.read_bytes() == intact


def test_an_interrupted_call_leaves_whole_copies_and_is_continued(root, monkeypatch):
    replaced, replace = [], os.replace

    def interrupted(source, target):
        if len(replaced) == 5:
            raise KeyboardInterrupt
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    dataset = opened(root)
    with pytest.raises(KeyboardInterrupt):
        fill(dataset)
    monkeypatch.undo()
    monkeypatch.setenv("DEM_APPS_CACHE", str(dataset.copies.folder.parents[2]))
    assert copies(dataset) == sorted(replaced)
    before = {file: file.stat().st_mtime_ns for file in replaced}
    fill(dataset)
    assert len(copies(dataset)) == 12
    assert {file: file.stat().st_mtime_ns for file in replaced} == before


def test_a_disk_that_is_too_small_is_one_sentence_before_anything_is_written(root, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 50_000))
    dataset = opened(root)
    with pytest.raises(InputError, match=r"the copies take 0.10 MB more and 0.05 MB are free; free some space or name"):
        fill(dataset)
    assert not copies(dataset)


def test_a_disk_that_fills_up_is_one_sentence_and_leaves_no_halves(root, monkeypatch):
    write_bytes, written = Path.write_bytes, []

    def full(self, content):
        if len(written) == 3:
            write_bytes(self, content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(self)
        return write_bytes(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    dataset = opened(root)
    with pytest.raises(InputError, match=r"no space left on the disk while writing"):
        fill(dataset)
    assert len(copies(dataset)) == 3
    assert all(file.suffix == ".raw" for file in copies(dataset))


def test_the_command_copies_what_training_reads(tiny_pair, tmp_path, monkeypatch, capsys, no_decoding):
    source = shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")
    target = shutil.copytree(tiny_pair.target_root, tmp_path / "cityscapes")
    for label in (target / "gtFine" / "train").rglob("*.png"):
        label.write_bytes(b"not an image")
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"source: {{root: {source}, layout: gta5, size: [64, 32]}}\ntarget: {{root: {target}, size: [48, 24]}}\n"
    )
    monkeypatch.setattr(sys, "argv", ["seg.data", "cache", "--config", str(config), "--workers", "1"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    runpy.run_module("seg.data", run_name="__main__")
    printed = capsys.readouterr().out
    assert "source train: 6 images in " in printed
    assert "target val: 4 images in " in printed
    pair = open_pair(
        SourceConfig(root=str(source), layout="gta5", size=[64, 32]), TargetDataConfig(root=str(target), size=[48, 24])
    )
    assert len(copies(pair.source_train)) == 12
    # images alone: training labels are not opened, and scores want validation labels at their own size
    assert len(copies(pair.target_train)) == 9
    assert pair.target_val[0].label.shape == (48, 96)
    no_decoding()
    assert pair.source_train[0].label.shape == (32, 64)
    assert pair.target_train[0].image.shape == (24, 48, 3)
