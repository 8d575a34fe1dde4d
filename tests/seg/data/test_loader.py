"""The training stream: a function of seed and position alone, and augmentation that keeps labels labels."""

from __future__ import annotations

import warnings

import albumentations
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError
from seg.data.augmentation import build_augmentation
from seg.data.datasets import SegmentationDataset
from seg.data.labels import IGNORE_INDEX
from seg.data.loader import batches, labelled_sampler
from seg.data.style import TargetStyle

FLIP = [{"HorizontalFlip": {"p": 0.5}}, {"RandomBrightnessContrast": {"p": 1.0}}]


@pytest.fixture(scope="module")
def dataset(tiny_pair):
    return SegmentationDataset(tiny_pair.source_root, "gta5", "train", labelled=True)


@pytest.fixture(scope="module")
def target(tiny_pair):
    return SegmentationDataset(tiny_pair.target_root, "cityscapes", "train", labelled=True)


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert list(one["name"]) == list(other["name"])
        assert all(torch.equal(one[key], other[key]) for key in ("image", "label", "draw"))


@pytest.mark.parametrize("style", [None, "fourier", "lab"])
@pytest.mark.parametrize("rare", [None, 0.01])
def test_a_stream_is_a_function_of_seed_and_position(dataset, target, style, rare):
    """Whatever is resumed, read by workers, or shared by processes; with labelled target images beside the source."""
    given = None if style is None else TargetStyle(style, target, 0.2, 0.8)
    sampler, joined = labelled_sampler([dataset, target], (3, 0), rare), ConcatDataset([dataset, target])

    def read(steps=range(6), workers=0, process=(0, 1), seed=(3, 0), style=given):
        return list(batches(joined, 4, steps, seed, FLIP, workers, process, sampler, style, len(dataset)))

    whole = read()
    assert_equal(read(range(4, 6)), whole[4:])
    assert_equal(read(range(2), workers=2), whole[:2])
    shares = [read(process=(rank, 2)) for rank in range(2)]
    assert_equal(
        [
            {key: [*one[key], *two[key]] if key == "name" else torch.cat([one[key], two[key]]) for key in one}
            for one, two in zip(*shares, strict=True)
        ],
        whole,
    )
    assert not torch.equal(read(range(1), seed=(4, 0))[0]["image"], whole[0]["image"])
    # labelled target images, at odd positions, keep their style
    for batch, plain in zip(whole, read(style=None), strict=True):
        assert torch.equal(batch["image"][1::2], plain["image"][1::2])
        assert torch.equal(batch["image"][::2], plain["image"][::2]) == (style is None)


def test_a_batch_that_cannot_be_shared_out_is_named(dataset):
    with pytest.raises(InputError, match="--batch-size: 3 cannot be shared out evenly over 2 processes"):
        next(batches(dataset, 3, range(1), (0, 0), [], process=(0, 2)))


def test_images_of_several_sizes_need_a_size(source):
    for folder in ("images", "labels"):
        file = source / folder / "00002.png"
        Image.open(file).crop((0, 0, 40, 30)).save(file)
    mixed = SegmentationDataset(source, "gta5", "train", labelled=True)
    with pytest.raises(InputError, match=r"a batch needs images of one size, and .*00002.png is 40x30"):
        list(batches(mixed, 6, range(1), (0, 0), []))
    same = SegmentationDataset(source, "gta5", "train", labelled=True, size=(32, 16))
    assert next(batches(same, 6, range(1), (0, 0), []))["image"].shape == (6, 3, 16, 32)


def test_augmentation_moves_image_and_label_together(dataset):
    plain, flipped = (
        {batch["name"][0]: batch for batch in batches(dataset, 1, range(6), (0, 0), steps)}
        for steps in ([], [{"HorizontalFlip": {"p": 1}}])
    )
    for name, batch in plain.items():
        assert torch.equal(flipped[name]["image"], batch["image"].flip(-1))
        assert torch.equal(flipped[name]["label"], batch["label"].flip(-1))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"HorizontalFlp": {}}], "did you mean 'HorizontalFlip'"),
        ([{"TimeMasking": {}}], "augmentation 'TimeMasking': is for spectrograms"),
        ([{"Normalize": {"p": 0.01}}], r"^augmentation 'Normalize': .*training does it itself; leave it out$"),
        ([{"Rotate": {"mask_interpolation": 1}}], r"^augmentation 'Rotate': ids are not interpolated"),
    ],
)
def test_a_wrong_augmentation_is_named(steps, message):
    with pytest.raises(InputError, match=message):
        build_augmentation(steps)


def test_an_augmentation_that_fails_is_one_sentence(dataset):
    crop = [{"RandomCrop": {"height": 500, "width": 500}}]
    with pytest.raises(InputError, match=r"^images/0000\d.png: augmentation failed: [^\n]*500[^\n]*$"):
        next(batches(dataset, 1, range(1), (0, 0), crop))


def test_what_comes_from_outside_the_image_is_ignored_and_dropouts_keep_the_label():
    image, label = np.full((48, 96, 3), 100, np.uint8), np.full((48, 96), 5, np.uint8)
    for step, ids in (({"Rotate": {"limit": [30, 40], "p": 1}}, {5, IGNORE_INDEX}), ({"CoarseDropout": {"p": 1}}, {5})):
        result = build_augmentation([step])(image=image, mask=label)
        assert set(np.unique(result["mask"])) == ids
        assert (result["image"] != 100).any()


def test_every_transform_of_albumentations_trains_or_is_one_sentence(dataset):
    """Whatever its defaults make of an image: a batch with images and with labels that were there, or a sentence."""
    labels = {int(value) for batch in batches(dataset, 1, range(6), (0, 0), []) for value in batch["label"].unique()}
    trained, sentences = [], []
    for name in [name for name in dir(albumentations) if name[0].isupper()]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (batch,) = batches(dataset, 1, range(1), (0, 0), [{name: {"p": 1}}])
        except InputError as error:
            sentences.append(str(error))
            continue
        assert (batch["image"].dtype, batch["image"].shape[1]) == (torch.float32, 3)
        assert batch["label"].shape == batch["image"].shape[:1] + batch["image"].shape[2:]
        assert {int(value) for value in batch["label"].unique()} <= labels | {IGNORE_INDEX}, name
        trained.append(name)
    assert len(trained) > 70
    assert not any("\n" in sentence for sentence in sentences)
