"""Input of an objective (layouts, ties, masks, forbidden classes, mistakes), its derivatives, and its state."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import cases, refuses
from torch import nn
from torch.autograd import forward_ad

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.errors import InputError

C = 6
REDUCTIONS = ("mean", "balanced", "sum", "none")


def logits_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def value_and_gradient(objective, logits, **arguments):
    leaf = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    loss = objective(leaf, **arguments)
    loss.sum().backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)


def test_ties_go_to_the_first_class(backend):
    objective = build_objective("adadem", C, backend=backend, momentum=1.0)
    logits = torch.zeros(4, C)
    logits[0, 0] = -1.0  # classes 1 to 5 share the maximum
    objective(logits)
    table = objective.class_marginals
    torch.testing.assert_close(table[0], torch.full((C,), 1 / C))
    torch.testing.assert_close(table[1], logits[0].softmax(0))
    assert torch.equal(table[2:], torch.full((C - 2, C), 1 / C))


@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_class_mask_equals_a_smaller_class_set(name, reduction):
    logits, class_mask = logits_of(10, C), torch.zeros(1, C, dtype=torch.bool)
    class_mask[0, [0, 4]] = True
    allowed = ~class_mask[0]
    wide, narrow = build_objective(name, C), build_objective(name, C - 2)
    for _ in range(3):
        value, gradient = value_and_gradient(
            wide, logits, class_mask=class_mask, reduction=reduction
        )
        expected_value, expected_gradient = value_and_gradient(
            narrow, logits[:, allowed], reduction=reduction
        )
        if not hasattr(wide, "class_marginals"):
            assert_same((value, gradient[:, allowed]), (expected_value, expected_gradient))
    if hasattr(wide, "class_marginals"):
        # rows start at 1/6 and at 1/4, so they are compared as the loss sees them: restricted and renormalised
        fixed = build_objective(name, C - 2).eval()
        rows = wide.class_marginals[allowed][:, allowed]
        fixed.class_marginals.copy_(rows / rows.sum(1, keepdim=True))
        expected = value_and_gradient(fixed, logits[:, allowed], reduction=reduction)
        value, gradient = value_and_gradient(
            wide.eval(), logits, class_mask=class_mask, reduction=reduction
        )
        assert_same((value, gradient[:, allowed]), expected)


@pytest.mark.parametrize("reduction", ["mean", "balanced"])
def test_backward_twice_through_one_graph(reduction, backend):
    objective = build_objective("adadem", C, backend=backend)
    leaf = logits_of(2, C, 9).requires_grad_()
    loss = objective(leaf, reduction=reduction)
    (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    kept = first.clone()
    objective.class_marginals.fill_(0.5)  # the graph belongs to the table as it was
    (second,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(second, kept)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_forward_mode_is_reverse_mode(name, backend):
    objective = build_objective(name, C, backend=backend).eval()
    logits, tangent = logits_of(5, C), logits_of(5, C, seed=1)
    expected = (value_and_gradient(objective, logits)[1] * tangent).sum()
    torch.testing.assert_close(torch.func.jvp(objective, (logits,), (tangent,))[1], expected)
    with forward_ad.dual_level():
        dual = objective(forward_ad.make_dual(logits, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)


@pytest.mark.parametrize("name", ["adadem-norm", "adadem"])
def test_sure_predictions_keep_their_gradient_where_the_entropys_reward_divides(name, backend):
    logits = torch.tensor([[gap, 0.0] for gap in (5.0, 13.0, 15.0, 16.0)]).repeat(2000, 1)
    objective = build_objective(name, 2, delta="entropy", backend=backend).eval()
    found = value_and_gradient(objective, logits)[1]
    equations = build_objective(name, 2, delta="entropy", backend="reference").eval()
    expected = value_and_gradient(equations, logits.double())[1]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


def test_the_gradient_is_that_of_the_logits_that_were_given(backend):
    base = logits_of(2, C, 9).requires_grad_()
    expected = value_and_gradient(build_objective("adadem", C, backend=backend), base)[1]
    logits = base * 1.0
    loss = build_objective("adadem", C, backend=backend)(logits)
    with torch.no_grad():
        logits.add_(1.0).mul_(3.0)  # such as an in-place activation after the loss
    (gradient,) = torch.autograd.grad(loss, base)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_values_without_gradients(context, backend):
    logits = logits_of(2, C, 9).requires_grad_()
    expected = build_objective("adadem", C, backend=backend)(logits)
    objective = build_objective("adadem", C, backend=backend)
    with context():
        value = objective(logits)
    assert not value.requires_grad
    torch.testing.assert_close(value, expected.detach())
    objective(logits).backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["adadem", "entropy"])
@pytest.mark.parametrize("reduction", ["mean", "balanced"])
def test_autocast_does_not_narrow_the_computation(dtype, name, reduction, backend):
    """accelerate's mixed precision calls the loss inside autocast, which would turn matrix products to half."""
    logits = logits_of(2, C, 6000)
    logits[:, 3] += 2
    plain, cast = (build_objective(name, C, backend=backend) for _ in range(2))
    expected = value_and_gradient(plain, logits, reduction=reduction)
    with torch.autocast("cpu", dtype):
        leaf = logits.clone().requires_grad_()
        value = cast(leaf, reduction=reduction)
    value.backward()
    assert value.dtype == torch.float32
    assert_same((value.detach(), leaf.grad), expected)
    assert_same(cast.state_dict().values(), plain.state_dict().values())


