"""Normalisation is known, said, or tried: a network that was trained with another than its encoder's name suggests."""

import dataclasses
import html
import json

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from torch.nn import functional as F

from dem_apps.test_time_methods.normalisation import tracking
from seg.adapt import AdaptConfig, adapt
from seg.adaptation.normalisation_trial import WRONG_SCALE, Tried, _without_labels, distance_of, translated, usual_ones
from seg.data.pixel_format import RGB, rgb_format
from seg.data.street.looks import target_look
from seg.data.street.world import draw_street
from seg.trained.description import Description

HALF = rgb_format([0.5] * 3, [0.5] * 3)


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """Pictures of streets and their labels of three classes: road, sky, and everything else."""
    folder = tmp_path_factory.mktemp("streets")
    for index in range(12):
        picture, label = draw_street(target_look(0, 1.0), "train", index, seed=0, size=(64, 48))
        classes = np.where(label == 7, 0, np.where(label == 23, 1, 2)).astype(np.uint8)
        for kind, values in (("images", picture), ("labels", classes)):
            file = folder / kind / f"{index:02d}.png"
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(values).save(file)
    return folder


@pytest.fixture(scope="module")
def fpn(tmp_path_factory, streets):
    """An FPN on EfficientNet-Lite0, whose name suggests 0.5, trained with ImageNet's numbers; no processor's file."""
    torch.manual_seed(0)
    widths = {"decoder_pyramid_channels": 16, "decoder_segmentation_channels": 32, "encoder_depth": 4, "upsampling": 2}
    network = smp.FPN("tu-tf_efficientnet_lite0", encoder_weights=None, classes=3, **widths).train()
    images = [np.asarray(Image.open(file)) for file in sorted((streets / "images").iterdir())]
    labels = [np.asarray(Image.open(file)) for file in sorted((streets / "labels").iterdir())]
    seen = torch.stack([RGB.normalised(image) for image in images])
    truth = torch.from_numpy(np.stack(labels)).long()
    for layer in tracking(network):
        layer.momentum = 0.1  # TensorFlow's would take hundreds of steps
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3)
    for step in range(30):
        batch = torch.randperm(12, generator=torch.Generator().manual_seed(step))[:6]
        optimiser.zero_grad()
        F.cross_entropy(network(seen[batch]), truth[batch]).backward()
        optimiser.step()
    folder = tmp_path_factory.mktemp("fpn") / "fpn"
    network.eval().save_pretrained(folder)
    return folder


def adapted(fpn, streets, out, **flags):
    adapt(AdaptConfig(model=str(fpn), images=str(streets / "images"), out=str(out), device="cpu", **flags))
    return json.loads((out / "adapt.json").read_text())


@pytest.mark.slow
def test_labels_find_it_before_anything_is_adapted(fpn, streets, tmp_path, capsys):
    labels = str(streets / "labels")
    found = adapted(fpn, streets, tmp_path / "guess", labels=labels)
    said = adapted(fpn, streets, tmp_path / "said", labels=labels, mean=[123.675, 116.28, 103.53],
                   std=[58.395, 57.12, 57.375], scale=255)  # fmt: skip
    assert found["normalisation"]["mean"] == [0.485, 0.456, 0.406]
    assert found["normalisation"]["origin"] == "chosen of the usual ones by 12 labelled images"
    tried = {row["name"]: row["labels"] for row in found["normalisation"]["tried"]}
    assert tried["ImageNet's"]["low"] > 0.01
    assert max(tried, key=lambda name: tried[name]["after"]) == "ImageNet's"
    assert found["labels"]["before"] == pytest.approx(said["labels"]["before"], abs=1e-6)  # the baseline is the best
    assert "scores higher: on 12 labelled images" in found["answer"]
    assert "(the user)" in capsys.readouterr().out
    page = (tmp_path / "guess" / "report.html").read_text()
    assert "RGB from 0 to 1, mean 0.485 0.456 0.406, deviation 0.229 0.224 0.225 (chosen of the usual ones" in page
    written = json.loads((tmp_path / "guess" / "adapted" / "preprocessor_config.json").read_text())
    assert written["image_mean"] == pytest.approx([0.485, 0.456, 0.406])


