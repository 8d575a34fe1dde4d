"""Every objective, option, backend, reduction and shape against Algorithm 1 in float64."""

import pytest
import torch
from support import cases
from support.paper_reference import Paper

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.fused.build_kernel import load_kernel

C = 7
CASES = [
    ("entropy", {}),
    ("entropy", {"balance": 0.0}),
    ("cadf", {}),
    ("dem", {}),
    ("dem", {"tau": 0.5}),
    ("dem", {"tau": 1.3, "alpha": 1.4}),
    ("dem", {"tau": 0.7, "alpha": 0.0}),
    ("adadem", {}),
    ("adadem", {"momentum": 1.0}),
    ("adadem", {"momentum": 0.01}),
    ("adadem", {"alpha": 0.5}),
    ("adadem", {"alpha": 1.7, "norm": "l2", "momentum": 0.3}),
    ("adadem", {"norm": "linf"}),
    ("adadem", {"balance": 0.2}),
    ("adadem", {"delta": "entropy"}),
    ("adadem", {"delta": "entropy", "norm": "l2", "alpha": 0.8}),
    ("adadem", {"delta": "entropy", "norm": "linf"}),
    ("adadem-norm", {}),
    ("adadem-norm", {"alpha": 0.6}),
    ("adadem-norm", {"norm": "l2", "alpha": 1.2}),
    ("adadem-norm", {"norm": "linf", "delta": "entropy"}),
    ("adadem-mec", {}),
    ("adadem-mec", {"alpha": 1.3, "momentum": 0.01}),
    ("robust-entropy", {}),
    ("robust-entropy", {"eta": 0.7}),
    ("max-squares", {}),
    ("info-max", {"balance": 0.4}),
    ("info-max", {}),
    ("come", {}),
]
# shape, class dimension, reduction, masked
STEPS = [
    ((5, C, 3, 4), 1, "mean", False),
    ((40, C), -1, "balanced", True),
    ((C, 30), 0, "sum", True),
    ((3, C, 10), 1, "none", True),
    ((2, 5, 3, C), 3, "mean", True),
    ((2, C, 9), -2, "balanced", False),
]
needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="no C++ compiler here")
#: Largest error allowed, relative to the largest expected number: about twice what is seen (ten times for float64).
#: Half precision rounds a gradient twice, the first time before the table's part cancels most of it.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}


def near(actual, expected, dtype, what, scale=0.0):
    """Equal up to that dtype's rounding."""
    assert actual.shape == expected.shape, (
        f"{what}: shape {actual.shape}, expected {expected.shape}"
    )
    actual, expected = actual.detach().double(), expected.detach().double()
    largest, error = max(expected.abs().max().item(), scale), (actual - expected).abs().max().item()
    allowed = TOLERANCE[dtype] * largest
    assert error <= allowed, (
        f"{what}: off by {error:.3g}, allowed {allowed:.3g} (values up to {largest:.3g})"
    )


