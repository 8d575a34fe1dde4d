"""docs/metrics.md explains every heading that a table prints; the keys of files are compared where runs are made."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table
from support import pages

from dem_apps.report.runs import Run
from rl.results.comparison import Comparison, goal_table, returns_table
from rl.results.described_metrics import described_metrics
from rl.results.evaluator import results_table
from seg.adaptation.page import _looks_table
from seg.adaptation.result import shares_table
from seg.data.check import _class_table, _overview
from seg.scores.described_metrics import CLASSES, SCORES
from seg.scores.tables import checkpoints_table, score_table

PAGE = (pages.ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
#: Of a name that stands for many: what differs in it.
ANY = re.compile(r"…|CONTROL|BASELINE")


def explained() -> list[re.Pattern[str]]:
    """The headings of the page's last table, as patterns."""
    section = PAGE.partition("## Printed tables and CSV files")[2]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 50
    return [re.compile(".+".join(map(re.escape, ANY.split(name)))) for name in names]


def of_rich(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]


def of_markdown(text: str) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")]


def segmentation() -> list[str]:
    scores = {"per_class_iu": {"road": 0.5}, "label_free": {"im": 0.5}, "miou": None}
    scores |= dict.fromkeys(("pixel_accuracy", "mean_entropy_normalised", "calibration_error", "error_ranking_auroc"))
    table = score_table(scores, "scores")
    rows = [str(cell) for cell in table.columns[0].cells]
    looks = _looks_table(SimpleNamespace(outcome=SimpleNamespace(before=EVIDENCE, checks=[])))
    return [
        *of_rich(table), *rows, *of_rich(checkpoints_table({})), *of_rich(_overview({})),
        *of_rich(_class_table({"target val": []}, ("road",))), *of_rich(shares_table([])),
        *(score.title for score in SCORES), *(column.title for column in CLASSES), *looks.header,
    ]  # fmt: skip


EVIDENCE = SimpleNamespace(
    entropy=0.1, info_max=0.1, mirror=0.9, scale=0.9, stability=[0.9], effective_classes=2.0, shares=[0.5, 0.5]
)


def reinforcement() -> list[str]:
    scores = {"sampled": {"mean_return": 0.5}, "greedy": {"mean_return": 0.5}, "steps_without_goal": 1}
    runs = [Run("", Path(), described_metrics(), {"env": "E-v0", "seed": 0}, evaluation=scores) for _ in range(2)]
    compared = Comparison(runs, ["none", "adadem"])
    tables = (returns_table(compared, "none"), goal_table(compared, "none"))
    return [*of_rich(results_table("", [])), *(heading for table in tables for heading in of_markdown(table))]


@pytest.mark.parametrize("headings", [segmentation, reinforcement])
def test_every_printed_heading_is_explained(headings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seg.adaptation.page._evidence_cells", lambda *_: [])
    patterns = explained()
    printed = [heading for heading in headings() if heading]
    assert len(printed) > 10
    missing = [heading for heading in printed if not any(pattern.fullmatch(heading) for pattern in patterns)]
    assert not missing
