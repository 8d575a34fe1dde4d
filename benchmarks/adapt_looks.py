"""Adaptations of trained networks to folders of photographs: their scores, and the label-free answer of ``seg.adapt``.

    CLONES=… python benchmarks/adapt_looks.py --photographs PHOTOGRAPHS --networks NETWORKS
        [--out docs/results/adapt_looks.csv]

The networks and folders are those of ``benchmarks/adapt_statistics.py``. A row is a network, a folder and a way of
adapting, with mIoU in per cent before and after on the same 14 images, every label-free number that the answer reads,
and the answer. Ways that learn stand on the default share of the folder's statistics and pass over the folder once, in
batches of four. The same command continues with the missing rows.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from adapt_statistics import NETWORKS, PUBLIC, folders, miou, opened, read
from csv_rows import CsvRows
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from seg.adaptation.decision import decide
from seg.adaptation.evidence import Evidence, Probe
from seg.adaptation.watched import plain_forward
from seg.models.adaptive_batch_norm import re_estimated

#: Way: share of the statistics, and arguments of the adapter that learns, if one does.
WAYS: dict[str, tuple[float | None, dict[str, Any] | None]] = {
    "share 0.3": (None, None),
    "share 1": (1.0, None),
    "entropy 1e-2": (None, {"objective": "entropy", "reduction": "balanced", "lr": 1e-2}),
    "adadem 1e-2": (None, {"objective": "adadem", "reduction": "balanced", "lr": 1e-2}),
    "entropy 1e-3": (None, {"objective": "entropy", "reduction": "balanced", "lr": 1e-3}),
    "adadem 1e-3": (None, {"objective": "adadem", "reduction": "balanced", "lr": 1e-3}),
}


def adapted(network: nn.Module, batches: Sequence[Tensor], way: str) -> nn.Module:
    """A network adapted in one way, in ``eval()`` mode."""
    share, learning = WAYS[way]
    result = copy.deepcopy(re_estimated(network, batches, share))
    if learning is not None:
        adapter = TestTimeAdapter(result, "tent", batch_norm="stored", **learning)
        try:
            for images in batches:
                adapter(images)
        except NotFiniteError:
            pass
        adapter.close()
    return result.eval()


def numbers(evidence: Evidence, before: Evidence) -> dict[str, float]:
    """The label-free numbers of a look."""
    return {
        "entropy": evidence.entropy, "info_max": evidence.info_max, "stability": evidence.stability_on(before),
        "classes": evidence.effective_classes,
    }  # fmt: skip


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("photographs", "networks"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/adapt_looks.csv"))
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    options = parser.parse_args()
    scores = [
        f"{stage} {name}"
        for stage in ("before", "after")
        for name in ("miou", "entropy", "info_max", "stability", "classes")
    ]
    rows = CsvRows(options.out, ["network", "folder", "way"], [*scores, "accepted"])
    for name in (*PUBLIC, *NETWORKS, "wnet_drive"):
        if options.only not in name or (name in NETWORKS and not (options.networks / name).exists()):
            continue
        network, moments, size = opened(name, options.networks)
        for folder, files, change in folders(options.photographs, name):
            keys = {"network": name, "folder": folder}
            missing = [way for way in options.ways if rows.get({**keys, "way": way}) is None]
            if not missing:
                continue
            batches, labels = read(files, change, moments, size)
            with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                probe = Probe(batches, 32)
                before = probe.look(plain_forward(network))
                first = {"miou": miou(network, batches, labels), **numbers(before, before)}
                for way in missing:
                    result = adapted(network, batches, way)
                    evidence = probe.look(plain_forward(result))
                    after = {"miou": miou(result, batches, labels), **numbers(evidence, before)}
                    verdict = decide(before, evidence).adapt
                    rows.add({**keys, "way": way, "before": first, "after": after, "accepted": verdict})
            print(name, folder, flush=True)


if __name__ == "__main__":
    main()
