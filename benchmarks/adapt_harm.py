"""Label-free scores that could choose a share of the statistics, compared: a table of docs/adaptation.md.

    PYTHONPATH=benchmarks python benchmarks/adapt_harm.py

Prints the table of the rows in ``docs/results/adapt_harm.csv``, which this script made in commit ``5f4bb36d``:
156 pairs of a network and a folder of 6 to 16 images, registered in ``docs/results/adapt_harm_registration.txt``.
``benchmarks/adapt_rules.py`` has the rules of seg.adapt on a larger bed.
"""

import numpy as np
from adapt_rules import HARM, change
from csv_rows import RESULTS, CsvRows

from dem_apps.report.tables import markdown
from seg.trained.adaptive_batch_norm import SHARES

KEYS = ("family", "network", "folder", "rule")
#: Rows of the table, and how they are called there.
SHOWN = {
    "seg.adapt, today": "**seg.adapt**",
    "seg.adapt": "frozen, one share for all",
    "seg.adapt, by image": "frozen, by image",
    "share 0.3": "always 0.3",
    "share 1": "always 1",
    "entropy": "least entropy",
    "information": "information",
    "density": "SND",
    "nuclear": "nuclear norm",
    "agreement": "agreement",
    "information score": "stability² × information",
    "InTEnt": "InTEnt",
}
TODAY = "seg.adapt, today"


def table(rows: CsvRows) -> str:
    """The mean change of mIoU by each rule (worst; pairs that lose more than 0.5), and the part of images that lose."""
    pairs = [rules for rules in rows.by("network", "folder").values() if TODAY in rules]
    shifted = [rules for rules in pairs if str(rules[TODAY]["shifted"]) == "True"]
    unshifted = [rules for rules in pairs if rules not in shifted]
    best = sum(max(change(rules[f"share {share:g}"]) for share in SHARES) for rules in pairs)
    lines = []
    for rule, title in SHOWN.items():
        cells = [title]
        for part in (shifted, unshifted):
            changes = [change(rules[rule]) for rules in part]
            harmed = sum(each < -HARM for each in changes)
            cells.append(f"{np.mean(changes):+.1f} ({min(changes):+.1f}; {harmed})")
        every = [rules[rule] for rules in pairs]
        lose, images = (sum(int(row[name]) for row in every) for name in ("lose", "images"))
        cells += [f"{100 * sum(map(change, every)) / best:.0f}", f"{100 * lose / images:.0f}"]
        lines.append(cells)
    heads = [f"{len(shifted)} shifted", f"{len(unshifted)} unshifted"]
    return markdown(["share of the statistics", *heads, "kept %", "images that lose %"], lines)


if __name__ == "__main__":
    print(table(CsvRows(RESULTS / "adapt_harm.csv", KEYS)))
