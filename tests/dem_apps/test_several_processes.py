"""Several gloo processes with unequal shards compute what one process does on the joined batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from support import gloo_worker as worker

from dem_apps.fused.build_kernel import load_kernel

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")

BACKENDS = ["reference", "eager"] + (["compiled"] if load_kernel() is not None else [])


@pytest.fixture(scope="module")
def joined():
    """Results of a single process."""
    return {backend: worker.losses_and_gradients(backend, 0, 1) for backend in BACKENDS}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Results of each of two, and of three, processes; all in one start, since starting takes seconds."""
    folder = tmp_path_factory.mktemp("gloo")
    torch.multiprocessing.spawn(worker.run, ([2, 3], BACKENDS, str(folder)), nprocs=3)
    return {
        world: [torch.load(folder / f"{rank}-of-{world}.pt", weights_only=True) for rank in range(world)]
        for world in (2, 3)
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("world", [2, 3])
def test_processes_agree_with_one(backend, world, joined, shared):
    last = 2 * worker.STEPS
    for case, expected in joined[backend].items():
        parts = [results[backend][case] for results in shared[world]]
        for index in range(last):
            average = torch.stack([part[index] for part in parts]).mean(0)
            where = f"{case}, step {index // 2}, {'gradient' if index % 2 else 'loss'}"
            torch.testing.assert_close(
                average, expected[index], rtol=0, atol=1e-6, msg=lambda text, where=where: f"{where}: {text}"
            )
        for part in parts:
            for table, single, other in zip(part[last:], expected[last:], parts[0][last:], strict=True):
                torch.testing.assert_close(table, single, rtol=0, atol=1e-6)
                assert torch.equal(table, other), "every process has the same table, bit for bit"


@pytest.mark.parametrize("world", [2, 3])
def test_an_adapter_learns_alone(world, shared):
    """Not all of them adapt as often as the others, and none waits."""
    for rank, results in enumerate(shared[world]):
        for method, weight in zip(("tent", "eta", "cotta")[: 3 - rank], results["adapted"], strict=True):
            assert not torch.equal(weight, torch.ones_like(weight))
            assert torch.equal(weight, worker.adapted(method)), method


@pytest.mark.parametrize("world", [2, 3])
def test_processes_stop_after_the_same_step(world, shared):
    assert [results["stopping step"] for results in shared[world]] == [3] * world
