from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir
from seg.data.class_pixels import class_pixels
from seg.data.datasets import SegmentationDataset
from seg.data.labels import IGNORE_INDEX, ClassSet

TWO = (("sky", 23), ("building", 11))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tiny_pair, tmp_path):
    return shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")


@pytest.fixture
def reads(monkeypatch):
    """Label files in the order in which they were read."""
    read: list[int] = []
    label = SegmentationDataset.label

    def counted(dataset, index):
        read.append(index)
        return label(dataset, index)

    monkeypatch.setattr(SegmentationDataset, "label", counted)
    return read


def opened(root, size=None, **options):
    return SegmentationDataset(root, "gta5", "train", labelled=True, size=size, **options)


def expected(dataset):
    labels = [dataset[index].label for index in range(len(dataset))]
    ids = [*range(len(dataset.classes)), IGNORE_INDEX]
    return np.array([[(label == train_id).sum() for train_id in ids] for label in labels])


@pytest.mark.parametrize("size", [None, (48, 24)])
@pytest.mark.parametrize("workers", [0, 1])
def test_pixels_are_those_of_the_labels_that_training_reads(root, size, workers):
    dataset = opened(root, size)
    pixels = class_pixels(dataset, workers)
    np.testing.assert_array_equal(pixels, expected(dataset))
    width, height = size or (96, 48)
    assert (pixels.sum(1) == width * height).all()


def test_labels_are_counted_once(root, reads):
    first = class_pixels(opened(root))
    assert reads == list(range(6))
    np.testing.assert_array_equal(class_pixels(opened(root)), first)
    assert len(reads) == 6


def test_what_has_changed_is_counted_anew(root, reads, tmp_path):
    class_pixels(opened(root))
    two, other = (ClassSet(("road", name), ((0, 0, 0), (1, 1, 1)), (7, label)) for name, label in TWO)
    changes = [{"size": (48, 24)}, {"classes": two}, {"classes": other}, {"exclude": ["00002"]}]
    for changed in (opened(root, **change) for change in changes):
        del reads[:]
        np.testing.assert_array_equal(class_pixels(changed), expected(changed))
        assert len(reads) == len(changed)
    label = root / "labels" / "00003.png"
    made = label.stat().st_mtime_ns
    os.utime(label, ns=(made + 10**9, made + 10**9))
    del reads[:]
    class_pixels(opened(root))
    assert len(reads) == 6
    Image.fromarray(np.full((48, 96), 7, np.uint8)).save(label)
    os.utime(label, ns=(made + 10**9, made + 10**9))
    assert class_pixels(opened(root))[2, 0] == 96 * 48


def test_a_damaged_file_of_counts_is_not_used(root):
    dataset = opened(root)
    pixels = class_pixels(dataset)
    (file,) = (cache_dir() / "class_pixels").iterdir()
    whole = file.read_bytes()
    for content in (b"", b"not counts", whole[: len(whole) // 2], whole[:60] + b"\xff" * 40 + whole[100:]):
        file.write_bytes(content)
        np.testing.assert_array_equal(class_pixels(dataset), pixels)
        assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_a_warning(root, cache):
    cache.write_text("no folder")
    with pytest.warns(UserWarning, match="cannot be written .* so the next start counts again"):
        pixels = class_pixels(opened(root))
    np.testing.assert_array_equal(pixels, expected(opened(root)))


def test_a_label_that_cannot_be_read_is_named(root):
    (root / "labels" / "00002.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"00002.png: the image cannot be read"):
        class_pixels(opened(root))


def test_only_labelled_samples_have_a_label(root):
    dataset = SegmentationDataset(root, "gta5", "train", labelled=False)
    with pytest.raises(ValueError, match=r"00001.png is read without its label"):
        dataset.label(0)
