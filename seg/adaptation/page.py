"""The page of an adaptation, ``report.html``: answer, pictures before and after, class shares and settings."""

from __future__ import annotations

from PIL import Image

from dem_apps.report.page import Section, render
from dem_apps.report.pictures import Gallery, Picture, gallery, image_uri, picture_uri
from dem_apps.report.runs import flat
from dem_apps.report.tables import Cell, Table
from seg.adaptation.images import STAGES, Predictions
from seg.adaptation.result import Result
from seg.data.files import evenly
from seg.scores.report_scores import VIEWS

#: Images in the page.
_IMAGES = 8


def adaptation_page(result: Result, predictions: Predictions) -> bytes:
    """One HTML file with everything in it."""
    header, *rows = result.shown_shares()
    shares = [(name, list(map(Cell, texts))) for name, *texts in rows]
    skipped = [f"{name}: {why}" for name, why in sorted(result.skipped.items())]
    legend = [
        (name, "#{:02x}{:02x}{:02x}".format(*rgb))
        for name, rgb in zip(result.classes.names, result.classes.colors, strict=True)
    ]
    sections = [
        Section("Answer", "notes", [result.answer]),
        Section("Labels of these images would measure it (--labels)", "notes", result.to_label),
        Section("", "facts", _facts(result)),
        Section("Images left out", "notes", skipped),
        Section("Before and after", "gallery", _gallery(predictions)),
        Section("", "colours", legend),
        Section("", "text", [f"At most {_IMAGES} images, evenly from the folder."]),
        Section("Classes", "table", Table("Predicted share of the pixels", header, shares)),
        Section("Settings", "folded", list(flat(result.settings).items())),
    ]
    return render(result.headline, sections)


def _facts(result: Result) -> list[tuple[str, str]]:
    entropy = result.mean_entropy
    outcome = result.outcome
    facts = {
        "network": str(result.settings["model"]),
        "images": str(len(result.names)),
        "assumed": result.assumed,
        "normalisations compared": result.normalisation.sentence,
        "method": result.method,
        "mean entropy": f"{entropy['before']:.3f} → {entropy['after']:.3f}",
    }
    if outcome.planned:
        facts["objective"] = result.learning(outcome.used)
        facts["batches learnt from"] = f"{outcome.batches} of {outcome.planned}"
    return [(name, value) for name, value in facts.items() if value]


def _gallery(predictions: Predictions) -> Gallery:
    folder = predictions.folder
    pictures = list[Picture]()
    for index in evenly(range(len(folder)), _IMAGES):
        name = folder.relative[index].as_posix()
        picture = folder.shown(index)
        preview = folder.description.pixels.preview(picture.values, picture.valid)
        pictures.append(
            Picture("image", image_uri(Image.fromarray(preview), False), name, VIEWS[0])
        )
        for stage in STAGES:
            for view in VIEWS[1:3]:  # prediction, entropy
                file = predictions.file(stage, index, f"{view.name}.png")
                pictures.append(Picture(stage, picture_uri(file, view.classes), name, view))
    return gallery(pictures)
