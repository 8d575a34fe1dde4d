"""Measure one pass of Tent after the share of batch norm statistics, by objective: a table of docs/adaptation.md.

    CLONES=… python benchmarks/adapt_step.py --photographs PHOTOGRAPHS --work WORK [--out docs/results/adapt_step.csv]
        [--only NAME …] [--arms main|balanced]

Registered in ``docs/results/adapt_step_registration.txt``, and for ``--arms balanced`` in
``adapt_step_balanced_registration.txt``. PHOTOGRAPHS is the folder that ``benchmarks/photographs.py`` writes, CLONES as
in ``benchmarks/public_networks.py``; WORK gets the small networks. A folder is at most 12 images, evenly drawn from a
domain, in two interleaved halves. The share is 0.3. The step trains on :data:`STEPS` batches of the first half, and the
rule tests the second. The same command continues with the missing rows.
"""

import argparse
import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import photograph_networks as ours
import public_networks
import torch
from csv_rows import RESULTS, CsvRows, Row, interval, parser_of
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.report.intervals import mean_interval
from dem_apps.report.tables import markdown
from seg.scores.evidence import Probe, plain_forward
from seg.trained.adaptive_batch_norm import re_estimated

IMAGES, BATCH, STEPS, RATE, SHARE = 12, 4, 4, 3e-4, 0.3
SEQUENCES = ("0001TP", "Seq05VD", "0016E5", "0006R0")
#: Family → networks: those that the rule was chosen on, and behind them those that confirm it.
FAMILIES = {
    "ESPNetv2": ("espnetv2_05_small", "espnetv2_10_small", "espnetv2_20_small"),
    "ours A": ("cracks", "discs"),
    "DiCENet": ("dicenet_05_small", "dicenet_10_small", "dicenet_15_small"),
    "ESPNet": ("espnet_q3", "espnet_q8"),
    "ours B": ("field", "vessels"),
}
#: Our networks: set, source, target, classes, and width and height of what they see.
OURS = {
    "cracks": ("cracks", "asphalt", "drone", 2, (256, 192)),
    "discs": ("discs", "refuge", "drishti", 3, (160, 160)),
    "field": ("field", "robot", None, 3, (256, 192)),
    "vessels": ("vessels", "drive", "chase", 2, (192, 192)),
}
#: Arguments of the adapter.
STEPS_BY: dict[str, dict[str, Any]] = {
    "entropy mean": {"objective": "entropy", "reduction": "mean"},
    "entropy balanced": {"objective": "entropy", "reduction": "balanced"},
    "adadem started mean": {"objective": "adadem", "reduction": "mean", "marginals": "start"},
    "adadem started balanced": {
        "objective": "adadem",
        "reduction": "balanced",
        "marginals": "start",
    },
    "adadem 1/C mean": {"objective": "adadem", "reduction": "mean", "marginals": "uniform"},
}
STATISTICS = ("source", "share", "share, 3 views")
MAIN = ("entropy mean", "adadem started mean", "adadem 1/C mean", "adadem started balanced")
#: Of the second registration, which is confirmed on the folders without rows in the first file.
BALANCED = ("source", "share", "entropy balanced", "adadem started balanced")
Folder = tuple[list[Tensor], list[NDArray[np.uint8]]]
KEYS = ("family", "network", "folder", "arm")
SCORES = (
    "miou",
    "held miou",
    "agreement",
    "moved",
    "halves",
    "stability before",
    "stability",
    "classes before",
    "classes",
    "entropy before",
    "entropy",
)


def network_of(name: str, options: argparse.Namespace) -> nn.Module:
    """A public network, or one of ours, which is trained for a few minutes where there is none yet."""
    if name not in OURS:
        network: nn.Module = getattr(public_networks, name)()[0].eval()
        return network
    group, source, _, classes, size = OURS[name]
    files = ours.parts(options.photographs / group, source)[0]
    return ours.kept(options.work / "networks" / name, "FPN", classes, files, size, steps=120)


