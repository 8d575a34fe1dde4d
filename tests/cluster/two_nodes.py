"""One training on two machines: ``torchrun --nnodes 2`` across two network namespaces, whole, and with one that dies.

    python tests/cluster/two_nodes.py [--out FILE]

The losses are those of one process on the joined batch. A node dies: the other ends, and the run goes on with one node.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from namespaces import Network, permitted

from seg.demo.demo_pair import write_demo_pair

ROOT = Path(__file__).resolve().parents[2]
#: As in tests/seg/training/test_processes.py: a rate at which rounding is not magnified from step to step.
FLAGS = (
    "--method", "advent", "--loss", "adadem", "--reduction", "mean", "--batch-size", "2", "--discriminator.channels",
    "4", "--optimizer.name", "sgd", "--optimizer.lr", "0.00025", "--optimizer.head-factor", "10", "--max-steps", "20",
    "--eval-every", "5", "--log-every", "1", "--maps", "0",
)  # fmt: skip


def main() -> int:
    """Status 1 if the losses differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    if (why := permitted()) is not None:
        print(f"skipped: {why}")
        return 77
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "eth0"}
    with tempfile.TemporaryDirectory(prefix="two-nodes-") as folder, Network(2) as machines:
        work = Path(folder)
        pair = write_demo_pair(work / "street", size=(96, 48), source_train=6, target_train=5, target_val=4)
        flags = [*FLAGS, "--source.root", str(pair.source_root), "--target.root", str(pair.target_root)]
        train = [sys.executable, "-m", "seg.train"]
        subprocess.run([*train, *flags, "--run-dir", str(work / "one")], check=True, stdout=subprocess.DEVNULL)
        nodes = started(machines, [*flags, "--run-dir", str(work / "two")])
        statuses = [node.wait() for node in nodes]
        found: dict[str, Any] = {"statuses": statuses, "largest_difference": difference(work / "one", work / "two")}

        nodes = started(machines, [*flags, "--run-dir", str(work / "broken")])
        while not (work / "broken" / "checkpoints" / "last.json").is_file():
            time.sleep(0.05)
        machines[1].kill()
        began = time.monotonic()
        found["node_died"] = {"other_ended_with": nodes[0].wait(), "after_seconds": round(time.monotonic() - began, 1)}
        subprocess.run([*train, "--resume", str(work / "broken")], check=True, stdout=subprocess.DEVNULL)
        found["node_died"]["largest_difference_after_resume_by_one"] = difference(work / "one", work / "broken")
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    same = found["largest_difference"] < 1e-4 > found["node_died"]["largest_difference_after_resume_by_one"]
    return 0 if same and statuses == [0, 0] else 1


def started(machines: list[Any], flags: list[str]) -> list[subprocess.Popen[bytes]]:
    """``torchrun`` on both."""
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", machines[0].address, "--master-port", "29500"]
    return [
        subprocess.Popen(
            machine.command(
                sys.executable, "-m", "torch.distributed.run", *common, "--node-rank", str(rank), "-m", "seg.train",
                *flags,
            ),
            stdout=subprocess.DEVNULL,
        )
        for rank, machine in enumerate(machines)
    ]  # fmt: skip


def difference(one: Path, other: Path) -> float:
    """The largest one of a metric of a step."""
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    if [line.keys() for line in lines[0]] != [line.keys() for line in lines[1]]:
        return float("inf")
    return max(abs(a[key] - b[key]) for a, b in zip(*lines, strict=True) for key in a if a[key] is not None)


if __name__ == "__main__":
    sys.exit(main())
