"""The networks in C++ against autograd in float64, their optimiser against torch's, and the way without a compiler."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import PPO
from torch import Tensor, nn

from rl.fast import numpy_mlp
from rl.fast.numpy_mlp import Chain, KernelChain, Network, load_mlp_kernel
from rl.fast.ppo import FastPPO

kernel = load_mlp_kernel()
needs_kernel = pytest.mark.skipif(kernel is None, reason="no C++ compiler here")


def flat_weights(widths: list[int], generator: torch.Generator) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Random weights in one piece, and the views of each layer."""
    sizes = [size for one, two in itertools.pairwise(widths) for size in (one * two, two)]
    flat = torch.randn(sum(sizes), generator=generator) * 0.3
    parts = flat.split(sizes)
    shapes = list(itertools.pairwise(widths))
    pairs = zip(parts[::2], parts[1::2], shapes, strict=True)
    return flat, [(weight.view(out, into), bias) for weight, bias, (into, out) in pairs]


def by_autograd(layers: list[tuple[Tensor, Tensor]], is_tanh: bool, inputs: Tensor, incoming: Tensor) -> Any:
    """Outputs and flat gradient in float64."""
    leaves = [tensor.double().requires_grad_() for layer in layers for tensor in layer]
    values = inputs.double()
    for index, (weight, bias) in enumerate(zip(leaves[::2], leaves[1::2], strict=True)):
        values = values @ weight.T + bias
        if index + 1 < len(layers):
            values = values.tanh() if is_tanh else values.relu()
    values.backward(incoming.double())
    return values.detach(), torch.cat([leaf.grad.flatten() for leaf in leaves])  # type: ignore[union-attr]


@needs_kernel
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(1, 70), st.booleans(), st.integers(0, 2**31)
)  # fmt: skip
def test_outputs_and_gradient_are_autograds(widths: list[int], rows: int, is_tanh: bool, seed: int) -> None:
    assert kernel is not None
    generator = torch.Generator().manual_seed(seed)
    flat, layers = flat_weights(widths, generator)
    inputs = torch.randn(rows, widths[0], generator=generator)
    incoming = torch.randn(rows, widths[-1], generator=generator)
    gradient = torch.full_like(flat, float("nan"))
    chain = KernelChain(kernel, is_tanh, widths, flat, gradient)
    outputs = chain(inputs.numpy())
    chain.backward(incoming.numpy())
    expected, by_weights = by_autograd(layers, is_tanh, inputs, incoming)
    torch.testing.assert_close(torch.from_numpy(outputs).double(), expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(gradient.double(), by_weights, rtol=1e-4, atol=2e-5 * rows)


@needs_kernel
def test_tanh_is_exact_to_rounding_from_tiny_to_huge() -> None:
    assert kernel is not None
    values = np.concatenate([sign * np.geomspace(1e-30, 1e30, 4001) for sign in (1, -1)]).astype(np.float32)[:, None]
    # a hidden layer of one unit that passes its input, and an output that passes the unit
    chain = KernelChain(kernel, True, [1, 1, 1], torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.zeros(4))
    expected = np.tanh(values.astype(np.float64))
    assert np.abs(chain(values) / expected - 1).max() < 5e-7


@needs_kernel
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_seen(activation: type, value: float) -> None:
    """So that the checks of a training meet it; NaN as in numpy, and infinities that an activation does not swallow."""
    assert kernel is not None
    flat, layers = flat_weights([3, 5, 2], torch.Generator().manual_seed(0))
    inputs = np.array([[0.1, value, -0.2], [1, 2, 3]], np.float32)
    ours = KernelChain(kernel, activation is nn.Tanh, [3, 5, 2], flat, torch.zeros_like(flat))(inputs)
    with np.errstate(invalid="ignore"):
        theirs = Chain(activation, layers, layers)(inputs)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.allclose(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-6)


@needs_kernel
@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_a_step_is_torchs(max_norm: float) -> None:
    assert kernel is not None
    generator = torch.Generator().manual_seed(1)
    ours = torch.randn(1003, generator=generator)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=3e-3, eps=1e-5)
    moments = [torch.zeros(1003), torch.zeros(1003)]
    for step in range(1, 21):
        gradient = torch.randn(1003, generator=generator) * 0.1
        theirs.grad = gradient.clone()
        nn.utils.clip_grad_norm_([theirs], max_norm)
        optimizer.step()
        tensors = (tensor.data_ptr() for tensor in (ours, gradient, *moments))
        kernel.adam_step(1003, *tensors, step, 3e-3, 0.9, 0.999, 1e-5, max_norm)
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)
    state = optimizer.state[theirs]
    torch.testing.assert_close(moments[0], state["exp_avg"], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(moments[1], state["exp_avg_sq"], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_without_a_compiler_the_weights_are_sb3s_too(activation: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_mlp, "load_mlp_kernel", lambda: None)
    arguments = {
        "n_steps": 64, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu", "ent_coef": 0.01,
        "policy_kwargs": {"net_arch": {"pi": [8], "vf": [16, 8]}, "activation_fn": activation},
    }  # fmt: skip
    stock, fast = (
        algorithm("MlpPolicy", "CartPole-v1", **arguments).learn(512)  # type: ignore[arg-type]
        for algorithm in (PPO, FastPPO)
    )
    assert isinstance(Network(fast.policy, np.arange(4)).actor, Chain)
    first, second = stock.policy.state_dict(), fast.policy.state_dict()
    assert max((first[name] - second[name]).abs().max().item() for name in first) <= 1e-5
