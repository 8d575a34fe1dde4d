"""From an address to a cluster that can run these jobs, or to the sentence that says why there is none."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Sequence
from typing import Any

from dem_apps.errors import InputError
from dem_apps.jobs.cluster import node as on_node
from dem_apps.jobs.cluster.node import Order
from dem_apps.runtime.extras import is_installed
from dem_apps.runtime.safe_io import first_words
from dem_apps.runtime.signals import signals_kept

#: Seconds for a connection to the head, which takes milliseconds where there is one.
_CONNECT = 5.0
#: Seconds for a node to answer: the first process of Ray on it starts meanwhile.
_ANSWER = 120.0


def connected(address: str) -> Any:
    """The module ``ray``, connected to the cluster.

    Raises:
        InputError: Ray is not installed, there is no cluster at the address, or it is one of another version.
    """
    if not is_installed("ray"):
        raise InputError("--executor ray: needs ray, not installed here; pip install -e '.[cluster]'")
    _refuse_silent_address(address)
    # before the import, which reads it: nothing is sent to anybody, here or by the processes that it starts
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # its warnings would stand before the sentence
    import ray

    with signals_kept():  # it takes SIGTERM for its own, and a command has to save and say how to go on
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            raise InputError(_why(address, error)) from error
    return ray


def usable_nodes(ray: Any, cores: int, gpus: float) -> list[dict[str, Any]]:
    """The nodes that a job fits on, as Ray describes them.

    Raises:
        InputError: it fits on none.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    sizes = [(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)) for node in alive]
    fitting = [node for node, size in zip(alive, sizes, strict=True) if size[0] >= cores and size[1] >= gpus]
    if not fitting:
        largest = ", ".join(f"{cpus:g} cores and {count:g} GPUs" for cpus, count in sorted(set(sizes), reverse=True))
        asked = f"--cores-per-job {cores}" + (f" --gpus-per-job {gpus:g}" if gpus else "")
        raise InputError(f"{asked}: no node of the cluster is that large, they have {largest}; ask for less")
    return fitting


def check_nodes(ray: Any, nodes: Sequence[dict[str, Any]], order: Order) -> None:
    """Ask each node whether it can run jobs.

    Raises:
        InputError: one cannot, or does not answer.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(on_node.refusal)
    answers = [
        ask.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            order
        )
        for node in nodes
    ]
    for node, answer in zip(nodes, answers, strict=True):
        try:
            why = ray.get(answer, timeout=_ANSWER)
        except ray.exceptions.RayError as error:
            why = f"does not answer ({first_words(error, 200)}); start Ray on it again"
        if why is not None:
            raise InputError(refused(node["NodeManagerAddress"], why))


def refused(node: str, why: str) -> str:
    """The sentence for what a node cannot do."""
    return f"--executor ray: node {node} {why}"


def _refuse_silent_address(address: str) -> None:
    """Where nobody listens Ray itself would try for a minute."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise InputError(f"--ray-address: expected HOST:PORT of a cluster's head, or auto, got '{address}'")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--ray-address: no cluster answers at {address} ({first_words(error)}); start one with ray start --head, "
            "see docs/howto/cluster.md"
        ) from error


def _why(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        found = re.findall(r"(Ray|Python): (\S+)", text)
        there, here = (", ".join(f"{name} {version}" for name, version in part) for part in (found[:2], found[2:4]))
        return (
            f"--ray-address: the cluster at {address} has {there}, this machine {here}; install the same on all nodes"
        )
    if "Failed to connect to Ray cluster" in text or "uthenticat" in text:  # somebody listens there, see above
        return (
            f"--ray-address: what listens at {address} does not take this machine; if it is a cluster of Ray's with a "
            "token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here as on its nodes"
        )
    if "raylet" in text or "No node info found" in text:
        return (
            f"--ray-address: this machine is no node of the cluster at {address}; start the command on one, or make it "
            f"one with ray start --address={address} --num-cpus=0"
        )
    if address == "auto":
        return (
            "--ray-address: no cluster of Ray's runs on this machine; start one with ray start --head, or give its "
            "HOST:PORT, see docs/howto/cluster.md"
        )
    return f"--ray-address: the cluster at {address} cannot be reached ({first_words(error, 200)})"
