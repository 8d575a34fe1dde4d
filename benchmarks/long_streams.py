"""Long streams of corruptions without reset, with and without batch norm: the tables and figure of docs/appendix.md.

    python benchmarks/long_streams.py

The rows are those of ``benchmarks/corruption_streams.py --stream continual --out docs/results/long_streams.csv``, by
docs/results/long_streams_registration.txt and long_streams_lower_rates_registration.txt. Those of
long_streams_again.csv, by long_streams_again_registration.txt, are of networks that were trained again, and have a
control of their own. Numbers in per cent.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from csv_rows import RESULTS, CsvRows, Row, parser_of
from matplotlib.figure import Figure
from stream_tables import (
    KEYS,
    Unit,
    accuracies,
    at_rule,
    difference,
    groups,
    over_orders,
    rates_of,
    settings,
)

from dem_apps.report.charts import drawn
from dem_apps.report.tables import markdown

IMAGES = RESULTS.parent / "images"
BEDS = {
    "long": "batch norm",
    "long_group_norm": "group norm",
    "long_layer_norm": "layer norm",
    "long_group_norm_again": "group norm, trained again",
    "long_layer_norm_again": "layer norm, trained again",
}
METHODS = {"tent": "Tent", "eata": "EATA, 2000", "eata:fisher_weight=1": "EATA", "sar": "SAR"}
OBJECTIVES = {"entropy": "entropy", "adadem": "AdaDEM"}
#: Accuracy by corruption, and by corruption and order.
Scores = Mapping[str, float]
Units = Mapping[Unit, float]


def rows() -> list[Row]:
    """Those of the first networks."""
    return [*CsvRows(RESULTS / "long_streams.csv", KEYS).rows.values()]


def again() -> list[Row]:
    """Those of the networks that were trained again, as beds of their own."""
    found = CsvRows(RESULTS / "long_streams_again.csv", KEYS).rows.values()
    return [{**row, "bed": f"{row['bed']}_again"} for row in found]


def by_rate(found: Sequence[Row]) -> str:
    """A table with a line for each network, method and rate."""
    lines = []
    for bed, method, none, own in streams(found):
        for rate, units in rates(own).items():
            sides = [_side(each, none) for each in units]
            entropy, adadem = map(over_orders, units)
            lines.append([bed, method, f"{rate:g}", *sides, difference(adadem, entropy)])
    return markdown(["network", "method", "rate", *OBJECTIVES.values(), "AdaDEM − entropy"], lines)


def at_own_rates(found: Sequence[Row]) -> str:
    """A table with a line for each network and method, each objective at the rate that is best in the other order."""
    lines = []
    for bed, method, none, own in streams(found):
        chosen = at_rule(own, "continual")
        told = "; ".join(rates_of(chosen[name].values()) for name in OBJECTIVES)
        entropy, adadem = at_chosen(own)
        apart = [difference(*each) for each in ((entropy, none), (adadem, none), (adadem, entropy))]
        lines.append([bed, method, f"{fmean(none.values()):.1f}", *apart, told])
    heads = ["no adaptation", "entropy − no adaptation", "AdaDEM − no adaptation"]
    return markdown(["network", "method", *heads, "AdaDEM − entropy", "rates"], lines)


def at_chosen(found: Sequence[Row]) -> tuple[Scores, Scores]:
    """The accuracies of entropy and of AdaDEM, each at the rate that is best in the other order, over orders."""
    chosen = at_rule(found, "continual")
    return over_orders(accuracies(chosen["entropy"])), over_orders(accuracies(chosen["adadem"]))


def prevented(found: Sequence[Row]) -> dict[tuple[str, str], int]:
    """How many more corruptions end below no adaptation by entropy than by AdaDEM, by network and method.

    It is the number that all orders reach, at the rate where it is largest.
    """
    return {
        (bed, method): max(_fewer(*units, none) for units in rates(own).values())
        for bed, method, none, own in streams(found)
    }


def streams(found: Sequence[Row]) -> Iterator[tuple[str, str, Scores, list[Row]]]:
    """Each network and method, the accuracies without adaptation, and the rows."""
    for setting, here, controls in settings(found):
        none = {row["corruption"]: float(row["accuracy"]) for row in controls[0]}
        by_method = {own[0]["method"]: own for own in groups(here, ("method",))}
        for method, title in METHODS.items():
            if method in by_method:
                yield BEDS[setting["bed"]], title, none, by_method[method]


def rates(found: Sequence[Row]) -> dict[float, tuple[Units, Units]]:
    """The accuracies of entropy and of AdaDEM by rate."""
    units = {float(own[0]["rate"]): at_rule(own, "single") for own in groups(found, ("rate",))}
    return {
        rate: (accuracies(each["entropy"]), accuracies(each["adadem"]))
        for rate, each in sorted(units.items())
    }


def draw(found: Sequence[Row], method: str = "Tent") -> Figure:
    """Mean accuracy of a method over the learning rate, a panel for each network."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    parts = [(bed, none, own) for bed, other, none, own in streams(found) if other == method]
    for axes, (bed, none, own) in zip(
        figure.subplots(1, len(parts), sharex=True, sharey=True), parts, strict=True
    ):
        units = rates(own)
        for side, title in enumerate(OBJECTIVES.values()):
            means = [fmean(each[side].values()) for each in units.values()]
            axes.plot([*units], means, "-", marker="o", markersize=3.5, label=title)
        axes.axhline(fmean(none.values()), color="grey", linestyle=":", label="no adaptation")
        axes.set(title=bed, xscale="log", xlabel="learning rate", ylim=(0, 80))
    figure.axes[0].set_ylabel("accuracy, %")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _side(scores: Units, none: Scores) -> str:
    """``66.1 (0, 2)``: the mean, and how many corruptions are below no adaptation in each order."""
    below = ", ".join(map(str, _below(scores, none).values()))
    return f"{fmean(scores.values()):.1f} ({below})"


def _fewer(entropy: Units, adadem: Units, none: Scores) -> int:
    below, ours = _below(entropy, none), _below(adadem, none)
    return min(below[order] - ours[order] for order in below)


def _below(scores: Units, none: Scores) -> dict[str, int]:
    """How many corruptions are below no adaptation, by order."""
    orders = sorted({unit.order for unit in scores})
    return {
        order: sum(scores[unit] < none[unit.corruption] for unit in scores if unit.order == order)
        for order in orders
    }


def main() -> None:
    """Print the tables and draw the figure."""
    options = parser_of(__doc__, out=IMAGES / "long_streams.svg").parse_args()
    found = [*rows(), *again()]
    print(at_own_rates(found), by_rate(found), sep="")
    options.out.write_bytes(drawn(draw(found), "svg"))


if __name__ == "__main__":
    main()
