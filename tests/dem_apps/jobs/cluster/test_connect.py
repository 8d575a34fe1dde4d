"""What is wrong with a cluster is one sentence, and who stays on one machine needs none."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dem_apps.errors import InputError
from dem_apps.jobs.cluster import connect
from dem_apps.jobs.cluster.node import Order, refusal, versions
from dem_apps.jobs.executor import LocalExecutor
from dem_apps.jobs.executors import ExecutorConfig, build_executor, threads_of_jobs


def order(tmp_path: Path) -> Order:
    (tmp_path / "token").touch()
    return Order([], [], sys.executable, "run", str(tmp_path), {}, versions(), "token", "")


def test_one_machine_needs_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it is an error
    assert isinstance(build_executor(ExecutorConfig(), {}, tmp_path), LocalExecutor)


def test_ray_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "is_installed", lambda _name: False)
    with pytest.raises(InputError, match=r"needs ray, not installed here; pip install -e '\.\[cluster\]'"):
        build_executor(ExecutorConfig(executor="ray"), {}, tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({"collect": True}, "--collect"), ({"gpus_per_job": 0.5}, "--gpus-per-job"), ({"ray_address": "h:1"}, "--ray-ad")],
)
def test_flags_of_ray_without_it(changes: dict[str, object], flag: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=flag + r".*: is for --executor ray; add that, or leave it out"):
        build_executor(ExecutorConfig(**changes), {}, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["head", "ray://head:10001", ":6379", "local", "head:port"])
def test_an_address_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "is_installed", lambda _name: True)
    with pytest.raises(InputError, match="--ray-address: expected HOST:PORT of a cluster's head, or auto, got"):
        connect.connected(address)


def test_an_address_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "is_installed", lambda _name: True)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match=r"no cluster answers at 127\.0\.0\.1:\d+ \(Connection refused\)"):
            connect.connected(f"127.0.0.1:{closed.getsockname()[1]}")


def test_a_cluster_of_another_version_is_named_with_both() -> None:
    said = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.11.7\n"
        "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\n"
    )
    assert connect._why("h:1", said) == (
        "--ray-address: the cluster at h:1 has Ray 2.50.0, Python 3.11.7, this machine Ray 2.60.0, Python 3.12.1; "
        "install the same on all nodes"
    )


def test_a_job_that_fits_on_no_node() -> None:
    small = {"Alive": True, "Resources": {"CPU": 2.0}}
    large = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}}
    ray = SimpleNamespace(nodes=lambda: [small, large, {"Alive": False, "Resources": {"CPU": 64.0}}])
    assert connect.usable_nodes(ray, 2, 0) == [small, large]
    assert connect.usable_nodes(ray, 2, 0.5) == [large]
    message = (
        "--cores-per-job 16: no node of the cluster is that large, they have 8 cores and 1 GPUs, 2 cores and 0 GPUs"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        connect.usable_nodes(ray, 16, 0)


def test_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    given = order(tmp_path)
    assert refusal(given) is None
    other = refusal(replace(given, versions={"torch": "1.0"}))
    assert other is not None
    assert other.startswith("has torch ")
    assert other.endswith(", this machine 1.0; install the same versions on all nodes")
    assert "has no folder /no/such, where this command was started" in str(refusal(replace(given, folder="/no/such")))
    unseen = str(refusal(replace(given, token="grid/token")))
    assert unseen == (
        f"does not see the files in {tmp_path / 'grid'}; put the runs on a disk that all nodes share, or give --collect"
    )
    assert refusal(replace(given, token=None, folder="/no/such")) is None  # collected: nothing is shared


def test_threads_are_those_that_ray_sets_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert threads_of_jobs(ExecutorConfig(workers=4)) == {"OMP_NUM_THREADS": "2"}
    assert threads_of_jobs(ExecutorConfig(executor="ray", workers=4, cores_per_job=3)) == {"OMP_NUM_THREADS": "3"}