K = 4
BACKENDS = ("compiled", "eager", "reference")


@cases(
    ((torch.zeros(2, K), torch.zeros(2, dtype=torch.long)), "^dim: .*labels"),
    (({"main": torch.zeros(2, K)},), "^logits: .*dict"),
    ((torch.zeros(2, K, dtype=torch.long),), r"^logits: .*torch\.int64"),
    ((torch.zeros(2, 5),), r"^logits: .*4 classes on dimension 1.*\(2, 5\)"),
    ((torch.zeros(2, K), 2), r"^logits: .*dimension 2.*\(2, 4\)"),
    ((torch.zeros(2, K), 1, torch.ones(2, dtype=torch.uint8)), r"^mask: .*torch\.uint8"),
    ((torch.zeros(2, K), 1, torch.ones(3, dtype=torch.bool)), r"^mask: .*\(2,\).*\(3,\)"),
    ((torch.zeros(2, K), 1, torch.ones(2, dtype=torch.bool, device="meta")), r"^mask: .*meta"),
    ((torch.zeros(2, K), 1, None, torch.ones(2, 3, dtype=torch.bool)), "^class_mask: "),
    ((torch.zeros(2, K), 1, None, np.zeros((2, K), bool)), "^class_mask: .*ndarray"),
    ((torch.zeros(2, K), 1, None, None, "balance"), r"^reduction: .*'balanced'\?"),
)
def test_input_that_is_no_logits_is_one_sentence(arguments, said):
    objective = build_objective("adadem", K)
    refuses(said, objective, *arguments)
    assert torch.equal(objective.class_marginals, torch.full((K, K), 1 / K)), (
        "a refused call leaves them alone"
    )


def test_logits_and_class_marginals_must_be_on_one_device():
    with pytest.raises(
        InputError, match=r"on cpu .*class_marginals on meta; .*objective\.to\('cpu'\)$"
    ):
        build_objective("adadem", K).to("meta")(torch.zeros(2, K))


@pytest.mark.parametrize("backend", ["compiled", "eager"])
def test_a_second_derivative_is_refused_where_there_is_none(backend):
    """It must not silently be 0 where another part of the graph has one."""
    weight = torch.ones(1, requires_grad=True)
    loss = build_objective("adadem", K, backend=backend)(weight * logits_of(5, K))
    refuses(
        r"create_graph=True.*backend='reference'",
        torch.autograd.grad,
        loss,
        weight,
        create_graph=True,
    )


def test_the_equations_have_a_second_derivative():
    logits = logits_of(2, K).double().requires_grad_()
    assert torch.autograd.gradgradcheck(
        build_objective("dem", K, tau=1.3, backend="reference"), logits
    )


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_torch_func_gives_autograds_gradient(backend):
    objective, logits = (
        build_objective("adadem", K, backend=backend),
        logits_of(6, K).requires_grad_(),
    )
    objective(logits)
    objective.eval()
    (expected,) = torch.autograd.grad(objective(logits), logits)
    for gradient in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):  # of a scalar
        torch.testing.assert_close(gradient(objective)(logits.detach()), expected)
    # nothing moves, so train() is no matter
    stateless = build_objective("entropy", K, backend=backend)
    (expected,) = torch.autograd.grad(stateless(logits), logits)
    torch.testing.assert_close(torch.func.grad(stateless)(logits.detach()), expected)


_CASTS = {
    "bfloat16": lambda module: module.to(torch.bfloat16),
    "half": lambda module: module.half(),
    "to, with a device": lambda module: module.to("cpu", torch.float16),
    "deepcopy": copy.deepcopy,
}


@given(st.lists(st.sampled_from([*_CASTS, "batch", "load", "assign"]), max_size=8))
def test_casts_of_the_model_do_not_change_the_class_marginals(steps):
    """The same float32 numbers as without casts, in any order."""
    model = nn.ModuleList([nn.Linear(2, 2), build_objective("adadem", K, backend="reference")])
    twin = build_objective("adadem", K, backend="reference")
    for seed, step in enumerate(steps):
        if step == "batch":
            for objective in (model[1], twin):
                objective(logits_of(9, K, seed=seed))
        elif step in _CASTS:
            model = _CASTS[step](model)
        else:
            state = {"1.class_marginals": twin.class_marginals.clone()}
            state.update({f"0.{name}": value for name, value in model[0].state_dict().items()})
            model.load_state_dict(state, assign=step == "assign")
        assert model[1].class_marginals.dtype == torch.float32
        assert torch.equal(model[1].class_marginals, twin.class_marginals)


@pytest.mark.parametrize("name", ["adadem", "adadem-mec", "adadem-norm"])
def test_a_constant_on_the_logits_changes_nothing(name):
    logits = torch.randn(64, 5, generator=torch.Generator().manual_seed(0)).mul(64).round() / 64
    plain, raised = (build_objective(name, 5, backend="reference") for _ in range(2))
    for _ in range(20):  # class marginals are rounded
        torch.testing.assert_close(plain(logits, 1), raised(logits + 1024, 1), rtol=1e-5, atol=1e-6)
