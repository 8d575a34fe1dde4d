"""Starts of a training: a whole network, one with other classes, or an encoder alone."""

import dataclasses
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
import yaml
from safetensors.torch import save_file
from support import cases, refuses
from support.untrained_run import write_run

import seg.train
import seg.training.setup
from dem_apps.errors import InputError
from seg.data.labels import named_classes
from seg.data.pixel_format import RGB
from seg.models.networks import NETWORK_FILE, build_model
from seg.models.settings import ModelConfig
from seg.trained.run_network import build_network, open_run
from seg.trained.start_from import Start

HEAD = "segmentation_head.0"


def start_from(network, source, classes=None):
    return Start(ModelConfig(start_from=str(source))).put_into(network, classes)


@pytest.fixture
def theirs(tmp_path):
    """An Unet of four classes, with widths that no flag of ours names."""
    torch.manual_seed(5)
    network = smp.Unet("resnet18", 3, encoder_weights=None, decoder_channels=(24, 16, 8), classes=4)
    network.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def ours(folder, num_classes):
    torch.manual_seed(6)
    return build_model("pretrained", encoder=str(folder), num_classes=num_classes)


def write_classes(tmp_path, **ids):
    rows = [
        {"name": name, "color": [label_id, 0, 0], "id": label_id} for name, label_id in ids.items()
    ]
    (tmp_path / "classes.yaml").write_text(yaml.safe_dump({"classes": rows}))
    return str(tmp_path / "classes.yaml")


@pytest.fixture
def settings(tiny_config, tmp_path):
    def changed(theirs, **model):
        classes = write_classes(tmp_path, road=7, car=26)
        network = ModelConfig(**{"name": "pretrained", "start_from": str(theirs), **model})
        run = str(tmp_path / "run")
        return dataclasses.replace(tiny_config, classes=classes, model=network, run_dir=run)

    return changed


def test_other_classes_replace_the_head_alone(theirs):
    network, before = ours(theirs, 2), ours(theirs, 2).state_dict()
    (note,) = start_from(network, theirs, named_classes(["a", "b"]))
    assert note == (
        f"--model.start-from: {theirs} predicts 4 classes and this training 2, so the last layer of every head begins "
        f"at random ({HEAD}.bias, {HEAD}.weight)"
    )
    saved = smp.from_pretrained(theirs).state_dict()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith(HEAD) else saved[name]), name


def below(prefix, state):
    return {f"{prefix}{name}": value for name, value in state.items()}


ALONE = "holds an encoder alone; the heads begin at random"
LOSS = {"criterion.weight": torch.ones(4), "std": torch.ones(3)}
LIGHTNING = {"epoch": 9, "args": Namespace(lr=1), "best": np.float64(0.5), "images": np.int64(9)}
#: What a training writes of a network, and the notes on it.
FILES = {
    "another head": (
        lambda state: {**state, "other_head.3.bias": LOSS["std"]},
        ["other_head left aside"],
    ),
    "lightning": (
        lambda state: {**LIGHTNING, "state_dict": below("model.", state) | LOSS},
        ["the weights below 'model.' are taken, criterion, std left aside"],
    ),
    "epoch inside": (lambda state: {**state, "epoch": 9}, []),
    "two": (
        lambda state: {
            "model_ema": {name: 2 * value for name, value in state.items()},
            "model": state,
        },
        ["the weights under 'model' are taken, not those under model_ema"],
    ),
    "encoder": (lambda state: below("encoder.", encoder_of(state)), [ALONE]),
}


def encoder_of(state):
    return {
        name.removeprefix("encoder."): value
        for name, value in state.items()
        if name.startswith("encoder.")
    }


@pytest.mark.parametrize(
    ("kind", "suffix"), [("another head", ".safetensors"), *((kind, ".ckpt") for kind in FILES)]
)
def test_files_of_weights(kind, suffix, theirs, tmp_path):
    saved, (written, said) = smp.from_pretrained(theirs).state_dict(), FILES[kind]
    file = tmp_path / f"weights{suffix}"
    save_file(written(saved), file) if suffix == ".safetensors" else torch.save(
        written(saved), file
    )
    network, before = ours(theirs, 4), ours(theirs, 4).state_dict()
    notes = start_from(network, file)
    assert [note for note, expected in zip(notes, said, strict=True) if expected not in note] == []
    for name, value in network.state_dict().items():
        given = ALONE not in said or name.startswith("encoder.")
        assert torch.equal(value, saved[name] if given else before[name]), name


@cases(
    (
        {"name": "deeplabv2"},
        "does not fit this network .--model.name pretrained trains .*Missing key",
    ),
    (
        {"start_from": None},
        "--model.name: pretrained is the network of a folder; name it by --model.start-from",
    ),
    ({"encoder_weights": "imagenet"}, "--model.encoder-weights: a pretrained network has its own"),
)
def test_what_does_not_fit_is_a_sentence(model, message, theirs, tmp_path, settings):
    refuses(message, seg.train.train, settings(theirs, **model))
    assert not (tmp_path / "run").exists()


