from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from seg import build_model
from seg.data.normalisation import normalised
from seg.models.deeplabv2_advent import AdventDeepLabV2, AdventResNet101, BgrMinusMean, Bottleneck
from seg.models.network import parameter_groups

MEAN_BGR = np.array((104.00698793, 116.66876762, 122.67891434))


@pytest.fixture(scope="module")
def shapes_only():
    """The whole network without values: shapes cost nothing."""
    with torch.device("meta"):
        return AdventDeepLabV2(19).eval()


def randomised(module):
    """Weights and running statistics that hide nothing: no ones, no zeros."""
    generator = torch.Generator().manual_seed(3)
    for name, value in module.state_dict().items():
        if name.endswith(("running_var", "bn1.weight", "bn2.weight", "bn3.weight", "1.weight")):
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
        elif value.is_floating_point():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return module.double().eval()


def plain_batch_norm(features, state, name):
    mean, variance, weight, bias = (
        state[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (features - mean) / (variance + 1e-5).sqrt() * weight + bias


@pytest.mark.parametrize("channels", [(8, 2), (24, 4)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (1, 4)])
def test_a_block_has_its_stride_on_the_first_convolution(channels, stride, dilation):
    inputs, width = channels
    block = randomised(Bottleneck(inputs, width, stride, dilation, projected=True))
    state = block.state_dict()
    features = torch.randn(2, inputs, 9, 11, dtype=torch.float64)
    picked = features[:, :, ::stride, ::stride]  # what a 1×1 convolution with a stride sees
    inner = F.relu(
        plain_batch_norm(torch.einsum("oi,bihw->bohw", state["conv1.weight"][:, :, 0, 0], picked), state, "bn1")
    )
    height, width_px = inner.shape[2:]
    padded = F.pad(inner, [dilation] * 4)
    summed = sum(
        torch.einsum(
            "oi,bihw->bohw",
            state["conv2.weight"][:, :, row, column],
            padded[:, :, row * dilation : row * dilation + height, column * dilation : column * dilation + width_px],
        )
        for row in range(3)
        for column in range(3)
    )
    inner = F.relu(plain_batch_norm(summed, state, "bn2"))
    inner = plain_batch_norm(torch.einsum("oi,bihw->bohw", state["conv3.weight"][:, :, 0, 0], inner), state, "bn3")
    shortcut = torch.einsum("oi,bihw->bohw", state["downsample.0.weight"][:, :, 0, 0], picked)
    expected = F.relu(inner + plain_batch_norm(shortcut, state, "downsample.1"))
    torch.testing.assert_close(block(features), expected, rtol=0, atol=1e-10)


def test_a_block_without_a_projection_adds_its_input():
    block = randomised(Bottleneck(8, 2, 1, 2, projected=False))
    with torch.no_grad():
        block.bn3.weight.zero_()
        block.bn3.bias.fill_(0.25)
    features = torch.randn(1, 8, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(block(features), F.relu(features + 0.25))


def test_every_block_of_a_dilated_stage_is_dilated(shapes_only):
    encoder = shapes_only.encoder
    stages = [encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4]
    assert [len(stage) for stage in stages] == [3, 4, 23, 3]
    for stage, stride, dilation in zip(stages, (1, 2, 1, 1), (1, 1, 2, 4), strict=True):
        assert [block.conv1.stride[0] for block in stage] == [stride] + [1] * (len(stage) - 1)
        assert {block.conv2.dilation[0] for block in stage} == {dilation}
        assert {block.conv2.stride[0] for block in stage} == {1}


@pytest.mark.parametrize(("size", "features"), [((512, 1024), (65, 129)), ((720, 1280), (91, 161))])
def test_the_pool_rounds_up(shapes_only, size, features):
    logits = shapes_only(torch.empty(1, 3, *size, device="meta"))
    assert {head: tuple(value.shape) for head, value in logits.items()} == {
        "main": (1, 19, *features),
        "aux": (1, 19, *features),
    }


def test_the_last_column_of_the_pool_is_the_maximum_of_what_is_there():
    with torch.device("meta"):
        pool = AdventResNet101().maxpool
    features = torch.arange(16.0).view(1, 1, 4, 4)
    expected = torch.tensor([[5.0, 7.0, 7.0], [13.0, 15.0, 15.0], [13.0, 15.0, 15.0]])
    torch.testing.assert_close(pool(features)[0, 0], expected)


def test_images_become_bgr_minus_advents_mean():
    image = np.random.default_rng(0).integers(0, 256, (37, 41, 3), dtype=np.uint8)
    image[0, 0], image[0, 1] = 0, 255
    expected = image[:, :, ::-1].astype(np.float64) - MEAN_BGR
    got = BgrMinusMean()(normalised(image)[None])[0].permute(1, 2, 0).double().numpy()
    assert np.abs(got - expected).max() < 1e-4


def test_the_conversion_is_in_no_checkpoint(shapes_only):
    assert {name.split(".")[0] for name in shapes_only.state_dict()} == {"encoder", "main_head", "auxiliary_head"}


def test_parameter_groups_hold_every_parameter_once(shapes_only):
    encoder, heads = parameter_groups(shapes_only, 2.5e-4, 10.0)
    assert (encoder["base_lr"], heads["base_lr"]) == (2.5e-4, 2.5e-3)
    ids = [id(parameter) for group in (encoder, heads) for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in shapes_only.parameters())
    head_ids = {id(p) for head in (shapes_only.main_head, shapes_only.auxiliary_head) for p in head.parameters()}
    assert {id(parameter) for parameter in heads["params"]} == head_ids


@pytest.mark.parametrize("head", ["main", "auxiliary"])
def test_all_four_branches_of_a_head_count(shapes_only, head):
    module = getattr(shapes_only, f"{head}_head")
    assert [branch.dilation for branch in module.branches] == [(d, d) for d in (6, 12, 18, 24)]
    assert all(branch.bias is not None for branch in module.branches)


def test_it_is_built_by_name():
    with torch.device("meta"):
        model = build_model("deeplabv2-advent", encoder="resnet101", num_classes=7)
    assert isinstance(model, AdventDeepLabV2)
    assert {branch.out_channels for branch in model.main_head.branches} == {7}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoder": "resnet18"}, "not resnet18, 8 and 5; give these, or take the model deeplabv2"),
        ({"output_stride": 16}, "not resnet101, 16 and 5"),
        ({"depth": 4}, "not resnet101, 8 and 4"),
        ({"weights": "imagenet"}, r"no 'imagenet' weights for deeplabv2-advent; .*--model.start-from"),
    ],
)
def test_what_it_cannot_be_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model("deeplabv2-advent", num_classes=7, **arguments)
