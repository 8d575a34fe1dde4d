from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional as F

from seg import build_model
from seg.convert import main
from seg.data.pixel_format import normalised
from seg.models.advent_weights import convert, from_advent
from seg.models.start_from import start_from
from seg.models.trained import open_run

C = 19
MEAN_BGR = (104.00698793, 116.66876762, 122.67891434)
#: Blocks, width, stride and dilation of the stages; neither this table nor what uses it knows our network.
STAGES = {"layer1": (3, 64, 1, 1), "layer2": (4, 128, 2, 1), "layer3": (23, 256, 1, 2), "layer4": (3, 512, 1, 4)}


def advent_state(num_classes):
    """A random state dict in ADVENT's layout."""
    generator = torch.Generator().manual_seed(0)
    state = {}

    def convolution(name, outputs, inputs, size):
        deviation = (2.0 / (inputs * size * size)) ** 0.5
        state[f"{name}.weight"] = torch.randn(outputs, inputs, size, size, generator=generator) * deviation

    def batch_norm(name, channels, weight=1.0, variance=1.0):
        state[f"{name}.weight"] = weight * (0.5 + torch.rand(channels, generator=generator))
        state[f"{name}.running_var"] = variance * (0.5 + torch.rand(channels, generator=generator))
        for part in ("bias", "running_mean"):
            state[f"{name}.{part}"] = 0.3 * torch.randn(channels, generator=generator)
        state[f"{name}.num_batches_tracked"] = torch.tensor(120000)

    convolution("conv1", 64, 3, 7)
    batch_norm("bn1", 64, variance=1e4)  # of images from 0 to 255
    channels = 64
    for stage, (blocks, width, _stride, _dilation) in STAGES.items():
        for index in range(blocks):
            block = f"{stage}.{index}"
            convolution(f"{block}.conv1", width, channels if index == 0 else 4 * width, 1)
            convolution(f"{block}.conv2", width, width, 3)
            convolution(f"{block}.conv3", 4 * width, width, 1)
            batch_norm(f"{block}.bn1", width)
            batch_norm(f"{block}.bn2", width)
            batch_norm(f"{block}.bn3", 4 * width, weight=0.2)  # or 33 residuals would add up to astronomic numbers
            if index == 0:
                convolution(f"{block}.downsample.0", 4 * width, channels, 1)
                batch_norm(f"{block}.downsample.1", 4 * width, variance=2.0)
        channels = 4 * width
    for head, inputs in (("layer5", 1024), ("layer6", 2048)):
        for branch in range(4):
            convolution(f"{head}.conv2d_list.{branch}", num_classes, inputs, 3)
            state[f"{head}.conv2d_list.{branch}.bias"] = torch.randn(num_classes, generator=generator)
    return state


