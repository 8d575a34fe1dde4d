"""The two small networks of SB3's MlpPolicy, with their gradient and Adam in C++ (``mlp.cpp``).

Shapes: B rows, D columns of the observations in use, A actions.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn

from dem_apps.fused.build_kernel import address, load_kernel
from rl.hook.algorithm import EntropyObjectivePolicy

ACTIVATIONS = (nn.Tanh, nn.ReLU)
#: Adam's, under torch's names.
_MOMENTS = ("exp_avg", "exp_avg_sq")
_SOURCE = Path(__file__).with_name("mlp.cpp")
#: Arguments of the library's functions: a pointer, an integer or a real number.
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "r": ctypes.c_double}
_ARGUMENTS = {
    "mlp_forward": "p i i p p i p p",
    "mlp_backward": "p i i p p p i p p",
    "ppo_loss": "i i p p p p p p p i r r r p p p p p p",
    "adam_step": "i p p p p r r r r r r",
}


@functools.cache
def load_mlp_kernel() -> ctypes.CDLL | None:
    """The library, built by the first call on a machine; None where it cannot be."""
    kernel = load_kernel(_SOURCE)
    if kernel is not None:
        for name, letters in _ARGUMENTS.items():
            function = getattr(kernel, name)
            function.argtypes = [_TYPES[letter] for letter in letters.split()]
            function.restype = None
    return kernel


class Chain:
    """Linear layers with one of :data:`ACTIVATIONS` between them, of flat float32 tensors.

    ``widths``: D, those of the hidden layers, the outputs'.
    """

    def __init__(
        self,
        kernel: ctypes.CDLL,
        is_tanh: bool,
        widths: Sequence[int],
        weights: Tensor,
        gradient: Tensor,
    ) -> None:
        self._kernel = kernel
        self._widths, self._layers = np.array(widths, np.int64), len(widths) - 1
        self._tensors = weights, gradient  # whose memory is pointed to
        self._units, self._out = sum(widths[1:-1]), widths[-1]
        self._shape = address(self._widths), self._layers, int(is_tanh), weights.data_ptr()
        self._gradient = gradient.data_ptr()
        self._hidden = np.empty(0, np.float32)
        self._at_hidden = address(self._hidden)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Compute the outputs, and keep what :meth:`backward` needs.

        Args:
            inputs: (B, D) float32.

        Returns:
            (B, out) float32.
        """
        self._inputs = np.ascontiguousarray(inputs)
        self._at_inputs = address(self._inputs)
        rows = len(inputs)
        needed = rows * self._units
        if len(self._hidden) < needed:
            self._hidden = np.empty(needed, np.float32)
            self._at_hidden = address(self._hidden)
        outputs = np.empty((rows, self._out), np.float32)
        self._kernel.mlp_forward(
            *self._shape, self._at_inputs, rows, self._at_hidden, address(outputs)
        )
        return outputs

    def backward(self, incoming: np.ndarray) -> None:
        """Fill the gradient from that of the outputs, (B, out) float32."""
        incoming = np.ascontiguousarray(incoming)
        self._kernel.mlp_backward(
            *self._shape,
            self._gradient,
            self._at_inputs,
            len(incoming),
            self._at_hidden,
            address(incoming),
        )