def folders_of(name: str, options: argparse.Namespace) -> Iterator[tuple[str, Folder]]:
    """The folders of a network: images (1, 3, H, W) each, as it takes them, and their labels."""
    group, source, target, _, size = OURS.get(name, ("camvid", None, None, 0, (256, 192)))
    domains = SEQUENCES if source is None else [target] if target else []
    found = {
        each: (sorted((options.photographs / group / each / "images").iterdir()), None)
        for each in domains
    }
    if source is not None:
        unseen = ours.parts(options.photographs / group, source)[1]
        found["unshifted"] = (unseen, None)
        found |= {
            f"{shift} 3": (unseen, ours.SHIFTS[shift](3)) for shift in ("fog", "dark", "noise")
        }
    for folder, (files, change) in found.items():
        images, labels = ours.pictures(files, IMAGES, change, size)
        moments = public_networks.IMAGENET if source is None else ours.MOMENTS
        yield folder, (list(ours.normalised(images, moments).split(1)), labels)


def batched(images: Sequence[Tensor]) -> list[Tensor]:
    """In batches of four."""
    return list(torch.cat(list(images)).split(BATCH))


def averaged(own: Tensor, views: Sequence[Tensor]) -> Tensor:
    """Log mean probabilities (N, C, h, w) of logits and of those of the mirrored and the smaller images of batches."""
    mirrored, smaller = torch.cat(list(views[0::2])).flip(3), torch.cat(list(views[1::2]))
    smaller = F.interpolate(smaller, own.shape[2:], mode="bilinear")
    return torch.stack([each.softmax(1) for each in (own, mirrored, smaller)]).mean(0).log()


class Pair:
    """A network on a folder: its share, and the numbers of each arm beside the share alone."""

    @torch.no_grad()
    def __init__(self, network: nn.Module, folder: Folder) -> None:
        self.images, labels = folder
        #: (N, C, C), of logits of the first half and then of the second.
        self.scored = partial(ours.confusions_of, labels=[*labels[0::2], *labels[1::2]])
        self.first, self.second = self.images[0::2], self.images[1::2]
        self.held = Probe([(batch, None) for batch in batched(self.second)], 32)
        images = [*self.first, *self.second]
        self.shared = copy.deepcopy(re_estimated(network, batched(self.images), SHARE).network)
        self.own, seen = ours.predicted(self.shared, torch.cat(images)), list[Tensor]()

        def forward(images: Tensor) -> Tensor:
            seen.append(self.shared(images))
            return seen[-1]

        self.look = self.held.look(forward)
        held, seen = seen, list[Tensor]()
        self.other = Probe([(batch, None) for batch in batched(self.first)], 32).look(forward)
        # of the first half, as images are; every third is of the images as they are
        views = [each for number, each in enumerate([*seen, *held]) if number % 3]
        logits = {"source": ours.predicted(network, torch.cat(images)), "share": self.own}
        logits["share, 3 views"] = averaged(self.own, views)
        self.tables = {arm: self.scored(each) for arm, each in logits.items()}

    def learnt(self, arm: dict[str, Any]) -> nn.Module:
        """The network after the step of an arm."""
        result = copy.deepcopy(self.shared)
        adapter = TestTimeAdapter(
            result, "tent", lr=RATE, optimizer="adam", batch_norm="stored", **arm
        )
        if arm.get("marginals") == "start":
            for images in batched(self.first):
                adapter.start(images)
        with suppress(NotFiniteError):
            for images in islice(cycle(batched(self.first)), STEPS):
                adapter(images)
        adapter.close()
        return result.eval()

    def row(self, arm: str) -> dict[str, Any]:
        """The row of an arm."""
        half = len(self.first)
        if arm in self.tables:
            return {
                "miou": ours.miou(self.tables[arm]),
                "held miou": ours.miou(self.tables[arm][half:]),
            }
        network = self.learnt(STEPS_BY[arm])
        logits = ours.predicted(network, torch.cat([*self.first, *self.second]))
        tables, found = self.scored(logits), self.look
        row: dict[str, Any] = {"miou": ours.miou(tables), "held miou": ours.miou(tables[half:])}
        if "started" not in arm and arm not in BALANCED:
            return row
        evidence = self.held.look(plain_forward(network))
        row["agreement"] = float(
            (self.own[half:].argmax(1) == logits[half:].argmax(1)).double().mean()
        )
        for name, shares in (("moved", evidence.shares), ("halves", self.other.shares)):
            row[name] = sum(abs(a - b) for a, b in zip(shares, found.shares, strict=True)) / 2
        row["stability before"], row["stability"] = (
            found.stability_on(found),
            evidence.stability_on(found),
        )
        row["classes before"], row["classes"] = found.effective_classes, evidence.effective_classes
        row["entropy before"], row["entropy"] = found.entropy, evidence.entropy
        return row


