"""Networks that a function builds, files of weights for them; ``from seg import load``: its images and predictions."""

import io
import sys
from pathlib import Path

import numpy as np
import public_networks
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import cases, refuses
from support.trained_networks import IMAGES, ODD, open_trained, shake
from support.untrained_run import write_run
from torch import nn
from torch.nn import functional as F

from seg import load
from seg.data.labels import named_classes
from seg.data.read_images import ImagePixels
from seg.data.settings import TargetDataConfig

OWN_NETWORK = """
import torch
from torch import nn
def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))
def with_facts():
    facts = dict(mean=[0.5, 0.5, 0.5], std=[0.25] * 3, channels="bgr", classes=["a", "b", "c"], multiple=32)
    return build(), facts
def one_output():
    return nn.Conv2d(3, 1, 1)
def softmax(): return nn.Sequential(build(), nn.Softmax(1))
def sigmoid(): return nn.Sequential(one_output(), nn.Sigmoid())
def half(): return build().half()
def dictionary(): return Last(lambda logits: {"out": logits, "aux": None})
def needs(argument): ...
def wrong_fact(): return build(), {"means": 3}
def half_stated(): return build(), {"mean": [0.5] * 3, "size": [64, 64]}
def of_255(): return build(), {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
def ladder(side=8):
    class Ladder(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(3, 3, side, side), nn.ConvTranspose2d(3, 3, side, side)
        def forward(self, images): return images + self.up(self.down(images))
    return Ladder(), {"multiple": side}
def library():
    import segmentation_models_pytorch as smp
    return smp.FPN("resnet18", encoder_weights=None, classes=3)
class Last(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.own, self.last = build(), last
    def forward(self, images): return self.last(self.own(images))
def ids(): return Last(lambda logits: logits.argmax(1, keepdim=True).float())
def flat_ids(): return Last(lambda logits: logits.argmax(1))
def channels_last(): return Last(lambda logits: logits.permute(0, 2, 3, 1))
def pair(): return Last(lambda logits: (logits[:, :, ::2, ::2], logits))
def of_bgr():
    facts = {"channels": "bgr", "mean": [104.0, 117.0, 123.0], "std": [1] * 3, "scale": 255}
    return build(), facts
def middle(): return nn.Sequential(nn.Conv2d(3, 2, 1), nn.AvgPool2d(33, 1))
def classifier(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_network"
    sys.modules.pop("own_network", None)


@pytest.mark.parametrize("kind", ["plain", "prefixed", "safetensors", "half"])
@torch.no_grad()
def test_a_function_with_a_file_of_weights(kind, own, tmp_path):
    import own_network

    network = own_network.build().eval()
    shake(network)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    if kind == "half":
        state = {
            name: value.half() if value.is_floating_point() else value
            for name, value in state.items()
        }
    file = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pth")
    if kind == "safetensors":
        save_file(state, file)
    elif kind == "prefixed":
        torch.save(
            {
                "epoch": 3,
                "state_dict": {f"module.net.{name}": value for name, value in state.items()},
            },
            file,
        )
    else:
        torch.save(state, file)
    opened = open_trained(f"{own}:build", str(file))
    expected = F.interpolate(network(ODD), size=(45, 70), mode="bilinear", align_corners=False)
    tolerance = 1e-2 if kind == "half" else 0
    torch.testing.assert_close(opened.logits(ODD), expected, rtol=tolerance, atol=tolerance)
    opened.network[2].bias += 1
    opened.save(tmp_path / "adapted")
    written = tmp_path / "adapted" / file.name
    held, before = (
        load_file(f) if kind == "safetensors" else torch.load(f) for f in (written, file)
    )
    held, before = (each.get("state_dict", each) for each in (held, before))
    assert held.keys() == before.keys()
    name = next(name for name in held if name.endswith("2.bias"))
    torch.testing.assert_close(held[name], before[name].float() + 1)
    assert torch.equal(
        opened.logits(IMAGES), open_trained(f"{own}:build", str(written)).logits(IMAGES)
    )


@torch.no_grad()
def test_what_a_function_may_say_and_return(own):
    opened = open_trained(f"{own}:with_facts")
    said = opened.description
    expected = named_classes(["a", "b", "c"]), "bgr", (0.25,) * 3, 32
    assert (said.classes, said.order, said.pixels.std, said.multiple) == expected
    assert opened.logits(ODD).shape == (2, 3, 45, 70)
    assert open_trained(f"{own}:dictionary").logits(ODD).shape == (2, 3, 45, 70)
    assert open_trained(f"{own}:ladder").logits(ODD).shape == (2, 3, 45, 70)
    library = open_trained(f"{own}:library")  # smp says that sides are multiples of 32
    assert (library.description.multiple, library.logits(ODD).shape) == (32, (2, 3, 45, 70))
    of_bgr = open_trained(f"{own}:of_bgr")
    assert of_bgr.raw_logits(ODD).shape == (2, 3, 23, 35)
    assert (
        of_bgr.description.described
        == "BGR from 0 to 255, mean 104 117 123, deviation 1 1 1 (the function's facts)"
    )
    binary = open_trained(f"{own}:one_output")
    assert binary.num_classes == 2
    assert torch.equal(binary.logits(ODD)[:, 0], torch.zeros(2, 45, 70))
    plain = open_trained(f"{own}:build").raw_logits(ODD)
    torch.testing.assert_close(
        open_trained(f"{own}:half").raw_logits(ODD), plain, atol=1e-3, rtol=1e-2
    )
    with torch.inference_mode():
        assert not any(
            each.is_inference() for each in open_trained(f"{own}:build").network.parameters()
        )
    with pytest.warns(
        UserWarning, match=r"RGB from 0 to 1, mean 0.485 .* \(a guess: ImageNet's\); mean=, std="
    ):
        load(f"{own}:build", device="cpu")


@cases(
    ("own_network:bild", r"has no function 'bild'; did you mean 'build'\?"),
    ("own_network:needs", "cannot be called: needs.. missing 1 required"),
    ("own_network:wrong_fact", r"facts: 'means' is not one of mean, .*; did you mean 'mean'\?"),
    ("own_network:half_stated", "'mean' and 'std' are stated together"),
    ("own_network:softmax", "sums to one over the classes, so it is probabilities"),
    (
        "own_network:sigmoid",
        "lies between 0 and 1 everywhere, so it is probabilities and not logits",
    ),
    ("own_network:ids", r"\(1, 1, 112, 112\); return logits \(B, C, h, w\)"),
    ("own_network:flat_ids", r"int64 of shape \(1, 112, 112\); return logits"),
    ("own_network:channels_last", r"\(1, 112, 112, 3\); return logits \(B, C, h, w\)"),
    ("own_network:pair", "tuple in which no logits were found"),
    ("own_network:middle", r"\(1, 2, 192, 192\); return logits .* of the whole image"),
    ("own_network:classifier", r"\(1, 3\); return logits"),
    ("nvidia/segformer-b0", "no such folder or file; .* nothing is downloaded"),
)
def test_specs_that_lead_nowhere(spec, message, own):
    refuses(message, open_trained, spec)


class Trap:
    """Unpickling it would write a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_files_that_are_no_weights(own, tmp_path):
    def refused(content, message, spec=f"{own}:build", name="weights.pth"):
        file = tmp_path / name
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        refuses(message, open_trained, spec, str(file))

    refused(
        {"weight": Trap(tmp_path / "sprung")},
        r"asks for code to be run, which is refused; save the network's state_dict\(\) where the file comes from$",
    )
    assert not (tmp_path / "sprung").exists()
    refused(b"junk", "is damaged, or asks for code")
    refused(b"", "is damaged, or asks for code")
    refused(b"junk", "is no safetensors file", name="weights.safetensors")
    refused({"epoch": 1, "optimizer": {}}, "holds the keys epoch, optimizer and no tensors by name")
    refused(
        {"0.weight": torch.zeros(4, 3, 3, 3)},
        "does not fit the network of own_.*Missing key.*0.bias",
    )
    refused(
        {"0.weight": torch.zeros(1)},
        "--weights: .* package.module:function",
        spec=str(tmp_path / "weights.pth"),
    )
    refuses(
        r"holds neither config.yaml, as a run does, nor config.json", open_trained, str(tmp_path)
    )


