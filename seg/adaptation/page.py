"""The page of an adaptation: the answer first, then pictures before and after, the classes' shares, the evidence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from dem_apps.report.page import rendered
from dem_apps.report.part import Gallery, shots_of
from dem_apps.report.pictures import Picture, embed
from dem_apps.report.settings_text import flat
from dem_apps.report.tables import Cell, Table
from dem_apps.report.text_tables import write_csv
from dem_apps.runtime.metrics_info import Pictures, View
from seg.adaptation.evidence import Evidence, apart
from seg.adaptation.predictions import STAGES, Predictions
from seg.adaptation.result import Result
from seg.models.trained import TrainedNetwork

_TEMPLATES = Path(__file__).parent / "templates"
#: Images in the page, and bytes of their pictures.
_IMAGES, _BYTES = 8, 8_000_000
_VIEWS = (
    View("image", "image {image}"),
    View("prediction", "classes predicted on {image}, {run} the adaptation", classes=True),
    View("entropy", "entropy on {image}, {run} the adaptation: black is certain, light yellow is undecided",
         low="0, certain", high="1, uniform (entropy / log C)"),
)  # fmt: skip


@dataclass(frozen=True)
class _About:
    """What the gallery's macro asks of a report's description."""

    pictures: Pictures


@dataclass(frozen=True)
class _Part:
    """What the macros of reports ask of a part."""

    info: _About
    gallery: Gallery
    colours: list[tuple[str, str]]
    id: str = "adaptation"
    several: bool = True
    shared_caption: str = "before and after"


def write_result(folder: Path, result: Result, predictions: Predictions, trained: TrainedNetwork) -> None:
    """Write weights, tables, the page and ``adapt.json`` beside the predictions."""
    trained.network.cpu()
    trained.save(folder / "adapted")
    write_csv(folder / "shares.csv", result.shares())
    write_csv(folder / "images.csv", result.images())
    (folder / "report.html").write_bytes(adaptation_page(result, predictions))
    (folder / "adapt.json").write_text(json.dumps(result.document(), indent=2) + "\n", encoding="utf-8")


def adaptation_page(result: Result, predictions: Predictions) -> bytes:
    """One HTML file with everything in it."""
    shares = result.shares()
    return rendered(
        "adapt.html",
        _TEMPLATES,
        result=result,
        facts=_facts(result),
        part=_gallery(result, predictions),
        shares=_shares_table(shares),
        looks=_looks_table(result),
        settings=flat(result.settings),
    )


def _facts(result: Result) -> list[tuple[str, str]]:
    settings, outcome = result.settings, result.outcome
    facts = [("network", str(settings["model"])), ("images", str(len(result.rows["before"])))]
    facts += [("images left out", str(len(result.skipped)))] if result.skipped else []
    facts.append(("method", settings["method"]))
    if outcome.planned:
        facts.append(("objective", f"{settings['loss']}, {settings['reduction']}, learning rate {settings['lr']:g}"))
        facts.append(("batches learnt from", f"{outcome.batches} of {outcome.planned}"))
    facts.append(("mean entropy", "{before:.3f} → {after:.3f}".format(**result.mean_entropy)))
    return facts


def _shares_table(shares: list[dict[str, float]]) -> Table:
    table = Table(
        "Predicted share of the pixels, %",
        [("class", ""), ("before", ""), ("after", ""), ("difference", "points")],
        note="Classes that are never predicted are left out.",
    )
    for row in shares:
        if row["before"] or row["after"]:
            cells = [Cell(f"{100 * row[stage]:.1f}", bar=row[stage]) for stage in STAGES]
            table.rows.append((str(row["class"]), "", [*cells, Cell(f"{100 * row['difference']:+.1f}")]))
    return table


def _looks_table(result: Result) -> Table:
    """The evidence before, and at each look."""
    header = (
        ("look", ""), ("entropy", "0 is certain"), ("information maximisation", "higher is better"),
        ("kept when mirrored", "share of pixels"), ("kept at 3/4 of the size", "share of pixels"),
        ("stability of the classes", "mean IoU between views"), ("classes", "effective number"),
        ("shares moved", "total variation"), ("verdict", ""),
    )  # fmt: skip
    table = Table("What the looks saw", list(header))
    before = result.outcome.before
    table.rows.append(("before", "", [*_evidence_cells(before, before), Cell("–", words=True)]))
    for check in result.outcome.checks:
        cells = [Cell("–")] * (len(header) - 2) if check.evidence is None else _evidence_cells(check.evidence, before)
        verdict = ("" if check.verdict.adapt else "not used: ") + check.verdict.reason
        mark = "used" if check is result.outcome.used else ""
        table.rows.append((f"after batch {check.step}", mark, [*cells, Cell(verdict, words=True)]))
    return table


def _evidence_cells(evidence: Evidence, before: Evidence) -> list[Cell]:
    values = (
        evidence.entropy, evidence.info_max, evidence.mirror, evidence.scale, evidence.stability_on(before),
        evidence.effective_classes, apart(before.shares, evidence.shares),
    )  # fmt: skip
    return [Cell(f"{value:.3f}") for value in values]


def _gallery(result: Result, predictions: Predictions) -> _Part:
    folder, shown = predictions.folder, predictions.folder.spread(_IMAGES)
    pictures: list[Picture] = []
    with TemporaryDirectory() as previews:
        for index in shown:
            name, preview = folder.relative[index].as_posix(), Path(previews) / f"{index}.png"
            Image.fromarray(folder.preview(index)).save(preview)
            for stage in STAGES:
                pictures.append(Picture(stage, name, _VIEWS[0], preview))
                pictures += [
                    Picture(stage, name, view, predictions.file(stage, index, f"{view.name}.png"))
                    for view in _VIEWS[1:]
                ]
        embedded, smaller = embed(pictures, _BYTES)
    shots, _ = shots_of(embedded, list(STAGES), "adaptation")
    notes = [f"{len(shown)} of {len(folder)} images, evenly from the folder."] if len(shown) < len(folder) else []
    colours = [
        (name, f"#{red:02x}{green:02x}{blue:02x}")
        for name, (red, green, blue) in zip(result.classes.names, result.classes.colors, strict=True)
    ]
    gallery = Gallery(list(_VIEWS), list(STAGES), list(shots.items()), [*notes, *([smaller] if smaller else [])])
    return _Part(_About(Pictures("Before and after", "", _VIEWS)), gallery, colours)
