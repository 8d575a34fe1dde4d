"""Charts: their points, bands, values and distributions."""

from __future__ import annotations

import re
from pathlib import Path

from support import report_runs as make

from dem_apps.report.charts import Series, line_chart, short, ticks
from dem_apps.report.curves import histogram_chart, reliability_chart
from dem_apps.report.groups import grouped
from dem_apps.runtime.run_reader import read_runs
from seg.scores.described_metrics import described_metrics

INFO = described_metrics("im", 19)


def test_charts() -> None:
    many = Series("many", range(2000), [5.0 if x == 777 else 1.0 for x in range(2000)])
    chart = line_chart("<Title>", [many])
    assert chart.svg.count(",") < 400
    assert ' aria-label="Line chart, &lt;Title&gt;: many ends at 1, range 1 to 5"' in chart.svg
    heights = {point.split(",")[1] for point in re.search(r'points="([^"]+)"', chart.svg).group(1).split()}  # type: ignore[union-attr]
    assert len(heights) == 2  # the spike is there
    banded = line_chart("t", [Series("s", [0, 1], [0.9, 1.0], ([0.5, 0.8], [1.3, 1.2]))], bounds=(0, 1))
    # the picture ends where values end, the numbers are as they are
    assert 'class="band c0 d0" points="50.0,10.0 370.0,10.0 ' in banded.svg
    assert banded.rows[0][2] == "0.5000 to 1.300"
    assert ticks(0, 100352, 4) == [0, 50000, 100000]
    assert [short(value) for value in (None, 0.0, 12345.6, 0.20614, 1.2e-6)] == [
        "–",
        "0",
        "12346",
        "0.2061",
        "1.200e-06",
    ]


def test_a_line_carries_its_values() -> None:
    chart = line_chart("t", [Series("a<b", [1, 2], [0.25, 0.5]), Series("guide", [1, 2], [0, 1], colour=None)])
    assert chart.svg.count("data-values") == 1
    assert 'data-name="a&lt;b" data-values="1|0.2500;2|0.5000"' in chart.svg


def test_distributions_are_pooled_by_pixels(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / f"run-seed{seed}", seed=seed) for seed in range(2)]
    document = make.seg_evaluation(0.3)
    document["reliability"] = {"pixels": [0, 90, 0], "confidence": [None, 0.6, None], "accuracy": [None, 0.8, None]}
    make.write_json(paths[1] / "eval.json", document)
    chart = reliability_chart(INFO.reliability, grouped(read_runs(paths)))
    assert chart is not None
    # (30 · 0.5 + 90 · 0.6) / 120 and (30 · 0.4 + 90 · 0.8) / 120
    assert chart.rows[0] == ["0.5750", "0.7000"]
    histogram = histogram_chart(INFO.histogram, grouped(read_runs(paths)))
    assert histogram is not None
    assert histogram.rows == [["0.2500", "0.6000", "0.1000"], ["0.7500", "0.1000", "0.2000"]]
