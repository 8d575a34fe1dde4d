"""Which images, at which size, in which batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dem_apps.errors import InputError
from seg.adaptation.image_folder import ImageFolder, same_size_batches
from seg.models.preprocessing import Preprocessing

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = [(20, 10), (20, 10), (33, 17), (20, 10), (20, 10), (20, 10), (33, 17)]
    for index, (width, height) in enumerate(sizes):
        pixels = np.random.default_rng(index).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    return tmp_path


def test_batches_hold_one_size_and_every_image_once(folder: Path) -> None:
    images = ImageFolder(folder, Preprocessing(), None, CPU)
    assert images.in_order(2) == [[0, 1], [2], [3, 4], [5], [6]]
    for batches in (images.in_order(2), images.shuffled(2, 0, 0), images.shuffled(3, 5, 1)):
        assert sorted(index for batch in batches for index in batch) == list(range(7))
        assert all(len({images.sizes[index] for index in batch}) == 1 for batch in batches)
    assert images.shuffled(2, 0, 0) == images.shuffled(2, 0, 0)
    assert len({str(images.shuffled(2, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) > 1
    assert [len(batch) for batch in same_size_batches(images, [0, 2, 3, 6], 4)] == [2, 2]
    assert images.spread(3) == [0, 2, 4]
    assert images.spread(9) == list(range(7))


def test_the_network_gets_multiples_and_its_own_preprocessing(folder: Path) -> None:
    wanted = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), multiple=8)
    images = ImageFolder(folder, wanted, None, CPU)
    assert images.seen(2).shape == (3, 16, 32)
    exact = ImageFolder(folder, Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3), None, CPU)
    np.testing.assert_allclose(exact.seen(0).permute(1, 2, 0).numpy() * 255, exact.picture(0).values, atol=1e-4)
    assert ImageFolder(folder, wanted, (100, 50), CPU).seen(0).shape == (3, 48, 96)


def test_what_is_no_image_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "3.png").write_bytes(b"no image")
    images = ImageFolder(folder, Preprocessing(), None, CPU)
    assert [path.name for path in images.relative] == ["0.png", "1.png", "2.png", "4.png", "5.png", "6.png"]
    assert "3.png" in capsys.readouterr().err
    images.leave_out({1: f"{folder / '1.png'}: cut short"})
    assert set(images.skipped) == {"1.png", "3.png"}
    assert images.skipped["1.png"] == "cut short"
    assert [name.name for name in images.names] == ["0", "2", "4", "5", "6"]


def test_a_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hold no image"):
        ImageFolder(tmp_path, Preprocessing(), None, CPU)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"no image in .* can be read"):
        ImageFolder(tmp_path, Preprocessing(), None, CPU)