@cases(
    ({"encoder": "tu-tf_efficientnet_lite0", "encoder_weights": "imagenet"}, 0.5),
    ({"encoder": "tu-tf_efficientnet_lite0", "encoder_weights": None}, 0.485),
    ({"name": "pretrained"}, 0.25),
)
def test_images_are_normalised_as_the_weights_saw_them(model, mean, theirs):
    document = {"image_mean": [0.25] * 3, "image_std": [0.5] * 3}
    (theirs / "preprocessor_config.json").write_text(json.dumps(document))
    settings = ModelConfig(**model, start_from=str(theirs) if "name" in model else None)
    assert Start(settings).pixels.mean[0] == mean
    (theirs / "preprocessor_config.json").write_text(
        json.dumps(document | {"do_flip_channel_order": True})
    )
    (note,) = start_from(ours(theirs, 4), theirs)
    assert (
        "saw images as BGR from 0 to 1, mean 0.25 0.25 0.25, deviation 0.5 0.5 0.5; training here has"
        in note
    )


def test_an_adapted_run_says_how_it_saw_images(tmp_path):
    settings = ModelConfig("unet", "resnet18", depth=3)
    run = write_run(tmp_path / "run", 0, model=settings)
    for order, mean in (("rgb", 0.25), ("bgr", RGB.mean[0])):
        trained = open_run(run)
        adapted = tmp_path / order
        adapted.mkdir()
        trained.write(adapted, trained.description.told([0.25] * 3, [0.5] * 3, order, 1))
        start = Start(dataclasses.replace(settings, start_from=str(adapted)))
        assert start.pixels.mean[0] == mean
        notes = start.put_into(trained.network)
        assert len([each for each in notes if "saw images as BGR" in each]) == (order == "bgr")


def test_encoder_weights_are_not_fetched_beside_weights_to_start_from(tmp_path):
    """A configuration that names ImageNet's takes other weights without a network connection."""
    encoder = below("encoder.", smp.Unet("resnet18", encoder_weights=None).encoder.state_dict())
    torch.save(encoder, tmp_path / "encoder.pth")
    model = ModelConfig(
        "unet",
        "resnet18",
        encoder_weights="of-no-library",
        start_from=str(tmp_path / "encoder.pth"),
    )
    network = build_network(model, 4)
    start_from(network, tmp_path / "encoder.pth")
    assert torch.equal(
        network.state_dict()["encoder.conv1.weight"], encoder["encoder.conv1.weight"]
    )
    refuses("of-no-library", build_network, dataclasses.replace(model, start_from=None), 4)


def test_a_run_of_their_network_stands_alone(theirs, tmp_path, settings, capsys):
    """It goes on, and is read, when the folder that it started from is gone; another run starts from it."""
    config = settings(theirs)
    run = seg.train.train(config)
    assert "predicts 4 classes and this training 2" in capsys.readouterr().out
    assert json.loads((run / NETWORK_FILE).read_text())["decoder_channels"] == [24, 16, 8]
    scores = json.loads((run / "eval.json").read_text())
    theirs.rename(tmp_path / "gone")
    Path(str(config.classes)).unlink()  # the run has a copy of its classes
    seg.train.main(["--run-dir", str(run), "--resume", "--workers", "1", "--device", "cpu"])
    assert json.loads((run / "eval.json").read_text()) == scores
    model = ModelConfig(name="pretrained", start_from=str(run))
    other = dataclasses.replace(config, model=model, run_dir=str(tmp_path / "2"))
    write_classes(tmp_path, road=7, car=26)
    assert (seg.train.train(other) / NETWORK_FILE).is_file()
    write_classes(tmp_path, car=26, road=7)
    with pytest.raises(InputError, match=r"output 0 of .* is 'road', and in --classes 'car'"):
        seg.train.train(dataclasses.replace(other, run_dir=str(tmp_path / "3")))


def test_a_network_of_transformers_is_trained(tmp_path, settings, capsys):
    transformers = pytest.importorskip("transformers")
    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1] * 4}
    config = transformers.SegformerConfig(**sizes, decoder_hidden_size=16, num_labels=5)
    network = transformers.SegformerForSemanticSegmentation(config)
    network.save_pretrained(tmp_path / "hf")
    with pytest.raises(
        InputError, match=r"does not fit this network .--model.name pretrained trains the one"
    ):
        seg.train.train(settings(tmp_path / "hf", name="deeplabv2"))
    run = seg.train.train(settings(tmp_path / "hf", align_corners=False))
    assert "predicts 5 classes and this training 2" in capsys.readouterr().out
    trained = open_run(run, "last").network
    encoder = {id(parameter) for parameter in trained.encoder.parameters()}
    assert 0 < len(encoder) < len(list(trained.parameters()))
    start = {name.removeprefix("network."): value for name, value in trained.state_dict().items()}
    moved = [not torch.equal(value, start[name]) for name, value in network.named_parameters()]
    assert all(moved) or sum(moved) > len(moved) / 2
    assert {
        id(p) for p in seg.training.setup.parameter_groups(trained, 1.0, 2.0)[0]["params"]
    } == encoder
