"""Measure what the short training of ``seg.adapt --labels`` adds to the share, with eight labels.

    CLONES=… PYTHONPATH=benchmarks python benchmarks/adapt_labelled.py --photographs PHOTOGRAPHS --work WORK
        [--out docs/results/adapt_labelled.csv]

The command adapts every eighth pair of ``benchmarks/adapt_bed.py``, whose recordings are in WORK, as a user calls it.
The labels are those of draw 0 in ``benchmarks/adapt_rules.py``; changes of mIoU are of the other images. The same
command continues.
"""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import photograph_networks as ours
import torch
from adapt_bed import NETWORKS, OURS, Folder, folders_of, pictures, probe_order, read_pair, size_of
from adapt_rules import HARM, LABELLED, Looks, with_labels
from csv_rows import RESULTS, CsvRows, Row, interval, parser_of

from dem_apps.report.intervals import mean_interval
from dem_apps.report.tables import markdown
from seg.adapt import AdaptConfig, adapt

KEYS = ("network", "folder")
SCORES = ("share replayed", "share", "accepted replayed", "accepted", "step")
CHANGES = ("before", "share alone", "after")
EVERY = 8


def adapted(name: str, folder: Folder, work: Path) -> dict[str, Any]:
    """Adapt a pair; return its row."""
    pair = read_pair(work / "bed" / f"{name} {folder.name}.npz")
    number = pair.tables.shape[-1]
    images, labels = pictures(folder, size_of(name))
    drawn = np.random.default_rng(0).permutation(len(images))
    chosen, others = drawn[: max(LABELLED)], drawn[max(LABELLED) :]
    replayed = with_labels(Looks(pair), chosen)
    order = probe_order(len(images))
    root, out = work / "labelled", work / "labelled_adapted"
    for place in (root, out):
        shutil.rmtree(place, ignore_errors=True)
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    for index, image in enumerate(images):
        cv2.imwrite(str(root / "images" / f"{index:02}.png"), image[..., ::-1])
    for index in (order[place] for place in chosen):
        ids = np.where(labels[index] < number, labels[index], 255)
        cv2.imwrite(str(root / "labels" / f"{index:02}.png"), ids)
    own = name in OURS
    seen = {"mean": [0.5] * 3, "std": [0.5] * 3} if own else {}
    spec = str(work / "networks" / name) if own else f"public_networks:{name}"
    adapt(
        AdaptConfig(
            model=spec,
            images=str(root / "images"),
            labels=str(root / "labels"),
            out=str(out),
            **seen,
        )
    )
    answer = json.loads((out / "adapt.json").read_text())
    files = [out / "after" / f"{order[place]:02}_pred_labelIds.png" for place in others]
    found = [torch.from_numpy(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)) for file in files]
    tables = ours.confusions(found, [labels[order[place]] for place in others], number)
    return {
        "share replayed": replayed.share,
        "share": answer["share_of_statistics"],
        "accepted replayed": replayed.accepted,
        "accepted": answer["adapted"],
        "step": answer["used_after_batch"] or 0,
        "before": ours.miou(pair.tables[0][others]),
        "share alone": ours.miou(replayed.tables[others]),
        "after": ours.miou(tables),
    }


def table(rows: CsvRows) -> str:
    """The whole command with eight labels; changes of mIoU are means over pairs with 95 % CIs.

    ``as replayed`` counts the pairs whose share and verdict are those of ``benchmarks/adapt_rules.py``, ``trained``
    those where the short training stands, and ``harmed`` those that lose more than 0.5.
    """
    found = list(rows.rows.values())
    gains = [
        [float(row[after]) - float(row["before"]) for row in found]
        for after in ("share alone", "after")
    ]
    counts = [
        sum(map(_as_replayed, found)),
        sum(str(row["accepted"]) == "True" for row in found),
        sum(float(row["step"]) > 0 for row in found),
        sum(gain < -HARM for gain in gains[1]),
    ]
    cells = [len(found), *counts, *(interval(mean_interval(each)) for each in gains)]
    return markdown(
        ["pairs", "as replayed", "adapted", "trained", "harmed", "share alone", "whole command"],
        [[str(cell) for cell in cells]],
    )


def _as_replayed(row: Row) -> bool:
    same_verdict = str(row["accepted"]) == str(row["accepted replayed"])
    return float(row["share"] or 0) == float(row["share replayed"]) and (
        same_verdict or float(row["step"]) > 0
    )


def main() -> None:
    """Adapt what is missing, and print the table."""
    parser = parser_of(__doc__, "photographs", "work", out=RESULTS / "adapt_labelled.csv")
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, (*SCORES, *CHANGES))
    every = (
        (name, folder) for name in NETWORKS for folder in folders_of(name, options.photographs)
    )
    for name, folder in itertools.islice(every, 0, None, EVERY):
        keys = {"network": name, "folder": folder.name}
        if rows.get(keys) is None:
            row = adapted(name, folder, options.work)
            print(rows.add({**keys, **row}), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
