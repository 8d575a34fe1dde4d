"""ADVENT's optimiser: as many steps per gradient as modules that hold the weight."""

import copy
import warnings
from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dem_apps.runtime.checkpoint import load_state
from seg import build_model
from seg.methods.optimization import RepeatedSGD
from seg.models.batch_norm import set_up_batch_norm
from seg.models.network import parameter_groups


def weights_of(counts):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(3, 2, generator=generator)) for _ in counts]


def step(optimizer, weights, seed, lr):
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.sampled_from([0.0, 5e-4, 0.3]),
    st.integers(1, 6),
)
def test_the_numbers_of_pytorchs_loop_over_a_list_with_repetitions(counts, momentum, decay, steps):
    ours, theirs = weights_of(counts), weights_of(counts)
    groups = [{"params": [weight], "repeats": times} for weight, times in zip(ours, counts, strict=True)]
    repeated = RepeatedSGD([dict(group) for group in groups], 0.1, momentum, decay)
    listed = [weight for weight, times in zip(theirs, counts, strict=True) for _ in range(times)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = torch.optim.SGD(listed, 0.1, momentum, weight_decay=decay, foreach=False)
    for seed in range(steps):
        if seed == 2:  # a resumed training goes on as an unbroken one
            state = copy.deepcopy(repeated.state_dict())
            repeated = RepeatedSGD(groups, 0.1, momentum, decay)
            load_state(repeated, state, "the checkpoint")
        step(repeated, ours, seed, 0.1 / (seed + 1))
        step(plain, theirs, seed, 0.1 / (seed + 1))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-7)


def test_the_groups_list_what_advents_generator_lists():
    """314 entries for the 104 tensors of their encoder that are trained, counted module by module as theirs does."""
    model = build_model("deeplabv2-advent", encoder="resnet101", num_classes=19)
    set_up_batch_norm(model, "affine-frozen", synchronised=False)
    walked = Counter(
        id(weight)
        for part in model.encoder.children()
        for module in part.modules()
        for weight in module.parameters()
        if weight.requires_grad
    )
    groups = parameter_groups(model, 1.0, 10.0, "advent")
    ours = {id(w): group["repeats"] for group in groups[:-1] for w in group["params"] if w.requires_grad}
    assert ours == dict(walked)
    assert (len(walked), walked.total()) == (104, 314)
    assert (groups[-1]["repeats"], groups[-1]["base_lr"]) == (1, 10.0)
    assert [group["repeats"] for group in parameter_groups(model, 1.0, 10.0)] == [1, 1]
