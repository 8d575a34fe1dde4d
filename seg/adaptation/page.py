"""The page of an adaptation: the answer first, then pictures before and after, the classes' shares, the evidence."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from dem_apps.report.page import Section, render
from dem_apps.report.pictures import Gallery, Picture, gallery
from dem_apps.report.runs import flat
from dem_apps.report.tables import Cell, Table, write_csv
from seg.adaptation.evidence import Evidence, apart
from seg.adaptation.predictions import STAGES, Predictions
from seg.adaptation.result import Result
from seg.models.trained_network import TrainedNetwork
from seg.scores.described_metrics import VIEWS

#: Images in the page.
_IMAGES = 8


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
    labels = "Decided without labels. With a few labelled images, --labels gives a score with its 95 % CI."
    if result.score:
        labels = f"With labels: {result.score.sentence}."
    shares = Table("Predicted share of the pixels, %", ["class", *STAGES, "difference"])
    shares.rows.extend((name, list(map(Cell, texts))) for name, *texts in result.shown_shares())
    colours = zip(result.classes.names, result.classes.colors, strict=True)
    sections = [
        Section("Answer", "notes", [result.answer, labels]),
        Section("", "facts", _facts(result)),
        Section("Images left out", "notes", [f"{name}: {why}" for name, why in sorted(result.skipped.items())]),
        Section("Before and after", "gallery", _gallery(predictions)),
        Section("", "colours", [(name, "#{:02x}{:02x}{:02x}".format(*rgb)) for name, rgb in colours]),
        Section("", "text", [f"At most {_IMAGES} images, evenly from the folder."]),
        Section("Classes", "table", shares),
        Section("Evidence", "table", _looks_table(result)),
        Section("Settings", "folded", list(flat(result.settings).items())),
    ]
    return render("Adapted" if result.adapted else "Not adapted", sections)


def _facts(result: Result) -> list[tuple[str, str]]:
    settings, outcome = result.settings, result.outcome
    facts = [("network", str(settings["model"])), ("images", str(len(result.rows["before"])))]
    facts.append(("method", settings["method"]))
    if outcome.planned:
        facts.append(("objective", f"{settings['loss']}, {settings['reduction']}, learning rate {settings['lr']:g}"))
        facts.append(("batches learnt from", f"{outcome.batches} of {outcome.planned}"))
    facts.append(("mean entropy", "{before:.3f} → {after:.3f}".format(**result.mean_entropy)))
    return facts


def _looks_table(result: Result) -> Table:
    """The evidence before, and at each look."""
    header = [
        "look", "entropy", "information maximisation", "stability of the classes", "classes", "shares moved", "verdict",
    ]  # fmt: skip
    table, before = Table("", header), result.outcome.before
    table.rows.append(("before", [*_evidence_cells(before, before), Cell("–")]))
    for check in result.outcome.checks:
        cells = [Cell("–")] * (len(header) - 2) if check.evidence is None else _evidence_cells(check.evidence, before)
        used = "used: " if check is result.outcome.used else "" if check.verdict.adapt else "not used: "
        table.rows.append((f"after batch {check.step}", [*cells, Cell(used + check.verdict.reason)]))
    return table


def _evidence_cells(evidence: Evidence, before: Evidence) -> list[Cell]:
    values = (
        evidence.entropy, evidence.info_max, evidence.stability_on(before), evidence.effective_classes,
        apart(before.shares, evidence.shares),
    )  # fmt: skip
    return [Cell(f"{value:.3f}") for value in values]


def _gallery(predictions: Predictions) -> Gallery:
    folder = predictions.folder
    pictures: list[Picture] = []
    with TemporaryDirectory() as previews:
        for index in folder.spread(_IMAGES):
            name, preview = folder.relative[index].as_posix(), Path(previews) / f"{index}.png"
            picture = folder.picture(index)
            Image.fromarray(folder.description.pixels.preview(picture.values, picture.valid)).save(preview)
            for view in VIEWS[:3]:  # image, prediction, entropy
                for stage in STAGES:
                    file = preview if view.name == "image" else predictions.file(stage, index, f"{view.name}.png")
                    pictures.append(Picture(name, view, stage, file))
        return gallery(pictures)
