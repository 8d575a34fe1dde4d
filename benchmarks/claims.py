"""The paper's claims against measurements here: the table of docs/method.md, made of the raw rows.

``python benchmarks/claims.py`` prints it.
"""

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean

import cifar_labels
import long_streams
import minent_weights
from csv_rows import RESULTS, CsvRows, Row
from stream_tables import CONTROLS, KEYS, accuracies, at_rule, difference, over_orders

from dem_apps.report.tables import markdown

#: EATA with its authors' weight of the anchor for CIFAR-10: 2000 holds ten classes at their start.
TITLES = {
    "tent": "Tent",
    "sar": "SAR",
    "eta": "ETA",
    "eata:fisher_weight=1": "EATA",
    "deyo": "DeYO",
}


def streams(bed: str, **wanted: str) -> list[Row]:
    """The rows of a bed, of severity 5 and one pass, whose columns have these values."""
    wanted = {"severity": "5", "passes": "1", "optimizer": "sgd"} | wanted
    rows = CsvRows(RESULTS / f"{bed}_streams.csv", KEYS).rows.values()
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def tent_on_cifar() -> list[Row]:
    """Rows of Tent on CIFAR-10, each corruption alone, and of the controls that do not train."""
    controls = (row for method in CONTROLS for row in streams("cifar", method=method, optimizer=""))
    return [*controls, *streams("cifar", stream="single", method="tent")]


def over_entropy(bed: str, stream: str, *methods: str, ours: str = "adadem", **wanted: str) -> str:
    """Accuracy points of an objective over entropy by method, each at its rates by the rule of stream_tables.py."""
    told = []
    for method in methods or ("tent",):
        found = at_rule(streams(bed, stream=stream, method=method, **wanted), stream)
        sides = (over_orders(accuracies(found[each])) for each in (ours, "entropy"))
        apart = difference(*sides)
        told.append(f"{TITLES[method]} {apart}" if methods else apart)
    return ", ".join(told)


def in_long_streams() -> tuple[str, str]:
    """Of each network and method: corruptions that only entropy ends below no adaptation, AdaDEM minus entropy."""
    rows = long_streams.rows()
    fewer = defaultdict[str, list[str]](list)
    apart = defaultdict[str, list[str]](list)
    prevented = long_streams.prevented(rows)
    for network, method, _, own in long_streams.streams(rows):
        if method != "EATA, 2000":
            entropy, adadem = long_streams.at_chosen(own)
            fewer[network].append(f"{method} {prevented[network, method]}")
            apart[network].append(f"{method} {difference(adadem, entropy)}")
    return _by_network(fewer), _by_network(apart)


def _by_network(told: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{network}: {', '.join(each)}" for network, each in told.items())


def at_rate(objective: str, rate: float) -> str:
    """Mean accuracy of Tent on CIFAR-10 over corruptions."""
    rows = streams("cifar", stream="single", method="tent", objective=objective)
    return f"{fmean(float(row['accuracy']) for row in rows if float(row['rate']) == rate):.1f}"


def labels(table: str, case: str, score: str = "accuracy") -> str:
    """AdaDEM minus entropy with few labels, each at its chosen weight."""
    rows = CsvRows(RESULTS / "cifar_labels.csv", cifar_labels.KEYS)
    return difference(
        *(cifar_labels.at_chosen(rows, table, case, score, name) for name in ("adadem", "entropy"))
    )


def minent() -> str:
    """AdaDEM minus entropy in mIoU as trained, each at its chosen weight, over the pairs that confirm it."""
    chosen = minent_weights.Rows(RESULTS / "minent_weights.csv").chosen()
    return confirmed(chosen["adadem"], chosen["entropy"], minent_weights.CONFIRMED_ON)


def confirmed(ours: str, control: str, pairs: tuple[str, ...]) -> str:
    """Difference in mIoU of two arms of minent_weights.py as trained, over the seeds that confirm."""
    rows = minent_weights.Rows(RESULTS / "minent_weights.csv")
    return difference(*(minent_weights.by_seed(rows, arm, pairs) for arm in (ours, control)))


def table() -> str:
    """The table in Markdown."""
    single = at_rule(streams("cifar", stream="single", method="tent"), "single")
    fewer, apart = in_long_streams()

    def each(key: str, digits: int = 0) -> str:
        means = {
            name: fmean(float(row[key]) for row in single[name].values())
            for name in ("entropy", "adadem")
        }
        return ", ".join(f"{name} {mean:.{digits}f}" for name, mean in means.items())

    rates = "; ".join(
        f"{rate:g}: {at_rate('entropy', rate)}, {at_rate('adadem', rate)}"
        for rate in (0.001, 0.01, 0.1)
    )
    return markdown(
        ["claim", "AdaDEM minus entropy here", "holds"],
        [
            [
                "gains at test time, each corruption alone",
                f"CIFAR-10: {over_entropy('cifar', 'single', *TITLES)}, with Adam "
                f"{over_entropy('cifar', 'single', optimizer='adam')}; ImageNet: Tent "
                f"{over_entropy('imagenet', 'single')}, three passes {over_entropy('imagenet', 'single', passes='3')}",
                "on CIFAR-10",
            ],
            [
                "as good as tuned DEM",
                f"Tent with DEM: CIFAR-10 {over_entropy('cifar', 'single', ours='dem')}, ImageNet "
                f"{over_entropy('imagenet', 'single', ours='dem')}",
                "not on CIFAR-10",
            ],
            [
                "without batch norm",
                f"CIFAR-10, group norm: {over_entropy('cifar_group_norm', 'single', 'tent', 'sar')}",
                "no",
            ],
            [
                "one after another",
                f"CIFAR-10: Tent {over_entropy('cifar', 'continual')}",
                "by a point",
            ],
            ["prevents collapse in long streams", fewer, "by Tent, without batch norm"],
            ["gains in long streams", apart, "no"],
            [
                "tolerates larger rates",
                f"Tent by rate, entropy and AdaDEM: {rates}",
                "no with batch norm, it takes a tenth",
            ],
            [
                "sure predictions teach",
                f"above 0.9 are {each('sure')} %, of the gradient {each('sure_gradient')} %",
                "yes",
            ],
            [
                "easy classes swallow less",
                f"entropy of predicted classes / log C: {each('class_entropy', 3)}",
                "hardly seen",
            ],
            [
                "few labels",
                "; ".join(
                    f"{case} a class {labels('labels', case)}" for case in ("4", "25", "400")
                ),
                "perhaps with 4",
            ],
            [
                "rare classes",
                "; ".join(
                    f"F1, ρ {case} {labels('imbalance', case, 'f1')}" for case in ("10", "100")
                ),
                "not seen",
            ],
            [
                "MinEnt on streets",
                f"three pairs {minent()}",
                "yes",
            ],
            [
                "AdvEnt on streets",
                confirmed("advent adadem", "advent entropy", (minent_weights.ADVENT_ON,)),
                "not seen",
            ],
        ],
    )


if __name__ == "__main__":
    print(table())
