"""Adaptations of trained networks to folders of photographs: their scores, and what is seen of them without labels.

    CLONES=… python benchmarks/adapt_looks.py --photographs PHOTOGRAPHS --networks NETWORKS
        [--out docs/results/adapt_looks.csv] [--ways statistics|learning]

The networks and folders are those of ``benchmarks/adapt_statistics.py``. A row is a network, a folder and a way of
adapting, with mIoU in per cent before and after on the same 14 images, the label-free numbers, and the answer of
``seg.adapt``. Ways that learn stand on the default share of the folder's statistics and pass over the folder in batches
of four. The same command continues with the missing rows.

Label-free, besides those that the answer reads: ``snd`` (soft neighbourhood density), ``kept`` (IoU of the prediction
with that before). With labelled source images: ``styled`` is the mIoU on 14 of them that have got the colours of the
folder's images (mean and deviation in Lab).
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
from adapt_statistics import BATCH, NETWORKS, PUBLIC, folders, miou, opened, read
from csv_rows import CsvRows
from numpy.typing import NDArray
from photograph_networks import load, parts
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.report.tables import markdown
from seg.adaptation.decision import LEAST_CLASSES, LEAST_ENTROPY, LEAST_WORTH, REGAINED_CLASSES, decide, mean_iou
from seg.adaptation.evidence import Evidence, Probe
from seg.data.style import lab
from seg.models.adaptive_batch_norm import best_share, re_estimated
from seg.scores.metrics import confusion
from seg.scores.unsupervised_scores import LabelFreeScores

Row = dict[str, float]
#: Way: share of the statistics, passes, and arguments of the adapter that learns, if one does. Those that learn begin
#: with the default's statistics.
Way = tuple[float | None, int, dict[str, Any] | None]
STATISTICS: dict[str, Way] = {f"share {share}": (share, 1, None) for share in (0.3, 0.5, 1.0)}
#: τ and α of DEM* for balanced averages, from docs/results/dem_star_balanced.yaml.
DEM_STAR = {"tau": 1.5, "alpha": 0.0}


def _tent(objective: str, reduction: str, lr: float, passes: int = 1, **options: float) -> Way:
    learning = {"objective": objective, "reduction": reduction, "lr": lr, "objective_options": options}
    return None, passes, {"method": "tent", **learning}


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
        styled: labelled source images with the colours of the folder's, where there are any.
    """

    def __init__(self, batches: list[Tensor], labels: list[NDArray[np.uint8]], network: nn.Module, styled: Any) -> None:
        self.batches, self.labels, self.styled = batches, labels, styled
        self.evidence: Evidence | None = None
        self.first: Tensor | None = None
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
        own, scores = logits.argmax(1), LabelFreeScores(logits.shape[1])
        scores.update(logits)
        if self.evidence is None or self.first is None:
            self.evidence, self.first = evidence, own
        numbers = {
            "miou": miou(nn.Identity(), [logits], self.labels), "entropy": evidence.entropy,
            "info_max": evidence.info_max, "stability": evidence.stability_on(self.evidence),
            "classes": evidence.effective_classes, "snd": scores.result()["snd"],
            "kept": mean_iou(confusion(own, self.first, logits.shape[1]).numpy()),
        }  # fmt: skip
        if self.styled is not None:
            numbers["styled"] = miou(network, *self.styled)
        return numbers, decide(self.evidence, evidence).adapt


