"""Large images get a size that suits the device."""

import dataclasses

import pytest
from support.pictures import noise, save

from seg.config import TrainConfig
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.training.resolve import resolve


@pytest.mark.parametrize(
    ("augmentation", "size"),
    [
        ([{"HorizontalFlip": {"p": 0.5}}], [256, 192]),
        ([{"ColorJitter": {}}, {"GaussianBlur": {"p": 0.3}}], [256, 192]),  # both domains at one scale
        ([{"RandomCrop": {"height": 200, "width": 200}}], None),
    ],
)
def test_an_augmentation_sets_the_size_where_it_crops_or_resizes(augmentation, size, tmp_path):
    for folder in ("images", "labels"):
        save(tmp_path / folder / "a.png", noise(0, 600, 400))
    source = SourceConfig(str(tmp_path), augmentation=augmentation)
    config = TrainConfig(source=source, target=TargetDataConfig(str(tmp_path)))
    found, lines = resolve(config, "cpu")
    assert found.source == dataclasses.replace(source, size=size)
    assert found.target.size == [256, 192]
    assert len(lines) == 1 + (size is not None)
