"""Tables of the rows of ``benchmarks/corruption_streams.py``, for docs/appendix.md and ``claims.py``.

Rule for the rate (and for τ and α of DEM), set before any row was made: on a row of ``single`` that
rate counts which has the best mean accuracy over the corruptions of the other half in the same order, the halves being
every second corruption of the paper's order; on a row of ``continual`` that which is best in the other orders, so two
are needed. No accuracy is reported at a rate that it chose. Only rates with all the corruptions take part.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from csv_rows import Row, interval

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
CONTROLS = ("none", "bn")
SETTING = ("bed", "size", "images", "severity", "stream", "passes")
ARM = ("method", "bn_alpha", "optimizer")
KEYS = [*SETTING, "corruption", *ARM, "objective", "rate", "order"]
SCORES = ["accuracy", "last_quarter", "sure", "sure_gradient", "class_entropy", "failed", "seconds"]


class Unit(NamedTuple):
    """The corruption and order of a row, whatever adapts."""

    corruption: str
    order: str


def choice(stream: str, scores: Mapping[Any, Mapping[Unit, float]]) -> dict[Unit, Any]:
    """For each unit the candidate that is best by the rule of the module's docstring, none where nothing is to be had.

    A candidate that lacks a unit of the order, or of ``continual``, takes no part. One alone is no choice.
    """
    units = dict.fromkeys(unit for each in scores.values() for unit in each)
    found = {}
    for unit in units:
        here = [other for other in units if stream == "continual" or other.order == unit.order]
        others = [other for other in here if _fold(stream, other) != _fold(stream, unit)]
        tried = [candidate for candidate, each in scores.items() if set(here) & set(each)]
        complete = [candidate for candidate in tried if set(here) <= set(scores[candidate])]
        if len(tried) == 1:
            found[unit] = tried[0]
        elif others and complete:
            means = {each: fmean(scores[each][other] for other in others) for each in complete}
            found[unit] = max(means, key=means.__getitem__)
    return found


def _fold(stream: str, unit: Unit) -> Hashable:
    return unit.order if stream == "continual" else CORRUPTIONS.index(unit.corruption) % 2


def table(rows: Sequence[Row]) -> str:
    """A table for each bed, size, severity, stream and number of passes, at the rule's rates."""
    text = ""
    heads = [
        "method",
        "objective",
        "accuracy",
        "− entropy [95 % CI]",
        "sure → gradient",
        "class entropy",
        "rates",
    ]
    for setting, here, controls in settings(rows):
        arms, corruptions = groups(here, ARM), len({row["corruption"] for row in here})
        lines = [_line(_name(own[0]), "", own) for own in controls]
        lines += [line for arm in arms for line in _arm(arm, setting["stream"])]
        text += ", ".join(f"{key} {value}" for key, value in setting.items())
        text += f": {corruptions} corruptions\n\n" + markdown(heads, lines)
    return text


def summary(
    rows: Sequence[Row], objectives: Sequence[str] = ("adadem", "adadem-mec", "dem", "come")
) -> str:
    """A line for each stream and method: the accuracy of entropy, and the differences of other objectives to it."""
    lines = list[list[str]]()
    for setting, here, _ in settings(rows):
        for arm in groups(here, ARM):
            found, first = at_rule(arm, setting["stream"]), arm[0]
            if "entropy" not in found:
                continue
            entropy = over_orders(accuracies(found["entropy"]))
            cells = [f"{fmean(entropy.values()):.1f} ({rates_of(found['entropy'].values())})"]
            for own in (found.get(name, {}) for name in objectives):
                cells.append(
                    f"{difference(over_orders(accuracies(own)), entropy)} ({rates_of(own.values())})"
                    if own
                    else ""
                )
            adam = ", Adam" * (first["optimizer"] == "adam")
            lines.append([f"{_stream(setting)}, {first['method']}{adam}", *cells])
    return markdown(["stream and method", "entropy", *objectives], lines)


def controls_table(rows: Sequence[Row]) -> str:
    """A line for each stream: the accuracy without adaptation and with the batch's statistics alone."""
    lines = list[list[str]]()
    for setting, here, controls in settings(rows):
        share = here[0]["bn_alpha"]
        beside = [own for own in controls if own[0]["bn_alpha"] in ("", share)]
        means = [f"{_mean(own, 'accuracy'):.1f}" for own in beside]
        lines.append([_stream(setting), *[*means, "", ""][:2]])
    return markdown(["stream", *CONTROLS], lines)