def make_logits(shape, dim, seed, spread=2.0):
    """Logits where some classes are predicted often, some seldom and some never."""
    generator = torch.Generator().manual_seed(seed)
    classes = shape[dim]
    bias = torch.tensor([2.0, 0.0, 1.0, 0.0, 0.5, -3.0, -8.0]).repeat(classes // 7 + 1)[:classes]
    logits = torch.randn(shape, generator=generator, dtype=torch.float64) * spread
    return (logits.movedim(dim, -1) + bias).movedim(-1, dim).float()


def make_mask(shape, dim, seed):
    elements = torch.empty(shape, device="meta").movedim(dim, -1).shape[:-1]
    return torch.rand(elements, generator=torch.Generator().manual_seed(seed)) < 0.6


def loss_and_gradient(call, logits, **arguments):
    """The loss, and the gradient of it weighted by fixed numbers where there is one per element."""
    leaf = logits.clone().requires_grad_()
    loss = call(leaf, **arguments)
    weights = torch.rand(
        loss.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    ).to(loss.dtype)
    (loss * (weights if loss.dim() else 1.0)).sum().backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def reduction_scales(elements, reduction):
    """The reduction of a value of 1 per element, and the mean weight of an element."""
    return {"none": (1.0, 1.0), "sum": (float(elements), 1.0)}.get(reduction, (1.0, 1.0 / elements))


def compare(objective, paper, logits, dtype, **arguments):
    """One call of both: value, gradient, table.

    A rounding error scales with the terms of a sum and not with what remains of them, so the smallest scale is an
    element's weight; and where δ is the whole entropy's, which comes near 0, it is divided by δ as well.
    """
    value, gradient = loss_and_gradient(objective, logits.to(dtype), **arguments)
    expected_value, expected_gradient = loss_and_gradient(
        paper.loss, logits.to(dtype).double(), **arguments
    )
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert gradient.dtype == dtype
    values_in = torch.float64 if dtype == torch.float64 else torch.float32
    summed, averaged = reduction_scales(
        logits.numel() // paper.num_classes, arguments.get("reduction", "mean")
    )
    near(value, expected_value, values_in, "value", scale=summed * paper.largest_inverse_delta)
    near(
        gradient, expected_gradient, dtype, "gradient", scale=averaged * paper.largest_inverse_delta
    )
    if hasattr(objective, "class_marginals"):
        near(objective.class_marginals, paper.avg_pred, values_in, "table")


def test_the_cases_name_every_objective():
    assert {name for name, _ in CASES} == set(OBJECTIVE_NAMES)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.filterwarnings("ignore:tau")
def test_training_steps(name, options, backend):
    for dtype in (torch.float32, torch.float64)[: 1 if backend == "compiled" else 2]:
        reference = Paper(name, C, **options)
        objective = build_objective(name, C, backend=backend, **options).to(dtype)
        objective.reset()  # 1/C in the wider dtype
        for seed, (shape, dim, reduction, masked) in enumerate(STEPS):
            logits = make_logits(shape, dim, seed)
            mask = make_mask(shape, dim, seed) if masked else None
            compare(objective, reference, logits, dtype, dim=dim, mask=mask, reduction=reduction)


# The kernel's block is 256 elements up to 9 classes, 128 at 19, 48 at 40 and 16 from 76 on.
TAILS = [
    (1, 2, 1),
    (3, 2, 300),
    (3, 7, 15),
    (2, 7, 256),
    (2, 7, 257),
    (2, 19, 129),
    (1, 19, 2177),
    (2, 40, 49),
]
WIDE = [(1, 200, 33), (1, 256, 17), (2, 76, 16)]


@pytest.mark.parametrize("shape", TAILS + WIDE)
@pytest.mark.parametrize("classes_last", [False, True])
@cases(("adadem", "balanced"), ("entropy", "sum"), ("entropy", "balanced"), ("cadf", "mean"))
def test_block_tails(name, reduction, shape, classes_last, backend):
    logits = make_logits(shape, 1, seed=3)
    if classes_last:
        logits = logits.movedim(1, -1).contiguous()
    dim = 2 if classes_last else 1
    objective, reference = build_objective(name, shape[1], backend=backend), Paper(name, shape[1])
    mask = make_mask(tuple(logits.shape), dim, seed=4)
    mask.view(-1)[-1] = True
    compare(objective, reference, logits, torch.float32, dim=dim, reduction=reduction)
    compare(objective, reference, logits, torch.float32, dim=dim, mask=mask, reduction=reduction)


@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "balanced"])
def test_tail_of_the_eager_chunks(outer, reduction):
    shape = (outer, 3, 8192 + 16 + 5)
    logits, given = (
        make_logits(shape, 1, seed=6),
        {"reduction": reduction, "mask": make_mask(shape, 1, seed=7)},
    )
    for name in ("adadem", "dem"):
        compare(
            build_objective(name, 3, backend="eager"),
            Paper(name, 3),
            logits,
            torch.float32,
            **given,
        )


@needs_kernel
@pytest.mark.parametrize("shape", [(2, 19, 40, 50), (3, 7, 5003)])
def test_the_kernel_with_two_threads(shape):
    torch.set_num_threads(2)
    logits, mask = make_logits(shape, 1, seed=8), make_mask(shape, 1, seed=9)
    results = []
    for _ in range(2):
        objective = build_objective("adadem", shape[1], backend="compiled")
        compare(objective, Paper("adadem", shape[1]), logits, torch.float32, mask=mask)
        results.append(
            (*loss_and_gradient(objective, logits, mask=mask), objective.class_marginals)
        )
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second), "the same thread count gives the same bits"


@pytest.mark.parametrize("name", ["adadem", "adadem-mec", "entropy"])
def test_evaluation_uses_the_table_as_it_is(name, backend):
    reference, objective = Paper(name, C), build_objective(name, C, backend=backend)
    compare(objective, reference, make_logits((50, C), 1, seed=1), torch.float32)
    objective.eval()
    before = {key: tensor.clone() for key, tensor in objective.state_dict().items()}
    logits = make_logits((50, C), 1, seed=2)
    expected = reference.loss(logits, training=False)
    near(objective(logits), expected, torch.float32, "value in eval()", scale=1.0)
    assert all(torch.equal(before[key], tensor) for key, tensor in objective.state_dict().items())
