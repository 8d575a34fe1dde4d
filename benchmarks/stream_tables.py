"""Tables of ``benchmarks/corruption_streams.py``.

Rule for the rate (and for τ and α of DEM), set before any row was made: on a row of ``single`` that
rate counts which has the best mean accuracy over the corruptions of the other half in the same order, the halves being
every second corruption of the paper's order; on a row of ``continual`` that which is best in the other orders, so two
are needed. No accuracy is reported at a rate that it chose. Only rates with all the corruptions take part.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
CONTROLS = ("none", "bn")
SETTING = ("bed", "size", "images", "severity", "stream", "passes")
ARM = ("method", "bn_alpha", "optimizer")
KEYS = [*SETTING, "corruption", *ARM, "objective", "rate", "order"]
SCORES = ["accuracy", "last_quarter", "sure", "sure_gradient", "class_entropy", "failed", "seconds"]
Row = Mapping[str, Any]
Candidate = TypeVar("Candidate", bound=Hashable)


class Unit(NamedTuple):
    """The corruption and order of a row, whatever adapts."""

    corruption: str
    order: str


def chosen(scores: Mapping[Candidate, Mapping[Unit, float]], fold: Callable[[Unit], Hashable]) -> dict[Unit, Candidate]:
    """For each unit the candidate with the best mean over the units of the other folds; without these none.

    A candidate that lacks a unit takes no part. One alone is no choice.
    """
    units = dict.fromkeys(unit for each in scores.values() for unit in each)
    complete = {candidate: each for candidate, each in scores.items() if len(each) == len(units)}
    if len(scores) == 1:
        return dict.fromkeys(units, *scores)
    found = {}
    for unit in units:
        others = [other for other in units if fold(other) != fold(unit)]
        if others and complete:
            found[unit] = max(complete, key=lambda each: fmean(scores[each][other] for other in others))
    return found


def choice(stream: str, scores: Mapping[Candidate, Mapping[Unit, float]]) -> dict[Unit, Candidate]:
    """:func:`chosen` by the rule of the module's docstring."""
    if stream == "continual":
        return chosen(scores, lambda unit: unit.order)
    found = {}
    for order in sorted({unit.order for each in scores.values() for unit in each}):
        own = {
            candidate: {unit: score for unit, score in each.items() if unit.order == order}
            for candidate, each in scores.items()
        }
        own = {candidate: each for candidate, each in own.items() if each}
        found |= chosen(own, lambda unit: CORRUPTIONS.index(unit.corruption) % 2)
    return found


def table(rows: Sequence[Row]) -> str:
    """Two for each bed, size, severity, stream and number of passes: at the rule's rates, and by rate."""
    text = ""
    for setting, here, controls in _settings(rows):
        arms, corruptions = _groups(here, ARM), len({row["corruption"] for row in here})
        lines = [_control(arm) for arm in controls]
        for arm in arms:
            first, *rest = _arm(arm, setting["stream"])
            lines += [first, *(["", *line[1:]] for line in rest)]
        text += ", ".join(f"{key} {value}" for key, value in setting.items())
        text += f": {corruptions} corruptions\n\n" + markdown(
            ["method", "objective", "accuracy", "− entropy [95 % CI]", "sure → gradient", "class entropy", "rates"],
            lines,
        )
        rates = sorted({float(row["rate"]) for row in here})
        if len(rates) > 1:
            by_rate = [line for arm in arms for line in _by_rate(arm, rates, corruptions)]
            text += markdown(["method", "objective", *(f"{rate:.2g}" for rate in rates)], by_rate)
    return text


def summary(rows: Sequence[Row], objectives: Sequence[str] = ("adadem", "adadem-mec", "dem", "come")) -> str:
    """A line for each stream and method: the accuracy of entropy, and what other objectives have over it."""
    lines = list[list[str]]()
    for setting, here, controls in _settings(rows):
        stream = setting["bed"] + ", " * (setting["stream"] != "single") + setting["stream"].removeprefix("single")
        stream += f", severity {setting['severity']}" * (setting["severity"] != "5")
        stream += f", {setting['passes']} passes" * (setting["passes"] != "1")
        above = len(lines)
        for arm in _groups(here, ARM):
            found, first = at_rule(arm, setting["stream"]), arm[0]
            if "entropy" not in found:
                continue
            nothing = [
                f"{_mean(own, 'accuracy'):.1f}" for own in controls if own[0]["bn_alpha"] in ("", first["bn_alpha"])
            ]
            entropy = accuracies(found["entropy"])
            cells = [f"{fmean(entropy.values()):.1f}{_rates(found['entropy'])}"]
            cells += [
                difference(accuracies(found[name]), entropy) + _rates(found[name]) if name in found else ""
                for name in objectives
            ]
            method = f"{first['method']}{', Adam' * (first['optimizer'] == 'adam')}"
            known = len(lines) > above  # the line above says it
            lines.append(["" if known else stream, method, *(["", ""] if known else [*nothing, "", ""][:2]), *cells])
    return markdown(["stream", "method", "none", "bn", "entropy", *objectives], lines)


