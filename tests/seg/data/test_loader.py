from __future__ import annotations

import shutil
import warnings

import albumentations
import numpy as np
import pytest
import torch
from PIL import Image

from dem_apps.errors import InputError
from seg.data.augmentation import build_augmentation
from seg.data.datasets import SegmentationDataset
from seg.data.labels import IGNORE_INDEX
from seg.data.loader import batches

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
        assert torch.equal(resumed["draw"], expected["draw"])


def test_a_draw_is_a_function_of_seed_stream_and_position(dataset):
    draws = torch.cat([batch["draw"] for batch in read(dataset, range(3, 6))])
    assert draws.dtype == torch.int64
    expected = [np.random.default_rng([3, 0, 2, position]).integers(2**62) for position in range(6, 12)]
    assert draws.tolist() == expected
    for other_seed in ((4, 0), (3, 1)):
        other = torch.cat([batch["draw"] for batch in read(dataset, range(3, 6), other_seed)])
        assert not set(other.tolist()) & set(expected)


def test_augmentation_moves_image_and_label_together(dataset):
    plain = {batch["name"][0]: batch for batch in batches(dataset, 1, range(6), (0, 0), [])}
    flipped = {
        batch["name"][0]: batch for batch in batches(dataset, 1, range(6), (0, 0), [{"HorizontalFlip": {"p": 1}}])
    }
    for name, batch in plain.items():
        assert torch.equal(flipped[name]["image"], batch["image"].flip(-1))
        assert torch.equal(flipped[name]["label"], batch["label"].flip(-1))


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
        ([{"TimeMasking": {}}], "augmentation 'TimeMasking': is for spectrograms"),
        (["HorizontalFlip"], "expected one 'Name"),
        (
            [{"Normalize": {}}],
            r"^augmentation 'Normalize': makes images float32 .*takes uint8 in 3 bands; leave it out$",
        ),
        ([{"Normalize": {"p": 0.01}}], r"^augmentation 'Normalize': makes images float32"),
        ([{"ToFloat": {}}], r"^augmentation 'ToFloat': makes images float32"),
        ([{"FromFloat": {"dtype": "float32"}}], r"^augmentation 'FromFloat': "),
        ([{"ToTensorV2": {}}], r"^augmentation 'ToTensorV2': is for .*making tensors; leave it out$"),
        ([{"ToGray": {"num_output_channels": 1, "p": 1}}], r"^augmentation 'ToGray': .*takes uint8 in 3 bands"),
        ([{"BasicTransform": {}}], r"^augmentation: albumentations has no transform 'BasicTransform'"),
        ([{"Compose": {}}], r"^augmentation: albumentations has no transform 'Compose'"),
        ([{3: {}}], r"^augmentation: albumentations has no transform '3'"),
        ([{"Rotate": {"mask_interpolation": 1, "limit": [20, 30]}}], r"^augmentation 'Rotate': it writes values into"),
    ],
)
def test_a_wrong_augmentation_is_named(steps, message):
    with pytest.raises(InputError, match=message):
        build_augmentation(steps)


def test_processes_share_the_batches_of_one(dataset):
    whole = list(batches(dataset, 4, range(1, 4), (3, 0), FLIP))
    parts = [list(batches(dataset, 4, range(1, 4), (3, 0), FLIP, process=(rank, 2))) for rank in range(2)]
    assert len(whole) == len(parts[0]) == len(parts[1]) == 3
    for step, batch in enumerate(whole):
        assert [name for part in parts for name in part[step]["name"]] == batch["name"]
        for key in ("image", "label", "draw"):
            assert torch.equal(torch.cat([part[step][key] for part in parts]), batch[key])


def test_a_batch_that_cannot_be_shared_out_is_named(dataset):
    with pytest.raises(InputError, match="--batch-size: 3 cannot be shared out evenly over 2 processes"):
        next(batches(dataset, 3, range(1), (0, 0), [], process=(0, 2)))


