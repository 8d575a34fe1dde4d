"""Learning rates at test time, by docs/results/cifar_rates_registration.txt: the table and figure of docs/test_time.md.

    python benchmarks/rates_figure.py

The rows are those of ``benchmarks/corruption_streams.py --out docs/results/cifar_rates.csv``.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np
from csv_rows import RESULTS, CsvRows, interval, parser_of
from matplotlib.figure import Figure
from stream_tables import KEYS

from dem_apps.report.charts import drawn
from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

IMAGES = RESULTS.parent / "images"
CONTROL, WITHIN = "entropy", 2.0
TITLES = {
    "entropy": "entropy",
    "adadem": "AdaDEM, marginals from 1/C",
    "adadem:marginals=start": "AdaDEM, marginals started",
    "adadem-norm": "AdaDEM-Norm",
    "adadem-mec": "AdaDEM-MEC, marginals from 1/C",
    "adadem-mec:marginals=start": "AdaDEM-MEC, marginals started",
}
#: Accuracy in %, by rate and corruption, each the mean over the orders.
Curve = dict[float, dict[str, float]]


def curves(file: Path) -> dict[str, Curve]:
    """The curve of each objective that the rows have."""
    orders: dict[tuple[str, float, str], list[float]] = {}
    for row in CsvRows(file, KEYS).rows.values():
        key = row["objective"], float(row["rate"]), row["corruption"]
        orders.setdefault(key, []).append(float(row["accuracy"]))
    found: dict[str, Curve] = {}
    for (objective, rate, corruption), accuracies in orders.items():
        found.setdefault(objective, {}).setdefault(rate, {})[corruption] = fmean(accuracies)
    return {name: dict(sorted(found[name].items())) for name in TITLES if name in found}


def best_rate(curve: Curve) -> float:
    """The rate with the highest mean accuracy."""
    return max(curve, key=lambda rate: fmean(curve[rate].values()))


def decades(curve: Curve, least: float) -> float:
    """Decades of the rate whose mean accuracy is at least ``least``; lines join the means over log10 of the rate."""
    logs = np.log10(list(curve))
    fine = np.linspace(logs[0], logs[-1], 20_001)
    means = np.interp(fine, logs, [fmean(each.values()) for each in curve.values()])
    return float((means >= least).mean() * (logs[-1] - logs[0]))


def table(found: Mapping[str, Curve]) -> str:
    """Each objective's best rate, its difference to entropy's best, and the decades near entropy's best."""
    control = found[CONTROL][best_rate(found[CONTROL])]
    least = fmean(control.values()) - WITHIN
    lines = []
    for name, curve in found.items():
        rate = best_rate(curve)
        apart = "" if name == CONTROL else interval(difference_interval(curve[rate], control))
        mean = f"{fmean(curve[rate].values()):.1f}"
        lines.append([TITLES[name], f"{rate:g}", mean, apart, f"{decades(curve, least):.2f}"])
    return markdown(["objective", "best rate", "accuracy", "− entropy", "decades"], lines)


def draw(found: Mapping[str, Curve]) -> Figure:
    """Mean accuracy over the learning rate, a line for each objective."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in found.items():
        style = "--" if name.endswith("start") else "-"
        means = [fmean(each.values()) for each in curve.values()]
        axes.plot(list(curve), means, style, marker="o", markersize=3.5, label=TITLES[name])
    control = found[CONTROL][best_rate(found[CONTROL])]
    axes.axhline(fmean(control.values()) - WITHIN, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate of Adam")
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Print the table and draw the figure."""
    parser = parser_of(__doc__, out=IMAGES / "cifar_rates.svg")
    options = parser.parse_args()
    found = curves(RESULTS / "cifar_rates.csv")
    print(table(found), end="")
    options.out.write_bytes(drawn(draw(found), "svg"))


if __name__ == "__main__":
    main()