def styled_source(
    root: Path, name: str, files: Sequence[Path], change: Any, moments: Tensor, size: tuple[int, int]
) -> tuple[list[Tensor], list[NDArray[np.uint8]]]:
    """Labelled images of a network's source with the colours of a folder's images."""
    group, domains, *_ = NETWORKS[name]
    source = [file for domain in domains for file in parts(root / group, domain)[0]]
    looks, _ = read(files, change, moments, size)
    chosen = [load(source[index * len(source) // 14], size) for index in range(14)]
    pixels = (torch.cat(looks) * moments[1].view(3, 1, 1) + moments[0].view(3, 1, 1)) * 255
    references = pixels.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    images = np.stack([lab(image, look) for (image, _), look in zip(chosen, references, strict=True)])
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    tensor = (tensor - moments[0].view(3, 1, 1)) / moments[1].view(3, 1, 1)
    return list(tensor.split(BATCH)), [label for _, label in chosen]


#: What a row's numbers say, the higher the better; ``worth`` is what the default's share and best state go by.
SIGNS: dict[str, Callable[[Row], float]] = {
    "worth": lambda row: _times(row, "stability") ** 2 * _times(row, "classes"),
    "stability": lambda row: _times(row, "stability"),
    "classes": lambda row: _times(row, "classes"),
    "entropy": lambda row: -_times(row, "entropy"),
    "info_max": lambda row: _more(row, "info_max"),
    "snd": lambda row: _more(row, "snd"),
    "kept": lambda row: row["after kept"],
    "styled": lambda row: _more(row, "styled"),
}


def _times(row: Row, name: str) -> float:
    return row[f"after {name}"] / row[f"before {name}"]


def _more(row: Row, name: str) -> float:
    return row[f"after {name}"] - row[f"before {name}"]


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
        "the best by labels": lambda ways: max(ways.values(), key=lambda row: _more(row, "miou")),
    }
    lines = []
    for title, choose in chosen.items():
        changes = [[_more(choose(shares[pair]), "miou") for pair in pairs] for pairs in groups.values()]
        cells = [
            f"{np.mean(each):+.1f} ({min(each):+.1f}; {sum(gain < -0.5 for gain in each)} of {len(each)})"
            for each in changes
        ]
        lines.append([title, *cells])
    return markdown(["share", *groups], lines)


def answers(rows: CsvRows) -> str:
    """Of the default's shares, docs/adaptation.md's sentence: how many ``seg.adapt`` accepts, and what these change."""
    shares = of_shares(pairs_of(rows))
    taken = [row for row in map(_default, shares.values()) if SIGNS["worth"](row) != 1]
    accepted = [_more(row, "miou") for row in taken if _accepted(row)]
    return (
        f"Of the {len(shares)} pairs above {len(taken)} get a share; {len(accepted)} are accepted, of which "
        f"{sum(gain > 0.5 for gain in accepted)} gain more than 0.5 and {sum(gain < -0.5 for gain in accepted)} loses "
        "as much"
    )


def print_tables(rows: CsvRows) -> None:
    """The pages' tables, the acceptance of ``seg.adapt``, and each number as a sign of harm."""
    print(public_table(rows), shares_table(rows), answers(rows), sep="\n")
    found = pairs_of(rows)
    everything = [(pair[0], row) for pair, ways in found.items() for row in ways.values()]
    print("all rows:", _rates([(_accepted(row), _more(row, "miou")) for _, row in everything]))
    names = sorted({name for name, _ in everything})
    for title, sign in SIGNS.items():
        known = [(name, row) for name, row in everything if title != "styled" or "after styled" in row]
        chosen_on = [(sign(row), _more(row, "miou")) for name, row in known if names.index(name) % 2 == 0]
        other = [(sign(row), _more(row, "miou")) for name, row in known if names.index(name) % 2]
        limit = max((value for value, _ in chosen_on), key=lambda value: _balance(chosen_on, value))
        print(f"{title} from {limit:.3f} on: {_rates([(value >= limit, gain) for value, gain in other])}")


def _default(ways: dict[str, Row]) -> Row:
    """The row of the share that :func:`re_estimated` takes."""
    share = best_share([1.0, *(SIGNS["worth"](ways[way]) for way in STATISTICS)])
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
    return kept and SIGNS["worth"](row) >= LEAST_WORTH


def _balance(rows: Sequence[tuple[float, float]], limit: float) -> float:
    """Harms refused and gains accepted, as shares, added."""
    harms, gains = [v for v, gain in rows if gain < -0.5], [v for v, gain in rows if gain > 0.5]
    return float(np.mean([v < limit for v in harms or [0.0]]) + np.mean([v >= limit for v in gains or [0.0]]))


def _rates(rows: Sequence[tuple[bool, float]]) -> str:
    """Of (accepted, change of mIoU): harms that were accepted and gains that were refused, by more than 0.5."""
    harms, gains = [ok for ok, gain in rows if gain < -0.5], [ok for ok, gain in rows if gain > 0.5]
    accepted = [gain for ok, gain in rows if ok]
    return (
        f"{sum(harms)} of {len(harms)} harms accepted, {len(gains) - sum(gains)} of {len(gains)} gains refused; "
        f"of {len(accepted)} accepted {sum(gain < -0.5 for gain in accepted)} harm"
    )


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
    names = ("miou", "entropy", "info_max", "stability", "classes", "snd", "kept", "styled")
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
            styled = None
            if name in NETWORKS and options.ways == "statistics":
                styled = styled_source(options.photographs, name, files, change, moments, size)
            with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                there = Folder(batches, labels, network, styled)
                start = re_estimated(network, batches).network if options.ways == "learning" else network
                for way in missing:
                    result = adapted(start, batches, ways[way])
                    try:
                        after, accepted = there.numbers(result)
                    except NotFiniteError:
                        after, accepted = {}, False
                    rows.add({**keys, "way": way, "before": there.before, "after": after, "accepted": accepted})
            print(name, folder, flush=True)
    print_tables(rows)


if __name__ == "__main__":
    main()