def _settings(rows: Sequence[Row]) -> Iterator[tuple[dict[str, str], list[Row], list[list[Row]]]]:
    """Each setting, its rows of methods that learn, and those of each control that has as many corruptions."""
    learning = [row for row in rows if row["method"] not in CONTROLS]
    for values in dict.fromkeys(tuple(row[key] for key in SETTING) for row in learning):
        here = [row for row in learning if tuple(row[key] for key in SETTING) == values]
        names = {row["corruption"] for row in here}
        same = [row for row in rows if row["method"] in CONTROLS and row["corruption"] in names
                and tuple(row[key] for key in SETTING[:4]) == values[:4]]  # fmt: skip
        controls = [own for own in _groups(same, ARM) if len(own) == len(names)]
        yield dict(zip(SETTING, values, strict=True)), here, controls


def _groups(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    return list(found.values())


def _control(rows: Sequence[Row]) -> list[str]:
    sure, entropy = _mean(rows, "sure"), _mean(rows, "class_entropy")
    return [_name(rows[0]), "", f"{_mean(rows, 'accuracy'):.1f}", "", f"{sure:.0f} %", f"{entropy:.3f}", ""]


def _rates(units: Mapping[Unit, Row]) -> str:
    rates = sorted({float(row["rate"]) for row in units.values()})
    return f" ({', '.join(f'{rate:.2g}' for rate in rates)})"


def at_rule(rows: Sequence[Row], stream: str) -> dict[str, dict[Unit, Row]]:
    """Of a method's rows those at the rule's rates, by objective, entropy first."""
    found: dict[str, dict[Unit, Row]] = {}
    for name in sorted({_family(row) for row in rows}, key=lambda name: (name != "entropy", name)):
        of: dict[tuple[str, float], dict[Unit, Row]] = {}
        for row in rows:
            if _family(row) == name:
                of.setdefault((row["objective"], float(row["rate"])), {})[Unit(row["corruption"], row["order"])] = row
        scores = {each: accuracies(units) for each, units in of.items()}
        if best := choice(stream, scores):
            found[name] = {unit: of[each][unit] for unit, each in best.items()}
    return found


def accuracies(units: Mapping[Unit, Row]) -> dict[Unit, float]:
    """Those of rows."""
    return {unit: float(row["accuracy"]) for unit, row in units.items()}


def difference(ours: Mapping[Any, float], control: Mapping[Any, float]) -> str:
    """Of scores with the same keys: ``+1.3 [0.4, 2.3]``."""
    found = difference_interval(ours, control)
    return f"{found.estimate:+.1f}" + (f" [{found.low:.1f}, {found.high:.1f}]" if found.low is not None else "")


def _arm(rows: Sequence[Row], stream: str) -> list[list[str]]:
    """The lines of a method, an objective each, at the rates of the rule."""
    found, lines = at_rule(rows, stream), []
    for name, units in found.items():
        own, control = list(units.values()), found.get("entropy", {})
        tried = sorted({float(row["rate"]) for row in rows if _family(row) == name})
        rates = sorted({float(row["rate"]) for row in own})
        edge = len(tried) > 1 and bool({tried[0], tried[-1]} & set(rates))
        lines.append([
            _name(rows[0]), name, f"{_mean(own, 'accuracy'):.1f}",
            difference(accuracies(units), accuracies(control))
            if name != "entropy" and set(units) & set(control) else "",
            f"{_mean(own, 'sure'):.0f} → {_mean(own, 'sure_gradient'):.0f} %", f"{_mean(own, 'class_entropy'):.3f}",
            " ".join(f"{rate:.2g}" for rate in rates) + (" (end of those tried)" if edge else ""),
        ])  # fmt: skip
    return lines


def _by_rate(rows: Sequence[Row], rates: Sequence[float], corruptions: int) -> list[list[str]]:
    """The lines of a method, but for DEM's many: mean accuracy over corruptions and orders, where none is missing."""
    lines = []
    for own in _groups([row for row in rows if _family(row) != "dem"], ["objective"]):
        at = [[row for row in own if float(row["rate"]) == rate] for rate in rates]
        lines.append([
            "" if lines else _name(rows[0]), own[0]["objective"],
            *(f"{_mean(each, 'accuracy'):.1f}" if len(each) >= corruptions else "" for each in at),
        ])  # fmt: skip
    return lines


def _name(row: Row) -> str:
    return " ".join(str(row[key]) for key in ARM).strip()


def _family(row: Row) -> str:
    """DEM without τ and α, which the rule chooses as it does the rate: DEM*."""
    return "dem" if row["objective"].startswith("dem:") else str(row["objective"])


def _mean(rows: Sequence[Row], key: str) -> float:
    return fmean(float(row[key] or "nan") for row in rows)
