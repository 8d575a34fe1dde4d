import hashlib
import json

import numpy as np
import pytest
import torch
import yaml
from support import cases, refuses
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from dem_apps.runtime.checkpoint import save_checkpoint
from seg import build_model
from seg.convert import main as convert
from seg.data.pixel_format import RGB
from seg.models.settings import ModelConfig
from seg.trained.advent_weights import from_advent
from seg.trained.run_network import open_run
from seg.trained.start_from import Start

C = 19
MEAN_BGR = (104.00698793, 116.66876762, 122.67891434)


class Advent(ResNet):
    """ADVENT's network, every stride and dilation written out; that of seg is smp's with two of them changed."""

    def __init__(self):
        super().__init__(
            Bottleneck, [3, 4, 23, 3], replace_stride_with_dilation=[False, True, True]
        )
        del self.fc
        self.maxpool.ceil_mode = True
        for stage, dilation in (
            (self.layer1, 1),
            (self.layer2, 1),
            (self.layer3, 2),
            (self.layer4, 4),
        ):
            stage[0].conv1.stride = stage[0].downsample[0].stride
            for block in stage:
                block.conv2.stride, block.conv2.padding, block.conv2.dilation = (
                    (1, 1),
                    (dilation,) * 2,
                    (dilation,) * 2,
                )
        for head, channels in (("layer5", 1024), ("layer6", 2048)):
            branches = [nn.Conv2d(channels, C, 3, padding=d, dilation=d) for d in (6, 12, 18, 24)]
            self.add_module(head, nn.ModuleDict({"conv2d_list": nn.ModuleList(branches)}))

    def forward(self, bgr):
        """BGR images minus the mean → auxiliary and main logits."""
        features = self.layer2(self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(bgr))))))
        features = self.layer3(features)
        heads = (self.layer5, features), (self.layer6, self.layer4(features))
        return [sum(branch(given) for branch in head["conv2d_list"]) for head, given in heads]


@pytest.fixture(scope="module")
@torch.no_grad()
def advent():
    """With random weights and statistics."""
    torch.manual_seed(0)
    network = Advent().eval()
    for name, layer in network.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.uniform_(0.5, 1.5)
            layer.running_var.uniform_(0.5, 1.5)
            layer.bias.normal_(0, 0.3)
            layer.running_mean.normal_(0, 0.3)
            layer.num_batches_tracked.fill_(120_000)
        if name.endswith("bn3"):
            layer.weight *= 0.2  # or 33 residuals would add up to astronomic numbers
    network.bn1.running_var *= 1e4  # of images from 0 to 255
    return network


@pytest.fixture(scope="module")
def state(advent):
    return advent.state_dict()


@pytest.fixture(scope="module")
def file(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "advent.pth"
    torch.save(state, path)
    return path


@torch.no_grad()
def test_a_converted_checkpoint_predicts_what_it_predicted(advent, file, run_here, tmp_path):
    run, classes = tmp_path / "published", tmp_path / "classes.yaml"
    classes.write_text(
        yaml.safe_dump({"classes": [{"name": f"class {i}", "color": [i, 0, 0]} for i in range(C)]})
    )
    printed = run_here(convert, "--advent", file, "--run-dir", run, "--classes", classes).out
    assert f"python -m seg.evaluate --run {run}" in printed
    record = json.loads((run / "converted.json").read_text())
    assert record == {
        "advent": str(file),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "part": "network",
    }
    trained = open_run(run, "last")
    assert (trained.class_set.names[3], trained.config.classes) == ("class 3", str(classes))

    image = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    bgr = torch.from_numpy(image[:, :, ::-1] - np.array(MEAN_BGR)).float().permute(2, 0, 1)[None]
    auxiliary, main = advent(bgr)
    logits = trained.network(RGB.normalised(image)[None])
    assert main.shape == (1, C, 9, 13)
    for got, expected in ((logits["aux"], auxiliary), (logits["main"], main)):
        assert expected.std() > 0.1
        torch.testing.assert_close(
            got / expected.std(), expected / expected.std(), rtol=0, atol=1e-4
        )


def test_a_data_parallel_prefix_and_missing_batch_counts_are_no_obstacle(state):
    old = {
        f"module.{name}": value
        for name, value in state.items()
        if not name.endswith("num_batches_tracked")
    }
    converted = from_advent(old, C, "old.pth")
    plain = from_advent(state, C, "new.pth")
    assert converted.keys() == plain.keys()
    for name, value in converted.items():
        expected = torch.tensor(0) if name.endswith("num_batches_tracked") else plain[name]
        assert torch.equal(value, expected)


def without(state, *prefixes):
    return {name: value for name, value in state.items() if not name.startswith(prefixes)}


@cases(
    (
        lambda s: without(s, "layer5."),
        r"no ResNet-101 of ADVENT with both heads .*Missing key.*auxiliary_head",
    ),
    (
        lambda s: {**s, "fc.weight": torch.zeros(1)},
        r"for 19 classes \(--classes\): .*Unexpected key.*fc.weight",
    ),
    (
        lambda s: {f"Scale.{k}": v for k, v in without(s, "bn1.").items()},
        r"Missing key.*encoder.bn1",
    ),
)
def test_another_checkpoint_is_named_in_one_sentence(change, message, state):
    refuses(message, from_advent, change(state), C, "file.pth")


def test_weights_to_start_from_bring_the_encoder_and_leave_the_heads_to_the_seed(
    state, run_here, tmp_path
):
    """The file that ADVENT's trainings start from, whose head is of another data set."""
    head = {f"layer5.conv2d_list.{branch}.bias": torch.zeros(21) for branch in range(4)}
    published = {
        f"Scale.{name}": value
        for name, value in {**without(state, "layer5.", "layer6."), **head}.items()
    }
    torch.save(published, tmp_path / "start.pth")
    run = tmp_path / "run"
    printed = run_here(convert, "--advent", tmp_path / "start.pth", "--run-dir", run).out
    assert f"--model.start-from {run}" in printed
    assert json.loads((run / "converted.json").read_text())["part"] == "encoder"
    torch.manual_seed(3)
    model = build_model("deeplabv2-advent", num_classes=C)
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    Start(ModelConfig(start_from=str(run))).put_into(model)
    for name, value in model.state_dict().items():
        expected = (
            state[name.removeprefix("encoder.")] if name.startswith("encoder.") else drawn[name]
        )
        assert torch.equal(value, expected), name
    refuses(
        r"holds an encoder without heads; train from it with --model.start-from",
        open_run,
        run,
        "last",
    )
    save_checkpoint(run / "checkpoints", "last", {"model": {5: torch.zeros(1)}, "step": 0})
    refuses("run, checkpoint last: 'int' object", open_run, run, "last")
