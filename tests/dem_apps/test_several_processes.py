"""Several gloo processes with unequal shards compute what one process does on the joined batch."""

import itertools
import os
import signal

import pytest
import torch
import torch.distributed as dist
from support.processes import together

from dem_apps import TestTimeAdapter, build_objective
from dem_apps.fused.build_kernel import load_kernel
from dem_apps.runtime.signals import StopRequest

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
BACKENDS = ["reference", "eager"] + (["compiled"] if load_kernel() is not None else [])
NAMES = (
    "entropy",
    "adadem",
    "adadem-mec",
    "adadem-norm",
    "max-squares",
    "info-max",
    "robust-entropy",
)
C, STEPS = 5, 3
#: Elements per process: unequal; of three processes one has none.
SHARDS = {1: [29], 2: [20, 9], 3: [17, 0, 12]}


def batch(step):
    """Inputs, mask and weights of the joined batch: (29, 4), (29,), (4, C)."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(29, 4, generator=generator) * 2
    return inputs, torch.rand(29, generator=generator) < 0.7, torch.randn(4, C, generator=generator)


def losses_and_gradients(backend, rank, world):
    """Per case, [loss, gradient of the weights] of each step and the class marginals at the end."""
    results, start = {}, sum(SHARDS[world][:rank])
    own = slice(start, start + SHARDS[world][rank])
    for name, reduction, masked in itertools.product(NAMES, ("mean", "balanced"), (False, True)):
        objective, parts = build_objective(name, C, backend=backend), []
        for step in (STEPS, STEPS + 1) if masked else ():
            inputs, mask, weights = batch(step)
            objective.start(inputs[own] @ weights, mask=mask[own], further=True)
        for step in range(STEPS):
            inputs, mask, weights = batch(step)
            logits, mask = inputs[own] @ weights.requires_grad_(), mask[own] if masked else None
            loss = objective(logits, mask=mask, reduction=reduction)
            loss.backward()
            parts += [loss.detach(), weights.grad]
        results[f"{name} {reduction} {masked}"] = [*parts, *objective.state_dict().values()]
    return results


def adapted(method):
    """A weight after one step of an adapter, which nothing averages over processes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 1), torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, C, 1)
    )
    options = {"eta": {"entropy_margin": 9.0}, "cotta": {"objective_weight": 1.0}}.get(method, {})
    TestTimeAdapter(model, method, "adadem", lr=0.1, **options)(torch.randn(4, 3, 8, 8))
    return model[1].weight.detach()


def stopping_step(rank, world):
    """The step after which this process stops: the last rank gets a signal at step 3, each before it two later."""
    with StopRequest("") as stop:
        for step in itertools.count(1):
            if step == 3 + 2 * (world - 1 - rank):
                os.kill(os.getpid(), signal.SIGTERM)
            if stop.asked():
                return step


@pytest.fixture(scope="module", params=[2, 3])
def shared(request, tmp_path_factory):
    """Results of each of so many processes."""

    def work(rank):
        results = {
            backend: losses_and_gradients(backend, rank, request.param) for backend in BACKENDS
        }
        results["adapted"] = [adapted(method) for method in ("tent", "eta", "cotta")[: 3 - rank]]
        return results | {"stopping step": stopping_step(rank, request.param)}

    return together(work, tmp_path_factory.mktemp("gloo"), request.param)


@pytest.mark.parametrize("backend", BACKENDS)
def test_processes_agree_with_one(backend, shared):
    for case, expected in losses_and_gradients(backend, 0, 1).items():
        parts = [results[backend][case] for results in shared]
        for index in range(2 * STEPS):
            average = torch.stack([part[index] for part in parts]).mean(0)
            where = f"{case}, step {index // 2}, {'gradient' if index % 2 else 'loss'}: "
            torch.testing.assert_close(
                average, expected[index], rtol=0, atol=1e-6, msg=where.__add__
            )
        for part in parts:
            for table, single, other in zip(part[6:], expected[6:], parts[0][6:], strict=True):
                torch.testing.assert_close(table, single, rtol=0, atol=1e-6)
                assert torch.equal(table, other), "every process has the same table, bit for bit"


def test_an_adapter_learns_alone(shared):
    """Not all of them adapt as often as the others, and none waits."""
    for results in shared:
        for method, weight in zip(("tent", "eta", "cotta"), results["adapted"], strict=False):
            assert not torch.equal(weight, torch.ones_like(weight))
            assert torch.equal(weight, adapted(method)), method


def test_processes_stop_after_the_same_step(shared):
    assert [results["stopping step"] for results in shared] == [3] * len(shared)
