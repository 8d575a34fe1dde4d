"""Weights of encoders that are at hand: of the package, of timm's file, of the library's own."""

import pytest
import segmentation_models_pytorch as smp
import timm
import torch

from dem_apps.errors import InputError
from seg import build_model
from seg.models.settings import PRETRAINED, ModelConfig, package_file

needs_package = pytest.mark.skipif(package_file(PRETRAINED) is None, reason="the extra pretrained is not installed")


@needs_package
@pytest.mark.parametrize(("name", "bands"), [("fpn", 3), ("deeplabv2", 3), ("unet", 6)])
def test_the_packages_weights_give_timms_features(name, bands):
    names, tensors = timm.create_model(PRETRAINED[3:]).state_dict(), torch.load(str(package_file(PRETRAINED)))
    theirs = timm.create_model(
        PRETRAINED[3:], features_only=True, output_stride=8 if name == "deeplabv2" else 32
    ).eval()
    theirs.load_state_dict(dict(zip(names, tensors.values(), strict=True)), strict=False)
    network, images = (
        build_model(name, PRETRAINED, 4, weights="imagenet", bands=bands).eval(),
        torch.randn(1, 3, 64, 96),
    )
    with torch.no_grad():
        own = network.encoder(images.repeat(1, bands // 3, 1, 1))[1:]
        torch.testing.assert_close(own, theirs(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("encoder", ["resnet18", "tu-convnext_atto", "tu-mobilenetv3_small_050"])
def test_weights_from_a_file_of_the_library(encoder, tmp_path):
    """timm's classifiers have other names than its encoders, and a head."""
    library = timm.create_model(encoder[3:]) if encoder.startswith("tu-") else smp.encoders.get_encoder(encoder)
    state, file = library.state_dict(), tmp_path / "weights.pth"
    torch.save(state, file)
    given = {name.replace("_", "."): value for name, value in state.items()}
    for name, value in build_model("fpn", encoder, 4, weights=str(file)).encoder.state_dict().items():
        assert torch.equal(value, given[name.removeprefix("model.").replace("_", ".")]), name
    with pytest.raises(InputError, match=r"--model.encoder-weights: .*weights.pth does not fit the encoder resnet34"):
        build_model("fpn", "resnet34", 4, weights=str(file))


@needs_package
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("fpn", PRETRAINED, "imagenet")),
        ({"encoder_weights": None}, ("deeplabv2", "resnet18", None)),
        ({"encoder": "resnet18"}, ("deeplabv2", "resnet18", None)),
        ({"name": "unet", "encoder_weights": "imagenet"}, ("unet", PRETRAINED, "imagenet")),
    ],
)
def test_what_was_left_open_is_pretrained(given, expected):
    model = ModelConfig(**given).resolved()
    assert (model.name, model.encoder, model.encoder_weights) == expected
