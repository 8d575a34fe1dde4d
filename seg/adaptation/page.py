"""The page of an adaptation, ``report.html``: answer, pictures before and after, class shares and settings."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from dem_apps.report.page import Section, render
from dem_apps.report.pictures import Gallery, Picture, gallery, picture_uri
from dem_apps.report.runs import flat
from dem_apps.report.tables import Cell, Table
from seg.adaptation.images import REFUSED, Predictions
from seg.adaptation.result import Result, class_shares
from seg.data.files import evenly
from seg.scores.evidence import moved
from seg.scores.report_scores import VIEWS

#: Images in the page.
_IMAGES = 8


def adaptation_page(result: Result, predictions: Predictions) -> bytes:
    """One HTML file with everything in it."""
    header, *rows = result.shown_shares()
    shares = [(name, list(map(Cell, texts))) for name, *texts in rows]
    skipped = [f"{name}: {why}" for name, why in sorted(result.skipped.items())]
    compared = result.adapted or result.refused
    heading, order = "Predictions", "evenly from the folder"
    if compared:
        heading = f"Before and {'after' if result.adapted else 'refused'}"
        order = "those whose shares of the classes moved most"
    colours = zip(result.classes.names, result.classes.colors, strict=True)
    legend = [(name, "#{:02x}{:02x}{:02x}".format(*rgb)) for name, rgb in colours]
    sections = [
        Section("Answer", "notes", _notes(result)),
        Section("", "facts", _facts(result)),
        Section("Images left out", "notes", skipped),
        Section(heading, "slider" if compared else "gallery", _gallery(predictions, result)),
        Section("", "colours", legend),
        Section("", "text", [f"At most {_IMAGES} images, {order}."]),
        Section("Classes", "table", Table("Predicted share of the pixels", header, shares)),
        Section("Settings", "folded", list(flat(result.settings).items())),
    ]
    return render(result.headline, sections)


def _notes(result: Result) -> list[str]:
    """The answer, and the score where the answer does not hold it."""
    score = result.score
    if score is None or score.sentence in result.answer:
        return [result.answer]
    return [result.answer, f"With labels: {score.sentence}."]


def _facts(result: Result) -> list[tuple[str, str]]:
    entropy = result.mean_entropy
    facts = {
        "network": str(result.settings["model"]),
        "images": str(len(result.rows["before"])),
        "images seen as": result.normalisation.used.said,
        "normalisations compared": result.normalisation.sentence,
        "method": result.settings["method"],
        "mean entropy": f"{entropy['before']:.3f} → {entropy['after']:.3f}",
    }
    if result.outcome.planned:
        facts["objective"] = result.learning(result.outcome.used)
        facts["batches learnt from"] = f"{result.outcome.batches} of {result.outcome.planned}"
    return [(name, value) for name, value in facts.items() if value]


def _gallery(predictions: Predictions, result: Result) -> Gallery:
    folder, pictures = predictions.folder, list[Picture]()
    title, stage = ("refused", REFUSED) if result.refused else ("after", "after")
    paths = [path.as_posix() for path in folder.relative]
    old, new = (predictions.rows[each] for each in ("before", stage))
    away = [moved(class_shares(old[path].pixels), class_shares(new[path].pixels)) for path in paths]
    chosen = evenly(range(len(folder)), _IMAGES)
    if any(away):
        chosen = sorted(range(len(folder)), key=lambda index: -away[index])[:_IMAGES]
    with TemporaryDirectory() as previews:
        for index in chosen:
            name = f"{paths[index]}: shares moved by {away[index]:.3f}"
            picture = folder.shown(index)
            shown = folder.description.pixels.preview(picture.values, picture.valid)
            preview = Path(previews) / f"{index}.png"
            Image.fromarray(shown).save(preview)
            for side, folder_of_side in (("before", "before"), (title, stage)):
                pictures.append(Picture(side, picture_uri(preview, False), name, VIEWS[0]))
                for view in VIEWS[1:3]:  # prediction, entropy
                    file = predictions.file(folder_of_side, index, f"{view.name}.png")
                    pictures.append(Picture(side, picture_uri(file, view.classes), name, view))
        return gallery(pictures)