def advent_forward(state, bgr):
    """ADVENT's network, plainly: BGR images minus the mean → auxiliary and main logits."""

    def batch_norm(features, name):
        return F.batch_norm(
            features, *(state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        )

    def block(features, name, stride, dilation):
        inner = F.relu(batch_norm(F.conv2d(features, state[f"{name}.conv1.weight"], stride=stride), f"{name}.bn1"))
        inner = F.conv2d(inner, state[f"{name}.conv2.weight"], padding=dilation, dilation=dilation)
        inner = F.relu(batch_norm(inner, f"{name}.bn2"))
        inner = batch_norm(F.conv2d(inner, state[f"{name}.conv3.weight"]), f"{name}.bn3")
        if f"{name}.downsample.0.weight" in state:
            shortcut = F.conv2d(features, state[f"{name}.downsample.0.weight"], stride=stride)
            features = batch_norm(shortcut, f"{name}.downsample.1")
        return F.relu(inner + features)

    def head(features, name):
        weights = [
            (state[f"{name}.conv2d_list.{branch}.weight"], state[f"{name}.conv2d_list.{branch}.bias"], dilation)
            for branch, dilation in enumerate((6, 12, 18, 24))
        ]
        return sum(F.conv2d(features, w, b, padding=d, dilation=d) for w, b, d in weights)

    features = F.relu(batch_norm(F.conv2d(bgr, state["conv1.weight"], stride=2, padding=3), "bn1"))
    features = F.max_pool2d(features, 3, stride=2, padding=1, ceil_mode=True)
    logits = []
    for stage, (blocks, _width, stride, dilation) in STAGES.items():
        for index in range(blocks):
            features = block(features, f"{stage}.{index}", stride if index == 0 else 1, dilation)
        if stage == "layer3":
            logits.append(head(features, "layer5"))
    return logits[0], head(features, "layer6")


@pytest.fixture(scope="module")
def state():
    return advent_state(C)


@pytest.fixture(scope="module")
def file(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "advent.pth"
    torch.save(state, path)
    return path


@pytest.fixture
def converted(run_here):
    """Call the command; returns what it printed."""
    return lambda *flags: run_here(main, *map(str, flags)).stdout


@torch.no_grad()
def test_a_converted_checkpoint_predicts_what_it_predicted(state, file, converted, tmp_path):
    run, classes = tmp_path / "published", tmp_path / "classes.yaml"
    classes.write_text(yaml.safe_dump({"classes": [{"name": f"class {i}", "color": [i, 0, 0]} for i in range(C)]}))
    printed = converted("--advent", file, "--run-dir", run, "--classes", classes)
    assert f"python -m seg.evaluate --run {run}" in printed
    record = json.loads((run / "converted.json").read_text())
    assert record == {"advent": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "part": "network"}
    trained, training = open_run(run, "last")
    assert (trained.class_set.names[3], training.config.classes) == ("class 3", str(classes))

    image = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    bgr = torch.from_numpy(image[:, :, ::-1] - np.array(MEAN_BGR)).float().permute(2, 0, 1)[None]
    auxiliary, main = advent_forward(state, bgr)
    logits = trained.network(normalised(image)[None])
    assert main.shape == (1, C, 9, 13)
    for got, expected in ((logits["aux"], auxiliary), (logits["main"], main)):
        assert expected.std() > 0.1
        torch.testing.assert_close(got / expected.std(), expected / expected.std(), rtol=0, atol=1e-4)


def test_a_data_parallel_prefix_and_missing_batch_counts_are_no_obstacle(state):
    old = {f"module.{name}": value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    converted = from_advent(old, C, "old.pth")
    plain = from_advent(state, C, "new.pth")
    assert converted.keys() == plain.keys()
    for name, value in converted.items():
        expected = torch.tensor(0) if name.endswith("num_batches_tracked") else plain[name]
        assert torch.equal(value, expected)


def without(state, *prefixes):
    return {name: value for name, value in state.items() if not name.startswith(prefixes)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "layer5."), r"no ResNet-101 of ADVENT with both heads .*Missing key.*auxiliary_head"),
        (lambda s: {**s, "fc.weight": torch.zeros(1)}, r"for 19 classes \(--classes\): .*Unexpected key.*fc.weight"),
        (lambda s: {f"Scale.{k}": v for k, v in without(s, "bn1.").items()}, r"Missing key.*encoder.bn1"),
    ],
)
def test_another_checkpoint_is_named_in_one_sentence(state, change, message):
    with pytest.raises(ValueError, match=message):
        from_advent(change(state), C, "file.pth")


def test_a_folder_in_use_is_left_alone(file, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is never overwritten; give another"):
        convert(file, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_weights_to_start_from_bring_the_encoder_and_leave_the_heads_to_the_seed(state, converted, tmp_path):
    """The file that ADVENT's trainings start from, whose head is of another data set."""
    head = {f"layer5.conv2d_list.{branch}.bias": torch.zeros(21) for branch in range(4)}
    published = {f"Scale.{name}": value for name, value in {**without(state, "layer5.", "layer6."), **head}.items()}
    torch.save(published, tmp_path / "start.pth")
    run = tmp_path / "run"
    assert f"--model.start-from {run}" in converted("--advent", tmp_path / "start.pth", "--run-dir", run)
    assert json.loads((run / "converted.json").read_text())["part"] == "encoder"
    torch.manual_seed(3)
    model = build_model("deeplabv2-advent", num_classes=C)
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    start_from(model, run)
    for name, value in model.state_dict().items():
        expected = state[name.removeprefix("encoder.")] if name.startswith("encoder.") else drawn[name]
        assert torch.equal(value, expected), name
    with pytest.raises(ValueError, match=r"holds an encoder without heads; train from it with --model.start-from"):
        open_run(run, "last")
