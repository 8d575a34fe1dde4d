"""Properties of every objective, backend, reduction, shape, dtype and mask, on generated inputs."""

import dataclasses
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.fused.build_kernel import load_kernel
from dem_apps.reduction import REDUCTIONS

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: As in test_against_paper.py, doubled for generated inputs.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
BACKENDS = ("reference", "eager", "auto", *(("compiled",) if load_kernel() is not None else ()))


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an objective."""

    name: str
    options: dict[str, Any]
    backend: str
    reduction: str
    logits: Tensor
    dim: int
    mask: Tensor | None
    class_mask: Tensor | None

    def objective(self, backend=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # tau above 2/alpha is allowed
            return build_objective(
                self.name, self.logits.shape[self.dim], backend or self.backend, **self.options
            )

    def run(self, backend=None, logits=None):
        """Value and gradient of a fresh objective."""
        leaf = (self.logits if logits is None else logits).detach().requires_grad_()
        value = self.objective(backend)(leaf, self.dim, self.mask, self.class_mask, self.reduction)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    def run_twice(self, logits):
        """Value and gradient of the second call, and the state after it."""
        objective = self.objective()
        for _ in range(2):
            leaf = logits.detach().requires_grad_()
            value = objective(leaf, self.dim, self.mask, self.class_mask, self.reduction)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return (value.detach(), gradient), objective.state_dict()

    @property
    def counted(self):
        """Elements that count, in the logits' shape without the classes."""
        elements = self.logits.movedim(self.dim, -1).shape[:-1]
        counted = torch.ones(elements, dtype=torch.bool) if self.mask is None else self.mask
        if self.class_mask is None:
            return counted
        return counted & ~self.class_mask.expand_as(self.logits).all(self.dim)


def options_of(name):
    alpha = st.sampled_from([0.0, 0.5, 1.0, 1.7])
    if name == "dem":
        return st.fixed_dictionaries({"tau": st.sampled_from([0.3, 1.0, 2.5]), "alpha": alpha})
    more = {}
    if name in ("adadem", "adadem-norm"):
        more |= {"norm": st.sampled_from(["l1", "l2", "linf"])}
    if name in ("adadem", "adadem-mec"):
        more |= {"momentum": st.sampled_from([0.0, 0.1, 1.0])}
    return st.fixed_dictionaries(
        {}, optional={"alpha": alpha, **more} if name.startswith("adadem") else {}
    )


def laid_out(logits, layout):
    """The same numbers, otherwise in memory."""
    if layout == "permuted":
        return (
            logits.permute(*reversed(range(logits.dim())))
            .contiguous()
            .permute(*reversed(range(logits.dim())))
        )
    if layout == "strided":
        return torch.stack([logits, logits], -1)[..., 0]
    return logits


@st.composite
def cases(draw, numbers=(2, 3, 5, 19), dtypes=DTYPES, names=OBJECTIVE_NAMES, masks=True):
    name = draw(st.sampled_from(names))
    dtype, number = draw(st.sampled_from(dtypes)), draw(st.sampled_from(numbers))
    elements = draw(st.lists(st.integers(0, 4), max_size=3))
    dim = draw(st.integers(0, len(elements)))
    shape = (*elements[:dim], number, *elements[dim:])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 10.0, 1000.0]))
    logits = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
    logits = laid_out(logits, draw(st.sampled_from(["as made", "permuted", "strided"])))
    mask = class_mask = None
    if masks:
        share = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
        if share is not None:
            mask = torch.rand(tuple(elements), generator=generator) < share
        share = draw(st.sampled_from([None, None, 0.0, 0.5, 1.0, "all but one"]))
        if share == "all but one":
            class_mask = torch.ones(number, dtype=torch.bool).index_fill(
                0, torch.tensor(number - 1), False
            )
            class_mask = class_mask.view(
                [number if position == dim else 1 for position in range(len(shape))]
            )
        elif share is not None:
            class_mask = torch.rand(shape, generator=generator) < share
    possible = [
        b for b in BACKENDS if b != "compiled" or (dtype != torch.float64 and number <= 256)
    ]
    backend = draw(st.sampled_from(possible))
    return Case(
        name,
        draw(options_of(name)),
        backend,
        draw(st.sampled_from(REDUCTIONS)),
        logits,
        dim - len(shape) if draw(st.booleans()) else dim,
        mask,
        class_mask,
    )


