"""Adaptations of trained networks to folders of photographs: their scores, and what is seen of them without labels.

    CLONES=… python benchmarks/adapt_looks.py --photographs PHOTOGRAPHS --networks NETWORKS
        [--out docs/results/adapt_looks.csv] [--ways statistics|learning]

The networks and folders are those of ``benchmarks/adapt_statistics.py``. A row is a network, a folder and a way of
adapting, with mIoU in per cent before and after on the same 14 images, the label-free numbers, and the answer of
``seg.adapt``. Ways that learn stand on the default share of the folder's statistics and pass over the folder in batches
of four. The same command continues with the missing rows.
"""

from __future__ import annotations

import argparse
import copy
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adapt_statistics import NETWORKS, PUBLIC, folders, miou, opened, read
from csv_rows import CsvRows
from numpy.typing import NDArray
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.report.tables import markdown
from seg.adaptation.decision import LEAST_CLASSES, LEAST_ENTROPY, LEAST_SCORE, REGAINED_CLASSES, decide
from seg.inference.adaptive_batch_norm import best_share, re_estimated
from seg.scores.evidence import Evidence, Probe

Row = dict[str, float]
#: Way: share of the statistics, passes, and arguments of the adapter that learns, if one does. Those that learn begin
#: with the default's statistics.
Way = tuple[float | None, int, dict[str, Any] | None]
STATISTICS: dict[str, Way] = {f"share {share}": (share, 1, None) for share in (0.3, 0.5, 1.0)}
#: τ and α of DEM* for balanced averages, from docs/results/dem_star_balanced.yaml.
DEM_STAR = {"tau": 1.5, "alpha": 0.0}


def _tent(objective: str, reduction: str, lr: float, passes: int = 1, **options: float) -> Way:
    learning = {"objective": objective, "reduction": reduction, "lr": lr, "objective_options": options}
    return None, passes, {"method": "tent", "marginals": "uniform", **learning}  # as the recorded rows


LEARNING: dict[str, Way] = {
    "default share": (None, 1, None),
    **{
        f"{objective} balanced {lr:g}": _tent(objective, "balanced", lr)
        for lr in (1e-2, 1e-1, 1e-3)
        for objective in ("entropy", "adadem")
    },
    "entropy mean 0.01": _tent("entropy", "mean", 1e-2),
    "adadem mean 0.01": _tent("adadem", "mean", 1e-2),
    "dem* balanced 0.01": _tent("dem", "balanced", 1e-2, **DEM_STAR),
    "entropy balanced 0.01, 4 passes": _tent("entropy", "balanced", 1e-2, 4),
    "adadem balanced 0.01, 4 passes": _tent("adadem", "balanced", 1e-2, 4),
    "sar 0.01": (None, 1, {"method": "sar", "objective": "entropy", "reduction": "balanced", "lr": 1e-2}),
    "cotta 0.01": (None, 1, {"method": "cotta", "lr": 1e-2}),
}
WAYS = {"statistics": STATISTICS, "learning": LEARNING}
#: Folders on which ways that learn are tried.
LEARNT_ON = ("Seq05VD", "0001TP", "0016E5", "0006R0", "drone", "concrete", "drishti", "chase", "unshifted", "fog 3")


def adapted(network: nn.Module, batches: Sequence[Tensor], way: Way) -> nn.Module:
    """A network adapted in one way, in ``eval()`` mode."""
    share, passes, learning = way
    result = copy.deepcopy(network if share is None else re_estimated(network, batches, share).network)
    if learning is not None:
        adapter = TestTimeAdapter(result, batch_norm="stored", **learning)
        try:
            for images in list(batches) * passes:
                adapter(images)
        except NotFiniteError:
            pass
        result = adapter.predictor
        adapter.close()
    return result.eval()


