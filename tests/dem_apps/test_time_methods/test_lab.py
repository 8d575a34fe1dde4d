"""Colours against OpenCV's, and the transfer against means and deviations in numpy."""

import cv2
import numpy as np
import pytest
import torch
from support import refuses
from support.tiny_networks import adapter_of, batches, tiny

from dem_apps import TestTimeAdapter
from dem_apps.test_time_methods.lab import LabTransfer, lab_statistics, lab_to_rgb, rgb_to_lab

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def pictures(number=3, seed=0):
    """RGB that is neither black nor white, so that nothing is cut off."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(number, 3, 8, 8, generator=generator, dtype=torch.float64) * 0.3 + 0.3


def by_opencv(rgb):
    images = rgb.permute(0, 2, 3, 1).numpy().astype(np.float32)
    return torch.tensor(
        np.stack([cv2.cvtColor(image, cv2.COLOR_RGB2Lab) for image in images])
    ).permute(0, 3, 1, 2)


def test_lab_is_opencvs_and_comes_back():
    rgb = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rgb[0, :, 0] *= 0.02  # where both curves are straight
    # its table is coarse
    torch.testing.assert_close(rgb_to_lab(rgb).float(), by_opencv(rgb), rtol=0, atol=0.4)
    torch.testing.assert_close(lab_to_rgb(rgb_to_lab(rgb)), rgb, rtol=0, atol=1e-6)


def test_an_image_gets_the_sources_mean_and_deviation():
    source = {"source_mean": (55.0, 2.0, -3.0), "source_std": (4.0, 2.5, 3.0)}
    moved = LabTransfer(**source, **PLAIN).transferred(pictures())
    lab = by_opencv(moved).numpy()
    np.testing.assert_allclose(lab.mean((2, 3)), np.tile([55.0, 2.0, -3.0], (3, 1)), atol=0.12)
    np.testing.assert_allclose(lab.std((2, 3)), np.tile([4.0, 2.5, 3.0], (3, 1)), atol=0.12)


def test_the_sources_own_images_stay_as_they_are():
    (image,) = pictures(1).split(1)
    normalised = (image - 0.4) / 0.2
    how = {"mean": (0.4, 0.4, 0.4), "std": (0.2, 0.2, 0.2)}
    same = LabTransfer(**lab_statistics([normalised], **how), **how)
    torch.testing.assert_close(same.transferred(normalised), normalised, rtol=0, atol=1e-5)
    six = lab_statistics([pictures(2), pictures(1, seed=1)], **PLAIN)
    alone = [
        lab_statistics([each], **PLAIN) for each in (*pictures(2).split(1), pictures(1, seed=1))
    ]
    np.testing.assert_allclose(
        six["source_std"], np.mean([each["source_std"] for each in alone], 0)
    )
    np.testing.assert_allclose(
        six["source_mean"], np.mean([each["source_mean"] for each in alone], 0)
    )


def test_padding_does_not_count():
    method = LabTransfer(source_mean=(55.0, 2.0, -3.0), source_std=(4.0, 2.5, 3.0), **PLAIN)
    images = pictures()
    padded = torch.nn.functional.pad(images, (0, 4))
    mask = torch.zeros(3, 8, 12, dtype=torch.bool)
    mask[:, :, :8] = True
    torch.testing.assert_close(
        method.transferred(padded, mask)[..., :8], method.transferred(images)
    )
    assert method.transferred(padded, torch.zeros_like(mask)).isfinite().all()
    assert method.transferred(torch.zeros(1, 3, 8, 8)).isfinite().all()  # no deviation at all


@pytest.mark.parametrize("method", ["lab", "bn", "none"])
def test_masks_are_checked_though_nothing_learns(method):
    (images,) = batches(1)
    ones = torch.ones(4, 8, 8)
    for mask in (ones, ones[:, None].bool(), ones[0].bool(), ones[:, :3, :3].bool()):
        refuses("mask: expected a bool", adapter_of(method), images, mask)
    of_images = torch.tensor([True, True, False, True])
    classifier = adapter_of(method, tiny(dense=False))
    assert torch.equal(
        classifier(images, of_images)[0], adapter_of(method, tiny(dense=False))(images)[0]
    )


def test_the_network_predicts_the_transferred_image():
    options = {"source_mean": (55.0, 2.0, -3.0), "source_std": (4.0, 2.5, 3.0), **PLAIN}
    adapter = TestTimeAdapter(tiny(), "lab", **options)
    shown = LabTransfer(**options).transferred(pictures())
    assert torch.equal(adapter(pictures()), tiny().eval()(shown))


def test_mistakes_are_one_sentence():
    refuses("needs source_mean= and source_std=", TestTimeAdapter, tiny(), "lab")
    refuses("needs RGB", LabTransfer((0, 0, 0), (1, 1, 1)).transferred, torch.rand(1, 4, 8, 8))