LABEL = 5
GEOMETRIC = [
    {"Rotate": {"limit": [30, 40], "p": 1}},
    {"SafeRotate": {"limit": [30, 40], "p": 1}},
    {"Affine": {"translate_percent": [0.2, 0.3], "p": 1}},
    {"ShiftScaleRotate": {"shift_limit": [0.2, 0.3], "p": 1}},
    {"Perspective": {"scale": [0.2, 0.3], "fit_output": True, "p": 1}},
    {"RandomCrop": {"height": 80, "width": 120, "pad_if_needed": True, "p": 1}},
    {"PadIfNeeded": {"min_height": 80, "min_width": 120, "p": 1}},
    {"CropAndPad": {"px": 6, "keep_size": False, "p": 1}},
    {"GridDistortion": {"distort_limit": [0.8, 0.9], "p": 1}},
    {"ThinPlateSpline": {"scale_range": [0.4, 0.5], "p": 1}},
]


def augmented(step):
    augmentation = build_augmentation([step])
    augmentation.set_random_seed(1)
    image, label = np.full((48, 96, 3), 100, np.uint8), np.full((48, 96), LABEL, np.uint8)
    return augmentation(image=image, mask=label)


@pytest.mark.filterwarnings("ignore:ShiftScaleRotate is a special case")
@pytest.mark.parametrize("step", GEOMETRIC, ids=lambda step: next(iter(step)))
def test_what_comes_from_outside_the_image_is_ignored(step):
    result = augmented(step)
    assert set(np.unique(result["mask"])) == {LABEL, IGNORE_INDEX}
    assert (result["image"][result["mask"] == IGNORE_INDEX] != 100).any()


def test_a_fill_that_is_given_stays():
    assert 0 in augmented({"Rotate": {"limit": [30, 40], "fill_mask": 0, "p": 1}})["mask"]


def test_dropouts_keep_the_label():
    result = augmented({"CoarseDropout": {"p": 1}})
    assert (result["image"] != 100).any()
    assert (result["mask"] == LABEL).all()


def test_every_transform_of_albumentations_trains_or_is_one_sentence(dataset):
    """Whatever its defaults make of an image: a batch with images and with labels that were there, or a sentence."""
    labels = {int(value) for batch in batches(dataset, 1, range(6), (0, 0), []) for value in batch["label"].unique()}
    names = [name for name in dir(albumentations) if name[0].isupper()]
    trained, sentences = [], []
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (batch,) = batches(dataset, 1, range(1), (0, 0), [{name: {"p": 1}}])
        except InputError as error:
            sentences.append(str(error))
            continue
        assert batch["image"].dtype == torch.float32
        assert batch["image"].shape[1] == 3
        assert batch["label"].shape == batch["image"].shape[:1] + batch["image"].shape[2:]
        assert {int(value) for value in batch["label"].unique()} <= labels | {IGNORE_INDEX}, name
        trained.append(name)
    assert len(trained) > 70
    assert not any("\n" in sentence for sentence in sentences)


def test_a_billion_steps_take_no_memory(dataset):
    stream = batches(dataset, 4, range(10**9 - 1, 10**12), (3, 0), [], process=(1, 2))
    batch = next(stream)
    (expected,) = batches(dataset, 4, range(10**9 - 1, 10**9), (3, 0), [], process=(1, 2))
    assert batch["name"] == expected["name"]
    assert torch.equal(batch["draw"], expected["draw"])


def test_an_augmentation_that_fails_is_one_sentence(dataset):
    crop = [{"RandomCrop": {"height": 500, "width": 500}}]
    with pytest.raises(InputError, match=r"^images/0000\d.png: augmentation failed: [^\n]*500[^\n]*$"):
        next(batches(dataset, 1, range(1), (0, 0), crop))


def test_images_of_several_sizes_need_a_size(tiny_pair, tmp_path):
    root = shutil.copytree(tiny_pair.source_root, tmp_path / "gta5")
    for folder in ("images", "labels"):
        file = root / folder / "00002.png"
        Image.open(file).crop((0, 0, 40, 30)).save(file)
    mixed = SegmentationDataset(root, "gta5", "train", labelled=True)
    with pytest.raises(InputError, match=r"a batch needs images of one size, and .*00002.png is 40x30"):
        list(batches(mixed, 6, range(1), (0, 0), []))
    same = SegmentationDataset(root, "gta5", "train", labelled=True, size=(32, 16))
    assert next(batches(same, 6, range(1), (0, 0), []))["image"].shape == (6, 3, 16, 32)