class Folder:
    """A folder's images and labels, and the numbers of networks on them.

    Args:
        batches: (B, 3, H, W) as the network takes them.
        labels: of the same images.
    """

    def __init__(self, batches: list[Tensor], labels: list[NDArray[np.uint8]], network: nn.Module) -> None:
        self.batches, self.labels = batches, labels
        self.evidence: Evidence | None = None
        self.before, _ = self.numbers(network)

    @torch.no_grad()
    def numbers(self, network: nn.Module) -> tuple[dict[str, float], bool]:
        """The numbers of a network, and whether ``seg.adapt`` accepts it; the first one's stand for before.

        Raises NotFiniteError: its output is not finite.
        """
        outputs: list[Tensor] = []

        def forward(images: Tensor) -> Tensor:
            outputs.append(network(images))
            return outputs[-1]

        evidence = Probe(self.batches, 32).look(forward)
        logits = torch.cat(outputs[: len(self.batches)])  # a look begins with the images as they are
        if self.evidence is None:
            self.evidence = evidence
        numbers = {
            "miou": miou(nn.Identity(), [logits], self.labels), "entropy": evidence.entropy,
            "stability": evidence.stability_on(self.evidence), "classes": evidence.effective_classes,
        }  # fmt: skip
        return numbers, decide(self.evidence, evidence).adapt


def worth(row: Row) -> float:
    """What the default's share and the best state go by, over that of the network as it was."""
    return _times(row, "stability") ** 2 * _times(row, "classes")


def _times(row: Row, name: str) -> float:
    return row[f"after {name}"] / row[f"before {name}"]


def _gain(row: Row) -> float:
    return row["after miou"] - row["before miou"]


#: The published networks of README's table.
SHOWN = {
    "ESPNetv2 0.5": "espnetv2_05", "ESPNetv2 1.0": "espnetv2_10", "ESPNetv2 1.5": "espnetv2_15",
    "ESPNetv2 2.0": "espnetv2_20", "ESPNet": "espnet_q8",
}  # fmt: skip
Pairs = dict[tuple[str, str], dict[str, Row]]


def pairs_of(rows: CsvRows) -> Pairs:
    """The rows of every pair of network and folder, by way."""
    found: Pairs = {}
    for key, row in rows.rows.items():
        if row["after miou"] not in ("", None):
            numbers = {name: float(value) for name, value in row.items() if name[:5] in ("befor", "after") and value}
            found.setdefault(key[:2], {})[key[2]] = numbers
    return found


def of_shares(found: Pairs) -> Pairs:
    """The pairs that have every share; SegFormer, of one batch norm beside its layer norms, takes none."""
    shares = {pair: {way: row for way, row in ways.items() if way in STATISTICS} for pair, ways in found.items()}
    return {pair: ways for pair, ways in shares.items() if len(ways) == len(STATISTICS) and "segformer" not in pair[0]}


def public_table(rows: CsvRows) -> str:
    """README's: of each published network the mean over its sequences."""
    shares, lines = of_shares(pairs_of(rows)), []
    for title, name in SHOWN.items():
        own = [ways for pair, ways in shares.items() if pair[0] == name]
        before = np.mean([ways["share 0.3"]["before miou"] for ways in own])
        after = [
            np.mean([choose(ways)["after miou"] for ways in own])
            for choose in (_default, operator.itemgetter("share 1.0"))
        ]
        lines.append([title, f"{before:.1f}", *(f"{each:.1f} ({each - before:+.1f})" for each in after)])
    return markdown(["network", "as it is", "adapted, the default", "AdaBN as published"], lines)


