"""Tables of docs/appendix.md about drawn streets, made from the raw rows in docs/results."""

from statistics import fmean

from csv_rows import beside, interval

from dem_apps.report.intervals import Interval, difference_interval
from dem_apps.report.tables import markdown
from support.result_tables import rows

#: Labelled target images, and the part of them by its name in the rows.
LABELLED = {"15": "1-of-16", "30": "1-of-8", "60": "1-of-4", "240": "all"}


def scores(name: str, arm: str) -> dict[tuple[str, str], float]:
    """Mean IoU % of an arm's runs, by world and seed."""
    found = {}
    for row in rows(name):
        *world, own, seed = row["run"].split("/")
        if own == arm:
            found["/".join(world), seed] = 100 * float(row["miou"])
    return found


def few_labels_table() -> str:
    """A few labelled target images."""
    lines = []
    for title, arm in (("source, target statistics", "control"), ("the same as best", "best")):
        found = [miou for (world, _), miou in scores("seg_worlds", arm).items() if world == "demo"]
        lines.append([title, f"{fmean(found):.1f}", *[""] * len(LABELLED)])
    arms = {
        "these images alone": ["labels-instead"],
        "FixMatch; UniMatch": ["fixmatch", "unimatch"],
        "these images and the source": ["labels-beside"],
        "these and best": ["best-beside"],
    }
    for title, names in arms.items():
        cells = []
        for part in LABELLED.values():
            found = [[miou for (own, _), miou in scores("seg_labelled", arm).items() if own == part] for arm in names]
            cells.append("; ".join(f"{fmean(each):.1f}" for each in found if each))
        lines.append([title, "", *cells])
    return markdown(["trained on", "0", *LABELLED], lines)


def random_weights_table() -> str:
    """Training from random weights: differences to the control."""
    arms = {
        "control": ["control"],
        "source only": ["source-only"],
        "best": ["best"],
        "Fourier style": ["fourier"],
        "control, for self-training's time": ["compute-matched"],
        "self-training": ["self-training"],
        "AdaDEM": ["adadem"],
        "entropy": ["entropy"],
        "AdaDEM-Norm; DEM*": ["adadem-norm", "dem"],
        "AdvEnt; with AdaDEM": ["advent", "advent-adadem"],
        "AdaBN after training": ["re-estimated"],
        "statistics of both domains": ["mixed-statistics"],
    }
    lines = []
    for title, names in arms.items():
        cells = []
        for file in ("seg_worlds", "seg_camvid"):
            control = scores(file, "control")
            found = [scores(file, name) for name in names]
            if names == ["control"]:
                cells.append(f"{fmean(control.values()):.1f} ({len(control)})")
            else:
                cells.append("; ".join(_with_pairs(each, control) for each in found if each))
        lines.append([title, *cells])
    return markdown(["arm", "synthetic worlds", "CamVid"], lines)


def _with_pairs(ours: dict[tuple[str, str], float], control: dict[tuple[str, str], float]) -> str:
    apart: Interval = difference_interval(ours, control)
    return f"{interval(apart)} ({len(ours.keys() & control.keys())})"


def large_weights_table() -> str:
    """Weights that are too large: fixed, and relative to the source's cross-entropy."""
    control = scores("seg_weights", "control")
    lines = [["control", f"{fmean(control.values()):.1f}", ""]]
    arms = {
        "×1": ["x1", "x1-relative"],
        "×3": ["x3", "x3-relative"],
        "×10": ["x10", "x10-relative"],
        "entropy ×10": ["entropy-x10", "none"],
    }
    for title, names in arms.items():
        found = [scores("seg_weights", name) for name in names]
        lines.append([title, *(beside(each, control) if each else "" for each in found)])
    return markdown(["arm", "fixed weight", "relative"], lines)
