"""Networks of every origin: opened with the numbers of whoever saved them, and given back in their own format."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import seg.train
from dem_apps.errors import InputError
from seg.config import ModelConfig, SourceConfig, TargetDataConfig, TrainConfig
from seg.data.labels import named_classes
from seg.models.trained import TrainedNetwork, open_trained

IMAGES = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
ODD = IMAGES[:, :, :45, :70]
OWN_NETWORK = """
import torch
from torch import nn
def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))
def with_facts():
    facts = dict(mean=[0.5, 0.5, 0.5], std=[0.25] * 3, order="bgr", classes=["a", "b", "c"], multiple=32)
    return build(), facts
def sigmoid():
    return nn.Conv2d(3, 1, 1)
def dictionary():
    class Torchvision(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 1)
        def forward(self, images):
            return {"out": self.conv(images), "aux": None}
    return Torchvision()
def needs(argument): ...
def fails(): raise RuntimeError("no such luck")
def nothing(): return 3
def wrong_fact(): return build(), {"means": 3}
def classifier(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_network"
    sys.modules.pop("own_network", None)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_pair) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    config = TrainConfig(
        run_dir=str(path), maps=0, max_steps=1, eval_every=1, model=ModelConfig(output_stride=8), device="cpu",
        source=SourceConfig(str(tiny_pair.source_root)),
        target=TargetDataConfig(str(tiny_pair.target_root), size=[64, 32]),
    )  # fmt: skip
    return seg.train.train(config)


