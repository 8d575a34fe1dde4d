"""Every architecture that segmentation-models-pytorch knows, whatever they are: the list is the library's."""

from __future__ import annotations

import pytest
import segmentation_models_pytorch as smp
import torch
from torch.nn import functional as F

from dem_apps.errors import InputError
from seg import build_model
from seg.models.network import parameter_groups

ARCHITECTURES = sorted(smp.MODEL_ARCHITECTURES_MAPPING)
#: A small encoder of the kind that each takes.
ENCODERS = {"dpt": "tu-vit_tiny_patch16_224"}
SMALLER = {"dpt": {"decoder_intermediate_channels": (8, 8, 8, 8), "decoder_fusion_channels": 8}}
C = 5


def arguments(name: str) -> tuple[str, dict]:
    return ENCODERS.get(name, "resnet18"), SMALLER.get(name, {})


@pytest.fixture(params=ARCHITECTURES)
def network(request):
    torch.manual_seed(0)
    encoder, options = arguments(request.param)
    return build_model(request.param, encoder, C, **options)


def test_it_trains(network):
    images = torch.randn(2, 3, 64, 64)
    logits = network.train()(images)
    assert tuple(logits) == network.heads == ("main",)
    batch, classes, height, width = logits["main"].shape
    assert (batch, classes) == (2, C)
    assert height == width
    assert height in (4, 8, 16, 32, 64)
    logits["main"].square().mean().backward()
    unused = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    # stages that the decoder does not look at, and a transformer's classifier
    assert all(name.startswith("encoder.") for name in unused)
    trained = [name for name, _ in network.named_parameters() if name.startswith("encoder.") and name not in unused]
    assert trained
    encoder, rest = parameter_groups(network, 0.1, 10.0)
    assert (encoder["base_lr"], rest["base_lr"]) == (0.1, 1.0)
    ids = [id(parameter) for group in (encoder, rest) for parameter in group["params"]]
    assert sorted(ids) == sorted(map(id, network.parameters()))
    assert {id(parameter) for parameter in encoder["params"]} == set(map(id, network.encoder.parameters()))


@torch.no_grad()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_librarys_own_network_with_the_same_weights_says_the_same(name):
    encoder, options = arguments(name)
    torch.manual_seed(0)
    network = build_model(name, encoder, C, **options).eval()
    extra = {"dynamic_img_size": True} if name == "dpt" else {}
    theirs = smp.create_model(name, encoder, None, classes=C, **options, **extra).eval()
    theirs.load_state_dict(network.state_dict())
    images = torch.randn(1, 3, 128, 192)
    logits = network(images)["main"]
    ours = F.interpolate(logits, scale_factor=192 / logits.shape[3], mode="bilinear", align_corners=True)
    torch.testing.assert_close(ours, theirs(images), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("size", [(1, 1), (66, 70)])
def test_images_of_any_size_are_continued_and_cut_back(network, size):
    network.eval()
    stride = 192 // network(torch.zeros(1, 3, 192, 192))["main"].shape[2]
    logits = network(torch.randn(1, 3, *size))["main"]
    assert logits.shape[2:] == tuple(-(-side // stride) for side in size)


def test_options_reach_the_library():
    with torch.device("meta"):
        assert build_model("unet", "resnet18", C, depth=3).decoder.blocks[-1].conv1[0].out_channels == 16
        assert build_model("deeplabv3", "resnet18", C)(torch.zeros(2, 3, 64, 64, device="meta"))["main"].shape[2] == 8
        wide = build_model("deeplabv3", "resnet18", C, output_stride=16)
        assert wide(torch.zeros(2, 3, 64, 64, device="meta"))["main"].shape[2] == 4
        assert build_model("unet", "resnet18", C, decoder_attention_type="scse").state_dict().keys() > set(
            build_model("unet", "resnet18", C).state_dict()
        )


@pytest.mark.parametrize(
    ("name", "encoder", "options", "message"),
    [
        ("unet", "resnet18", {"output_stride": 8}, "model: unet has no output_stride; its options are depth, decoder_"),
        ("unet", "resnet18", {"classes": 8}, "model: unet has no classes; its options are depth"),
        ("deeplabv2", "resnet18", {"dropout": 0.5}, "deeplabv2 .*'dropout'; its options are depth, output_stride$"),
        ("deeplabv3", "resnet18", {"output_stride": 4}, "deeplabv3 with encoder resnet18: .* 8 or 16, got 4"),
        ("unet", "resnet18", {"depth": 7}, r"unet with encoder resnet18: .* depth should be in range \[1, 5\], got 7"),
        ("dpt", "resnet18", {}, "dpt with encoder resnet18: Only Timm encoders are supported"),
        ("unet", "tu-hf-hub:their/network", {}, "is no network of timm"),
        ("unet", "resnet81", {}, "not known to segmentation-models-pytorch; did you mean 'resnet18'"),
        ("unetx", "resnet18", {}, "model: 'unetx' is not one of deeplabv2, .*; did you mean 'unet'"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(name, encoder, options, message):
    with pytest.raises(InputError, match=message), torch.device("meta"):
        build_model(name, encoder, C, **options)


def test_weights_that_cannot_be_downloaded_name_the_way_out(monkeypatch):
    def no_network(*_args, **_kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("seg.models.smp_network.smp.create_model", no_network)
    with pytest.raises(InputError, match=r"'imagenet' weights could not be loaded .*--model.encoder-weights null"):
        build_model("unet", "resnet18", C, weights="imagenet")