@pytest.mark.slow
def test_without_labels_both_leads_are_said_and_no_guess_becomes_a_fact(fpn, streets, tmp_path, capsys):
    found = adapted(fpn, streets, tmp_path / "guess", method="none")
    assert found["normalisation"]["origin"] == "a guess: by the name of its encoder, tu-tf_efficientnet_lite0"
    trial = found["normalisation"]["trial"]
    assert "stability score" in trial
    assert "distance" in trial
    for where in (capsys.readouterr().out, (tmp_path / "guess" / "report.html").read_text()):
        assert trial in html.unescape(where)
    file = tmp_path / "guess" / "adapted" / "preprocessor_config.json"
    assert not file.exists() or "image_mean" not in json.loads(file.read_text())
    right = adapted(
        fpn, streets, tmp_path / "right", method="none", mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]
    )
    assert (right["normalisation"]["trial"], right["normalisation"]["origin"]) == ("", "the user")
    wrong = adapted(fpn, streets, tmp_path / "wrong", method="none", scale=255)
    assert "ALARM, wrong scale: as RGB from 0 to 255, mean 0 0 0, deviation 1 1 1 (the user)" in wrong["answer"]
    assert "as RGB from 0 to 1, mean 0.485" in wrong["answer"]


OWN, OTHERS = Description(origin="a guess: by its name"), usual_ones(Description())
#: Score and distance of the own normalisation and of one other, and what is said: dusk, Seq05VD and 0006R0 by
#: ESPNetv2, each as it should be and with another.
LEADS = [
    ((2.29, 0.13), (1.77, 0.25), "no other usual normalisation is clearly better"),
    ((0.64, 0.23), (2.29, 0.13), "maybe trained with"), ((1.77, 0.25), (2.29, 0.13), "maybe trained with"),
    ((0.45, 0.83), (2.29, 0.13), "maybe trained with"), ((None, 2568.0), (2.29, 0.13), "ALARM, wrong scale"),
    ((2.25, 1.10), (1.88, 0.25), "no other usual normalisation is clearly better"),
    ((2.39, 1.05), (2.74, 0.22), "no other usual normalisation is clearly better"),
    ((1.35, 1.21), (2.39, 1.05), "maybe trained with"), ((2.00, 0.40), (2.10, 0.02), "maybe trained with"),
    ((2.00, 0.40), (1.90, 0.02), "no other usual normalisation is clearly better"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "other", "said"), LEADS)
def test_neither_lead_decides_alone(own, other, said):
    rows = [Tried("own", OWN, own[1], own[0]), dataclasses.replace(OTHERS[1], score=other[0], distance=other[1])]
    sentence, warns = _without_labels(rows, own[1] >= WRONG_SCALE)
    assert sentence.startswith(said)
    assert warns == ("no other" not in said)
    numbers = (
        (f"{own[1]:,.0f}", f"{other[1]:.3g}") if own[0] is None else (f"score {own[0]:.2f}, distance {own[1]:.3g}",)
    )
    assert all(number in sentence for number in numbers)


def test_the_distance_is_that_of_torchs_normal_distributions():
    mean, variance, new_mean, new_variance = torch.rand(4, 6, dtype=torch.float64) + 0.1
    gaussian = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(
        gaussian(new_mean, new_variance.sqrt()), gaussian(mean, variance.sqrt())
    )
    assert distance_of((mean, variance), (new_mean, new_variance), 0.0) == pytest.approx(float(expected.mean()))


@pytest.mark.parametrize("own", [Description(), Description(HALF, order="bgr")])
def test_images_are_translated_as_if_they_were_read_again(own):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype(np.uint8)
    others = [each.description for each in usual_ones(own)]
    assert len(others) == 7
    for other in others:
        seen = translated(own.normalised(pixels)[None], own, other)[0]
        torch.testing.assert_close(seen, other.normalised(pixels), rtol=1e-4, atol=1e-3)