IMAGE = np.random.default_rng(0).integers(0, 256, (45, 70, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("runs") / "run", 0, target=TargetDataConfig(size=[64, 32])
    )


@pytest.fixture(scope="module")
def predictor(run):
    return load(run, device="cpu")


def test_a_prediction_holds_together(run, predictor):
    prediction, p = predictor.predict(IMAGE), predictor.predict(IMAGE).probabilities
    assert p.shape == (19, 45, 70)
    np.testing.assert_allclose(p.sum(0), 1, atol=1e-5)
    np.testing.assert_allclose(-(p * np.log(p)).sum(0) / np.log(19), prediction.entropy, atol=1e-4)
    assert (p.argmax(0) == prediction.classes).mean() > 0.999
    name, largest = next(iter(prediction.shares.items()))
    assert largest == np.mean(prediction.classes == prediction.names.index(name))
    assert sum(prediction.shares.values()) == pytest.approx(1)
    exported = predictor.maps(ImagePixels(IMAGE))  # what seg.export writes
    # bands round otherwise than the whole
    assert (prediction.classes == exported.classes).mean() > 0.999
    np.testing.assert_allclose(prediction.entropy, exported.entropy, atol=1e-5)
    assert not np.array_equal(
        load(run, device="cpu", size=None).predict(IMAGE).entropy, prediction.entropy
    )


def test_every_kind_of_image(predictor, tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(IMAGE).save(file)
    kinds = {
        "path": file,
        "text": str(file),
        "PIL": Image.open(file),
    }
    expected = predictor.predict(IMAGE)
    for kind, image in kinds.items():
        assert np.array_equal(predictor.predict(image).entropy, expected.entropy), kind


@cases(
    (3, "image: got a int .* expected a path, an array"),
    (np.zeros((45, 70, 2), np.uint8), r"of shape \(45, 70, 2\); .* of 8-bit RGB"),
    (np.full((45, 70, 3), 0.5), "8-bit RGB before any normalisation"),
    (torch.zeros(3, 45, 70), "got a Tensor"),
)
def test_what_is_no_image(image, message, predictor):
    refuses(message, predictor.predict, image)


def test_a_notebook_shows_it(predictor):
    prediction = predictor.predict(IMAGE)
    picture = Image.open(io.BytesIO(prediction._repr_png_()))
    assert picture.size == prediction.panel().size
    assert "70 × 45; entropy " in repr(prediction)
    assert "19 classes: road, sidewalk" in repr(predictor)


def test_the_facts_of_the_benchmarks_networks_are_understood(monkeypatch):
    def street_network():
        return nn.Conv2d(3, len(public_networks.CAMVID), 1)

    described = public_networks._described(street_network)
    monkeypatch.setattr(public_networks, "a_network", described, raising=False)
    description = open_trained("public_networks:a_network").description
    assert description.normalisation["channels"] == "rgb"
    assert description.pixels.mean == pytest.approx(public_networks.IMAGENET[0].tolist())
    assert description.multiple == 32
    assert list(description.classes.names) == list(public_networks.CAMVID)