def shake(network: nn.Module) -> None:
    """Weights and statistics that no initialisation gives."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.mul_(1 + 0.2 * torch.rand(value.shape, generator=generator))
                if value.ndim == 1:
                    value.add_(0.05 * torch.rand(value.shape, generator=generator))


def again(opened: TrainedNetwork, folder: Path) -> TrainedNetwork:
    """Saved, and opened again."""
    opened.save(folder)
    return open_trained(str(folder))


@torch.no_grad()
def assert_same_logits(one: TrainedNetwork, other: TrainedNetwork) -> None:
    assert torch.equal(one.logits(IMAGES), other.logits(IMAGES))


SMP = {
    "unet": {},
    "fpn": {"encoder_depth": 4, "upsampling": 2},
    "deeplabv3plus": {"encoder_output_stride": 8, "decoder_atrous_rates": [2, 4, 6]},
    "segformer": {},
    "unetplusplus": {"decoder_attention_type": "scse", "encoder_depth": 3, "decoder_channels": [64, 32, 16]},
    "linknet": {"activation": "softmax2d"},
    "dpt": {"encoder_name": "tu-vit_tiny_patch16_224", "dynamic_img_size": True},
}


@pytest.mark.parametrize("architecture", SMP)
@torch.no_grad()
def test_smp_folder_gives_the_librarys_own_logits(architecture: str, tmp_path: Path) -> None:
    options = {"encoder_name": "resnet18", **SMP[architecture]}
    torch.manual_seed(0)
    network = smp.create_model(architecture, encoder_weights=None, classes=3, **options)
    shake(network)
    network.save_pretrained(tmp_path / "smp")
    library = smp.from_pretrained(tmp_path / "smp").eval()
    opened = open_trained(str(tmp_path / "smp"))
    assert (opened.kind, opened.num_classes, opened.classes) == ("smp", 3, None)
    expected = library(IMAGES)
    logits = opened.logits(IMAGES)
    if "activation" in options:
        logits = logits.softmax(1)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert opened.logits(ODD).shape == (2, 3, 45, 70)


@torch.no_grad()
def test_adapted_weights_go_back_to_smp(tmp_path: Path) -> None:
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(tmp_path / "smp")
    opened = open_trained(str(tmp_path / "smp"))
    before = opened.logits(IMAGES)
    shake(opened.network)
    opened.save(tmp_path / "adapted")
    library = smp.from_pretrained(tmp_path / "adapted").eval()
    torch.testing.assert_close(library(IMAGES), opened.logits(IMAGES), rtol=1e-5, atol=1e-4)
    assert not torch.allclose(library(IMAGES), before)
    assert sorted(file.name for file in (tmp_path / "adapted").iterdir()) == ["config.json", "model.safetensors"]


@torch.no_grad()
def test_one_output_of_smp_says_no_and_yes(tmp_path: Path) -> None:
    network = smp.Unet("resnet18", encoder_weights=None, classes=1, aux_params={"classes": 7}).eval()
    network.save_pretrained(tmp_path / "smp")
    opened = open_trained(str(tmp_path / "smp"))
    masks, labels = network(IMAGES)
    yes = opened.logits(IMAGES).softmax(1)[:, 1:]
    torch.testing.assert_close(yes, masks.sigmoid(), rtol=1e-5, atol=1e-5)
    opened.save(tmp_path / "again")
    torch.testing.assert_close(smp.from_pretrained(tmp_path / "again").eval()(IMAGES)[1], labels)


def test_files_beside_smps_say_more(tmp_path: Path) -> None:
    folder = tmp_path / "smp"
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(folder)
    (folder / "classes.json").write_text(json.dumps(named_classes(["a", "b", "c"]).document()))
    document = {"image_mean": [127.5] * 3, "image_std": [51.0] * 3, "do_rescale": False, "do_flip_channel_order": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(document))
    opened = open_trained(str(folder))
    assert opened.classes == named_classes(["a", "b", "c"])
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    expected = (image[..., ::-1].astype(np.float64) / 255 - 0.5) / 0.2
    np.testing.assert_allclose(opened.preprocessing.normalised(image).permute(1, 2, 0), expected, atol=1e-6)
    assert again(opened, tmp_path / "again").preprocessing.mean == opened.preprocessing.mean


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_model_class": "Unett"}, "_model_class is 'Unett'; did you mean 'Unet'"),
        ({"encoder": "resnet18"}, "encoder is no key of segmentation-models-pytorch's"),
        ({"in_channels": 5}, "in_channels is 5, and nothing says what becomes 0 and 1 of each band"),
        ({"decoder_wings": 2}, "unet has no decoder_wings; its options are"),
        ({"encoder_name": "resnet19"}, "'resnet19' is not known to segmentation-models-pytorch; did you mean"),
        ({"classes": 4}, "size mismatch for segmentation_head.0.weight"),
        ({"encoder_name": "resnet34"}, "Missing key"),
    ],
)
def test_smp_folders_that_do_not_fit(change: dict[str, object], message: str, tmp_path: Path) -> None:
    smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        open_trained(str(tmp_path))


def segformer(folder: Path, **settings: object) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1] * 4}
    config = transformers.SegformerConfig(**sizes, decoder_hidden_size=16, **{"num_labels": 4, **settings})
    network = transformers.SegformerForSemanticSegmentation(config).eval()
    network.save_pretrained(folder)
    transformers.SegformerImageProcessor(
        image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25], size={"height": 32, "width": 48}
    ).save_pretrained(folder)
    return network


@torch.no_grad()
def test_transformers_folder_gives_the_librarys_own_prediction(tmp_path: Path) -> None:
    network = segformer(tmp_path / "hf", id2label={0: "soil", 1: "crop", 2: "weed", 3: "crop"})
    opened = open_trained(str(tmp_path / "hf"))
    from transformers import SegformerImageProcessor

    processor = SegformerImageProcessor.from_pretrained(tmp_path / "hf", do_resize=False)
    image = np.random.default_rng(0).integers(0, 256, (48, 80, 3)).astype(np.uint8)
    given = processor(image, return_tensors="pt")["pixel_values"]
    ours = opened.preprocessing.normalised(image)[None]
    torch.testing.assert_close(ours, given, rtol=1e-5, atol=1e-5)
    expected = processor.post_process_semantic_segmentation(network(given), target_sizes=[(48, 80)])[0]
    assert torch.equal(opened.logits(given)[0].argmax(0), expected)
    assert (opened.kind, opened.num_classes, opened.preprocessing.size) == ("transformers", 4, (48, 32))
    assert opened.classes.names == ("soil", "crop", "weed", "crop_2")
    shake(opened.network)
    assert_same_logits(opened, saved := again(opened, tmp_path / "adapted"))
    assert saved.preprocessing.mean == opened.preprocessing.mean
    assert not torch.equal(type(network).from_pretrained(tmp_path / "adapted")(given).logits, network(given).logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "no AutoModelForSemanticSegmentation of 'bert'; it has .*segformer"),
        (
            {"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine"}},
            "is code beside the weights, which is not run",
        ),
        ({"decoder_hidden_size": 8}, "do not fit|cannot load"),
        ({"depths": [2, 1, 1, 1]}, "of its weights do not fit its config.json .missing_keys: "),
    ],
)
def test_transformers_folders_that_do_not_fit(change: dict[str, object], message: str, tmp_path: Path) -> None:
    segformer(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        open_trained(str(tmp_path))


def test_transformers_never_asks_the_network_for_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    import huggingface_hub.constants as hub

    seen = []
    segformer(tmp_path)
    import transformers

    original = transformers.AutoModelForSemanticSegmentation.from_pretrained.__func__

    def spied(cls, *arguments, **options):
        seen.append((hub.HF_HUB_OFFLINE, options["local_files_only"], options["trust_remote_code"]))
        return original(cls, *arguments, **options)

    monkeypatch.setattr(transformers.AutoModelForSemanticSegmentation, "from_pretrained", classmethod(spied))
    before = hub.HF_HUB_OFFLINE
    open_trained(str(tmp_path))
    assert seen == [(True, True, False)]
    assert before == hub.HF_HUB_OFFLINE


@pytest.mark.parametrize("kind", ["plain", "nested", "prefixed", "safetensors", "half"])
@torch.no_grad()
def test_a_function_with_a_file_of_weights(kind: str, own: str, tmp_path: Path) -> None:
    import own_network

    network = own_network.build().eval()
    shake(network)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    if kind == "half":
        state = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    file = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pth")
    if kind == "safetensors":
        save_file(state, file)
    elif kind == "prefixed":
        torch.save({"epoch": 3, "state_dict": {f"module.net.{name}": value for name, value in state.items()}}, file)
    else:
        torch.save({"model": state} if kind == "nested" else state, file)
    opened = open_trained(f"{own}:build", str(file))
    expected = F.interpolate(network(ODD), size=(45, 70), mode="bilinear", align_corners=False)
    torch.testing.assert_close(
        opened.logits(ODD), expected, rtol=1e-2 if kind == "half" else 0, atol=1e-2 * (kind == "half")
    )
    assert (opened.kind, opened.num_classes, opened.classes) == ("function", 3, None)
    with torch.no_grad():
        opened.network[2].bias += 1
    opened.save(tmp_path / "adapted")
    written = tmp_path / "adapted" / file.name
    held = load_file(written) if kind == "safetensors" else torch.load(written, weights_only=True)
    before = load_file(file) if kind == "safetensors" else torch.load(file, weights_only=True)
    held, before = (each.get("state_dict", each.get("model", each)) for each in (held, before))
    assert held.keys() == before.keys()
    name = next(name for name in held if name.endswith("2.bias"))
    torch.testing.assert_close(held[name], before[name].float() + 1)
    assert_same_logits(opened, open_trained(f"{own}:build", str(written)))


def test_what_a_function_may_say_and_return(own: str) -> None:
    facts = open_trained(f"{own}:with_facts")
    assert facts.classes == named_classes(["a", "b", "c"])
    assert (facts.preprocessing.order, facts.preprocessing.std, facts.preprocessing.multiple) == (
        "bgr",
        (0.25,) * 3,
        32,
    )
    assert facts.logits(ODD).shape == (2, 3, 45, 70)
    assert open_trained(f"{own}:dictionary").logits(ODD).shape == (2, 5, 45, 70)
    binary = open_trained(f"{own}:sigmoid")
    assert binary.num_classes == 2
    assert torch.equal(binary.logits(ODD)[:, 0], torch.zeros(2, 45, 70))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_network:bild", r"has no function 'bild'; did you mean 'build'\?"),
        ("own_networks:build", "No module named 'own_networks'.; run the command in the folder that holds the module"),
        ("own_network:needs", "cannot be called .TypeError: "),
        ("own_network:fails", "cannot be called .RuntimeError: no such luck"),
        ("own_network:nothing", "returned a int; expected a torch.nn.Module"),
        ("own_network:wrong_fact", r"unknown fact 'means'; did you mean 'mean'\?"),
        ("own_network:classifier", "its logits have shape .1, 3.; expected .B, C, h, w., one a pixel"),
        ("nvidia/segformer-b0", "no such folder; .* a name on a hub is not downloaded"),
    ],
)
def test_specs_that_lead_nowhere(spec: str, message: str, own: str) -> None:
    with pytest.raises(InputError, match=message):
        open_trained(spec)


class Trap:
    """Unpickling it would write a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_files_that_are_no_weights(own: str, tmp_path: Path) -> None:
    def refused(content: object, message: str, spec: str = f"{own}:build", name: str = "weights.pth") -> None:
        file = tmp_path / name
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(InputError, match=message):
            open_trained(spec, str(file))

    refused({"weight": Trap(tmp_path / "sprung")}, "asks for code to be run, which is refused")
    assert not (tmp_path / "sprung").exists()
    refused(b"junk", "is no file of tensors alone|is no checkpoint of torch")
    refused(b"junk", "is no safetensors file, or is cut short", name="weights.safetensors")
    refused({"epoch": 1, "optimizer": {}}, "holds the keys epoch, optimizer and no tensors by name")
    refused({"0.weight": torch.zeros(4, 3, 3, 3)}, "Missing key.*0.bias.*do not fit the network of own_")
    refused({"0.weight": torch.zeros(1)}, "brings its own; a file of weights goes with", spec=str(tmp_path))
    with pytest.raises(InputError, match=r"weights.pth: is a file; give the folder that it lies in, or package.module"):
        open_trained(str(tmp_path / "weights.pth"))
    with pytest.raises(InputError, match=r"holds neither config.yaml, as a run does, nor config.json"):
        open_trained(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="names neither model_type, as transformers writes it, nor _model_class"):
        open_trained(str(tmp_path))