def shares_table(rows: CsvRows) -> str:
    """That of docs/adaptation.md: the change of mIoU, mean (worst; pairs that lose more than 0.5)."""
    shares = of_shares(pairs_of(rows))
    groups = {
        "public networks": [pair for pair in shares if pair[0] not in NETWORKS],
        "ours, shifted": [pair for pair in shares if pair[0] in NETWORKS and pair[1] != "unshifted"],
        "ours, unshifted": [pair for pair in shares if pair[0] in NETWORKS and pair[1] == "unshifted"],
    }
    chosen: dict[str, Callable[[dict[str, Row]], Row]] = {
        **{way.removeprefix("share "): operator.itemgetter(way) for way in STATISTICS},
        "**the default**": _default,
        "the default, where `seg.adapt` accepts it": lambda ways: next(
            row for row in (_default(ways), _unchanged(ways)) if _accepted(row)
        ),
        "the best by labels": lambda ways: max(ways.values(), key=_gain),
    }
    lines = []
    for title, choose in chosen.items():
        changes = [[_gain(choose(shares[pair])) for pair in pairs] for pairs in groups.values()]
        cells = [
            f"{np.mean(each):+.1f} ({min(each):+.1f}; {sum(gain < -0.5 for gain in each)} of {len(each)})"
            for each in changes
        ]
        lines.append([title, *cells])
    return markdown(["share", *groups], lines)


def answers(rows: CsvRows) -> str:
    """Of the default's shares, docs/adaptation.md's sentence: how many ``seg.adapt`` accepts, and what these change."""
    shares = of_shares(pairs_of(rows))
    taken = [row for row in map(_default, shares.values()) if worth(row) != 1]
    accepted = [_gain(row) for row in taken if _accepted(row)]
    return (
        f"Of the {len(shares)} pairs above {len(taken)} get a share; {len(accepted)} are accepted, of which "
        f"{sum(gain > 0.5 for gain in accepted)} gain more than 0.5 and {sum(gain < -0.5 for gain in accepted)} loses "
        "as much"
    )


def _default(ways: dict[str, Row]) -> Row:
    """The row of the share that :func:`re_estimated` takes."""
    share = best_share([1.0, *(worth(ways[way]) for way in STATISTICS)])
    return ways[f"share {share}"] if share else _unchanged(ways)


def _unchanged(ways: dict[str, Row]) -> Row:
    """The row of share 0."""
    own = {name: value for name, value in next(iter(ways.values())).items() if name.startswith("before")}
    return own | {name.replace("before", "after"): value for name, value in own.items()}


def _accepted(row: Row) -> bool:
    """:func:`decide` by a row's numbers; its column ``accepted`` is of the thresholds of the day."""
    if _times(row, "classes") >= REGAINED_CLASSES:
        return True
    kept = _times(row, "classes") >= LEAST_CLASSES and _times(row, "entropy") >= LEAST_ENTROPY
    return kept and worth(row) >= LEAST_SCORE


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("photographs", "networks"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/adapt_looks.csv"))
    parser.add_argument("--only", nargs="*", default=[*PUBLIC, *NETWORKS, "wnet_drive"])
    parser.add_argument("--ways", default="statistics", choices=WAYS)
    parser.add_argument("--strengths", default="12345", help="of the shifts that are made")
    options = parser.parse_args()
    names = ("miou", "entropy", "stability", "classes")
    scores = [f"{stage} {name}" for stage in ("before", "after") for name in names]
    rows = CsvRows(options.out, ["network", "folder", "way"], [*scores, "accepted"])
    for name in options.only:
        if name in NETWORKS and not (options.networks / name).exists():
            continue
        network, moments, size = opened(name, options.networks)
        for folder, files, change in folders(options.photographs, name):
            keys, ways = {"network": name, "folder": folder}, WAYS[options.ways]
            missing = [way for way in ways if rows.get({**keys, "way": way}) is None]
            made = folder[-1] in "12345" and folder[-2] == " "
            if not missing or (made and folder[-1] not in options.strengths):
                continue
            if options.ways == "learning" and folder not in LEARNT_ON:
                continue
            batches, labels = read(files, change, moments, size)
            with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                there = Folder(batches, labels, network)
                start = re_estimated(network, batches).network if options.ways == "learning" else network
                for way in missing:
                    result = adapted(start, batches, ways[way])
                    try:
                        after, accepted = there.numbers(result)
                    except NotFiniteError:
                        after, accepted = {}, False
                    rows.add({**keys, "way": way, "before": there.before, "after": after, "accepted": accepted})
            print(name, folder, flush=True)
    print(public_table(rows), shares_table(rows), answers(rows), sep="\n")


if __name__ == "__main__":
    main()