def _stream(setting: Mapping[str, str]) -> str:
    """The words for a bed, and for what differs from one pass of single corruptions at severity 5."""
    words = [setting["bed"]]
    if setting["stream"] != "single":
        words.append(setting["stream"])
    if setting["severity"] != "5":
        words.append(f"severity {setting['severity']}")
    if setting["passes"] != "1":
        words.append(f"{setting['passes']} passes")
    return ", ".join(words)


def settings(rows: Sequence[Row]) -> Iterator[tuple[dict[str, str], list[Row], list[list[Row]]]]:
    """Each setting, its rows of methods that learn, and those of each control that has as many corruptions."""
    for here in groups([row for row in rows if row["method"] not in CONTROLS], SETTING):
        setting, names = {key: here[0][key] for key in SETTING}, {row["corruption"] for row in here}
        beside = [row for row in rows if row["method"] in CONTROLS and row["corruption"] in names]
        same = [row for row in beside if all(row[key] == setting[key] for key in SETTING[:4])]
        yield setting, here, [own for own in groups(same, ARM) if len(own) == len(names)]


def groups(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Row]]:
    """The rows that share these columns, together."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    return list(found.values())


def _line(
    title: str, objective: str, rows: Sequence[Row], apart: str = "", rates: str = ""
) -> list[str]:
    """A line of :func:`table`."""
    sure = f"{_mean(rows, 'sure'):.0f}" + (
        f" → {_mean(rows, 'sure_gradient'):.0f}" if objective else ""
    )
    means = f"{_mean(rows, 'accuracy'):.1f}", f"{_mean(rows, 'class_entropy'):.3f}"
    return [title, objective, means[0], apart, f"{sure} %", means[1], rates]


def rates_of(rows: Iterable[Row], between: str = ", ") -> str:
    """The rates of rows, each once."""
    return between.join(f"{rate:.2g}" for rate in sorted({float(row["rate"]) for row in rows}))


def at_rule(rows: Sequence[Row], stream: str) -> dict[str, dict[Unit, Row]]:
    """The rows of a method at the rule's rates, by objective, entropy first."""
    found: dict[str, dict[Unit, Row]] = {}
    for name in sorted({_family(row) for row in rows}, key=lambda name: (name != "entropy", name)):
        of: dict[tuple[str, float], dict[Unit, Row]] = {}
        for row in rows:
            if _family(row) == name:
                of.setdefault((row["objective"], float(row["rate"])), {})[
                    Unit(row["corruption"], row["order"])
                ] = row
        scores = {each: accuracies(units) for each, units in of.items()}
        if best := choice(stream, scores):
            found[name] = {unit: of[each][unit] for unit, each in best.items()}
    return found


def accuracies(units: Mapping[Unit, Row]) -> dict[Unit, float]:
    """The accuracies of rows."""
    return {unit: float(row["accuracy"]) for unit, row in units.items()}


def over_orders(scores: Mapping[Unit, float]) -> dict[str, float]:
    """The mean over orders of each corruption, which is the unit of an interval: orders are of the same images."""
    names = dict.fromkeys(unit.corruption for unit in scores)
    return {
        name: fmean(scores[unit] for unit in scores if unit.corruption == name) for name in names
    }


def difference(ours: Mapping[Any, float], control: Mapping[Any, float]) -> str:
    """The difference of scores with the same keys: ``+1.3 [0.4, 2.3]``."""
    return interval(difference_interval(ours, control), sign="")


def _arm(rows: Sequence[Row], stream: str) -> list[list[str]]:
    """The lines of a method, an objective each, at the rates of the rule."""
    found, lines = at_rule(rows, stream), list[list[str]]()
    control = found.get("entropy", {})
    for name, units in found.items():
        own, known = list(units.values()), set(units) & set(control) and name != "entropy"
        sides = (over_orders(accuracies(each)) for each in (units, control))
        apart = difference(*sides) if known else ""
        tried = sorted({float(row["rate"]) for row in rows if _family(row) == name})
        edge = len(tried) > 1 and {tried[0], tried[-1]} & {float(row["rate"]) for row in own}
        rates = rates_of(own, " ") + (" (end of those tried)" if edge else "")
        lines.append(_line("" if lines else _name(rows[0]), name, own, apart, rates))
    return lines


def _name(row: Row) -> str:
    return " ".join(str(row[key]) for key in ARM).strip()


def _family(row: Row) -> str:
    """DEM without τ and α, which the rule chooses as it does the rate: DEM*."""
    return "dem" if row["objective"].startswith("dem:") else str(row["objective"])


def _mean(rows: Sequence[Row], key: str) -> float:
    return fmean(float(row[key] or "nan") for row in rows)
