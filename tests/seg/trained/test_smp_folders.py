"""Folders of smp's save_pretrained: the library's own logits, and the same format back."""

import json

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from safetensors import SafetensorError
from support import cases, refuses
from support.trained_networks import IMAGES, ODD, assert_comes_back, open_trained, shake

from seg import build_model
from seg.data.labels import named_classes
from seg.trained.open import open_network
from seg.trained.settings import NetworkSettings

SMP = {
    "unet": {},
    "fpn": {"encoder_depth": 4, "upsampling": 2},
    "deeplabv3plus": {"encoder_output_stride": 8, "decoder_atrous_rates": [2, 4, 6]},
    "unetplusplus": {
        "decoder_attention_type": "scse",
        "encoder_depth": 3,
        "decoder_channels": [64, 32, 16],
    },
    "linknet": {"activation": "softmax2d"},
    "dpt": {
        "encoder_name": "tu-vit_tiny_patch16_224",
        "dynamic_img_size": True,
        "decoder_intermediate_channels": [8, 8, 8, 8],
        "decoder_fusion_channels": 8,
    },
}


@pytest.mark.parametrize("architecture", SMP)
@torch.no_grad()
def test_smp_folder_gives_the_librarys_own_logits(architecture, tmp_path):
    options = {"encoder_name": "resnet18", **SMP[architecture]}
    torch.manual_seed(0)
    network = smp.create_model(architecture, encoder_weights=None, classes=3, **options)
    shake(network)
    network.save_pretrained(tmp_path / "smp")
    opened = open_trained(str(tmp_path / "smp"))
    assert (opened.num_classes, opened.description.classes) == (3, None)
    for folder in ("smp", "adapted"):
        expected = smp.from_pretrained(tmp_path / folder).eval()(IMAGES)
        logits = opened.logits(IMAGES)
        if "activation" in options:
            logits = logits.softmax(1)
        torch.testing.assert_close(
            logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
        )
        if folder == "smp":
            assert opened.logits(ODD).shape == (2, 3, 45, 70)
            opened = assert_comes_back(opened, tmp_path / "adapted")


@torch.no_grad()
def test_one_output_of_smp_says_no_and_yes(tmp_path):
    network = smp.Unet(
        "resnet18", encoder_weights=None, classes=1, aux_params={"classes": 7}
    ).eval()
    network.save_pretrained(tmp_path / "smp")
    opened = open_trained(str(tmp_path / "smp"))
    masks, labels = network(IMAGES)
    yes = opened.logits(IMAGES).softmax(1)[:, 1:]
    torch.testing.assert_close(yes, masks.sigmoid(), rtol=1e-5, atol=1e-5)
    opened.save(tmp_path / "again")
    torch.testing.assert_close(smp.from_pretrained(tmp_path / "again").eval()(IMAGES)[1], labels)


def test_files_beside_smps_say_more(tmp_path):
    folder = tmp_path / "smp"
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(folder)
    (folder / "classes.json").write_text(json.dumps(named_classes(["a", "b", "c"]).document()))
    document = {
        "image_mean": [127.5] * 3,
        "image_std": [51.0] * 3,
        "do_rescale": False,
        "do_flip_channel_order": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(document))
    opened = open_trained(str(folder))
    assert opened.description.classes == named_classes(["a", "b", "c"])
    numbered = open_network(NetworkSettings(model=str(folder), classes="3"))
    assert numbered.description.classes == opened.description.classes
    refuses(
        "--classes: .* predicts 3 classes, not 19; leave the flag out",
        open_network,
        NetworkSettings(model=str(folder), classes="19"),
    )
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    expected = (image[..., ::-1].astype(np.float64) / 255 - 0.5) / 0.2
    np.testing.assert_allclose(
        opened.description.normalised(image).permute(1, 2, 0), expected, atol=1e-6
    )
    assert_comes_back(opened, tmp_path / "again")
    document |= {"do_resize": True, "size": {"shortest_edge": 224}}
    (folder / "preprocessor_config.json").write_text(json.dumps(document))
    (note,) = open_trained(str(folder)).description.notes
    assert "resizes images to {'shortest_edge': 224}, which is not done here" in note


def test_a_disk_that_fills_while_safetensors_writes_is_one_sentence(tmp_path, monkeypatch):
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(tmp_path / "smp")
    opened = open_trained(str(tmp_path / "smp"))

    def full(*_, **__):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr("safetensors.torch.serialize_file", full)
    refuses(
        "cannot be written: .*No space left on device",
        opened.save,
        str(tmp_path / "again"),
    )
    assert not (tmp_path / "again").exists()


@cases(
    ("resnet18", "imagenet", 0.485),
    ("resnet18", None, 0.485),
    ("tu-mobilevitv2_050", None, 0.0),
)
def test_smp_networks_see_images_as_their_encoders_weights_did(encoder, weights, mean, tmp_path):
    smp.Unet(encoder, encoder_weights=None, classes=3).save_pretrained(tmp_path / "smp")
    file = tmp_path / "smp" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder_weights": weights}))
    opened = open_trained(str(tmp_path / "smp"))
    assert (opened.description.pixels.mean[0], opened.description.order) == (mean, "rgb")
    assert opened.description.origin == f"a guess: by the name of its encoder, {encoder}"
    assert_comes_back(opened, tmp_path / "adapted")


@cases(
    ({"_model_class": "Unett"}, "_model_class: 'Unett' is not one of .* did you mean 'Unet'"),
    (
        {"checkpoint_path": "a.pth"},
        "option of Unet: 'checkpoint_path'",
    ),  # which timm would unpickle
    ({"in_channels": 5}, "in_channels is 5, and the normalisation of the bands is unknown"),
    ({"encoder_name": "tu-hf-hub:their/network"}, "is no network of timm"),
    ({"encoder_name": "resnet34"}, "Missing key"),
)
def test_smp_folders_that_do_not_fit(change, message, tmp_path):
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refuses(message, open_trained, str(tmp_path))


@torch.no_grad()
def test_the_old_name_of_an_option_of_smp(tmp_path):
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(tmp_path)
    config, expected = (
        json.loads((tmp_path / "config.json").read_text()),
        open_trained(str(tmp_path)).logits(ODD),
    )
    del config["decoder_use_norm"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"decoder_use_batchnorm": True}))
    assert torch.equal(open_trained(str(tmp_path)).logits(ODD), expected)


def test_our_own_folder_reads_its_own_weights_alone(tmp_path, monkeypatch):
    network = build_model("deeplabv2", encoder="resnet18", num_classes=4)
    network.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    document = json.loads(file.read_text())
    (tmp_path / "other.pth").write_bytes(b"junk")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("asks a hub"))
    for weights in ("imagenet", str(tmp_path / "other.pth")):
        file.write_text(json.dumps(document | {"weights": weights}))
        same_weights = open_trained(str(tmp_path)).network.state_dict()
        assert all(
            torch.equal(value, same_weights[name]) for name, value in network.state_dict().items()
        )
    file.write_text(json.dumps(document | {"name": "pretrained", "encoder": str(tmp_path)}))
    refuses(
        r"config.json: name is 'pretrained'",
        open_trained,
        str(tmp_path),
    )
