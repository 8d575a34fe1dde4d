"""Weights of encoders that are at hand: of the package, of timm's file, of the library's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from safetensors.torch import save_file

from dem_apps.errors import InputError
from seg import build_model
from seg.config import PRETRAINED, ModelConfig, package_file

FILE = package_file(PRETRAINED)
needs_package = pytest.mark.skipif(FILE is None, reason="the extra pretrained is not installed")


@needs_package
@pytest.mark.parametrize(("name", "bands"), [("fpn", 3), ("deeplabv2", 3), ("unet", 6)])
def test_the_packages_weights_give_timms_features(name: str, bands: int) -> None:
    names, tensors = timm.create_model(PRETRAINED[3:]).state_dict(), torch.load(str(FILE), weights_only=True)
    theirs = timm.create_model(
        PRETRAINED[3:], features_only=True, output_stride=8 if name == "deeplabv2" else 32
    ).eval()
    theirs.load_state_dict(dict(zip(names, tensors.values(), strict=True)), strict=False)
    network = build_model(name, PRETRAINED, 4, weights="imagenet", bands=bands).eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        own = network.encoder(images.repeat(1, bands // 3, 1, 1))[1:]
        torch.testing.assert_close(own, theirs(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("encoder", ["resnet18", "tu-convnext_atto", "tu-mobilenetv3_small_050"])
def test_weights_from_a_file_of_the_library(encoder: str, tmp_path: Path) -> None:
    """timm's classifiers have other names than its encoders, and a head."""
    library = timm.create_model(encoder[3:]) if encoder.startswith("tu-") else smp.encoders.get_encoder(encoder)
    state, file = library.state_dict(), tmp_path / "weights.safetensors"
    save_file(state, file)
    given = {name.replace("_", "."): value for name, value in state.items()}
    for name, value in build_model("fpn", encoder, 4, weights=str(file)).encoder.state_dict().items():
        assert torch.equal(value, given[name.removeprefix("model.").replace("_", ".")]), name
    with pytest.raises(
        InputError, match=r"--model.encoder-weights: .*weights.safetensors does not fit the encoder resne"
    ):
        build_model("fpn", "resnet34", 4, weights=str(file))


@needs_package
@pytest.mark.parametrize(
    ("given", "photographs", "expected"),
    [
        ({}, True, ("fpn", PRETRAINED, "imagenet")),
        ({}, False, ("deeplabv2", "resnet18", None)),
        ({"encoder_weights": None}, True, ("deeplabv2", "resnet18", None)),
        ({"encoder": "resnet18"}, True, ("deeplabv2", "resnet18", None)),
        ({"name": "unet", "encoder_weights": "imagenet"}, True, ("unet", PRETRAINED, "imagenet")),
        ({"name": "deeplabv2-advent"}, True, ("deeplabv2-advent", "resnet18", None)),
    ],
)
def test_what_was_left_open_is_pretrained_for_photographs(given: dict, photographs: bool, expected: tuple) -> None:
    model = ModelConfig(**given).decided(photographs)
    assert (model.name, model.encoder, model.encoder_weights) == expected
