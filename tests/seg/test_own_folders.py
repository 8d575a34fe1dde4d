"""Two folders of photographs and nothing else said: what ``seg.train`` finds, decides and says."""

import dataclasses
import json

import numpy as np
import pytest
from support.cases import cases
from support.pictures import noise, save

from seg import evaluate, load, train
from seg.config import TrainConfig, resolve
from seg.data.labels import load_classes
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.models.settings import PRETRAINED, package_file

IDS = np.repeat(np.array([[0, 1, 2]], np.uint8), 400, 0).repeat(200, 1)
ROOTS = (("source.root", "mine"), ("target.root", "theirs"))
COLOURS = np.array([[0, 0, 0], [0, 128, 255], [255, 0, 0]], np.uint8)
MASKS = {
    "colours": (COLOURS[IDS], "are pictures in 3 colours", ("colors", tuple(map(tuple, COLOURS.tolist())))),
    "yes and no": (IDS // 2 * 255, "hold the ids 0, 255", ("ids", (0, 255))),
}


@pytest.mark.parametrize("kind", MASKS)
def test_two_folders_are_all_that_is_needed(kind, run_here, tmp_path):
    mask, said, (key, expected) = MASKS[kind]
    for domain in ("mine", "theirs"):
        for number in range(4):
            image = save(tmp_path / domain / "images" / f"{number:05d}.jpg", noise(number, 600, 400))
            if number != 1:
                save(tmp_path / domain / "labels" / f"{number:05d}.png", mask)
        image.write_bytes(image.read_bytes()[:-500])
    run, roots = tmp_path / "run", [f"--{name}={tmp_path / where}" for name, where in ROOTS]
    printed = run_here(train.main, "--config", "best", *roots, "--max-steps", 2, "--maps", 0, "--run-dir", run).out
    for line in (
        "target images are 600x400, seen here at 256x192 to be quick on this CPU; --target.size 600,400 keeps them",
        f"the labels {said}: taken as {len(expected)} classes, since no --classes names them",
        f"source train: 1 of 4 images left out, damaged or cut short, or with such a label: {tmp_path}/mine/",
        "source train: 1 of 3 images have no label and are left out, such as",
        "imagenet weights" if package_file(PRETRAINED) else "random weights",
    ):
        assert line in printed
    assert getattr(load_classes(str(run / "classes.json")), key) == expected
    assert load(run, device="cpu").description.pixels.mean[0] == (0.5 if package_file(PRETRAINED) else 0.485)
    run_here(evaluate.main, "--run", run, "--checkpoint", "last", "--out", tmp_path / "scores.json")
    before, after = (json.loads(file.read_text()) for file in (run / "eval.json", tmp_path / "scores.json"))
    assert after["mean_entropy"] == pytest.approx(before["mean_entropy"], abs=1e-5)


@cases(
    ([{"HorizontalFlip": {"p": 0.5}}], [256, 192]),
    ([{"ColorJitter": {}}, {"GaussianBlur": {"p": 0.3}}], [256, 192]),  # both domains at one scale
    ([{"RandomCrop": {"height": 200, "width": 200}}], None),
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