class Network:
    """A copy of a policy that takes some columns of the observations.

    :meth:`write_back` puts its weights back into the policy.

    Args:
        policy: the policy.
        columns: (D,) indices of the columns in use.
        with_adam: whether the state of its optimiser is copied too.
    """

    def __init__(
        self, policy: ActorCriticPolicy, columns: np.ndarray, with_adam: bool = False
    ) -> None:
        self._policy = policy
        #: Parameters from the actor's first layer to the critic's last, and the index of what is in use of each.
        self._parameters: list[Any] = []
        self._used: list[Any] = []
        in_use = (slice(None), torch.from_numpy(columns))
        for chain in chains(policy):
            for layer in chain:
                self._parameters += [layer.weight, layer.bias]
                self._used += [in_use if layer is chain[0] else (...,), (...,)]
        pairs = zip(self._parameters, self._used, strict=True)
        self._shapes = [parameter[used].shape for parameter, used in pairs]
        self.weights = self._packed([parameter.detach() for parameter in self._parameters])
        self.gradient = torch.zeros_like(self.weights)
        kernel = load_mlp_kernel()
        assert kernel is not None  # why_no_network has asked for it
        self.kernel = kernel
        #: Maps observations (B, D) float32 to logits (B, A), and to values (B, 1).
        self.actor, self.critic = self._chains(kernel, len(columns))
        if with_adam:
            self._load_adam()

    def step(self, max_norm: float) -> None:
        """Clip the gradient's norm and take one step of Adam, as ``clip_grad_norm_`` and ``Adam.step`` do."""
        norm = torch.linalg.vector_norm(self.gradient).item()
        scale = max_norm / (norm + 1e-6) if norm + 1e-6 > max_norm else 1.0
        self._steps += 1
        self.kernel.adam_step(*self._places, self._steps.item(), *self._rates, scale)

    def write_back(self) -> None:
        """Put weights and moments into the policy and its optimiser; columns that are not in use stay as they are."""
        self._unpack(self.weights, [parameter.detach() for parameter in self._parameters])
        states = [self._policy.optimizer.state[parameter] for parameter in self._parameters]
        for state in states:
            state["step"] = self._steps.clone()
        for flat, name in zip(self._moments, _MOMENTS, strict=True):
            self._unpack(flat, [state[name] for state in states])

    def _chains(self, kernel: ctypes.CDLL, inputs: int) -> Iterator[Chain]:
        """Yield actor and critic, whose parameters lie one after the other in the flat tensors."""
        is_tanh, start = self._policy.activation_fn is nn.Tanh, 0
        for layers in chains(self._policy):
            widths = [inputs, *(layer.out_features for layer in layers)]
            end = start + sum((before + 1) * width for before, width in pairwise(widths))
            yield Chain(kernel, is_tanh, widths, self.weights[start:end], self.gradient[start:end])
            start = end

    def _load_adam(self) -> None:
        optimizer = self._policy.optimizer
        group = optimizer.param_groups[0]
        self._rates = [group["lr"], *group["betas"], group["eps"]]
        for parameter in self._parameters:
            if not optimizer.state[parameter]:  # before the first step
                zeros = {name: torch.zeros_like(parameter) for name in _MOMENTS}
                optimizer.state[parameter].update(step=torch.tensor(0.0), **zeros)
        states = [optimizer.state[parameter] for parameter in self._parameters]
        self._steps = states[0]["step"].clone()
        self._moments = [self._packed([state[name] for state in states]) for name in _MOMENTS]
        flat = (self.weights, self.gradient, *self._moments)
        self._places = len(self.weights), *(tensor.data_ptr() for tensor in flat)

    def _packed(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat(
            [tensor[used].flatten() for tensor, used in zip(tensors, self._used, strict=True)]
        )

    def _unpack(self, flat: Tensor, tensors: list[Tensor]) -> None:
        parts = flat.split([math.prod(shape) for shape in self._shapes])
        for tensor, part, shape, used in zip(tensors, parts, self._shapes, self._used, strict=True):
            tensor[used] = part.view(shape)


def drawn(p: np.ndarray) -> np.ndarray:
    """Actions (B,) of probabilities (B, A): those of ``torch.multinomial`` from its generator, in less time."""
    # torch draws one sample so: each of the A actions gets an exponential time with rate p, and the
    # action with the shortest time is drawn
    times = torch.empty(p.shape).exponential_().numpy()
    actions: np.ndarray = (p / times).argmax(axis=1)
    return actions


def why_no_network(model: OnPolicyAlgorithm) -> str | None:
    """Return why :class:`Network` cannot compute what the model's policy does.

    The reason is half a sentence. It is None if the network can.
    """
    policy, space, actions = model.policy, model.observation_space, model.action_space
    policy_class = policy.made_of[1] if isinstance(policy, EntropyObjectivePolicy) else type(policy)
    one_axis = isinstance(space, spaces.Box) and len(space.shape) == 1
    served = {
        "the actions are not Discrete": isinstance(actions, spaces.Discrete) and actions.n > 1,
        "the observations have not one axis of float32": one_axis and space.dtype == np.float32,
        "the device is not the CPU": model.device.type == "cpu",
        "the policy is not SB3's own MlpPolicy": policy_class is ActorCriticPolicy
        and type(policy.features_extractor) is FlattenExtractor,
        "the activation is not Tanh or ReLU": policy.activation_fn in ACTIVATIONS,
    }
    for why, fits in served.items():
        if not fits:
            return why
    return None if load_mlp_kernel() is not None else "there is no C++ compiler to build it with"


def chains(policy: ActorCriticPolicy) -> tuple[list[nn.Linear], list[nn.Linear]]:
    """The linear layers from observation to logits, and from observation to value."""
    extractor = policy.mlp_extractor
    hidden = [
        [m for m in net if isinstance(m, nn.Linear)]
        for net in (extractor.policy_net, extractor.value_net)
    ]
    return [*hidden[0], policy.action_net], [*hidden[1], policy.value_net]  # type: ignore[list-item]
