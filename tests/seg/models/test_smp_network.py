"""Every architecture that segmentation-models-pytorch has, and weights of encoders that are at hand."""

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from support import cases, refuses
from torch.nn import functional as F

from dem_apps.errors import InputError
from seg import build_model
from seg.models.network import parameter_groups
from seg.models.networks import check_network
from seg.models.settings import PRETRAINED, ModelConfig, package_file

ARCHITECTURES = sorted(smp.MODEL_ARCHITECTURES_MAPPING)
#: A small encoder of the kind that each takes.
ENCODERS = {"dpt": "tu-vit_tiny_patch16_224"}
SMALLER = {"dpt": {"decoder_intermediate_channels": (8, 8, 8, 8), "decoder_fusion_channels": 8}}
C = 5


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_trains_and_says_what_the_librarys_own_network_says(name):
    encoder, options = ENCODERS.get(name, "resnet18"), SMALLER.get(name, {})
    torch.manual_seed(0)
    network = build_model(name, encoder, C, **options)
    network.train()(torch.randn(2, 3, 64, 64))["main"].square().mean().backward()
    unused = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    # stages that the decoder does not look at, and a transformer's classifier
    assert all(name.startswith("encoder.") for name in unused)
    groups = [
        {id(parameter) for parameter in group["params"]}
        for group in parameter_groups(network, 0.1, 10.0)
    ]
    assert groups[0] == set(map(id, network.encoder.parameters()))
    assert groups[0] | groups[1] == set(map(id, network.parameters()))

    extra = {"dynamic_img_size": True} if name == "dpt" else {}
    theirs = smp.create_model(name, encoder, None, classes=C, **options, **extra).eval()
    theirs.load_state_dict(network.eval().state_dict())
    images = torch.randn(1, 3, 128, 192)
    with torch.no_grad():
        logits = network(images)["main"]
        ours = F.interpolate(
            logits, scale_factor=192 / logits.shape[3], mode="bilinear", align_corners=True
        )
        torch.testing.assert_close(ours, theirs(images), rtol=1e-4, atol=1e-4)
        for size in ((1, 1), (66, 70)):  # continued and cut back
            rows, columns = (-(-side * logits.shape[3] // 192) for side in size)
            assert network(torch.randn(1, 3, *size))["main"].shape[2:] == (rows, columns)


@cases(
    (
        "unet",
        "resnet18",
        {"output_stride": 8},
        "model: option of unet: 'output_stride' is not one of depth, decoder_",
    ),
    (
        "deeplabv2",
        "resnet18",
        {"dropout": 0.5},
        "model: deeplabv2: .*'dropout'",
    ),
    ("unet", "tu-hf-hub:their/network", {}, "is no network of timm"),
    ("deeplabv2", "resnet18", {"output_stride": 7}, "output_stride: '7' is not one of 4, 8, 16"),
    ("deeplabv2", "mobilenet_v2", {"output_stride": 4}, "needs a ResNet-like encoder"),
    ("deeplabv2-advent", "resnet18", {}, "deeplabv2-advent has .*resnet101.* not .*resnet18"),
    (
        "deeplabv2-advent",
        "resnet101",
        {"bands": 6},
        "deeplabv2-advent.*'bands'",
    ),
    ("unetx", "resnet18", {}, "model: 'unetx' is not one of deeplabv2, .*; did you mean 'unet'"),
)
def test_what_cannot_be_built_is_one_sentence(name, encoder, options, message):
    with pytest.raises(InputError, match=message), torch.device("meta"):
        build_model(name, encoder, C, **options)


def test_weights_that_cannot_be_downloaded_name_the_way_out(monkeypatch):
    def no_network(*_args, **_kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("seg.models.smp_network.smp.create_model", no_network)
    with pytest.raises(
        InputError,
        match=r"model.safetensors of smp-hub/resnet18.imagenet .*--model.encoder-weights null",
    ):
        build_model("unet", "resnet18", C, weights="imagenet")


def test_weights_that_nobody_has_are_refused_before_data_is_read(monkeypatch):
    monkeypatch.setattr("seg.models.smp_network._server_answers", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "nowhere")
    given = check_network, "unet", "resnet18", "imagenet"
    refuses(r"model.safetensors of smp-hub/resnet18.imagenet", *given, is_fetched=True)
    check_network("unet", "resnet18", "imagenet")


needs_package = pytest.mark.skipif(
    package_file(PRETRAINED) is None, reason="the extra pretrained is not installed"
)


@needs_package
@pytest.mark.parametrize(("name", "bands"), [("fpn", 3), ("deeplabv2", 3), ("unet", 6)])
def test_the_packages_weights_give_timms_features(name, bands):
    names, tensors = (
        timm.create_model(PRETRAINED[3:]).state_dict(),
        torch.load(str(package_file(PRETRAINED))),
    )
    stride = 8 if name == "deeplabv2" else 32
    theirs = timm.create_model(PRETRAINED[3:], features_only=True, output_stride=stride).eval()
    theirs.load_state_dict(dict(zip(names, tensors.values(), strict=True)), strict=False)
    network = build_model(name, PRETRAINED, 4, weights="imagenet", bands=bands).eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        own = network.encoder(images.repeat(1, bands // 3, 1, 1))[1:]
        torch.testing.assert_close(own, theirs(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("encoder", ["resnet18", "tu-convnext_atto", "tu-mobilenetv3_small_050"])
def test_weights_from_a_file_of_the_library(encoder, tmp_path):
    """timm's classifiers have other names than its encoders, and a head."""
    library = (
        timm.create_model(encoder[3:])
        if encoder.startswith("tu-")
        else smp.encoders.get_encoder(encoder)
    )
    state, file = library.state_dict(), tmp_path / "weights.pth"
    torch.save(state, file)
    given = {name.replace("_", "."): value for name, value in state.items()}
    for name, value in (
        build_model("fpn", encoder, 4, weights=str(file)).encoder.state_dict().items()
    ):
        assert torch.equal(value, given[name.removeprefix("model.").replace("_", ".")]), name
    refuses(
        r"encoder-weights: .*s.pth does not fit .* resnet34",
        build_model,
        "fpn",
        "resnet34",
        4,
        weights=str(file),
    )


@needs_package
@cases(
    ({}, ("fpn", PRETRAINED, "imagenet")),
    ({"encoder_weights": None}, ("deeplabv2", "resnet18", None)),
    ({"encoder": "resnet18"}, ("deeplabv2", "resnet18", None)),
    ({"name": "unet", "encoder_weights": "imagenet"}, ("unet", PRETRAINED, "imagenet")),
)
def test_what_was_left_open_is_pretrained(given, expected):
    model = ModelConfig(**given).resolved()
    assert (model.name, model.encoder, model.encoder_weights) == expected
