"""The tables of what ``benchmarks/adapt_decision.py`` has measured, with the rule of ``seg.adapt`` as it stands now.

    python benchmarks/adapt_decision_tables.py [docs/results/adapt_decision.jsonl]

The rule sees the recorded evidence alone, so that another threshold needs no adaptation again.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from adapt_decision import KEYS, TUNED_ON, key_of
from corrupted_streets import rows_of

from dem_apps.report.intervals import mean_interval
from dem_apps.report.text_tables import markdown
from seg.adaptation.decision import decide
from seg.adaptation.evidence import Evidence

#: Points of mIoU that count as no change.
NOISE = 0.5


def _markdown(rows: list[dict[str, Any]]) -> str:
    parts = {part: [row for row in rows if row["part"] == part] for part in ("decision", "objectives")}
    text = ""
    if parts["decision"]:
        text += _decision_tables(parts["decision"])
    return text + (_objectives_table(parts["objectives"]) if parts["objectives"] else "")


def _decision_tables(rows: list[dict[str, Any]]) -> str:
    """How often single looks are judged right, and what whole adaptations come to."""
    looks, whole = [], []
    for name, tuned in (("tuned on", True), ("held out", False)):
        ours = [row for row in rows if (row["corruption"] in (*TUNED_ON, "clean")) == tuned]
        judged = {
            (*key_of(row)[2:5], "" if place == 0 else str(key_of(row)[5:]), place): _judged(row, check)
            for row in ours
            for place, check in enumerate(row["checks"])
        }
        harm = [adapt for gain, adapt in judged.values() if gain < -NOISE]
        helped = [adapt for gain, adapt in judged.values() if gain > NOISE]
        looks.append([
            name, str(len(judged)), f"{harm.count(False)} of {len(harm)} ({harm.count(False) / len(harm):.0%})",
            f"{helped.count(False)} of {len(helped)} ({helped.count(False) / len(helped):.0%})",
        ])  # fmt: skip
        for domain in ("home", "target"):
            here = [row for row in ours if row["domain"] == domain]
            if here:
                ends = np.array([_ends(row) for row in here])
                whole.append([f"{name}, {domain}", str(len(here)), *(f"{value:.1f}" for value in ends.mean(0)),
                              str(int((ends[:, 2] < ends[:, 0] - NOISE).sum())),
                              str(int((ends[:, 1] < ends[:, 0] - NOISE).sum()))])  # fmt: skip
    return markdown(["corruptions", "looks", "harmful, caught", "helpful, stopped"], looks) + markdown(
        ["corruptions", "adaptations", "as it was", "always adapted", "by the answer", "best look",
         "by the answer worse than as it was", "always adapted worse than as it was"], whole,
    )  # fmt: skip


def _judged(row: dict[str, Any], check: dict[str, Any]) -> tuple[float, bool]:
    """The gain of a look in mIoU points, and whether it would be used."""
    gain = 100 * (check["miou"] - row["before"]["miou"])
    if check["evidence"] is None:
        return gain, False
    before, after = (Evidence(**each["evidence"]) for each in (row["before"], check))
    return gain, decide(before, after).adapt


def _ends(row: dict[str, Any]) -> tuple[float, float, float, float]:
    """mIoU % of an adaptation as it was, at its end, as ``seg.adapt`` would have left it, and at the best look."""
    before = Evidence(**row["before"]["evidence"])
    used, best = row["before"]["miou"], 0.0
    for check in row["checks"]:
        adapt = _judged(row, check)[1]
        if not adapt and check["step"]:
            break
        if adapt and (value := Evidence(**check["evidence"]).stability_on(before)) >= best:
            used, best = check["miou"], value
    scores = [check["miou"] for check in row["checks"]]
    return 100 * row["before"]["miou"], 100 * scores[-1], 100 * used, 100 * max(row["before"]["miou"], *scores)


def _objectives_table(rows: list[dict[str, Any]]) -> str:
    """Mean mIoU over the corruptions that have every arm, by what was minimised."""
    arms = {key_of(row)[5:] for row in rows}
    counts = Counter(key_of(row)[2:5] for row in rows)
    rows = [row for row in rows if counts[key_of(row)[2:5]] == len(arms)]
    lines = []
    for domain in ("home", "target"):
        here = [row for row in rows if row["domain"] == domain]
        if not here:
            continue
        places = {key_of(row)[2:5]: row for row in here}
        domain = f"{domain}, {len(places)} corruptions"
        for name, place in (("as it was", None), ("batch statistics", 0)):
            found = [row["before"] if place is None else row["checks"][place] for row in places.values()]
            lines.append([domain, name, "", "", f"{100 * np.mean([each['miou'] for each in found]):.2f}", ""])
        for method, objective, reduction in dict.fromkeys(tuple(row[key] for key in KEYS[5:8]) for row in here):
            ours = [row for row in here if tuple(row[key] for key in KEYS[5:8]) == (method, objective, reduction)]
            apart = mean_interval([100 * (row["checks"][-1]["miou"] - row["checks"][0]["miou"]) for row in ours])
            ends = "" if apart.low is None else f" [{apart.low:+.2f}, {apart.high:+.2f}]"
            score = 100 * np.mean([row["checks"][-1]["miou"] for row in ours])
            lines.append([domain, method, objective, reduction, f"{score:.2f}", f"{apart.estimate:+.2f}{ends}"])
    return markdown(["pictures", "method", "objective", "reduction", "mIoU %", "less batch statistics"], lines)


if __name__ == "__main__":
    print(_markdown(rows_of(Path(*sys.argv[1:2] or ["docs/results/adapt_decision.jsonl"]))), end="")