def pairs_of(
    rows: CsvRows, arms: Sequence[str] = (*STATISTICS, *MAIN)
) -> dict[tuple[str, ...], dict[str, Row]]:
    """The rows of every network and folder that has all arms, by arm."""
    return {pair: own for pair, own in rows.by("network", "folder").items() if {*arms} <= {*own}}


def table(rows: CsvRows) -> str:
    """Means over the networks and folders of each family: mIoU of the share, and changes against it."""
    lines, pairs = [], pairs_of(rows)
    for family, networks in FAMILIES.items():
        own = [each for (name, _), each in pairs.items() if name in networks]
        if own:
            changes = [[change(pair, arm) for pair in own] for arm in (STATISTICS[2], *MAIN)]
            cells = [f"{np.mean(each):+.1f} ({min(each):+.1f})" for each in changes]
            share = np.mean([float(pair["share"]["miou"]) for pair in own])
            lines.append([f"{family}, {len(own)} folders, {share:.1f}", *cells])
    heads = ["three views", "entropy", "AdaDEM started", "from 1/C", "started, balanced"]
    return markdown(["family, folders, share", *heads], lines)


def balanced_table(rows: CsvRows) -> str:
    """Changes by the balanced steps: mean over networks with its 95 % CI, and the worst pair."""
    pairs = pairs_of(rows, BALANCED)
    lines = []
    for title, arm in (("AdaDEM", "adadem started balanced"), ("entropy", "entropy balanced")):
        every = {pair: change(own, arm) for pair, own in pairs.items()}
        kept = {
            pair: each if is_accepted(pair[0], pairs[pair][arm]) else 0.0
            for pair, each in every.items()
        }
        lines.append([title, str(len(pairs)), _over_networks(kept), _over_networks(every)])
    return markdown(["objective", "pairs", "by the rule", "without the rule"], lines)


def _over_networks(changes: dict[tuple[str, ...], float]) -> str:
    by_network: dict[str, list[float]] = {}
    for (network, _), each in changes.items():
        by_network.setdefault(network, []).append(each)
    mean = mean_interval([float(np.mean(own)) for own in by_network.values()])
    return f"{interval(mean)} ({min(changes.values()):+.1f})"


def change(pair: dict[str, Row], arm: str) -> float:
    """The change of mIoU against the share, in points."""
    return float(pair[arm]["miou"]) - float(pair["share"]["miou"])


def is_accepted(network: str, row: Row) -> bool:
    """Whether the registered rule without labels accepts the step (docs/adaptation.md)."""
    classes = OURS[network][3] if network in OURS else len(public_networks.CAMVID)
    agreement, moved, halves, stability, before = (
        float(row[name])
        for name in ("agreement", "moved", "halves", "stability", "stability before")
    )
    near = agreement >= 0.85 and moved <= 2 * halves
    return classes >= 5 and near and stability / before >= 1


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = parser_of(__doc__, "photographs", "work", out=RESULTS / "adapt_step.csv")
    parser.add_argument("--arms", default="main", choices=("main", "balanced"))
    parser.add_argument(
        "--only", nargs="*", default=[name for names in FAMILIES.values() for name in names]
    )
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, SCORES)
    arms = BALANCED if options.arms == "balanced" else (*STATISTICS, *MAIN)
    for name in options.only:
        network = network_of(name, options)
        family = next(family for family, names in FAMILIES.items() if name in names)
        for folder, photographs in folders_of(name, options):
            keys = {"family": family, "network": name, "folder": folder}
            if missing := [*rows.missing({**keys, "arm": arm} for arm in arms)]:
                with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                    pair = Pair(network, photographs)
                    for row in missing:
                        print(rows.add({**row, **pair.row(row["arm"])}), flush=True)
    print(balanced_table(rows) if options.arms == "balanced" else table(rows))


if __name__ == "__main__":
    main()
