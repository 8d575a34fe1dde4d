"""Wrong input of an objective, higher derivatives, and its class marginals under casts of a model."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses
from torch import nn
from torch.utils.checkpoint import checkpoint

from dem_apps import build_objective
from dem_apps.errors import InputError

C = 4
BACKENDS = ("compiled", "eager", "reference")


def logits_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.zeros(2, C), torch.zeros(2, dtype=torch.long)), r"^dim: .*takes no labels or target.*dim=1"),
        (({"main": torch.zeros(2, C)},), r"^logits: expected a tensor of scores before softmax, got a dict; pass its"),
        ((torch.zeros(2, C, dtype=torch.long),), r"^logits: expected float32, .*, got torch\.int64 \(scores before"),
        ((torch.zeros(2, 5),), r"dimension 1 of shape \(2, 5\) has 5 classes, but the objective was built for 4$"),
        ((torch.zeros(2, C), 2), r"^dim: 2 is no dimension of logits of shape \(2, 4\)$"),
        ((torch.zeros(2, C), 1, torch.ones(2, dtype=torch.uint8)), r"^mask: expected bool of shape \(2,\)"),
        ((torch.zeros(2, C), 1, torch.ones(2, dtype=torch.bool, device="meta")), r"^mask: is on meta"),
        ((torch.zeros(2, C), 1, None, torch.ones(2, 3, dtype=torch.bool)), r"^class_mask: .* to \(2, 4\), got"),
        ((torch.zeros(2, C), 1, None, None, "balance"), r"^reduction: 'balance' .*; did you mean 'balanced'\?"),
        ((torch.zeros(2, C), 1, None, np.zeros((2, C), bool)), r"^class_mask: .*got a ndarray$"),
        ((torch.zeros(2, C).to(torch.float8_e4m3fn),), r"^logits: expected float32, .*, got torch\.float8_e4m3fn$"),
        ((torch.zeros(2, C).to_sparse(),), "^logits: expected an ordinary dense tensor, got a sparse one$"),
        ((torch.nested.nested_tensor([torch.zeros(C)], layout=torch.jagged),), "^logits: .*, got a nested one$"),
        ((torch.zeros(2, C), 1, torch.ones(2, dtype=torch.bool).to_sparse()), "^mask: .*, got a sparse one$"),
        ((torch.zeros(2, C, device="meta"),), "^logits: they are on the device meta, which keeps no numbers$"),
    ],
)
def test_input_that_is_no_logits_is_one_sentence(arguments, said):
    objective = build_objective("adadem", C)
    refuses(said, objective, *arguments)
    assert torch.equal(objective.class_marginals, torch.full((C, C), 1 / C)), "a refused call leaves them alone"


def test_logits_and_class_marginals_must_be_on_one_device():
    with pytest.raises(InputError, match=r"on cpu .*class_marginals on meta; .*objective\.to\('cpu'\)$"):
        build_objective("adadem", C).to("meta")(torch.zeros(2, C))


@pytest.mark.parametrize("backend", ["compiled", "eager"])
def test_a_second_derivative_is_refused_where_there_is_none(backend):
    """It must not silently be 0 where another part of the graph has one."""
    weight = torch.ones(1, requires_grad=True)
    loss = build_objective("adadem", C, backend=backend)(weight * logits_of(5, C).detach())
    refuses(r"create_graph=True.*backend='reference'", torch.autograd.grad, loss, weight, create_graph=True)


def test_the_equations_have_a_second_derivative():
    logits = logits_of(2, C).double().detach().requires_grad_()
    assert torch.autograd.gradgradcheck(build_objective("dem", C, tau=1.3, backend="reference"), logits)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_torch_func_gives_autograds_gradient(backend):
    objective, logits = build_objective("adadem", C, backend=backend), logits_of(6, C)
    objective(logits)
    objective.eval()
    (expected,) = torch.autograd.grad(objective(logits), logits)
    torch.testing.assert_close(torch.func.grad(objective)(logits.detach()), expected)
    stateless = build_objective("entropy", C, backend=backend)  # nothing moves, so train() is no matter
    (expected,) = torch.autograd.grad(stateless(logits), logits)
    torch.testing.assert_close(torch.func.grad(stateless)(logits.detach()), expected)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_checkpointing_moves_the_class_marginals_once(backend, reentrant):
    plain, repeated = (build_objective("adadem", C, backend=backend) for _ in range(2))
    weight = torch.full((1,), 1.5)
    for seed in range(3):
        results = []
        for objective, call in ((plain, None), (repeated, checkpoint)):
            factor, logits = weight.clone().requires_grad_(), logits_of(50, C, seed=seed)

            def loss_of(factor, logits, objective=objective):
                return objective((factor * logits).tanh())

            loss = call(loss_of, factor, logits, use_reentrant=reentrant) if call else loss_of(factor, logits)
            loss.backward()
            results.append((loss.detach(), factor.grad, logits.grad, objective.class_marginals.clone()))
        for first, second in zip(*results, strict=True):
            assert torch.equal(first, second)


_CASTS = {
    "bfloat16": lambda module: module.to(torch.bfloat16), "half": lambda module: module.half(),
    "to, with a device": lambda module: module.to("cpu", torch.float16), "deepcopy": copy.deepcopy,
}  # fmt: skip


@given(st.lists(st.sampled_from([*_CASTS, "batch", "load", "assign"]), max_size=8))
def test_casts_of_the_model_do_not_change_the_class_marginals(steps):
    """The same float32 numbers as without casts, in any order."""
    model = nn.ModuleList([nn.Linear(2, 2), build_objective("adadem", C, backend="reference")])
    twin = build_objective("adadem", C, backend="reference")
    for seed, step in enumerate(steps):
        if step == "batch":
            for objective in (model[1], twin):
                objective(logits_of(9, C, seed=seed))
        elif step in _CASTS:
            model = _CASTS[step](model)
        else:
            state = {"1.class_marginals": twin.class_marginals.clone()}
            state.update({f"0.{name}": value for name, value in model[0].state_dict().items()})
            model.load_state_dict(state, assign=step == "assign")
        assert model[1].class_marginals.dtype == torch.float32
        assert torch.equal(model[1].class_marginals, twin.class_marginals)