def assert_close(case, actual, expected, what, scale=0.0):
    """Equal up to rounding; a logit of 1000 costs three digits of what is left of it beside the largest one."""
    assert actual.shape == expected.shape
    if not case.logits.numel() or not expected.numel():
        assert (actual == 0).all()
        return
    size = float(case.logits.double().abs().max())
    rounding = 2**-52 if case.logits.dtype == torch.float64 else 2**-23
    # a value is a sum of logits, a gradient one of probabilities, and most of either cancels
    number = case.logits.shape[case.dim]
    alone = case.reduction in ("sum", "none")
    smallest = size if what == "the value" else 1.0 / (number if alone else case.logits.numel())
    if case.logits.dtype in (torch.bfloat16, torch.float16) and hasattr(
        case.objective(), "class_marginals"
    ):
        smallest *= number  # rounded before the table's part takes most of it away
    # both are divided by δ, which is 1/C at least
    smallest *= {"l2": math.sqrt(number), "linf": number}.get(case.options.get("norm", ""), 1.0)
    # the difference of two entropies, each up to log C, and of their gradients
    if case.name == "info-max":
        summed = case.counted.numel() if case.reduction == "sum" else 1
        smallest = max(smallest, math.log(number) * (summed if what == "the value" else smallest))
    scale = max(scale, smallest, float(expected.abs().max()))
    # a table is float32 whatever the logits are
    least = number * 2**-22 if hasattr(case.objective(), "class_marginals") else 0.0
    allowed = (max(TOLERANCE[case.logits.dtype], least) + 8 * rounding * (1.0 + size)) * scale
    error = float((actual.double() - expected).abs().max())
    assert error <= allowed, f"{what} is off by {error:.3g}, allowed {allowed:.3g}"


@given(cases())
def test_every_backend_follows_the_equations_in_float64(case):
    value, gradient = case.run()
    expected, expected_gradient = case.run("reference", case.logits.double())
    sizes = (
        dataclasses.replace(case, reduction="none").run("reference", case.logits.double())[0].abs()
    )
    assert value.dtype == (torch.float64 if case.logits.dtype == torch.float64 else torch.float32)
    assert gradient.dtype == case.logits.dtype
    # what single elements come to may cancel in their mean
    scale = (
        float(sizes.sum() if case.reduction == "sum" else sizes.amax()) if sizes.numel() else 0.0
    )
    assert_close(case, value, expected, "the value", scale)
    assert_close(case, gradient, expected_gradient, "the gradient")


@given(cases(), st.sampled_from([0.0, 1e4, 1e30]))
def test_finite_logits_have_finite_values_and_gradients(case, scale):
    largest = torch.finfo(case.logits.dtype).max / 4
    logits = (case.logits.double() * scale).clamp(-largest, largest).to(case.logits.dtype)
    case = dataclasses.replace(case, logits=logits)
    _, gradient = case.run()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
@given(data=st.data())
def test_masked_elements_have_no_gradient_and_no_effect(name, data):
    case = data.draw(cases(names=(name,)))
    forbidden = torch.zeros(case.logits.shape, dtype=torch.bool)
    if case.class_mask is not None:
        forbidden |= case.class_mask
    forbidden |= ~case.counted.unsqueeze(case.dim)
    # filled already here, since a copy may lie otherwise in memory and so add up in another order
    (value, gradient), tables = case.run_twice(case.logits.masked_fill(forbidden, 0.0))
    assert (gradient[forbidden] == 0).all()
    assert case.counted.any() or (value == 0).all()
    largest = torch.finfo(case.logits.dtype).max
    for junk in (math.nan, math.inf, -math.inf, largest, -largest, 7.0):
        (other, same), moved = case.run_twice(case.logits.masked_fill(forbidden, junk))
        assert torch.equal(other, value)
        assert torch.equal(same, gradient)
        assert all(torch.equal(table, moved[name]) for name, table in tables.items())


@given(cases(), st.sampled_from([-math.inf, -1e8, -1e9, -1e20, "lowest", "added"]))
def test_minus_infinity_and_large_negative_numbers_forbid_their_class(case, fill):
    assume(case.class_mask is not None)
    forbidden = case.class_mask.expand_as(case.logits)
    if fill != -math.inf:  # which some write for it, but not where it stands for every class
        assume(not forbidden.all(case.dim).any())
    fill = {"lowest": torch.finfo(case.logits.dtype).min, "added": case.logits - 1e8}.get(
        fill, fill
    )
    implied = dataclasses.replace(
        case, logits=torch.where(forbidden, fill, case.logits), class_mask=None
    )
    (value, gradient), tables = implied.run_twice(implied.logits)
    (expected, expected_gradient), expected_tables = case.run_twice(case.logits)
    assert (gradient[forbidden] == 0).all()
    assert_close(case, value, expected.double(), "the value")
    assert_close(case, gradient, expected_gradient.double(), "the gradient")
    for name, table in tables.items():
        torch.testing.assert_close(table, expected_tables[name])


@given(cases(masks=False), st.sampled_from([math.nan, math.inf]), st.integers(0, 10**6))
def test_nan_is_never_silent(case, poison, position):
    assume(case.logits.numel())
    logits = case.logits.clone()
    logits[tuple(torch.unravel_index(torch.tensor(position % logits.numel()), logits.shape))] = (
        poison
    )
    objective = case.objective()
    before = {name: table.clone() for name, table in objective.state_dict().items()}
    value = objective(logits, case.dim, reduction=case.reduction)
    if case.reduction == "none":
        poisoned = ~logits.isfinite().all(case.dim)
        assert not value[poisoned].isfinite().any()
    else:
        assert not value.isfinite()
    assert all(torch.equal(objective.state_dict()[name], table) for name, table in before.items())
