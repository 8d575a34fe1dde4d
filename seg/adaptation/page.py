"""The page of an adaptation, ``report.html``: answer, pictures before and after, shares, evidence and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from dem_apps.report.page import Frames, Section, render
from dem_apps.report.pictures import Gallery, Picture, class_map_uri, gallery, picture_uri
from dem_apps.report.runs import flat
from dem_apps.report.tables import Cell, Table
from seg.adaptation.adaptation import SHOWN
from seg.adaptation.images import REFUSED, Predictions
from seg.adaptation.result import Result, class_shares
from seg.data.files import evenly
from seg.inference.adaptive_batch_norm import SHARES
from seg.maps.run_pictures import MOST_SHOWN
from seg.scores.evidence import Evidence, moved
from seg.scores.report_scores import VIEWS

#: Images in the page.
_IMAGES = 8


def adaptation_page(result: Result, predictions: Predictions) -> bytes:
    """One HTML file with everything in it."""
    # which the answer may hold already
    said = "" if result.score is None else result.score.sentence
    notes = [result.answer, *([f"With labels: {said}."] if said not in result.answer else [])]
    header, *rows = result.shown_shares()
    shares = Table(
        "Predicted share of the pixels",
        header,
        [(name, list(map(Cell, texts))) for name, *texts in rows],
    )
    shown = (
        "Before and after"
        if result.adapted
        else "Before and refused"
        if result.refused
        else "Predictions"
    )
    colours = zip(result.classes.names, result.classes.colors, strict=True)
    compared = result.adapted or result.refused
    order = "those whose shares of the classes moved most" if compared else "evenly from the folder"
    sections = [
        Section("Answer", "notes", notes),
        Section("", "facts", _facts(result, predictions.folder.sizes)),
        Section(
            "Images left out",
            "notes",
            [f"{name}: {why}" for name, why in sorted(result.skipped.items())],
        ),
        Section(shown, "slider" if compared else "gallery", _gallery(predictions, result)),
        Section(
            "", "colours", [(name, "#{:02x}{:02x}{:02x}".format(*rgb)) for name, rgb in colours]
        ),
        Section("", "text", [f"At most {_IMAGES} images, {order}."]),
        Section(
            "By share of the images' batch norm statistics", "frames", _frames(result, predictions)
        ),
        Section("Classes", "table", shares),
        Section("Evidence", "table", _looks_table(result)),
        Section("Settings", "folded", list(flat(result.settings).items())),
    ]
    return render(result.headline, sections)


def _facts(result: Result, sizes: Sequence[tuple[int, int]]) -> list[tuple[str, str]]:
    settings, outcome = result.settings, result.outcome
    images = str(len(result.rows["before"]))
    (width, height), others = Counter(sizes).most_common(1)[0][0], len(set(sizes)) - 1
    other = f" and {others} other size{'s' * (others > 1)}" if others else ""
    classes = f"{len(result.classes)}: {', '.join(result.classes.names[:4])}{', …' * (len(result.classes) > 4)}"
    facts = [
        ("network", str(settings["model"])),
        ("images", images),
        ("method", settings["method"]),
    ]
    facts += [
        ("images seen as", result.trial.used.said),
        ("images seen at", f"{width}×{height}{other}"),
    ]
    facts.append(("classes", classes))
    facts += [("normalisations tried", result.trial.sentence)] if result.trial.sentence else []
    if outcome.planned:
        facts.append(("objective", result.learning(outcome.used)))
        facts.append(("batches learnt from", f"{outcome.batches} of {outcome.planned}"))
    shown = "{before:.3f} → {after:.3f}" if result.adapted else "{before:.3f}"
    facts.append(("mean entropy", shown.format(**result.mean_entropy)))
    return facts


def _frames(result: Result, predictions: Predictions) -> Frames | None:
    """Class maps of a few images at every share that was looked at, those that change most first."""
    outcome = result.outcome
    if len(outcome.tried) < 2:
        return None
    unit, scale = ("mIoU {:.1f} %", 100) if outcome.baseline else ("stability score {:.3f}", 1)
    scores = zip(SHARES, outcome.tried, strict=True)
    captions = [f"share {share:g}: {unit.format(scale * score)}" for share, (score, _) in scores]
    names = [predictions.folder.name(index) for index in predictions.folder.spread(SHOWN)]
    images = list(zip(names, zip(*(maps for _, maps in outcome.tried), strict=True), strict=True))
    images.sort(key=lambda image: -float((image[1][0] != image[1][-1]).mean()))
    colours = result.classes.colors
    uris = [(name, [class_map_uri(each, colours) for each in maps]) for name, maps in images]
    return Frames(captions, SHARES.index(outcome.share or 0.0), uris)


def _looks_table(result: Result) -> Table:
    """The evidence before, and at each look."""
    numbers = [
        "entropy",
        "information maximisation",
        "stability of the classes",
        "classes",
        "shares moved",
    ]
    header = ["look", *numbers, "verdict"]
    table, before = Table("", header), result.outcome.before
    table.rows.append(("before", [*_evidence_cells(before, before), Cell("–")]))
    for check in result.outcome.checks:
        cells = (
            [Cell("–")] * len(numbers)
            if check.evidence is None
            else _evidence_cells(check.evidence, before)
        )
        # the answer has that of the used one
        reason = "used" if check is result.outcome.used else check.verdict.reason
        reason = reason if check.verdict.adapt else f"not used: {reason}"
        look = f"after batch {check.step}" if check.step else "the statistics alone"
        look = look if check.learning is None else f"a step of {result.learning(check)}"
        table.rows.append((look, [*cells, Cell(reason)]))
    return table


def _evidence_cells(evidence: Evidence, before: Evidence) -> list[Cell]:
    values = (
        evidence.entropy,
        evidence.info_max,
        evidence.stability_on(before),
        evidence.effective_classes,
        moved(before.shares, evidence.shares),
    )
    return [Cell(f"{value:.3f}") for value in values]


def _gallery(predictions: Predictions, result: Result) -> Gallery:
    folder, pictures = predictions.folder, list[Picture]()
    stages = {
        "before": "before",
        **({"refused": REFUSED} if result.refused else {"after": "after"}),
    }
    old, new = (predictions.rows[stage] for stage in stages.values())
    paths = [path.as_posix() for path in folder.relative]
    away = [moved(class_shares(old[path].pixels), class_shares(new[path].pixels)) for path in paths]
    chosen = evenly(range(len(folder)), _IMAGES)
    if any(away):
        chosen = sorted(range(len(folder)), key=lambda index: -away[index])[:_IMAGES]
    with TemporaryDirectory() as previews:
        for index in chosen:
            path, preview = paths[index], Path(previews) / f"{index}.png"
            name = f"{path}: shares moved by {away[index]:.3f}" if any(away) else path
            with folder.opened(index) as opened:
                picture = opened.reduced(MOST_SHOWN)
            Image.fromarray(folder.description.pixels.preview(picture.values, picture.valid)).save(
                preview
            )
            for view in VIEWS[:3]:  # image, prediction, entropy
                for title, stage in stages.items():
                    file = (
                        preview
                        if view.name == "image"
                        else predictions.file(stage, index, f"{view.name}.png")
                    )
                    pictures.append(Picture(title, picture_uri(file, view.classes), name, view))
        return gallery(pictures)
