from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from dem_apps.errors import InputError
from seg.data.datasets import SegmentationDataset
from seg.data.stream import MEAN, STD, batches, build_augmentation, normalised

FLIP = [{"HorizontalFlip": {"p": 0.5}}, {"RandomBrightnessContrast": {"p": 1.0}}]


@pytest.fixture(scope="module")
def dataset(tiny_pair):
    return SegmentationDataset(tiny_pair.source_root, "gta5", "train", labelled=True)


def read(dataset, steps, seed=(3, 0), workers=0):
    return list(batches(dataset, 2, steps, seed, FLIP, workers))


def test_a_stream_continues_anywhere_with_the_same_samples(dataset):
    whole = read(dataset, range(0, 6))
    for resumed, expected in zip(read(dataset, range(4, 6)), whole[4:], strict=True):
        assert resumed["name"] == expected["name"]
        assert torch.equal(resumed["image"], expected["image"])
        assert torch.equal(resumed["label"], expected["label"])


def test_workers_do_not_change_the_samples(dataset):
    for one, other in zip(read(dataset, range(3)), read(dataset, range(3), workers=2), strict=True):
        assert torch.equal(one["image"], other["image"])


def test_every_sample_comes_once_per_pass_in_a_new_order(dataset):
    names = [name for batch in read(dataset, range(6)) for name in batch["name"]]
    first, second = names[:6], names[6:]
    assert sorted(first) == sorted(second) == sorted(set(names))
    assert first != second
    other_seed = [name for batch in read(dataset, range(3), seed=(4, 0)) for name in batch["name"]]
    assert other_seed != first


def test_augmentation_moves_image_and_label_together(dataset):
    plain = {batch["name"][0]: batch for batch in batches(dataset, 1, range(6), (0, 0), [])}
    flipped = {
        batch["name"][0]: batch for batch in batches(dataset, 1, range(6), (0, 0), [{"HorizontalFlip": {"p": 1}}])
    }
    for name, batch in plain.items():
        assert torch.equal(flipped[name]["image"], batch["image"].flip(-1))
        assert torch.equal(flipped[name]["label"], batch["label"].flip(-1))


def test_images_are_normalised():
    image = np.zeros((4, 5, 3), np.uint8)
    image[..., 1] = 255
    tensor = normalised(image)
    assert tensor.shape == (3, 4, 5)
    assert tensor.dtype == torch.float32
    expected = (np.array([0.0, 1.0, 0.0], np.float32) - MEAN) / STD
    np.testing.assert_allclose(tensor[:, 0, 0].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_one_sentence(tiny_pair, tmp_path, workers):
    root = shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")
    (root / "images" / "00004.png").write_bytes(b"")
    damaged = SegmentationDataset(root, "gta5", "train", labelled=True)
    with pytest.raises(InputError, match=r"^/.*/images/00004.png: the image cannot be read[^\n]*$"):
        read(damaged, range(3), workers=workers)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"HorizontalFlp": {}}], "did you mean 'HorizontalFlip'"),
        ([{"HorizontalFlip": {"q": 1}}], "augmentation 'HorizontalFlip'"),
        (["HorizontalFlip"], "expected one 'Name"),
    ],
)
def test_a_wrong_augmentation_is_named(steps, message):
    with pytest.raises(InputError, match=message):
        build_augmentation(steps)
